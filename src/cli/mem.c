/* SPDX-License-Identifier: Apache-2.0 */
#include "mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static void *checked(void *p) {
        if (!p) {
                fputs("cspace: out of memory\n", stderr);
                exit(CLI_FAILURE);
        }
        return p;
}

void *mem_new(size_t n) {
        return checked(calloc(1, n ? n : 1));
}

void *mem_grow(void *p, size_t count, size_t size) {
        return checked(reallocarray(p, count ? count : 1, size));
}

char *mem_dup(const char *s) {
        return checked(strdup(s));
}

char *mem_ndup(const char *s, size_t n) {
        return checked(strndup(s, n));
}

char *mem_vprintf(const char *fmt, va_list ap) {
        char *out = NULL;

        if (vasprintf(&out, fmt, ap) < 0)
                out = NULL;
        return checked(out);
}

char *mem_printf(const char *fmt, ...) {
        va_list ap;

        va_start(ap, fmt);
        char *out = mem_vprintf(fmt, ap);
        va_end(ap);
        return out;
}
