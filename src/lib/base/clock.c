/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static uint64_t read_clock_ns(clockid_t id) {
        struct timespec ts = { 0 };
        (void) clock_gettime(id, &ts);
        return (uint64_t) ts.tv_sec * 1000000000u + (uint64_t) ts.tv_nsec;
}

uint64_t clock_mono_ms(void) {
        return read_clock_ns(CLOCK_MONOTONIC) / 1000000u;
}

uint64_t clock_mono_us(void) {
        return read_clock_ns(CLOCK_MONOTONIC) / 1000u;
}

int64_t clock_real_ms(void) {
        return (int64_t) (read_clock_ns(CLOCK_REALTIME) / 1000000u);
}

int64_t clock_real_ns(void) {
        return (int64_t) read_clock_ns(CLOCK_REALTIME);
}

void clock_rfc3339(int64_t unix_ms, char out[RFC3339_SIZE]) {
        int64_t s = unix_ms / 1000, ms = unix_ms % 1000;
        if (ms < 0) {
                ms += 1000;
                s--;
        }
        time_t t = (time_t) s;
        struct tm tm = { 0 };
        if (!gmtime_r(&t, &tm) || tm.tm_year + 1900 > 9999 || tm.tm_year + 1900 < 0) {
                (void) snprintf(out, RFC3339_SIZE, "0000-00-00T00:00:00.000Z");
                return;
        }
        char day[24];
        (void) strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &tm);
        (void) snprintf(out, RFC3339_SIZE, "%s.%03dZ", day, (int) ms);
}

static int digits(const char **s, int n, int *ret) {
        int v = 0;
        for (int i = 0; i < n; i++) {
                char c = (*s)[i];
                if (c < '0' || c > '9')
                        return -EINVAL;
                v = v * 10 + (c - '0');
        }
        *s += n;
        *ret = v;
        return 0;
}

static int literal(const char **s, char c) {
        if (**s != c)
                return -EINVAL;
        (*s)++;
        return 0;
}

/* ".123456" into milliseconds; digits beyond the third are dropped. */
static int fraction(const char **s, int *ret_ms) {
        int ms = 0, n = 0;
        for (; **s >= '0' && **s <= '9'; (*s)++, n++)
                if (n < 3)
                        ms = ms * 10 + (**s - '0');
        if (n == 0)
                return -EINVAL;
        for (; n < 3; n++)
                ms *= 10;
        *ret_ms = ms;
        return 0;
}

static int zone(const char **s, int *ret_offset_s) {
        if (**s == 'Z' || **s == 'z') {
                (*s)++;
                *ret_offset_s = 0;
                return 0;
        }
        int sign = **s == '+' ? 1 : **s == '-' ? -1 : 0, h, m;
        if (sign == 0)
                return -EINVAL;
        (*s)++;
        if (digits(s, 2, &h) < 0 || literal(s, ':') < 0 || digits(s, 2, &m) < 0 || h > 23 || m > 59)
                return -EINVAL;
        *ret_offset_s = sign * (h * 3600 + m * 60);
        return 0;
}

int clock_parse_rfc3339(const char *s, int64_t *ret_unix_ms) {
        int y, mo, d, h, mi, sec, ms = 0, offset;
        if (digits(&s, 4, &y) < 0 || literal(&s, '-') < 0 || digits(&s, 2, &mo) < 0 || literal(&s, '-') < 0 ||
            digits(&s, 2, &d) < 0)
                return -EINVAL;
        if (*s != 'T' && *s != 't' && *s != ' ')
                return -EINVAL;
        s++;
        if (digits(&s, 2, &h) < 0 || literal(&s, ':') < 0 || digits(&s, 2, &mi) < 0 || literal(&s, ':') < 0 ||
            digits(&s, 2, &sec) < 0)
                return -EINVAL;
        if (*s == '.') {
                s++;
                if (fraction(&s, &ms) < 0)
                        return -EINVAL;
        }
        if (zone(&s, &offset) < 0 || *s != '\0')
                return -EINVAL;
        if (mo < 1 || mo > 12 || d < 1 || d > 31 || h > 23 || mi > 59 || sec > 60)
                return -EINVAL;
        struct tm tm = { .tm_year = y - 1900, .tm_mon = mo - 1, .tm_mday = d, .tm_hour = h, .tm_min = mi,
                         .tm_sec = sec };
        struct tm normal = tm;
        time_t t = timegm(&normal);
        if (normal.tm_mday != d && sec != 60) /* 31 April became 1 May */
                return -EINVAL;
        *ret_unix_ms = ((int64_t) t - offset) * 1000 + ms;
        return 0;
}
