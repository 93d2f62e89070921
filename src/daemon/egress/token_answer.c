/* SPDX-License-Identifier: Apache-2.0 */
#include "token_answer.h"

#include <errno.h>
#include <string.h>

#include "base/str.h"

#define LINE_MAX_BYTES 600
#define NUMBER_MAX 12

static int malformed(struct error *err) {
        return error_set(err, -EPROTO, "cspace-token wrote what cannot be read");
}

/* Printable ASCII, so that it can stand in logs and answers. */
static bool printable(const char *s, size_t n) {
        for (size_t i = 0; i < n; i++)
                if (s[i] < 0x20 || s[i] > 0x7e)
                        return false;
        return true;
}

static int read_number(const char *s, size_t n, uint64_t max, uint64_t *ret) {
        char text[NUMBER_MAX + 1];
        if (n == 0 || n > NUMBER_MAX)
                return -EINVAL;
        memcpy(text, s, n);
        text[n] = '\0';
        return str_to_u64(text, max, ret);
}

int token_answer_read(const void *data, size_t n, char *secret, uint64_t *ret_seconds, struct error *err) {
        static const char token[] = "token ", failure[] = "error ";
        const char *s = data, *end = n ? memchr(s, '\n', n) : NULL;
        if (!end)
                return error_set(err, -EIO, "%s", n ? "cspace-token was cut off" : "cspace-token ended without an answer: its time was up, perhaps");
        size_t line = (size_t) (end - s);
        if (line >= sizeof failure - 1 && memcmp(s, failure, sizeof failure - 1) == 0)
                return line > LINE_MAX_BYTES || line + 1 != n || !printable(s, line)
                               ? malformed(err)
                               : error_set(err, -EIO, "%.*s", (int) (line - sizeof failure + 1), s + sizeof failure - 1);
        if (line < sizeof token - 1 || memcmp(s, token, sizeof token - 1) != 0)
                return malformed(err);
        const char *first = s + sizeof token - 1, *blank = memchr(first, ' ', (size_t) (end - first));
        uint64_t seconds = 0, length = 0;
        if (!blank || read_number(first, (size_t) (blank - first), TOKEN_SECONDS_MAX, &seconds) < 0 || seconds == 0 ||
            read_number(blank + 1, (size_t) (end - blank - 1), BINDING_SECRET_MAX, &length) < 0 || length < BINDING_SECRET_MIN)
                return malformed(err);
        if (n != line + 1 + length + 1 || end[1 + length] != '\n')
                return error_set(err, -EIO, "cspace-token was cut off");
        for (size_t i = 1; i <= length; i++)
                if (end[i] < 0x21 || end[i] > 0x7e)
                        return malformed(err);
        memcpy(secret, end + 1, length);
        secret[length] = '\0';
        *ret_seconds = seconds;
        return 0;
}
