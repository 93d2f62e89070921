/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Publishing a sandbox as a template, which is one operation (and its id, and the build's):
 *
 *   the row of the operation                                           -> acknowledged
 *   an image     a checkpoint's; what a sandbox without a VM goes on from; else of the disk, as a checkpoint takes it
 *                (life_image()); or, for the memory, what a suspend leaves
 *   PUBLISH      cspace-rootd makes builds/<id>/out/ of it, and tells the digest
 *   then as with a build: the template's row, its files, its variant, its name (template_build.c)
 *
 * Until the name there is nothing: a failure or a restart removes builds/<id>/, and a template without a name. The image is
 * kept for as long as it is needed, whatever becomes of the sandbox.
 *
 * What a new sandbox must not find. Of the disk: nothing of cspace's is on it, the access token and the authority's key
 * least of all. Of the memory: the access token, in the agent and in whatever buffer a request went through. It
 * cannot be found and wiped there, so it is made worthless: the sandbox gets another one, in the transaction that comes before
 * anything is published, and learns it when it is restored. That is why one with a VM is suspended for this.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "peers/rootd.h"
#include "sandbox/checkpoint.h"
#include "sandbox/sandbox_flow.h"
#include "store/idem.h"
#include "template_build_internal.h"
#include "timer.h"

#define PUBLISH_TIMEOUT_MS 600000
#define SUSPEND_TIMEOUT_MS 900000
#define WAKE_TRIES 3

static void ask(void *arg);

/* ---- the image ------------------------------------------------------------------------------- */

void publish_free(struct app *app, struct publish *p) {
        char image[ID_SIZE];
        if (!p)
                return;
        op_wait_cancel(p->suspend);
        memcpy(image, p->image, sizeof image);
        p->image[0] = 0;
        image_release(app, image);
        p->from->pins--;
        if (!app->stopping)
                template_unused(app, p->from);
        sandbox_unref(p->of);
        json_decref(p->manifest);
        free(p);
}

bool publish_uses(struct app *app, const char *id) {
        if (!app->templates)
                return false;
        for (const struct build *bd = app->templates->builds; bd; bd = bd->next)
                if (bd->publish && strcmp(bd->publish->image, id) == 0)
                        return true;
        return false;
}

/* ---- cspace-rootd's part ------------------------------------------------------------------------- */

void publish_again(struct build *bd, int err, const char *why) {
        build_wait(bd, err, why, ask);
}

static void on_published(void *arg, int err, const struct error *e, struct ipc_packet *pk) {
        struct build *bd = arg;
        struct ipc_published m;
        if (bd->app->stopping)
                return; /* the next cspaced says that it was interrupted */
        if (err == -ECONNRESET || err == -ENOTCONN)
                publish_again(bd, err, e->msg);
        else if (err == -EBUSY) /* with the same, from before the connection was lost */
                publish_again(bd, -ENOTCONN, e->msg);
        else if (err < 0)
                build_fail(bd, err == -ENOSPC || err == -EDQUOT ? API_STORAGE_FULL : API_BUILD_FAILED, e->msg);
        else if (ipc_published_decode(pk->body, pk->body_n, &m) < 0 || !digest_valid(m.digest))
                build_fail(bd, API_INTERNAL, "cspace-rootd's answer cannot be read");
        else {
                patience_answered(&bd->rootd);
                (void) str_copy(bd->digest, sizeof bd->digest, m.digest);
                bd->disk_bytes = m.disk_bytes;
                build_commit(bd);
        }
}

static int manifest_fd(const json_t *manifest, struct error *err) {
        _cleanup_free_ char *text = json_dumps(manifest, JSON_INDENT(2) | JSON_SORT_KEYS);
        _cleanup_fd_ int fd = text ? memfd_create("manifest", MFD_CLOEXEC) : -1;
        if (fd < 0)
                return error_set(err, -ENOMEM, "out of memory");
        int r = fd_write_all(fd, text, strlen(text), err);
        return r < 0 ? r : fd_steal(&fd);
}

static void ask(void *arg) {
        struct build *bd = arg;
        struct publish *p = bd->publish;
        struct ipc_publish m = { 0 };
        struct error e = ERROR_INIT;
        uint8_t body[256];
        size_t n;
        bd->again = NULL;
        struct op *o = op_find(bd->app, bd->id);
        if (o)
                op_progress(o, "copying", 20, -1);
        _cleanup_fd_ int fd = manifest_fd(p->manifest, &e);
        if (fd < 0) {
                build_fail(bd, API_INTERNAL, e.msg);
                return;
        }
        (void) str_copy(m.id, sizeof m.id, bd->id);
        (void) str_copy(m.image, sizeof m.image, p->image);
        (void) str_copy(m.kind, sizeof m.kind, p->full ? "full" : "disk");
        (void) str_copy(m.digest, sizeof m.digest, p->from->digest);
        int r = ipc_publish_encode(&m, body, sizeof body, &n);
        if (r >= 0)
                r = rootd_call(bd->app->rootd, IPC_PUBLISH, body, n, &fd, 1, PUBLISH_TIMEOUT_MS, on_published, bd, &e);
        if (r == -ENOTCONN)
                publish_again(bd, r, e.msg);
        else if (r < 0)
                build_fail(bd, api_code_from_errno(r), e.msg);
}

/* ---- what is published ------------------------------------------------------------------------- */

static void on_image(void *arg, enum api_code code, const char *why) {
        struct build *bd = arg;
        if (why) {
                bd->publish->image[0] = 0; /* the flow has removed what there was */
                build_fail(bd, code, why);
        } else {
                ask(bd);
        }
}

void publish_wake(struct app *app, struct sandbox *s) {
        struct error e = ERROR_INIT;
        struct op *o;
        unsigned left = s->publish_wake;
        if (left == 0 || s->state != SANDBOX_SUSPENDED)
                return;
        if (sandbox_change(app, s, SANDBOX_RESTORE, "", NULL, NULL, NULL, &o, &e) < 0)
                sandbox_log(app, s, "warn", "publish", "it stays suspended: %s", e.msg);
        else
                s->publish_wake = left - 1; /* should it fall back, which comes here again */
}

void publish_interrupted(struct app *app, const struct op *o) {
        struct sandbox *s = sandbox_find_all(app, o->sandbox_id);
        bool down = s && (s->state == SANDBOX_SUSPENDING || s->state == SANDBOX_SUSPENDED);
        if (down && json_is_true(json_object_get(o->result, "wake")))
                s->publish_wake = WAKE_TRIES;
}

/* The token that the memory has is nobody's any more. */
static void on_rotated(void *arg, int err, const struct error *e) {
        struct build *bd = arg;
        struct sandbox *s = bd->publish->of;
        if (bd->app->stopping)
                return;
        s->publish_wake = bd->publish->wake ? WAKE_TRIES : 0;
        publish_wake(bd->app, s);
        if (err < 0)
                build_fail(bd, API_STORAGE_FULL, e->msg);
        else
                ask(bd);
}

static void on_suspended(void *arg, struct op *o) {
        struct build *bd = arg;
        struct publish *p = bd->publish;
        struct sandbox *s = p->of;
        p->suspend = NULL;
        if (!o || o->state != OP_SUCCEEDED) {
                build_fail(bd, o && o->state == OP_FAILED ? o->code : API_CHANGE_FAILED,
                           o && o->message ? o->message : "the sandbox could not be suspended");
                return;
        }
        if (s->state != SANDBOX_SUSPENDED || s->create || s->life || s->del) {
                build_fail(bd, API_CONFLICT, "the sandbox did not stay suspended");
                return;
        }
        struct db_batch *b = db_batch_new();
        memcpy(p->image, s->image, sizeof p->image);
        if (!b || sandbox_new_token(s) < 0) {
                db_batch_free(b);
                build_fail(bd, API_INTERNAL, "out of memory");
                return;
        }
        sandbox_row_update(s, b);
        int r = db_batch_submit(bd->app->db, b, on_rotated, bd);
        if (r < 0)
                on_rotated(bd, r, &(struct error){ .msg = "the database does not take it" });
}

static void suspend(struct build *bd) {
        struct error e = ERROR_INIT;
        struct op *o = NULL;
        int r = sandbox_change(bd->app, bd->publish->of, SANDBOX_SUSPEND, "", NULL, NULL, NULL, &o, &e);
        if (r >= 0) {
                bd->publish->suspend = op_wait_start(bd->app, o, SUSPEND_TIMEOUT_MS, on_suspended, bd);
                r = bd->publish->suspend ? 0 : error_set(&e, -ENOMEM, "out of memory");
        }
        if (r < 0)
                build_fail(bd, api_code_from_errno(r), e.msg);
}

static void start(struct build *bd) {
        struct publish *p = bd->publish;
        struct error e = ERROR_INIT;
        if (p->image[0]) {
                ask(bd);
        } else if (p->full) {
                suspend(bd);
        } else {
                int r = id_new(p->image);
                if (r >= 0)
                        r = life_image(bd->app, p->of, p->image, on_image, bd, &e);
                if (r < 0) { /* else bd may be gone already */
                        p->image[0] = 0;
                        build_fail(bd, api_code_from_errno(r), e.msg[0] ? e.msg : "no randomness");
                }
        }
}

/* ---- entry ----------------------------------------------------------------------------------- */

struct begin {
        struct build *bd;
        char token[SANDBOX_TOKEN_LEN + 1]; /* of before; "" it was not changed */
        void (*cb)(void *arg, int err, const struct error *e);
        void *arg;
};

static void on_durable(void *arg, int err, const struct error *e) {
        struct begin *g = arg;
        struct build *bd = g->bd;
        struct app *app = bd->app;
        idem_settle(app, bd->idem, err >= 0);
        if (err < 0) {
                op_discard(app, op_find(app, bd->id));
                if (g->token[0])
                        memcpy(bd->publish->of->token, g->token, sizeof g->token);
                g->cb(g->arg, err, e);
                build_free(bd);
        } else {
                g->cb(g->arg, 0, NULL);
                if (!app->stopping)
                        start(bd);
        }
        explicit_bzero(g->token, sizeof g->token);
        free(g);
}

static int check(struct sandbox *s, const struct sandbox_publish_params *p, struct error *err) {
        const char *state = sandbox_state_name(s->state);
        if (!s->tmpl || s->tmpl->removing)
                return error_set(err, -EBUSY, "the sandbox's template is not there any more");
        if (p->checkpoint && p->full)
                return error_set(err, -EINVAL, "a checkpoint is published without its memory");
        if (p->checkpoint)
                return s->del ? error_set(err, -EBUSY, "the sandbox is being deleted") : 0;
        if (s->life || s->create || s->del || s->fork || !((SANDBOX_HAS_VM | SANDBOX_AT_REST) & SANDBOX_BIT(s->state)))
                return error_set(err, -EBUSY, "the sandbox is %s, and something is under way with it: it cannot be published now", state);
        if ((SANDBOX_AT_REST & SANDBOX_BIT(s->state)) && !s->image[0])
                return error_set(err, -EBUSY, "the sandbox is %s, and its disk is not stored yet", state);
        if (p->full && (s->state == SANDBOX_STOPPED || s->state == SANDBOX_FAILED))
                return error_set(err, -EBUSY, "the sandbox is %s: it has no memory to publish", state);
        if (p->full && s->forked_from[0])
                return error_set(err, -EBUSY, "the sandbox is a fork: its memory may have the access token of the one it was copied from."
                                 " Publish its disk");
        return 0;
}

static json_t *make_manifest(const struct sandbox *s, bool full) {
        _cleanup_json_ json_t *j = json_deep_copy(s->tmpl->manifest);
        json_t *config = json_object_get(j, "config");
        if (!json_is_object(j)) {
                json_decref(j);
                j = json_object();
        }
        (void) json_object_del(j, "packages"); /* nobody has looked */
        (void) json_object_del(j, "snapshot");
        (void) json_object_set_new(j, "format", json_integer(1));
        (void) json_object_set_new(j, "source", json_pack("{s:s, s:s}", "kind", "sandbox", "template", s->digest));
        (void) json_object_set_new(j, "disk", json_pack("{s:I, s:s}", "bytes",
                                                        (json_int_t) (s->disk_bytes > s->tmpl->disk_bytes ? s->disk_bytes
                                                                                                            : s->tmpl->disk_bytes),
                                                        "fs", "ext4"));
        if (full)
                (void) json_object_set_new(j, "snapshot", json_pack("{s:I, s:I}", "memory_mb", (json_int_t) s->memory_mb, "cpus",
                                                                    (json_int_t) s->cpus));
        if (s->rules.checkpoint_every_s && !config) {
                config = json_object();
                (void) json_object_set_new(j, "config", config);
        }
        if (s->rules.checkpoint_every_s)
                (void) json_object_set_new(config, "rules", json_pack("{s:I, s:I}", "checkpoint_every_s",
                                                                     (json_int_t) s->rules.checkpoint_every_s, "checkpoint_keep",
                                                                     (json_int_t) s->rules.checkpoint_keep));
        return STEAL(j);
}

static int fill(struct build *bd, struct sandbox *s, const struct sandbox_publish_params *p) {
        struct publish *x = calloc(1, sizeof *x);
        if (!x)
                return -ENOMEM;
        *x = (struct publish){ .of = sandbox_ref(s), .from = s->tmpl, .full = p->full };
        x->from->pins++;
        bd->publish = x;
        if (p->checkpoint)
                memcpy(x->image, p->checkpoint->id, sizeof x->image);
        else
                memcpy(x->image, s->image, sizeof x->image);
        x->wake = p->full && s->state == SANDBOX_RUNNING;
        bd->memory_mb = s->memory_mb;
        bd->cpus = s->cpus;
        bd->stage = BUILDING;
        x->manifest = make_manifest(s, p->full);
        if (!x->manifest || (p->idem && !(bd->idem = strdup(p->idem))))
                return -ENOMEM;
        return 0;
}

/* The rows: the operation's, what is to be done should this be interrupted, and the new token of one without a VM. */
static int enter(struct begin *g, const struct sandbox_publish_params *p, struct op **ret) {
        struct build *bd = g->bd;
        struct app *app = bd->app;
        struct sandbox *s = bd->publish->of;
        struct db_batch *b = db_batch_new();
        struct op *o = b ? op_new(app, b, OP_PUBLISH, s->id, bd->ref, p->owner) : NULL;
        if (!o) {
                db_batch_free(b);
                return -ENOMEM;
        }
        memcpy(bd->id, o->id, sizeof bd->id);
        op_progress(o, p->full && !bd->publish->image[0] ? "suspending" : "taking an image", 0, -1);
        if (bd->publish->wake) {
                o->result = json_pack("{s:b}", "wake", true);
                db_batch_add(b, "UPDATE operations SET result = ? WHERE id = ?", "js", o->result, o->id);
        }
        if (p->full && bd->publish->image[0]) {
                memcpy(g->token, s->token, sizeof g->token);
                if (sandbox_new_token(s) < 0) {
                        db_batch_free(b);
                        op_discard(app, o);
                        return -ENOMEM;
                }
                sandbox_row_update(s, b);
        }
        idem_bind_op(app, p->idem, o->id, b);
        int r = db_batch_submit(app->db, b, on_durable, g);
        if (r < 0) {
                if (g->token[0])
                        memcpy(s->token, g->token, sizeof g->token);
                idem_settle(app, p->idem, false);
                op_discard(app, o);
                return r;
        }
        *ret = o;
        return 0;
}

int sandbox_publish(struct app *app, struct sandbox *s, const struct sandbox_publish_params *p,
                    void (*durable)(void *arg, int err, const struct error *e), void *arg, struct op **ret_op,
                    struct error *err) {
        struct build *bd;
        int r = build_reserve(app, p->ref, &bd, ret_op, err);
        if (r < 0)
                return r;
        r = check(s, p, err);
        if (r < 0) {
                build_free(bd);
                return r;
        }
        struct begin *g = calloc(1, sizeof *g);
        r = g ? fill(bd, s, p) : -ENOMEM;
        if (r >= 0) {
                *g = (struct begin){ .bd = bd, .cb = durable, .arg = arg };
                r = enter(g, p, ret_op);
        }
        if (r < 0) {
                free(g);
                build_free(bd);
                return error_errno(err, r, "could not store the operation");
        }
        return 0;
}
