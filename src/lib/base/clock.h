/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>

uint64_t clock_mono_ms(void);
uint64_t clock_mono_us(void);
int64_t clock_real_ms(void);  /* Unix time */
int64_t clock_real_ns(void);

#define RFC3339_SIZE 32
/* "2026-01-02T03:04:05.678Z" */
void clock_rfc3339(int64_t unix_ms, char out[RFC3339_SIZE]);
/* Accepts fractions and a numeric offset; 0 or -EINVAL. */
int clock_parse_rfc3339(const char *s, int64_t *ret_unix_ms);
