/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Scope-bound cleanup: `_cleanup_(fd_closep) int fd = -EBADF;`, `_cleanup_free_ char *s = NULL;`.
 * Ownership leaves the scope only through STEAL(), which is visible at the point of transfer. */

#include <stdlib.h>

#define _cleanup_(f) __attribute__((cleanup(f)))

static inline void cleanup_freep(void *p) {
        free(*(void **) p);
}
#define _cleanup_free_ _cleanup_(cleanup_freep)

/* Returns the pointer and leaves NULL behind. */
#define STEAL(p)                   \
        ({                         \
                __auto_type p_ = &(p); \
                __auto_type v_ = *p_;  \
                *p_ = NULL;        \
                v_;                \
        })

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define CONTAINER_OF(ptr, type, member) ((type *) (void *) ((char *) (ptr) - offsetof(type, member)))
