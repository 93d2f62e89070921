/* SPDX-License-Identifier: Apache-2.0 */
#include "base/id.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>

int random_bytes(void *out, size_t n) {
        uint8_t *p = out;
        while (n > 0) {
                ssize_t r = getrandom(p, n, 0);
                if (r < 0) {
                        if (errno == EINTR)
                                continue;
                        return -EIO;
                }
                p += r;
                n -= (size_t) r;
        }
        return 0;
}

static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz234567";

int id_new(char out[ID_SIZE]) {
        uint8_t raw[ID_LEN]; /* five bits of each byte are used: simple beats thrifty */
        int r = random_bytes(raw, sizeof raw);
        if (r < 0)
                return r;
        for (size_t i = 0; i < ID_LEN; i++)
                out[i] = alphabet[raw[i] & 31];
        out[ID_LEN] = '\0';
        return 0;
}

bool id_valid(const char *s) {
        return s && strlen(s) == ID_LEN && strspn(s, alphabet) == ID_LEN;
}

bool digest_valid(const char *s) {
        return s && strlen(s) == DIGEST_LEN && strspn(s, "0123456789abcdef") == DIGEST_LEN;
}

bool template_name_valid(const char *s, size_t n) {
        if (n == 0 || n > TEMPLATE_NAME_MAX)
                return false;
        for (size_t i = 0; i < n; i++) {
                bool alnum = (s[i] >= 'a' && s[i] <= 'z') || (s[i] >= '0' && s[i] <= '9');
                if (!alnum && (i == 0 || (s[i] != '.' && s[i] != '_' && s[i] != '-')))
                        return false;
        }
        return true;
}
