/* SPDX-License-Identifier: Apache-2.0 */
#include "jsonw.h"

#include <stdio.h>
#include <string.h>

#include "base/str.h"

/* Length of the valid UTF-8 sequence at s, 0 if there is none. */
static size_t utf8_len(const char *s, size_t n) {
        for (size_t len = 2; len <= 4 && len <= n; len++)
                if (str_is_utf8(s, len))
                        return len;
        return 0;
}

static int escape(struct buf *b, unsigned char c) {
        switch (c) {
        case '"':
                return buf_append(b, "\\\"", 2);
        case '\\':
                return buf_append(b, "\\\\", 2);
        case '\n':
                return buf_append(b, "\\n", 2);
        case '\t':
                return buf_append(b, "\\t", 2);
        default:
                return buf_printf(b, "\\u%04x", c);
        }
}

int jsonw_str(struct buf *b, const char *s, size_t n) {
        int r = buf_append(b, "\"", 1);
        for (size_t i = 0; r == 0 && i < n;) {
                size_t plain = i;
                while (plain < n && (unsigned char) s[plain] >= 0x20 && (unsigned char) s[plain] < 0x7f &&
                       s[plain] != '"' && s[plain] != '\\')
                        plain++;
                if (plain > i) {
                        r = buf_append(b, s + i, plain - i);
                        i = plain;
                } else if ((unsigned char) s[i] < 0x80) {
                        r = escape(b, (unsigned char) s[i]);
                        i++;
                } else {
                        size_t len = utf8_len(s + i, n - i);
                        r = len ? buf_append(b, s + i, len) : buf_append(b, "\xef\xbf\xbd", 3);
                        i += len ? len : 1;
                }
        }
        return r < 0 ? r : buf_append(b, "\"", 1);
}

int jsonw_cstr(struct buf *b, const char *s) {
        return jsonw_str(b, s, strlen(s));
}

int jsonw_member(struct buf *b, bool first, const char *key, const char *value) {
        int r = first ? 0 : buf_append(b, ",", 1);
        if (r == 0)
                r = jsonw_cstr(b, key);
        if (r == 0)
                r = buf_append(b, ":", 1);
        return r < 0 ? r : jsonw_cstr(b, value);
}

int jsonw_base64(struct buf *b, const void *data, size_t n) {
        size_t len = base64_encoded_len(n);
        uint8_t *out;
        int r = buf_reserve(b, len + 3, &out);
        if (r < 0)
                return r;
        out[0] = '"';
        base64_encode(data, n, (char *) out + 1);
        out[len + 1] = '"';
        buf_commit(b, len + 2);
        return 0;
}
