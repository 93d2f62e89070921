/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What has been used of a policy's limits, in all and by each rule. Counters follow a rule by its name
 * through changes of the policy. rule -1 counts in all only. */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "policy/policy.h"

struct usage;
struct usage *usage_new(uv_loop_t *loop); /* NULL: no memory */
void usage_free(struct usage *u);

/* policy is referenced by its owner for as long as it is set. Counts of open connections start anew: the caller adds
 * those that go on. Keeps the old one on -ENOMEM. */
int usage_set_policy(struct usage *u, const struct policy *p);

/* False: over a limit, and not counted. */
bool usage_open(struct usage *u, int rule);
void usage_close(struct usage *u, int rule);
bool usage_request(struct usage *u, int rule);
/* Counted in any case; false from the byte on that is over a limit. */
bool usage_bytes(struct usage *u, int rule, uint64_t out, uint64_t in);

struct usage_total {
        uint64_t connections, requests, bytes_out, bytes_in;
};
struct usage_total usage_total(const struct usage *u);
