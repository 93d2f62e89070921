/* SPDX-License-Identifier: Apache-2.0 */
#include "http_cond.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

static const char days[] = "SunMonTueWedThuFriSat";
static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";

void http_date(time_t t, char out[HTTP_DATE_SIZE]) {
        struct tm tm;
        if (!gmtime_r(&t, &tm))
                memset(&tm, 0, sizeof tm);
        (void) snprintf(out, HTTP_DATE_SIZE, "%.3s, %02d %.3s %04d %02d:%02d:%02d GMT", days + 3 * tm.tm_wday, tm.tm_mday,
                        months + 3 * tm.tm_mon, tm.tm_year + 1900, tm.tm_hour, tm.tm_min, tm.tm_sec);
}

int http_parse_date(const char *s, time_t *ret) {
        char month[4];
        struct tm tm = { 0 };
        int n = 0;
        if (sscanf(s, "%*3s, %2d %3s %4d %2d:%2d:%2d GMT%n", &tm.tm_mday, month, &tm.tm_year, &tm.tm_hour, &tm.tm_min,
                   &tm.tm_sec, &n) != 6 || n == 0 || s[n])
                return -EINVAL;
        const char *m = strstr(months, month);
        if (!m || strlen(month) != 3 || (m - months) % 3)
                return -EINVAL;
        tm.tm_mon = (int) (m - months) / 3;
        tm.tm_year -= 1900;
        *ret = timegm(&tm);
        return 0;
}

/* A list of entity tags; W/ is ignored where `weak` (13.1.2), else a weak tag never matches. */
static bool tag_listed(const char *list, const char *etag, bool weak) {
        size_t n = strlen(etag);
        for (const char *p = list; *p;) {
                p += strspn(p, " \t,");
                if (*p == '*')
                        return true;
                bool is_weak = strncmp(p, "W/", 2) == 0;
                if (is_weak)
                        p += 2;
                if (*p != '"')
                        return false;
                const char *end = strchr(p + 1, '"');
                if (!end)
                        return false;
                size_t len = (size_t) (end + 1 - p);
                if ((weak || !is_weak) && len == n && memcmp(p, etag, n) == 0)
                        return true;
                p = end + 1;
        }
        return false;
}

int http_check_conditions(const struct http1_head *h, const char *etag, time_t mtime) {
        const char *v;
        time_t t;
        if ((v = http1_get(h, "If-Match"))) {
                if (!tag_listed(v, etag, false))
                        return 412;
        } else if ((v = http1_get(h, "If-Unmodified-Since")) && http_parse_date(v, &t) == 0 && mtime > t)
                return 412;
        if ((v = http1_get(h, "If-None-Match")))
                return tag_listed(v, etag, true) ? 304 : 0;
        if ((v = http1_get(h, "If-Modified-Since")) && http_parse_date(v, &t) == 0 && mtime <= t)
                return 304;
        return 0;
}

static bool if_range_fails(const struct http1_head *h, const char *etag, time_t mtime) {
        const char *v = http1_get(h, "If-Range");
        time_t t;
        if (!v)
                return false;
        if (*v == '"')
                return !str_eq(v, etag);
        return http_parse_date(v, &t) < 0 || t != mtime;
}

static bool digits(const char *s, size_t n, uint64_t *ret) {
        char num[24];
        if (n == 0 || n >= sizeof num)
                return false;
        memcpy(num, s, n);
        num[n] = '\0';
        return str_to_u64(num, INT64_MAX, ret) == 0;
}

enum http_range http_read_range(const struct http1_head *h, const char *etag, time_t mtime, uint64_t size,
                                uint64_t *ret_first, uint64_t *ret_last) {
        const char *v = http1_get(h, "Range");
        if (!v || strncmp(v, "bytes=", 6) != 0 || if_range_fails(h, etag, mtime))
                return HTTP_RANGE_NONE;
        v += 6;
        const char *dash = strchr(v, '-');
        if (!dash || strchr(v, ','))
                return HTTP_RANGE_NONE;
        uint64_t first = 0, last = 0;
        bool has_first = dash > v, has_last = dash[1] != '\0';
        if ((has_first && !digits(v, (size_t) (dash - v), &first)) ||
            (has_last && !digits(dash + 1, strlen(dash + 1), &last)) || (!has_first && !has_last) ||
            (has_first && has_last && last < first))
                return HTTP_RANGE_NONE; /* not valid: as if it were not there (14.2) */
        if (!has_first) { /* the last N bytes */
                if (last == 0 || size == 0)
                        return HTTP_RANGE_BAD;
                first = last < size ? size - last : 0;
                last = size - 1;
        } else {
                if (first >= size)
                        return HTTP_RANGE_BAD;
                if (!has_last || last >= size)
                        last = size - 1;
        }
        *ret_first = first;
        *ret_last = last;
        return HTTP_RANGE_PART;
}

/* Quality of one member in thousandths. */
static int quality(const char *params, size_t n) {
        const char *q = memmem(params, n, "q=", 2);
        if (!q)
                return 1000;
        return (int) (strtod(q + 2, NULL) * 1000);
}

enum http_coding http_choose_coding(const char *accept_encoding) {
        if (!accept_encoding || !*accept_encoding)
                return HTTP_IDENTITY;
        int gzip = -1, identity = -1, star = -1, others = 0;
        for (const char *p = accept_encoding; *p;) {
                p += strspn(p, " \t,");
                size_t n = strcspn(p, ","), name = strcspn(p, " \t;,");
                if (n == 0)
                        break;
                int q = quality(p + name, n - name);
                if (str_case_eq_n(p, name, "gzip") || str_case_eq_n(p, name, "x-gzip"))
                        gzip = q;
                else if (str_case_eq_n(p, name, "identity"))
                        identity = q;
                else if (name == 1 && *p == '*')
                        star = q;
                else if (q > 0)
                        others++;
                p += n;
        }
        bool identity_ok = identity > 0 || (identity < 0 && star != 0);
        bool gzip_ok = gzip > 0 || (gzip < 0 && star > 0);
        if (!identity_ok)
                return gzip_ok ? HTTP_GZIP : HTTP_NONE;
        if (gzip > 0 && others == 0 && star < 0 && gzip > identity)
                return HTTP_GZIP;
        return HTTP_IDENTITY;
}
