/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"
#include "cli.h"
#include "text.h"

#define PROGRESS_BAR 24
#define PROGRESS_DRAW_MS 100  /* not oftener */
#define PROGRESS_START_MS 300 /* what is over sooner shows nothing */

struct progress {
        bool terminal, lines, drawn;
        char *last; /* step */
        char *shown; /* what stands on the terminal */
        const char *prefix; /* what is announced; NULL: nothing, or done */
        char *announcement;
        uint64_t began_ms, drawn_ms;
};

struct progress *progress_new(bool lines) {
        struct progress *p = mem_new(sizeof *p);
        const char *term = getenv("TERM");

        p->terminal = !cli()->json && isatty(STDERR_FILENO) && term && !str_eq(term, "dumb");
        p->lines = !cli()->json && !p->terminal && lines;
        p->began_ms = clock_mono_ms();
        return p;
}

static bool due(struct progress *p) {
        uint64_t now = clock_mono_ms();

        if (!p->terminal || now - p->began_ms < PROGRESS_START_MS || now - p->drawn_ms < PROGRESS_DRAW_MS)
                return false;
        p->drawn_ms = now;
        return true;
}

/* One that fills the last column would be two lines on some terminals, and what is drawn next would leave the first
 * behind. What says least stands last, and is cut. */
static void draw(struct progress *p, const char *line) {
        unsigned columns = text_columns(STDERR_FILENO);

        if (p->drawn && str_eq(p->shown, line))
                return;
        free(p->shown);
        p->shown = mem_dup(line);
        fprintf(stderr, "\r\033[K%.*s", (int) text_fit(line, columns > 1 ? columns - 1 : 0), line);
        fflush(stderr);
        p->drawn = true;
}

/* "12 s left"; "" when it is not known, or as good as over. */
static void time_left(int64_t s, char out[TEXT_SIZE]) {
        out[0] = '\0';
        if (s > 0 && s < 60)
                (void) snprintf(out, TEXT_SIZE, "%lld s left", (long long) s);
        else if (s >= 60)
                (void) snprintf(out, TEXT_SIZE, "%lld min left", (long long) (s + 30) / 60);
}

static void bar(char out[PROGRESS_BAR + 3], int percent) {
        int full = percent * PROGRESS_BAR / 100;

        out[0] = '[';
        for (int i = 0; i < PROGRESS_BAR; i++)
                out[1 + i] = i < full ? '#' : '.';
        out[PROGRESS_BAR + 1] = ']';
        out[PROGRESS_BAR + 2] = '\0';
}

void progress_announce(struct progress *p, const char *prefix, const char *text) {
        free(p->announcement);
        p->announcement = mem_dup(text);
        p->prefix = prefix;
}

void progress_step(struct progress *p, const char *step, int percent, int64_t eta_s) {
        _cleanup_free_ char *safe = text_safe(step);

        if (p->prefix && str_has_prefix(step, p->prefix) && !p->terminal) {
                cli_note("%s", p->announcement);
                p->prefix = NULL;
        }
        if (p->lines && !str_eq(p->last, safe)) {
                free(p->last);
                p->last = mem_dup(safe);
                fprintf(stderr, "%s\n", safe);
        }
        if (!due(p))
                return;
        char b[PROGRESS_BAR + 3], left[TEXT_SIZE];
        if (percent < 0) {
                (void) snprintf(left, sizeof left, "%llu s", (unsigned long long) (clock_mono_ms() - p->began_ms) / 1000);
                _cleanup_free_ char *line = mem_printf("%s  %s ...", left, safe);
                draw(p, line);
                return;
        }
        bar(b, percent > 100 ? 100 : percent);
        time_left(eta_s, left);
        _cleanup_free_ char *line = mem_printf("%s %3d %%%s%s  %s", b, percent, *left ? "  " : "", left, safe);
        draw(p, line);
}

void progress_bytes(struct progress *p, const char *what, uint64_t done, uint64_t total) {
        char b[PROGRESS_BAR + 3], size[TEXT_SIZE], rate[TEXT_SIZE], left[TEXT_SIZE];

        if (!due(p))
                return;
        _cleanup_free_ char *safe = text_safe(what);
        uint64_t ms = clock_mono_ms() - p->began_ms;
        uint64_t per_s = (uint64_t) ((double) done * 1000 / (double) (ms ? ms : 1));
        text_size(done, size);
        text_size(per_s, rate);
        if (total == 0 || done > total) {
                _cleanup_free_ char *line = mem_printf("%s  %s, %s/s", safe, size, rate);
                draw(p, line);
                return;
        }
        int percent = (int) ((double) done * 100 / (double) total);
        bar(b, percent);
        time_left(per_s ? (int64_t) ((total - done) / per_s) : -1, left);
        _cleanup_free_ char *line =
                mem_printf("%s %3d %%%s%s  %s  %s, %s/s", b, percent, *left ? "  " : "", left, safe, size, rate);
        draw(p, line);
}

void progress_clear(struct progress *p) {
        if (p && p->drawn) {
                fputs("\r\033[K", stderr);
                fflush(stderr);
                p->drawn = false;
        }
}

void progress_free(struct progress *p) {
        if (!p)
                return;
        progress_clear(p);
        free(p->last);
        free(p->announcement);
        free(p->shown);
        free(p);
}
