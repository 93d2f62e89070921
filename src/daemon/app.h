/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The context of cspaced: one struct, passed to every part, made and taken down by main.c in
 * reading order. Everything in here lives on the loop's thread; the one other thread (db.h) is
 * reached only through db_submit() and db_batch_submit().
 *
 * State is held in memory and is the truth for readers; SQLite is its durable log. A change is
 * made in memory, queued to the database, and acknowledged to a client only when the database says
 * that it is on disk.
 */

#include <stdbool.h>
#include <uv.h>

#include "base/error.h"
#include "conf/conf.h"
#include "io/http_server.h"
#include "io/stream.h"

struct db;
struct rootd;
struct sandboxes;
struct ops;
struct keys;
struct idems;
struct templates;
struct variants;
struct warm;
struct expiry;
struct removals;
struct settle;
struct api;
struct proxy;
struct attach;
struct del;
struct policies;
struct audit_store;
struct credentials;
struct fork;
struct image_hold;
struct e2b; /* owned by e2b.c */

/* Since the start, for /metrics. */
struct app_counters {
        uint64_t creates, creates_failed, creates_warm, create_us, deletes, lost, tokens, tokens_failed;
};

struct app {
        uv_loop_t *loop;
        struct conf conf;
        struct db *db;
        struct rootd *rootd;
        struct sandboxes *sandboxes;
        struct ops *ops;
        struct keys *keys;
        struct idems *idems;
        struct templates *templates;
        struct policies *policies;   /* of templates */
        struct credentials *credentials;
        struct audit_store *audit;
        struct variants *variants;
        struct warm *warm;
        struct expiry *expiry;
        struct removals *removals;
        struct settle *settle;
        struct api *api;
        struct proxy *proxy;
        struct attach *attaches; /* list, attach.c */
        struct del *deletes;     /* list, sandbox_delete.c */
        struct fork *forks;      /* list, fork.c */
        struct image_hold *image_holds; /* list, checkpoint.c */
        struct e2b *e2b;
        struct app_counters counters;
        uint64_t provider_turns;  /* provider.c: the last number given */
        uint64_t host_memory_mb;  /* what this host has */
        uint32_t host_cpus;
        int64_t started_ms;
        bool stopping;
};

/* What http_x_conn_tag() points to. */
struct conn_kind {
        bool trusted; /* local peer that is uid 0, our own uid or in our group: admin without a key */
};
extern const struct conn_kind conn_trusted, conn_untrusted;
