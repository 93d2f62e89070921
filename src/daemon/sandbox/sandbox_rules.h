/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What happens to a sandbox by itself: at its expiry, when nobody uses it, when somebody does again. */

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum sandbox_end { SANDBOX_END_DELETE, SANDBOX_END_PAUSE, SANDBOX_END_SUSPEND, SANDBOX_END_STOP, SANDBOX_END_MAX_ };

struct sandbox_rules {
        uint64_t ttl_s;             /* as asked for, to be given again by a wake after its expiry; 0 none */
        enum sandbox_end on_expiry; /* not PAUSE */
        uint64_t idle_s;            /* 0: never */
        enum sandbox_end on_idle;
        bool wake;                  /* on the first request */
        uint64_t checkpoint_every_s; /* 0: none are taken by themselves */
        uint64_t checkpoint_keep;    /* how many of those stay */
};
#define CHECKPOINT_EVERY_MIN_S 2
#define CHECKPOINT_KEEP_MAX 100 /* leaves room for those made by hand */
#define CHECKPOINT_KEEP_DEFAULT 6
#define SANDBOX_RULES_DEFAULT                                                                              \
        ((struct sandbox_rules){ .on_expiry = SANDBOX_END_DELETE, .on_idle = SANDBOX_END_SUSPEND,          \
                                 .checkpoint_keep = CHECKPOINT_KEEP_DEFAULT })
/* Of JSON bodies; ttl_s is its user's. */
#define SANDBOX_RULES_KEYS "on_expiry", "idle_s", "on_idle", "wake", "checkpoint_every_s", "checkpoint_keep"

/* The members that are there replace those of r, which is untouched on an error. */
int sandbox_rules_read(const json_t *body, struct sandbox_rules *r, struct error *err);
/* Its last two members alone; a template's manifest has them too. */
int sandbox_rules_read_checkpoints(const json_t *body, struct sandbox_rules *r, struct error *err);
/* Adds these members to j, for clients. */
void sandbox_rules_show(const struct sandbox_rules *r, json_t *j);
/* For the row: all of it. */
json_t *sandbox_rules_store(const struct sandbox_rules *r);
int sandbox_rules_load(const char *text, struct sandbox_rules *ret);
