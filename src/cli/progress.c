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

static void draw(struct progress *p, const char *line) {
        unsigned columns = text_columns(STDERR_FILENO);
        size_t n = strlen(line);

        /* Cut by bytes only where each is a column. */
        if (text_width(line) >= columns && text_width(line) == n)
                n = columns > 1 ? columns - 1 : 0;
        fprintf(stderr, "\r\033[K%.*s", (int) n, line);
        fflush(stderr);
        p->drawn = true;
}

static void bar(char out[PROGRESS_BAR + 3], int percent) {
        int full = percent * PROGRESS_BAR / 100;

        out[0] = '[';
        for (int i = 0; i < PROGRESS_BAR; i++)
                out[1 + i] = i < full ? '#' : '.';
        out[PROGRESS_BAR + 1] = ']';
        out[PROGRESS_BAR + 2] = '\0';
}

void progress_step(struct progress *p, const char *step, int percent, int64_t eta_s) {
        _cleanup_free_ char *safe = text_safe(step);

        if (p->lines && !str_eq(p->last, safe)) {
                free(p->last);
                p->last = mem_dup(safe);
                fprintf(stderr, "%s\n", safe);
        }
        if (!due(p))
                return;
        char b[PROGRESS_BAR + 3], left[TEXT_SIZE];
        if (percent < 0) {
                text_duration(clock_mono_ms() - p->began_ms, left);
                _cleanup_free_ char *line = mem_printf("%s ... %s", safe, left);
                draw(p, line);
                return;
        }
        bar(b, percent > 100 ? 100 : percent);
        text_duration(eta_s > 0 ? (uint64_t) eta_s * 1000 : 0, left);
        _cleanup_free_ char *line = eta_s >= 0 ? mem_printf("%s %3d %%  %s, %s left", b, percent, safe, left)
                                               : mem_printf("%s %3d %%  %s", b, percent, safe);
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
        text_duration(per_s ? (total - done) / per_s * 1000 : 0, left);
        _cleanup_free_ char *line =
                mem_printf("%s %3d %%  %s  %s, %s/s, %s left", b, percent, safe, size, rate, left);
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
        free(p);
}
