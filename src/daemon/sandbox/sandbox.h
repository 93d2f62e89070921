/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Sandboxes in memory: lookup, lists, state. The flows that move one from state to state are in
 * sandbox_create.c and sandbox_delete.c.
 */

#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>

#include "api/api.h"
#include "base/error.h"
#include "base/id.h"
#include "base/limits.h"
#include "sandbox_rules.h"
#include "template/template.h"

#define SANDBOX_TOKEN_LEN 40
#define SANDBOX_NAME_MAX 63

struct app;
struct op;
struct create;
struct life;
struct del;
struct watch;
struct egress;
struct fork;
struct db_batch;

/*
 *              who moves it on, and where to
 * POOLED       the warm pool: restored, has no identity, nobody's. A create that takes it makes a
 *              new struct (CREATING) with its id and placement. DELETING
 * SNAPSHOT     no sandbox, but one that is kept to be copied (fork.h), out of sight like a POOLED one; has nothing on the host
 *              but `image`. DELETING
 * CREATING     row and operation written. RUNNING, FAILED, DELETING
 * RUNNING      identity given, agent answered. PAUSING, SUSPENDING, STOPPING (by a client, or the first two at its
 *              expiry or when idle), FAILED (VM or warden ended), DELETING
 * PAUSING      commands being frozen, VM being stopped. PAUSED; RUNNING (undone), FAILED, DELETING
 * PAUSED       VM in memory, using no CPU. RESUMING, SUSPENDING, STOPPING, FAILED, DELETING
 * RESUMING     RUNNING; PAUSED (its warden cannot be reached), FAILED, DELETING
 * SUSPENDING   memory, devices and disk being made an image, then the placement removed. SUSPENDED; what it
 *              was before (undone), FAILED, DELETING
 * SUSPENDED    has nothing on the host but `image`. RESTORING, STOPPING (gives its memory up), DELETING
 * RESTORING    being placed from `image`. RUNNING; SUSPENDED (undone), DELETING; of a fork it is the first state
 * STOPPING     powered off or killed, then the disk made an image, then as SUSPENDING. STOPPED; FAILED, DELETING
 * STOPPED      has nothing on the host but `image`. STARTING, DELETING
 * STARTING     booting from `image`. RUNNING; STOPPED (undone), DELETING; of a fork from a disk it is the first state
 * ROLLING_BACK `image` is a checkpoint's; what it was before is being removed. RESTORING, STARTING, DELETING
 * FAILED       no VM any more; `reason` says why. Of one that had run, the disk is kept as `image`: STARTING.
 *              DELETING (by a client, or at its expiry)
 * DELETING     being taken apart; does not come back. DELETED
 * DELETED      row gone; the struct lives until its last reference
 *
 * PAUSING to STARTING with -ING are moves under way, each with an operation: another request is refused with the
 * state in the message, but for a delete. A restart of cspaced finds the row so and goes on (reconcile.c).
 */
enum sandbox_state {
        SANDBOX_POOLED,
        SANDBOX_SNAPSHOT,
        SANDBOX_CREATING,
        SANDBOX_RUNNING,
        SANDBOX_PAUSING,
        SANDBOX_PAUSED,
        SANDBOX_RESUMING,
        SANDBOX_SUSPENDING,
        SANDBOX_SUSPENDED,
        SANDBOX_RESTORING,
        SANDBOX_STOPPING,
        SANDBOX_STOPPED,
        SANDBOX_STARTING,
        SANDBOX_ROLLING_BACK,
        SANDBOX_FAILED,
        SANDBOX_DELETING,
        SANDBOX_DELETED,
        SANDBOX_STATE_MAX_,
};
#define SANDBOX_BIT(state) (1u << (state))
#define SANDBOX_HAS_VM (SANDBOX_BIT(SANDBOX_RUNNING) | SANDBOX_BIT(SANDBOX_PAUSED)) /* and is not on the way anywhere */
#define SANDBOX_AT_REST (SANDBOX_BIT(SANDBOX_SUSPENDED) | SANDBOX_BIT(SANDBOX_STOPPED) | SANDBOX_BIT(SANDBOX_FAILED))
/* Those that use the host's memory. */
#define SANDBOX_ALIVE                                                                                             \
        (SANDBOX_BIT(SANDBOX_CREATING) | SANDBOX_BIT(SANDBOX_RUNNING) | SANDBOX_BIT(SANDBOX_PAUSING) |             \
         SANDBOX_BIT(SANDBOX_PAUSED) | SANDBOX_BIT(SANDBOX_RESUMING) | SANDBOX_BIT(SANDBOX_SUSPENDING) |           \
         SANDBOX_BIT(SANDBOX_RESTORING) | SANDBOX_BIT(SANDBOX_STOPPING) | SANDBOX_BIT(SANDBOX_STARTING) |          \
         SANDBOX_BIT(SANDBOX_ROLLING_BACK) |                                                                     \
         SANDBOX_BIT(SANDBOX_DELETING))
const char *sandbox_state_name(enum sandbox_state s); /* "running" */

/* How long the last start took. */
struct sandbox_timing {
        uint64_t total_us; /* request to ready */
        uint64_t place_us, spawn_us, load_us, link_us, identify_us;
        bool warm;         /* from the pool */
};

struct sandbox {
        char id[ID_SIZE];
        char name[SANDBOX_NAME_MAX + 1]; /* "" if none; unique among those not deleted */
        enum sandbox_state state;
        char reason[ERROR_MSG_MAX];      /* of FAILED */
        char template_ref[TEMPLATE_REF_SIZE]; /* "name:tag" as resolved at create; "" by digest */
        char digest[DIGEST_LEN + 1];
        struct tmpl *tmpl;
        uint32_t memory_mb, cpus;
        uint64_t disk_bytes;
        char token[SANDBOX_TOKEN_LEN + 1]; /* envd's X-Access-Token */
        char owner[ID_SIZE];             /* key id, "" for a local admin */
        json_t *metadata, *env;          /* objects of strings, never NULL */
        json_t *ext;                     /* object kept for the E2B routes; NULL if none */
        int64_t created_ms, started_ms;  /* started: first RUNNING; 0 before */
        int64_t expires_ms;              /* 0: never */
        char image[ID_SIZE];             /* what SUSPENDED, STOPPED and FAILED ones go on from; "" none */
        struct sandbox_rules rules;
        struct egress *egress;           /* policy and gateway, in a row of its own; NULL: POOLED */
        struct checkpoint *checkpoints;  /* oldest first; rows of their own */
        char head[ID_SIZE];              /* the checkpoint that it went on from; "" none */
        char forked_from[ID_SIZE];       /* the sandbox that it is a copy of; "" none */
        /* not in the database */
        bool synced;                     /* PAUSED, SUSPENDED: its disk has all that was written in it; false: not known */
        int64_t active_ms;               /* when somebody last began or ended a use of it */
        int64_t retry_ms;                /* what its rules say is not to be tried before */
        int64_t rolled_ms;               /* what the next automatic checkpoint's time counts from; 0: not known yet */
        uint64_t rolled_ns;              /* when its disk was last written to after the last one; 0: not known */
        unsigned publish_wake;           /* was suspended to be published: so often is it tried to restore it */
        bool rolling;                    /* cspace-rootd is asked about its disk */
        struct create *create;           /* flow under way: also of RESTORING and STARTING */
        struct life *life;               /* flow under way: of the other moves */
        struct del *del;                 /* flow under way */
        struct fork *fork;               /* under way, which makes this one (fork.h) */
        struct watch *watch;             /* of its warden, while it runs */
        struct sandbox_timing timing;
        bool stands;                     /* its VM stands still for want of room on the host (its warden says so) */
        uint64_t silent_ms;              /* monotonic: when a request to its agent timed out last; 0: one was answered since */
        int64_t log_window_ms;           /* sandbox_log.c */
        unsigned log_lines;
        unsigned refs;
        struct sandbox *prev, *next;     /* by creation */
};

struct sandboxes;
int sandboxes_load(struct app *app, struct sandboxes **ret, struct error *err);
void sandboxes_abandon(struct app *app); /* cspaced ends: all flows, and the table is empty */
void sandboxes_free(struct sandboxes *s);

/* By id. POOLED, SNAPSHOT and DELETED ones are not found. */
struct sandbox *sandbox_find(struct app *app, const char *id);
/* By id or name. */
struct sandbox *sandbox_find_any(struct app *app, const char *id_or_name);
struct sandbox *sandbox_ref(struct sandbox *s);
void sandbox_unref(struct sandbox *s); /* NULL is fine */

struct sandbox_filter {
        unsigned states;            /* bit 1 << state; 0: all visible ones */
        const char *digest;         /* NULL: any */
        const char *template_ref;   /* NULL: any */
        const json_t *metadata;     /* all these pairs must match; NULL: any */
        int64_t started_after_ms;   /* 0: any */
        bool oldest_first;          /* default: newest first */
};
/* Goes through the matching ones in order of creation. cursor: where the page before ended, "" at
 * first. Calls fn for at most limit; ret_next is "" after the last page. -EINVAL: bad cursor. */
#define SANDBOX_CURSOR_SIZE 64
int sandbox_list(struct app *app, const struct sandbox_filter *f, const char *cursor, size_t limit,
                 void (*fn)(void *arg, struct sandbox *s), void *arg, char ret_next[SANDBOX_CURSOR_SIZE],
                 struct error *err);
size_t sandbox_count(struct app *app, unsigned states /* as in the filter */);

struct sandbox_params {
        const char *template;      /* "name[:tag]" or digest */
        const char *name;          /* NULL none */
        uint32_t memory_mb, cpus;  /* 0: default */
        uint64_t disk_bytes;       /* 0: as the template's */
        json_t *env, *metadata;    /* borrowed; NULL none; objects of strings, limits checked here */
        json_t *ext;               /* borrowed; NULL none */
        const json_t *policy;      /* borrowed; an object; NULL: the template's default */
        const json_t *bindings;    /* borrowed; array, checked one by one (bindings.h); NULL none */
        int64_t ttl_s;             /* -1: default of the configuration; 0: no limit if allowed */
        struct sandbox_rules rules; /* SANDBOX_RULES_DEFAULT */
        bool own_checkpoints;      /* the rules about checkpoints are the caller's, not the template's */
        const char *owner;
        const char *idem;          /* idem_scope of the request, NULL none */
};
/*
 * Checks p (code tells which error), makes the sandbox and its operation, and starts. durable is
 * called when both rows are on disk (then an id may be told to a client) or with an error (then
 * both are gone). The operation's end (op_wait_start()) is when the sandbox is ready or failed.
 */
typedef void (*sandbox_durable_cb)(void *arg, int err, const struct error *e);
int sandbox_create(struct app *app, const struct sandbox_params *p, sandbox_durable_cb durable, void *arg,
                   struct sandbox **ret_s, struct op **ret_op, enum api_code *ret_code, struct error *err);
/*
 * A copy of `of` that has its own id, token and gateway, for a fork: not in the table, without state and image. What it has of
 * `of` is said at the members.
 */
struct sandbox_copy {
        const char *name;         /* NULL none */
        const char *owner;
        bool own_policy;          /* `policy` and not that of `of` */
        const json_t *policy;     /* borrowed; NULL: nothing may be reached */
        bool bindings;            /* those of `of`, with their placeholders and what was used of them; else none */
        const json_t *env;        /* borrowed, over that of `of`; NULL none */
        const json_t *metadata;   /* borrowed; NULL: that of `of` */
        bool own_ext;             /* `ext` and not what can be taken from `of` */
        const json_t *ext;        /* borrowed; NULL none */
        const struct sandbox_rules *rules; /* NULL: those of `of` */
        int64_t ttl_s;            /* -1: begins again as for `of`; 0: no limit if allowed */
};
int sandbox_copy(struct app *app, const struct sandbox *of, const struct sandbox_copy *p, struct sandbox **ret,
                 enum api_code *ret_code, struct error *err);
void sandbox_copy_free(struct app *app, struct sandbox *s); /* one that is not in the table */
/* Whether a VM of that size may be on this host: -EINVAL with the numbers. 0 of either: not asked for. */
#define HOST_MEMORY_RESERVE_MB 512 /* kept for the host (a quarter of it where that is less) */
int sandbox_size_check(const struct app *app, uint32_t memory_mb, uint32_t cpus, struct error *err);
/* In any state; one that is being deleted gives the operation under way. durable as above. */
int sandbox_delete(struct app *app, struct sandbox *s, const char *why, const char *owner, const char *idem,
                   sandbox_durable_cb durable, void *arg, struct op **ret_op, struct error *err);
/*
 * Pausing and so on. -EBUSY: not in this state, which the error names. The operation's end is when it is in its
 * new state, or back in the old one; durable as above.
 */
enum sandbox_verb {
        SANDBOX_PAUSE,
        SANDBOX_RESUME,
        SANDBOX_SUSPEND,
        SANDBOX_RESTORE,
        SANDBOX_STOP,
        SANDBOX_START,
        SANDBOX_WAKE, /* resume, restore or start */
        SANDBOX_CHECKPOINT,
        SANDBOX_ROLLBACK,
        SANDBOX_FORK, /* by fork.h */
        SANDBOX_VERB_MAX_,
};
int sandbox_change(struct app *app, struct sandbox *s, enum sandbox_verb verb, const char *owner, const char *idem,
                   sandbox_durable_cb durable, void *arg, struct op **ret_op, struct error *err);
struct checkpoint;
struct sandbox_change_params {
        const char *owner, *idem;
        const char *name;  /* CHECKPOINT: its name, NULL none */
        bool full;         /* CHECKPOINT: with memory */
        bool automatic;    /* CHECKPOINT: by its rules */
        const struct checkpoint *checkpoint; /* ROLLBACK: to this one */
        struct fork *fork; /* FORK: taken on success */
};
/* Also -EEXIST: the name is taken; -EAGAIN: a limit. */
int sandbox_change_with(struct app *app, struct sandbox *s, enum sandbox_verb verb, const struct sandbox_change_params *p,
                        sandbox_durable_cb durable, void *arg, struct op **ret_op, struct error *err);
/* Somebody uses it. */
void sandbox_touch(struct sandbox *s);
/* Replaces its rules and writes the row. */
int sandbox_set_rules(struct app *app, struct sandbox *s, const struct sandbox_rules *rules, sandbox_durable_cb durable,
                      void *arg);
/* New expiry: now + ttl_s; 0 for none. Checks the configured limit (-ERANGE). */
int sandbox_set_ttl(struct app *app, struct sandbox *s, uint64_t ttl_s, sandbox_durable_cb durable, void *arg,
                    struct error *err);
/* A request to the agent of s (NULL is fine) was answered, or timed out. */
void sandbox_heard(struct app *app, struct sandbox *s, bool answered);
/* Whether the guest answers, as its warden knows by pings; cb comes later and once. known is false when the warden
 * cannot say (it is being replaced). < 0: s does not run; no callback. */
typedef void (*sandbox_answers_cb)(void *arg, bool known, bool answers);
int sandbox_answers(struct sandbox *s, sandbox_answers_cb cb, void *arg);
/* Replaces ext and writes the row. */
int sandbox_set_ext(struct app *app, struct sandbox *s, json_t *ext, sandbox_durable_cb durable, void *arg);

/* Lifecycle log of a sandbox (bounded; sandbox_log.c). */
void sandbox_log(struct app *app, struct sandbox *s, const char *level, const char *event, const char *fmt, ...)
        __attribute__((format(printf, 5, 6)));
/* Array of {"time","level","event","message"}, oldest first, those after since_ms. */
typedef void (*sandbox_log_cb)(void *arg, int err, json_t *entries /* borrowed */);
int sandbox_log_read(struct app *app, struct sandbox *s, int64_t since_ms, size_t limit, sandbox_log_cb cb,
                     void *arg);

json_t *sandbox_to_json(const struct sandbox *s, bool full /* with env and timing */);
char *sandbox_identity(struct app *app, const struct sandbox *s); /* what the agent is told, JSON, malloc'd */
bool sandbox_name_valid(const char *s);
