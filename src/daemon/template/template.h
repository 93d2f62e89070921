/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Templates: immutable content found by its digest, and the names (name:tag) that point to
 * digests. A name may move to another digest by a later build; a sandbox keeps the digest it was
 * made from.
 */

#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>

#include "base/error.h"
#include "base/id.h"

#define TEMPLATE_TAG_DEFAULT "latest"
#define TEMPLATE_REF_SIZE (2 * TEMPLATE_NAME_MAX + 2)
#define TEMPLATE_MAX 1000

struct app;
struct op;

struct tmpl {
        char digest[DIGEST_LEN + 1];
        int64_t created_ms;
        uint64_t disk_bytes;  /* size of its disk as the guest sees it */
        json_t *manifest;     /* what the builder said of it */
        unsigned n_sandboxes; /* that use it now */
        unsigned n_tags;
        unsigned pins;        /* builds and variants under way */
        bool removing;
};

struct tag {
        char ref[TEMPLATE_REF_SIZE]; /* "name:tag" */
        struct tmpl *tmpl;
        int64_t updated_ms;
};

struct templates;
int templates_load(struct app *app, struct templates **ret, struct error *err);
void template_builds_abandon(struct app *app); /* cspaced ends: before what they wait for is freed */
void templates_free(struct templates *t);     /* after the database's last callback */

/* "name", "name:tag" or a digest. *ret_ref is the full "name:tag", or "" for a digest.
 * -EINVAL: not a legal reference; -ENOENT. */
int template_resolve(struct app *app, const char *ref, struct tmpl **ret, char ret_ref[TEMPLATE_REF_SIZE],
                     struct error *err);
struct tmpl *template_find(struct app *app, const char *digest);
/* All, in no order; at most max. */
size_t templates_all(struct app *app, struct tmpl **ret, size_t max);
/* Splits and checks; fills in the default tag. */
int template_ref_parse(const char *ref, char ret[TEMPLATE_REF_SIZE], struct error *err);
/* Its agent, compared with the one that is installed: "installed" or "other"; NULL: that cannot be read. */
const char *template_agent(struct app *app, const struct tmpl *t);
int template_ref_make(const char *name, const char *tag, char ret[TEMPLATE_REF_SIZE], struct error *err); /* of its two parts */
/* A user, name or pin has gone: content that nothing holds any more is removed. */
void template_unused(struct app *app, struct tmpl *t);
/* Iterates over the names, sorted: start with NULL, ends with NULL. */
const struct tag *tag_next(struct app *app, const struct tag *after);

/* What its manifest says of a process that asks for nothing: user ("user" if silent), working directory
 * ("": the user's home), and the environment (borrowed; NULL for none) below the sandbox's own. */
struct template_defaults {
        const char *user, *workdir;
        const json_t *env;
};
struct template_defaults template_defaults(const struct tmpl *t /* may be NULL */);

/* Its manifest's rules about automatic checkpoints, where it has any, into r. */
struct sandbox_rules;
void template_rules(const struct tmpl *t, struct sandbox_rules *r);

json_t *template_to_json(struct app *app, const struct tmpl *t, bool full /* with the manifest */);
/* At start: content that nothing holds, as after a crash. */
void templates_collect(struct app *app);

struct template_build_params {
        const char *ref;       /* "name:tag" */
        const char *source;    /* "packages" or "tar" */
        const char *packages;  /* space-separated; "" none */
        const char *suite;     /* "" the host's own */
        uint64_t disk_bytes;
        uint64_t timeout_s;
        uint32_t memory_mb, cpus; /* of the first variant */
        uint64_t checkpoint_every_s, checkpoint_keep; /* of its sandboxes; the first 0: its manifest says nothing of it */
        int tar_fd;            /* taken; -EBADF for none */
        const char *owner;
        const char *idem;      /* idem_scope of the request, NULL none */
};
/* Starts a build; the operation's row is durable when the caller's done is called. A build of
 * the same name that is still running: -EALREADY and *ret is its operation. */
typedef void (*template_build_cb)(void *arg, int err, const struct error *e, struct op *o);
int template_build(struct app *app, const struct template_build_params *p, template_build_cb cb, void *arg,
                   struct op **ret, struct error *err);
/*
 * Publishes a sandbox as a template: its disk (checkpoint: as that has it), or for `full` disk and memory, with its programs.
 * For the latter one with a VM is suspended, and restored if it ran; its access token is another one afterwards, since the
 * memory has the one of before. Durable and operation as with sandbox_create(). -EALREADY as template_build().
 */
struct sandbox;
struct checkpoint;
struct sandbox_publish_params {
        const char *ref; /* "name[:tag]" */
        bool full;
        const struct checkpoint *checkpoint; /* NULL: what it is now */
        const char *owner, *idem;
};
int sandbox_publish(struct app *app, struct sandbox *s, const struct sandbox_publish_params *p,
                    void (*durable)(void *arg, int err, const struct error *e), void *arg, struct op **ret_op,
                    struct error *err);
/* Whether something is just being published from image `id`. */
bool publish_uses(struct app *app, const char *id);
/* At start, of an operation that a restart interrupted: its sandbox is to run again if it did. */
void publish_interrupted(struct app *app, const struct op *o);
/* s has come to rest: the rest of that. */
void publish_wake(struct app *app, struct sandbox *s);
/* Whether it is of a VM that ran, and of which size: it can be used for no other. */
bool template_snapshot(const struct tmpl *t, uint32_t *ret_memory_mb, uint32_t *ret_cpus);

/* Drops a name, or (by digest) every name; content without a name goes away. -EBUSY: in use. cb
 * when it is done. */
typedef void (*template_remove_cb)(void *arg, int err, const struct error *e);
int template_remove(struct app *app, const char *ref, template_remove_cb cb, void *arg, struct error *err);
/* Points another name at existing content. */
int template_tag(struct app *app, const char *ref, struct tmpl *t, template_remove_cb cb, void *arg,
                 struct error *err);
