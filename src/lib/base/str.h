/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Copies with truncation check: 0, or -ENAMETOOLONG with dst untouched. */
int str_copy(char *dst, size_t cap, const char *src);
bool str_eq(const char *a, const char *b);          /* NULL equals only NULL */
bool str_has_prefix(const char *s, const char *prefix);
bool str_has_suffix(const char *s, const char *suffix);
bool str_case_eq_n(const char *a, size_t an, const char *b); /* ASCII, a not terminated */

/* Whole-string decimal parse, no sign, no blanks: 0, -EINVAL, -ERANGE. */
int str_to_u64(const char *s, uint64_t max, uint64_t *ret);
/* "512", "512M", "2G", "1T" (powers of 1024) into bytes. */
int str_to_size(const char *s, uint64_t *ret);
/* "30", "30s", "5m", "2h", "1d" into seconds. */
int str_to_seconds(const char *s, uint64_t *ret);
/* The other way, exact, in the largest unit that has no remainder: "1536M", "90m"; no bytes are "0", no seconds "0s". Return out. */
#define STR_UNIT_SIZE 24
const char *str_from_size(uint64_t bytes, char out[STR_UNIT_SIZE]);
const char *str_from_seconds(uint64_t s, char out[STR_UNIT_SIZE]);

/* What a noun ends in after a number: "%u CPU%s". */
static inline const char *str_s(uint64_t n) {
        return n == 1 ? "" : "s";
}

/* Lowercase hex; out holds 2n + 1 bytes. */
void str_hex(const void *data, size_t n, char *out);
int str_unhex(const char *s, size_t n, uint8_t *out); /* n hex digits, even; 0 or -EINVAL */

/* RFC 4648 base64, with padding. */
size_t base64_encoded_len(size_t n);                            /* without the NUL */
void base64_encode(const void *data, size_t n, char *out);      /* writes len + 1 bytes */
/* Strict decode (padding optional, no white space); out holds 3 * n / 4 + 1. Returns the length
 * or -EINVAL. */
ssize_t base64_decode(const char *s, size_t n, uint8_t *out);

/* Valid UTF-8 without surrogates or overlong forms (RFC 3629). */
bool str_is_utf8(const void *s, size_t n);
/* Puts '?' in the place of each byte that is no part of valid UTF-8: of text that quotes what a guest or a client sent, or that was
 * cut somewhere. */
void str_make_utf8(char *s);

/* Compares without leaking where the first difference is; lengths may leak. */
bool mem_eq_ct(const void *a, const void *b, size_t n);
