/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

#define LOG_LINE_MAX 2048
#define LOG_WINDOW_MS 10000

static const char *const level_names[] = {
        [LOG_LVL_ERROR] = "error",
        [LOG_LVL_WARN] = "warn",
        [LOG_LVL_INFO] = "info",
        [LOG_LVL_DEBUG] = "debug",
};

static struct {
        const char *program;
        enum log_level level;
        bool text;
} logger = { .program = "cspace", .level = LOG_LVL_INFO, .text = true };

void log_setup(const char *program, enum log_level level) {
        const char *format = getenv("CSPACE_LOG_FORMAT");
        logger.program = program;
        logger.level = level;
        logger.text = format ? strcmp(format, "text") == 0 : isatty(STDERR_FILENO) == 1;
}

int log_level_parse(const char *s, enum log_level *ret) {
        for (size_t i = 0; i < sizeof level_names / sizeof level_names[0]; i++)
                if (strcmp(s, level_names[i]) == 0) {
                        *ret = (enum log_level) i;
                        return 0;
                }
        return -EINVAL;
}

/* Appends src with control bytes, quotes and backslashes escaped as JSON has it. */
static size_t escape(char *dst, size_t cap, const char *src) {
        size_t n = 0;
        for (; *src && n + 7 < cap; src++) {
                unsigned char c = (unsigned char) *src;
                if (c == '"' || c == '\\') {
                        dst[n++] = '\\';
                        dst[n++] = (char) c;
                } else if (c < 0x20 || c == 0x7f) {
                        n += (size_t) snprintf(dst + n, 7, "\\u%04x", c);
                } else {
                        dst[n++] = (char) c;
                }
        }
        dst[n] = '\0';
        return n;
}

void log_at(enum log_level level, const char *fmt, ...) {
        if (level > logger.level)
                return;
        int saved = errno;
        char raw[LOG_LINE_MAX / 2], msg[LOG_LINE_MAX - 256], line[LOG_LINE_MAX], now[RFC3339_SIZE];
        va_list ap;
        va_start(ap, fmt);
        (void) vsnprintf(raw, sizeof raw, fmt, ap);
        va_end(ap);
        (void) escape(msg, sizeof msg, raw);
        clock_rfc3339(clock_real_ms(), now);
        int n = logger.text ? snprintf(line, sizeof line, "%s %s %s: %s\n", now, level_names[level],
                                       logger.program, msg)
                            : snprintf(line, sizeof line,
                                       "{\"time\":\"%s\",\"level\":\"%s\",\"program\":\"%s\",\"msg\":\"%s\"}\n",
                                       now, level_names[level], logger.program, msg);
        if (n > 0)
                (void) !write(STDERR_FILENO, line, (size_t) n < sizeof line ? (size_t) n : sizeof line - 1);
        errno = saved;
}

bool log_limit_pass(struct log_limit *l, unsigned burst, unsigned *ret_dropped) {
        long long now = (long long) clock_mono_ms();
        if (l->window_ms == 0 || now - l->window_ms >= LOG_WINDOW_MS) {
                l->window_ms = now ? now : 1;
                l->count = 0;
        }
        if (l->count >= burst) {
                l->dropped++;
                return false;
        }
        l->count++;
        if (ret_dropped)
                *ret_dropped = l->dropped;
        l->dropped = 0;
        return true;
}
