/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * How a program takes system calls from itself: the parts that are the same in all of them. Which calls those are stands
 * in each program's confine.c.
 */

#include <seccomp.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* One rule for each of these calls, named as libseccomp knows them; those that an architecture lacks are passed over.
 * 0 or libseccomp's error, as of the next two. */
int filter_names(scmp_filter_ctx ctx, uint32_t action, const char *const *names, size_t n);
/* For a filter that refuses what it does not name: memory can be mapped and protected, but not to be executed. */
int filter_allow_data_memory(scmp_filter_ctx ctx);

/* Installs, for good and for what is executed later, the rules that `add` adds to a filter of `otherwise`. */
typedef int (*filter_rules)(scmp_filter_ctx ctx, const void *arg);
int filter_install(uint32_t otherwise, filter_rules add, const void *arg, struct error *err);

/* No core files, and nobody of the same uid looks into this process. */
int confine_no_dumps(struct error *err);
