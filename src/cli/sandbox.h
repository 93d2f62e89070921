/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Creating and deleting a sandbox; shared by run, create and rm. */

#include "base/limits.h"
#include "client.h"
#include "opts.h"

struct sandbox_options {
        const char *template, *name;
        uint64_t memory, disk; /* bytes; 0: default */
        uint64_t cpus;
        const char *ttl, *on_expiry, *idle, *on_idle, *checkpoint_every;
        uint64_t checkpoint_keep; /* 0: default */
        bool wake;
        struct opt_list env, metadata, allow;
        const char *policy; /* file, or a preset */
};

/* What happens with it by itself. */
#define SANDBOX_RULE_OPTS(o)                                                                                 \
        { "ttl",       0,    OPT_STRING, &(o).ttl, "TIME", "Time to live, as 30s, 5m or 2h; 0: no limit.",     \
          COMPLETE_NONE, 0,  0 },                                                                              \
                { "on-expiry", 0, OPT_STRING, &(o).on_expiry, "WHAT",                                          \
                  "What happens then: delete (the default), suspend or stop.", COMPLETE_NONE, 0, 0 },          \
                { "idle", 0, OPT_STRING, &(o).idle, "TIME", "Suspend it when nobody used it for so long.",     \
                  COMPLETE_NONE, 0, 0 },                                                                       \
                { "on-idle", 0, OPT_STRING, &(o).on_idle, "WHAT",                                              \
                  "Then pause, suspend (the default), stop or delete it.", COMPLETE_NONE, 0, 0 },              \
        { "checkpoint-every", 0, OPT_STRING, &(o).checkpoint_every, "TIME",                                    \
          "Take a checkpoint of its disk so often, while it runs and something changes; 0: never.",            \
          COMPLETE_NONE, 0, 0 },                                                                               \
                { "checkpoint-keep", 0, OPT_UINT, &(o).checkpoint_keep, "N",                                   \
                  "Keep the newest N of those (6).", COMPLETE_NONE, 1, 100 },                                  \
        {                                                                                                      \
                "wake", 0, OPT_FLAG, &(o).wake, NULL, "Wake it when somebody uses it again.", COMPLETE_NONE,   \
                        0, 0                                                                                   \
        }

#define SANDBOX_OPTS(o)                                                                                      \
        { "template",        'T', OPT_STRING, &(o).template, "NAME[:TAG]", "Template to start from (base).", \
          COMPLETE_TEMPLATE, 0,   0 },                                                                       \
                { "memory",      'm',    OPT_SIZE,                                                           \
                  &(o).memory,   "SIZE", "Memory, as 512M or 2G. A size not used before is prepared first.", \
                  COMPLETE_NONE, (uint64_t) LIMIT_MEMORY_MIN_MB << 20, (uint64_t) LIMIT_MEMORY_MAX_MB << 20 },                                                                \
                { "cpus", 'c', OPT_UINT, &(o).cpus, "N", "Virtual CPUs.", COMPLETE_NONE, 1, LIMIT_CPUS_MAX },             \
                { "disk",        0, OPT_SIZE, &(o).disk, "SIZE", "Disk, at least that of the template.",     \
                  COMPLETE_NONE, 1u << 20, (uint64_t) LIMIT_DISK_MAX_MB << 20 },                            \
                { "name",        0, OPT_STRING, &(o).name, "NAME", "A name that can stand for the id.",      \
                  COMPLETE_NONE, 0, 0 },                                                                     \
                { "metadata",    0, OPT_LIST, &(o).metadata, "KEY=VALUE", "Note something with it.",         \
                  COMPLETE_NONE, 0, 0 },                                                                     \
        { "allow",       0, OPT_LIST, &(o).allow, "HOST",                                                      \
          "Let it reach this: a name, *.SUFFIX, NAME:PORT, an address or @packages. Again for more.",          \
          COMPLETE_PRESET, 0, 0 },                                                                             \
                { "policy", 0, OPT_STRING, &(o).policy, "FILE",                                                \
                  "What it may reach, as JSON; or none, or @packages.", COMPLETE_FILE, 0, 0 },                 \
        SANDBOX_RULE_OPTS(o)

struct sandbox_created {
        char *id, *operation;
        json_t *sandbox; /* as the API has it */
};
void sandbox_created_done(struct sandbox_created *s);

/* text, given as --option, in seconds as key of body; NULL: nothing. */
int sandbox_add_time(json_t *body, const char *key, const char *option, const char *text, struct api_error *e);
/* The rules among the options, into the body of a create or of a change. */
int sandbox_add_rules(json_t *body, const struct sandbox_options *o, struct api_error *e);
/* What happens with it by itself, a line for each. */
void sandbox_print_rules(const json_t *sandbox);
/* Names of the API in a message become those of the options. */
void sandbox_error_words(struct api_error *e);
/* Asks for it; returns when the sandbox has an id. Then sandbox_wait() waits until it runs. */
int sandbox_create(struct client *c, const struct sandbox_options *o, struct sandbox_created *ret,
                   struct api_error *e);
int sandbox_wait(struct client *c, struct sandbox_created *s, struct api_error *e);
int sandbox_get(struct client *c, const char *sandbox, json_t **ret, struct api_error *e);
/* Waits until it is gone. */
int sandbox_delete(struct client *c, const char *sandbox, struct api_error *e);
