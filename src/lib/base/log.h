/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One line per event on stderr: "2026-.. LEVEL program: message" on a terminal or with
 * CSPACE_LOG_FORMAT=text, else one JSON object {"time","level","program","msg"}. Control bytes in
 * the message are escaped, so that nothing a guest sends can forge a line. Only programs log;
 * libraries return errors. A secret is never passed here.
 */

#include <stdbool.h>

enum log_level { LOG_LVL_ERROR, LOG_LVL_WARN, LOG_LVL_INFO, LOG_LVL_DEBUG };

void log_setup(const char *program, enum log_level level); /* program must outlive the process */
int log_level_parse(const char *s, enum log_level *ret);   /* "error", "warn", "info", "debug" */
void log_at(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_at(LOG_LVL_ERROR, __VA_ARGS__)
#define log_warn(...) log_at(LOG_LVL_WARN, __VA_ARGS__)
#define log_info(...) log_at(LOG_LVL_INFO, __VA_ARGS__)
#define log_debug(...) log_at(LOG_LVL_DEBUG, __VA_ARGS__)

/* For events whose rate an outsider controls: at most `burst` lines per call site and ten
 * seconds; the next line that passes says how many were left out. */
struct log_limit {
        long long window_ms;
        unsigned count, dropped;
};
bool log_limit_pass(struct log_limit *l, unsigned burst, unsigned *ret_dropped);
