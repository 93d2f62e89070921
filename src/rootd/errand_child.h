/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The process of an errand, and what it does until it executes the program. */

#include "rootd/errand.h"

/* From here on failures are told by s->fail. */
int errand_child_start(struct errand *e, const struct errand_start *s, pid_t *ret_pid, int *ret_pidfd, struct error *err);
