/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Progress lines and the log. A step's weight is its share of a typical build's time, so that
 * `overall` moves evenly and a client can tell the time left from it.
 */
#include "build.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"

static const struct {
        const char *name;
        unsigned weight[2]; /* by source; each column adds up to 100 */
} steps[BUILD_STEPS] = {
        [STEP_DOWNLOAD] = { "download", { 25, 15 } },
        [STEP_ROOTFS] = { "rootfs", { 52, 45 } },
        [STEP_CONFIGURE] = { "configure", { 2, 5 } },
        [STEP_KERNEL] = { "kernel", { 9, 15 } },
        [STEP_DISK] = { "disk", { 9, 15 } },
        [STEP_FINISH] = { "finish", { 3, 5 } },
};

static void put_line(json_t *line) {
        char *text = line ? json_to_str(line) : NULL;

        if (text) {
                /* One write, so that lines never mix; a reader that went away is no error. */
                size_t n = strlen(text);
                text[n] = '\n';
                (void) fd_write_all(STDOUT_FILENO, text, n + 1, NULL);
        }
        free(text);
}

static unsigned overall(const struct build *b, unsigned percent) {
        unsigned done = 0;

        for (unsigned i = 0; i < b->step; i++)
                done += steps[i].weight[b->source];
        return done + steps[b->step].weight[b->source] * percent / 100;
}

static void put_progress(const struct build *b, unsigned percent, const char *message) {
        _cleanup_json_ json_t *line =
                json_pack("{s:s,s:i,s:i,s:i,s:i,s:s}", "step", steps[b->step].name, "index", (int) b->step + 1, "of",
                          BUILD_STEPS, "percent", (int) percent, "overall", (int) overall(b, percent), "message", message);

        put_line(line);
}

void build_step(struct build *b, enum build_step step, const char *message) {
        b->step = step;
        b->percent_sent = 0;
        build_logf(b, "== %s: %s\n", steps[step].name, message);
        put_progress(b, 0, message);
}

void build_progress(struct build *b, unsigned percent, const char *message) {
        if (percent > 100)
                percent = 100;
        if (percent <= b->percent_sent)
                return;
        b->percent_sent = percent;
        put_progress(b, percent, message);
}

void build_done(const struct build *b, const char *digest) {
        (void) b;
        _cleanup_json_ json_t *line = json_pack("{s:b,s:s,s:i,s:s}", "done", 1, "digest", digest, "overall", 100,
                                                "message", "the root filesystem, kernel and initramfs are complete");
        put_line(line);
}

static const char *code_of(const struct build *b, const struct error *err) {
        if (b->code)
                return b->code;
        switch (-err->code) {
        case ENOSPC:
        case EDQUOT:
                return "no_space";
        case ETIMEDOUT:
                return "timeout";
        case EINVAL:
                return "bad_argument";
        default:
                return "build_failed";
        }
}

/* The tail may start inside a line and hold bytes that are no UTF-8. */
static void clean_tail(const struct build *b, char out[BUILD_TAIL + 1]) {
        const char *p = b->tail, *end = b->tail + b->tail_n;

        if (b->tail_n == sizeof b->tail) {
                const char *nl = memchr(p, '\n', (size_t) (end - p));
                p = nl ? nl + 1 : p;
        }
        size_t n = 0;
        for (; p < end; p++)
                out[n++] = (*p >= ' ' && *p < 0x7f) || *p == '\n' ? *p : '?';
        out[n] = '\0';
}

void build_failed(const struct build *b, const struct error *err) {
        char tail[BUILD_TAIL + 1];

        clean_tail(b, tail);
        _cleanup_json_ json_t *line = json_pack("{s:s,s:s,s:s,s:s}", "error", err->msg, "code", code_of(b, err), "step",
                                                steps[b->step].name, "log", tail);
        /* An error text may quote bytes of a hostile archive. */
        if (!line)
                line = json_pack("{s:s,s:s}", "error", "the build failed", "code", code_of(b, err));
        put_line(line);
}

static void keep_tail(struct build *b, const char *data, size_t n) {
        if (n >= sizeof b->tail) {
                memcpy(b->tail, data + n - sizeof b->tail, sizeof b->tail);
                b->tail_n = sizeof b->tail;
                return;
        }
        size_t over = b->tail_n + n > sizeof b->tail ? b->tail_n + n - sizeof b->tail : 0;
        memmove(b->tail, b->tail + over, b->tail_n - over);
        memcpy(b->tail + b->tail_n - over, data, n);
        b->tail_n += n - over;
}

void build_log(struct build *b, const char *data, size_t n) {
        keep_tail(b, data, n);
        if (b->log_fd < 0 || b->log_size >= BUILD_LOG_MAX)
                return;
        if (n > BUILD_LOG_MAX - b->log_size)
                n = BUILD_LOG_MAX - b->log_size;
        b->log_size += n;
        (void) fd_write_all(b->log_fd, data, n, NULL);
}

void build_logf(struct build *b, const char *fmt, ...) {
        char text[1024];
        va_list ap;

        va_start(ap, fmt);
        int n = vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        if (n > 0)
                build_log(b, text, (size_t) n < sizeof text ? (size_t) n : sizeof text - 1);
}

int build_error(struct build *b, const char *code, struct error *err, int errnum, const char *fmt, ...) {
        char text[ERROR_MSG_MAX];
        va_list ap;

        va_start(ap, fmt);
        (void) vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        b->code = code;
        return error_set(err, errnum, "%s", text);
}

int build_timed_out(struct build *b, struct error *err) {
        if (b->deadline_ms == 0 || clock_mono_ms() < b->deadline_ms)
                return 0;
        return build_error(b, "timeout", err, -ETIMEDOUT, "the build ran out of time in step \"%s\"", steps[b->step].name);
}
