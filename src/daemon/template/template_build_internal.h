/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A template that is coming about: what builds (template_build.c) and publishing (template_publish.c) share. */

#include "base/buf.h"
#include "peers/patience.h"
#include "store/op.h"
#include "template_internal.h"

struct op_wait;
struct stream;
struct timer;
struct variant_wait;

enum stage { QUEUED, BUILDING, COMMIT, MANIFEST, VARIANT, TAG };

/* What is published: the disk, or disk and memory, of a sandbox. */
struct publish {
        struct sandbox *of;      /* a reference */
        struct tmpl *from;       /* its template; pinned */
        json_t *manifest;        /* of the new one */
        char image[ID_SIZE];     /* "" not known yet; kept as long as it stands here */
        bool full;
        bool wake;               /* it ran, and was suspended for this */
        struct op_wait *suspend; /* its end is awaited */
};

struct build {
        struct app *app;
        char id[ID_SIZE]; /* also the operation's */
        char ref[TEMPLATE_REF_SIZE];
        char source[16];
        char *packages;
        char suite[64];
        uint64_t disk_bytes, timeout_s;
        uint32_t memory_mb, cpus;
        uint64_t checkpoint_every_s, checkpoint_keep;
        int tar_fd;
        char *idem;
        template_build_cb cb;
        void *arg;
        enum stage stage;
        uint64_t t0_ms;
        struct stream *progress;
        struct buf line;
        bool replied, eof;
        struct timer *last_lines;
        struct timer *again; /* cspace-rootd is awaited */
        struct patience rootd;
        char digest[DIGEST_LEN + 1];
        char said_error[ERROR_MSG_MAX], said_code[64];
        struct tmpl *tmpl; /* pinned */
        struct publish *publish; /* NULL: a build */
        struct variant_wait *variant;
        struct build *next;
};

/* The files are in builds/<id>/out/, the digest is known: the rest is the same for both. */
void build_commit(struct build *bd);
void build_fail(struct build *bd, enum api_code code, const char *why); /* bd is gone */
/* cspace-rootd was lost (err as of patience_lasts()): again(bd) is called after a while, or bd fails. */
void build_wait(struct build *bd, int err, const char *why, void (*again)(void *bd));
/* One without a queue: in the list, so that its name is taken. -EALREADY, -EAGAIN, -EINVAL as template_build(). */
int build_reserve(struct app *app, const char *ref, struct build **ret, struct op **ret_other, struct error *err);
void build_free(struct build *bd);

/* template_publish.c */
void publish_free(struct app *app, struct publish *p);
void publish_again(struct build *bd, int err, const char *why); /* cspace-rootd was lost while it committed: -ECONNRESET, -ENOTCONN */
