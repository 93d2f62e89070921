/* SPDX-License-Identifier: Apache-2.0 */

/* Request targets: the path as it was sent, and values of the query (RFC 3986, 3.3 and 3.4; form
 * encoding of the query as browsers and the SDKs write it, with "+" for a space). */

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "wire/http1.h"

static int hex_value(char c) {
        if (c >= '0' && c <= '9')
                return c - '0';
        if (c >= 'a' && c <= 'f')
                return c - 'a' + 10;
        return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int http1_percent_decode(const char *s, size_t n, bool plus_is_space, struct buf *out) {
        if (n == 0)
                return 0;
        uint8_t *to;
        int r = buf_reserve(out, n, &to);
        if (r < 0)
                return r;
        size_t len = 0;
        for (size_t i = 0; i < n; i++) {
                char c = s[i];
                if (c == '%') {
                        int hi = i + 1 < n ? hex_value(s[i + 1]) : -1;
                        int lo = i + 2 < n ? hex_value(s[i + 2]) : -1;
                        if (hi < 0 || lo < 0)
                                return -EINVAL;
                        c = (char) (hi << 4 | lo);
                        i += 2;
                } else if (c == '+' && plus_is_space)
                        c = ' ';
                if (c == '\0')
                        return -EINVAL;
                to[len++] = (uint8_t) c;
        }
        buf_commit(out, len);
        return 0;
}

/* Where the path starts: after scheme and authority of an absolute-form target. */
static const char *path_start(const char *t) {
        if (t[0] == '/' || strcmp(t, "*") == 0)
                return t;
        size_t scheme = strncasecmp(t, "http://", 7) == 0 ? 7 : strncasecmp(t, "https://", 8) == 0 ? 8 : 0;
        return scheme ? t + scheme + strcspn(t + scheme, "/?") : NULL;
}

int http1_path_of(const char *target, struct buf *out) {
        const char *p = path_start(target);
        if (!p)
                return -EINVAL;
        size_t n = strcspn(p, "?");
        return n ? buf_append(out, p, n) : buf_puts(out, "/");
}

int http1_query_get(const char *target, const char *key, struct buf *out) {
        const char *q = strchr(target, '?');
        _cleanup_buf_ struct buf name = BUF_INIT(LIMIT_HTTP_HEAD);
        while (q) {
                q++;
                size_t n = strcspn(q, "&");
                const char *eq = memchr(q, '=', n);
                size_t kn = eq ? (size_t) (eq - q) : n;
                buf_clear(&name);
                int r = http1_percent_decode(q, kn, true, &name);
                if (r < 0)
                        return r;
                if (name.len == strlen(key) && memcmp(buf_data(&name), key, name.len) == 0) {
                        r = eq ? http1_percent_decode(eq + 1, n - kn - 1, true, out) : 0;
                        return r < 0 ? r : 1;
                }
                q = q[n] == '&' ? q + n : NULL;
        }
        return 0;
}
