/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Arrays that grow up to a named limit. */

#include <stddef.h>

/*
 * Makes room for element n (of `size` bytes) in v, which has room for *cap. Returns the array, which may have moved and is the
 * caller's again, or NULL with *ret_error set to -ENOMEM, or to -EDQUOT when there are `max` already; then v is as it was.
 */
void *array_grow(void *v, size_t *cap, size_t n, size_t size, size_t max, int *ret_error);

/* Appends to v, whose members n and cap count and bound it. Evaluates to 0 or a negative errno. */
#define ARRAY_ADD(v, n, cap, max, element)                                             \
        ({                                                                             \
                int e_ = 0;                                                            \
                void *p_ = array_grow((v), &(cap), (n), sizeof *(v), (max), &e_);      \
                if (p_) {                                                              \
                        (v) = p_;                                                      \
                        (v)[(n)++] = (element);                                        \
                }                                                                      \
                e_;                                                                    \
        })
