/* SPDX-License-Identifier: Apache-2.0 */
#include "array.h"

#include <errno.h>
#include <stdlib.h>

#define FIRST 16u

void *array_grow(void *v, size_t *cap, size_t n, size_t size, size_t max, int *ret_error) {
        if (n < *cap)
                return v;
        if (n >= max) {
                *ret_error = -EDQUOT;
                return NULL;
        }
        size_t want = *cap ? *cap * 2 : FIRST;
        void *p = realloc(v, want * size);
        if (!p) {
                *ret_error = -ENOMEM;
                return NULL;
        }
        *cap = want;
        return p;
}
