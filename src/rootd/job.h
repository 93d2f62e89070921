/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Work that takes longer than the loop may stand still (hashing, fsync, removing trees): a child
 * that does it and reports a struct error. It dies with us, so whatever it does must be fit to be
 * found half done.
 */

#include "rootd/rootd.h"

/* In the child; returns 0 or a negative errno with err filled. */
typedef int (*job_work)(struct rootd *r, void *arg, struct error *err);
/* In rootd, later; e is NULL on success. */
typedef void (*job_done)(void *arg, const struct error *e);

/* arg is the caller's in rootd and a copy of it in the child. On an error return done is not called. */
int job_start(struct rootd *r, job_work work, job_done done, void *arg, struct error *err);

/* What the child tells besides: zeroed memory that both have. NULL: out of memory. */
void *job_shared_new(size_t n);
void job_shared_free(void *shared, size_t n); /* takes NULL */
