/* SPDX-License-Identifier: Apache-2.0 */
#include "base/str.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int str_copy(char *dst, size_t cap, const char *src) {
        size_t n = strlen(src);
        if (n >= cap)
                return -ENAMETOOLONG;
        memcpy(dst, src, n + 1);
        return 0;
}

bool str_eq(const char *a, const char *b) {
        if (!a || !b)
                return a == b;
        return strcmp(a, b) == 0;
}

bool str_has_prefix(const char *s, const char *prefix) {
        return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool str_has_suffix(const char *s, const char *suffix) {
        size_t n = strlen(s), m = strlen(suffix);
        return n >= m && memcmp(s + n - m, suffix, m) == 0;
}

static char lower(char c) {
        return c >= 'A' && c <= 'Z' ? (char) (c + 32) : c;
}

bool str_case_eq_n(const char *a, size_t an, const char *b) {
        if (strlen(b) != an)
                return false;
        for (size_t i = 0; i < an; i++)
                if (lower(a[i]) != lower(b[i]))
                        return false;
        return true;
}

/* Parses leading digits; *end is the first byte after them. */
static int leading_u64(const char *s, uint64_t *ret, const char **end) {
        uint64_t v = 0;
        if (*s < '0' || *s > '9')
                return -EINVAL;
        for (; *s >= '0' && *s <= '9'; s++)
                if (__builtin_mul_overflow(v, 10u, &v) ||
                    __builtin_add_overflow(v, (uint64_t) (*s - '0'), &v))
                        return -ERANGE;
        *ret = v;
        *end = s;
        return 0;
}

int str_to_u64(const char *s, uint64_t max, uint64_t *ret) {
        uint64_t v;
        const char *end;
        int r = leading_u64(s, &v, &end);
        if (r < 0)
                return r;
        if (*end != '\0')
                return -EINVAL;
        if (v > max)
                return -ERANGE;
        *ret = v;
        return 0;
}

struct unit {
        const char *suffix;
        uint64_t factor;
};

static int with_unit(const char *s, const struct unit *units, size_t n_units, uint64_t *ret) {
        uint64_t v;
        const char *end;
        int r = leading_u64(s, &v, &end);
        if (r < 0)
                return r;
        for (size_t i = 0; i < n_units; i++) {
                if (strcmp(end, units[i].suffix) != 0)
                        continue;
                if (__builtin_mul_overflow(v, units[i].factor, &v))
                        return -ERANGE;
                *ret = v;
                return 0;
        }
        return -EINVAL;
}

int str_to_size(const char *s, uint64_t *ret) {
        static const struct unit units[] = {
                { "", 1 },           { "B", 1 },          { "K", 1u << 10 },      { "KiB", 1u << 10 },
                { "M", 1u << 20 },   { "MiB", 1u << 20 }, { "G", 1u << 30 },      { "GiB", 1u << 30 },
                { "T", 1ull << 40 }, { "TiB", 1ull << 40 },
        };
        return with_unit(s, units, sizeof units / sizeof units[0], ret);
}

int str_to_seconds(const char *s, uint64_t *ret) {
        static const struct unit units[] = {
                { "", 1 }, { "s", 1 }, { "m", 60 }, { "h", 3600 }, { "d", 86400 },
        };
        return with_unit(s, units, sizeof units / sizeof units[0], ret);
}

static const char *from_unit(uint64_t v, const struct unit *units, size_t n_units, char out[STR_UNIT_SIZE]) {
        size_t i = 0;
        while (i + 1 < n_units && (v < units[i].factor || v % units[i].factor != 0))
                i++;
        (void) snprintf(out, STR_UNIT_SIZE, "%llu%s", (unsigned long long) (v / units[i].factor), units[i].suffix);
        return out;
}

const char *str_from_size(uint64_t bytes, char out[STR_UNIT_SIZE]) {
        static const struct unit units[] = { { "T", 1ull << 40 }, { "G", 1u << 30 }, { "M", 1u << 20 }, { "K", 1u << 10 }, { "", 1 } };
        return from_unit(bytes, units, sizeof units / sizeof units[0], out);
}

const char *str_from_seconds(uint64_t s, char out[STR_UNIT_SIZE]) {
        static const struct unit units[] = { { "d", 86400 }, { "h", 3600 }, { "m", 60 }, { "s", 1 } };
        return from_unit(s, units, sizeof units / sizeof units[0], out);
}

void str_hex(const void *data, size_t n, char *out) {
        static const char hex[] = "0123456789abcdef";
        const uint8_t *p = data;
        for (size_t i = 0; i < n; i++) {
                out[2 * i] = hex[p[i] >> 4];
                out[2 * i + 1] = hex[p[i] & 15];
        }
        out[2 * n] = '\0';
}

static int hex_value(char c) {
        if (c >= '0' && c <= '9')
                return c - '0';
        c = lower(c);
        return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int str_unhex(const char *s, size_t n, uint8_t *out) {
        if (n % 2 != 0)
                return -EINVAL;
        for (size_t i = 0; i < n; i += 2) {
                int hi = hex_value(s[i]), lo = hex_value(s[i + 1]);
                if (hi < 0 || lo < 0)
                        return -EINVAL;
                out[i / 2] = (uint8_t) (hi << 4 | lo);
        }
        return 0;
}

size_t base64_encoded_len(size_t n) {
        return (n + 2) / 3 * 4;
}

static const char b64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_encode(const void *data, size_t n, char *out) {
        const uint8_t *p = data;
        for (; n >= 3; n -= 3, p += 3) {
                *out++ = b64[p[0] >> 2];
                *out++ = b64[(p[0] & 3) << 4 | p[1] >> 4];
                *out++ = b64[(p[1] & 15) << 2 | p[2] >> 6];
                *out++ = b64[p[2] & 63];
        }
        if (n > 0) {
                uint8_t second = n == 2 ? p[1] : 0;
                *out++ = b64[p[0] >> 2];
                *out++ = b64[(p[0] & 3) << 4 | second >> 4];
                *out++ = n == 2 ? b64[(second & 15) << 2] : '=';
                *out++ = '=';
        }
        *out = '\0';
}

static int b64_value(char c) {
        if (c >= 'A' && c <= 'Z')
                return c - 'A';
        if (c >= 'a' && c <= 'z')
                return c - 'a' + 26;
        if (c >= '0' && c <= '9')
                return c - '0' + 52;
        return c == '+' ? 62 : c == '/' ? 63 : -1;
}

ssize_t base64_decode(const char *s, size_t n, uint8_t *out) {
        if (n % 4 == 0 && n > 0) { /* padding is taken only where it completes a group of four */
                n -= s[n - 1] == '=';
                n -= n % 4 == 3 && s[n - 1] == '=';
        }
        if (n % 4 == 1)
                return -EINVAL;
        size_t written = 0;
        uint32_t bits = 0;
        unsigned held = 0;
        for (size_t i = 0; i < n; i++) {
                int v = b64_value(s[i]);
                if (v < 0)
                        return -EINVAL;
                bits = bits << 6 | (uint32_t) v;
                held += 6;
                if (held >= 8) {
                        held -= 8;
                        out[written++] = (uint8_t) (bits >> held);
                }
        }
        if (bits & ((1u << held) - 1)) /* one text for one value: unused bits are zero */
                return -EINVAL;
        return (ssize_t) written;
}

/* Length of the sequence at p, or 0 when it is not valid UTF-8 (RFC 3629 section 4). */
static size_t utf8_sequence(const uint8_t *p, size_t left) {
        if (p[0] < 0x80)
                return 1;
        size_t n = p[0] >= 0xc2 && p[0] <= 0xdf ? 2 : p[0] >= 0xe0 && p[0] <= 0xef ? 3 : p[0] >= 0xf0 && p[0] <= 0xf4 ? 4 : 0;
        if (n == 0 || n > left)
                return 0;
        uint8_t min = 0x80, max = 0xbf;
        if (p[0] == 0xe0)
                min = 0xa0;
        else if (p[0] == 0xed)
                max = 0x9f;
        else if (p[0] == 0xf0)
                min = 0x90;
        else if (p[0] == 0xf4)
                max = 0x8f;
        if (p[1] < min || p[1] > max)
                return 0;
        for (size_t i = 2; i < n; i++)
                if ((p[i] & 0xc0) != 0x80)
                        return 0;
        return n;
}

bool str_is_utf8(const void *s, size_t n) {
        const uint8_t *p = s;
        while (n > 0) {
                size_t len = utf8_sequence(p, n);
                if (len == 0)
                        return false;
                p += len;
                n -= len;
        }
        return true;
}

void str_make_utf8(char *s) {
        for (size_t n = strlen(s), len; n > 0; s += len, n -= len) {
                len = utf8_sequence((const uint8_t *) s, n);
                if (len == 0) {
                        *s = '?';
                        len = 1;
                }
        }
}

bool mem_eq_ct(const void *a, const void *b, size_t n) {
        const volatile uint8_t *x = a, *y = b;
        uint8_t diff = 0;
        for (size_t i = 0; i < n; i++)
                diff = (uint8_t) (diff | (x[i] ^ y[i]));
        return diff == 0;
}
