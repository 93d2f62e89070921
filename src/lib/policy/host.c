/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/host.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static int refuse(const char **why, const char *text) {
        if (why)
                *why = text;
        return -EINVAL;
}

static bool is_digit(char c) {
        return c >= '0' && c <= '9';
}

static char lower(char c) {
        return c >= 'A' && c <= 'Z' ? (char) (c - 'A' + 'a') : c;
}

static bool label_char(char c) {
        return (c >= 'a' && c <= 'z') || is_digit(c) || c == '-' || c == '_';
}

/* "123", "0x1f": what inet_aton() and browsers read as a number. */
static bool label_is_number(const char *s, size_t n) {
        if (n >= 2 && s[0] == '0' && s[1] == 'x') {
                for (size_t i = 2; i < n; i++)
                        if (!is_digit(s[i]) && !(s[i] >= 'a' && s[i] <= 'f'))
                                return false;
                return true;
        }
        for (size_t i = 0; i < n; i++)
                if (!is_digit(s[i]))
                        return false;
        return n > 0;
}

static const char *label_trouble(const char *s, size_t n) {
        if (n == 0)
                return "an empty label";
        if (n > HOST_LABEL_MAX)
                return "a label of more than 63 bytes";
        if (s[0] == '-' || s[n - 1] == '-')
                return "a label that begins or ends with \"-\"";
        if (n > 4 && memcmp(s, "xn--", 4) == 0 && memchr(s, '_', n))
                return "a label that is not IDNA";
        if (n == 4 && memcmp(s, "xn--", 4) == 0)
                return "a label that is not IDNA";
        return NULL;
}

int host_parse_name(const char *s, size_t n, char ret[HOST_SIZE], const char **why) {
        char out[HOST_SIZE];
        size_t start = 0;

        if (n > 0 && s[n - 1] == '.')
                n--;
        if (n == 0)
                return refuse(why, "an empty name");
        if (n > HOST_NAME_MAX_LEN)
                return refuse(why, "a name of more than 253 bytes");
        for (size_t i = 0; i <= n; i++) {
                if (i < n && s[i] != '.') {
                        out[i] = lower(s[i]);
                        if (!label_char(out[i]))
                                return refuse(why, "a byte that is not a letter, digit, \"-\" or \"_\"");
                        continue;
                }
                const char *trouble = label_trouble(out + start, i - start);
                if (trouble)
                        return refuse(why, trouble);
                out[i] = i < n ? '.' : '\0';
                if (i < n)
                        start = i + 1;
        }
        if (label_is_number(out + start, n - start))
                return refuse(why, "a last label that is a number");
        memcpy(ret, out, n + 1);
        return 0;
}

/* Four decimal numbers without leading zeros; inet_pton() agrees, and is not asked for more. */
static bool parse_v4(const char *s, size_t n, struct in_addr *ret) {
        char text[INET_ADDRSTRLEN];

        if (n == 0 || n >= sizeof text)
                return false;
        for (size_t i = 0; i < n; i++) {
                if (!is_digit(s[i]) && s[i] != '.')
                        return false;
                if (s[i] == '0' && (i == 0 || s[i - 1] == '.') && i + 1 < n && is_digit(s[i + 1]))
                        return false;
        }
        memcpy(text, s, n);
        text[n] = '\0';
        return inet_pton(AF_INET, text, ret) == 1;
}

void host_of_addr(struct in_addr a, struct host *ret) {
        *ret = (struct host){ .kind = HOST_IPV4, .addr = a };
        inet_ntop(AF_INET, &a, ret->name, sizeof ret->name);
}

int host_parse(const char *s, size_t n, struct host *ret, const char **why) {
        struct host h = { .kind = HOST_NAME };
        struct in_addr a;

        if (n > 0 && s[0] == '[')
                return refuse(why, "an IPv6 address");
        if (parse_v4(s, n, &a)) {
                host_of_addr(a, ret);
                return 0;
        }
        int r = host_parse_name(s, n, h.name, why);
        if (r < 0)
                return r;
        *ret = h;
        return 0;
}

int host_parse_authority(const char *s, size_t n, uint16_t default_port, struct host *ret, uint16_t *ret_port,
                         const char **why) {
        uint32_t port = default_port;
        const char *colon = memchr(s, ':', n);
        size_t host_n = colon ? (size_t) (colon - s) : n;

        if (colon) {
                size_t digits = n - host_n - 1;
                if (digits == 0 || digits > 5)
                        return refuse(why, "a port that is not a number from 1 to 65535");
                port = 0;
                for (size_t i = 0; i < digits; i++) {
                        if (!is_digit(colon[1 + i]))
                                return refuse(why, "a port that is not a number from 1 to 65535");
                        port = port * 10 + (uint32_t) (colon[1 + i] - '0');
                }
                if (port > UINT16_MAX || colon[1] == '0')
                        return refuse(why, "a port that is not a number from 1 to 65535");
        }
        if (port == 0)
                return refuse(why, "no port");
        int r = host_parse(s, host_n, ret, why);
        if (r < 0)
                return r;
        *ret_port = (uint16_t) port;
        return 0;
}

bool host_eq(const struct host *a, const struct host *b) {
        return a->kind != HOST_NONE && a->kind == b->kind && strcmp(a->name, b->name) == 0;
}

bool host_name_below(const char *name, const char *suffix) {
        size_t n = strlen(name), sn = strlen(suffix);

        return n > sn + 1 && name[n - sn - 1] == '.' && memcmp(name + n - sn, suffix, sn) == 0;
}
