/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Allocation that does not fail: a one-shot program without memory has nothing better to do than
 * to end. For the CLI alone; daemons handle -ENOMEM. */

#include <stdarg.h>
#include <stddef.h>

void *mem_new(size_t n) __attribute__((malloc, returns_nonnull)); /* zeroed */
void *mem_grow(void *p, size_t count, size_t size) __attribute__((returns_nonnull));
char *mem_dup(const char *s) __attribute__((malloc, returns_nonnull));
char *mem_ndup(const char *s, size_t n) __attribute__((malloc, returns_nonnull));
char *mem_printf(const char *fmt, ...) __attribute__((malloc, returns_nonnull, format(printf, 1, 2)));
char *mem_vprintf(const char *fmt, va_list ap) __attribute__((malloc, returns_nonnull, format(printf, 1, 0)));
