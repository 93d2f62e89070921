/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A build, which is one operation (and its id):
 *
 *   QUEUED    at most [build] builds at one time
 *   BUILDING  cspace-rootd runs the builder; its progress comes as JSON lines on a socket
 *   COMMIT    the template's row is written, then cspace-rootd makes the files templates/<digest>/
 *   MANIFEST  manifest.json is read (by the database thread: it is a file)
 *   VARIANT   the variant of the asked size is made: a template that cannot boot gets no name
 *   TAG       name and end of the operation, in one transaction
 *   CLEAR     builds/<id>/ is removed, whatever happened
 *
 * What the builder says is hostile: packages' scripts and foreign archives had their say in it.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "app.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "peers/rootd.h"
#include "sandbox/removal.h"
#include "sandbox/sandbox.h"
#include "sandbox/warm.h"
#include "store/idem.h"
#include "store/op.h"
#include "template_build_internal.h"
#include "timer.h"
#include "variant.h"

#define LINE_MAX_BYTES (64 * 1024)
#define COMMIT_TIMEOUT_MS 600000
#define LAST_LINES_MS 5000      /* from the answer to the end of the progress stream */
#define RETRY_MS 200           /* while cspace-rootd is not there */
#define BUILD_SHARE 60          /* percent of the whole until the variant begins */
#define BUILDS_WAITING_MAX 64
#define MANIFEST_MAX (1024 * 1024)

static void start_queued(struct app *app);
static void built(struct build *bd);

/* ---- end ----------------------------------------------------------------------------------- */

void build_free(struct build *bd) {
        for (struct build **at = &bd->app->templates->builds; *at; at = &(*at)->next)
                if (*at == bd) {
                        *at = bd->next;
                        break;
                }
        stream_close(bd->progress);
        timer_cancel(bd->last_lines);
        timer_cancel(bd->again);
        variant_wait_cancel(bd->variant);
        publish_free(bd->app, bd->publish);
        buf_done(&bd->line);
        (void) fd_close(bd->tar_fd);
        free(bd->packages);
        free(bd->idem);
        free(bd);
}

static void finish(struct build *bd, struct db_batch *b) {
        struct app *app = bd->app;
        struct tmpl *t = bd->tmpl;
        (void) db_batch_submit(app->db, b, NULL, NULL);
        if (bd->stage > QUEUED || bd->publish)
                (void) removal_start(app, REMOVAL_BUILD, bd->id, NULL, NULL);
        build_free(bd);
        if (t) {
                t->pins--;
                template_unused(app, t);
        }
        start_queued(app);
        warm_check(app);
}

void build_fail(struct build *bd, enum api_code code, const char *why) {
        if (bd->app->stopping)
                return; /* the next cspaced says that it was interrupted */
        struct db_batch *b = db_batch_new();
        struct op *o = op_find(bd->app, bd->id);
        log_warn("template %s was not made: %s", bd->ref, why);
        if (o) {
                op_log_append(o, why, strlen(why));
                op_log_append(o, "\n", 1);
        }
        op_fail(bd->app, o, b, code, why);
        finish(bd, b);
}

/* ---- name ---------------------------------------------------------------------------------- */

static void step_tag(struct build *bd) {
        struct app *app = bd->app;
        struct tmpl *old = NULL;
        bd->stage = TAG;
        struct db_batch *b = db_batch_new();
        if (bd->publish && bd->publish->full && variant_adopt(app, bd->tmpl, bd->memory_mb, bd->cpus, b) < 0) {
                db_batch_free(b);
                build_fail(bd, API_INTERNAL, "out of memory");
                return;
        }
        if (template_set_tag(app, bd->ref, bd->tmpl, b, &old) < 0) {
                db_batch_free(b);
                build_fail(bd, API_INTERNAL, "out of memory");
                return;
        }
        log_info("template %s is %s", bd->ref, bd->digest);
        op_succeed(app, op_find(app, bd->id), b, json_pack("{s:s, s:s}", "digest", bd->digest, "template", bd->ref));
        finish(bd, b);
        if (old)
                template_unused(app, old);
}

void build_wait(struct build *bd, int err, const char *why, void (*again)(void *)) {
        if (patience_lasts(&bd->rootd, err, clock_mono_ms()))
                bd->again = timer_start(bd->app->loop, RETRY_MS, again, bd);
        if (!bd->again)
                build_fail(bd, API_UNAVAILABLE, why);
}

/* ---- variant ------------------------------------------------------------------------------- */

static void step_variant(void *arg);

static void on_variant_progress(void *arg, const char *step, int percent, int eta_s) {
        struct build *bd = arg;
        char text[OP_STEP_MAX];
        struct op *o = op_find(bd->app, bd->id);
        (void) snprintf(text, sizeof text, "preparing variant: %s", step);
        if (o)
                op_progress(o, text, BUILD_SHARE + percent * (99 - BUILD_SHARE) / 100, eta_s);
}

static void on_variant_log(void *arg, const char *text, size_t n) {
        struct build *bd = arg;
        struct op *o = op_find(bd->app, bd->id);
        if (o)
                op_log_append(o, text, n);
}

static void on_variant(void *arg, int err, const struct error *e) {
        struct build *bd = arg;
        bd->variant = NULL;
        if (err == -ECONNRESET || err == -ENOTCONN)
                build_wait(bd, err, e->msg, step_variant);
        else if (err < 0)
                build_fail(bd, err == -ENOSPC ? API_STORAGE_FULL : API_BUILD_FAILED, e->msg);
        else
                step_tag(bd);
}

static const struct variant_waiter variant_waiter = {
        .on_progress = on_variant_progress, .on_done = on_variant, .on_log = on_variant_log };

static void step_variant(void *arg) {
        struct build *bd = arg;
        struct error e = ERROR_INIT;
        bd->again = NULL;
        bd->stage = VARIANT;
        if (rootd_connected(bd->app->rootd))
                patience_answered(&bd->rootd);
        if (bd->publish && bd->publish->full) {
                step_tag(bd);
                return;
        }
        int r = variant_ensure(bd->app, bd->tmpl, bd->memory_mb, bd->cpus, &variant_waiter, bd, &bd->variant, &e);
        if (r == -ENOTCONN)
                build_wait(bd, r, e.msg, step_variant);
        else if (r < 0)
                build_fail(bd, api_code_from_errno(r), e.msg);
        else if (r == 1)
                step_tag(bd);
}

/* ---- commit -------------------------------------------------------------------------------- */

struct manifest {
        struct build *bd;
        char path[CONF_STR_MAX + DIGEST_LEN + 64];
        char digest[DIGEST_LEN + 1];
        json_t *json;
};

/* On the database's thread. A manifest that cannot be read costs what it would tell, nothing else. */
static int manifest_work(struct db_conn *c, void *arg, struct error *err) {
        struct manifest *m = arg;
        _cleanup_free_ char *text = NULL;
        size_t n = 0;
        struct error e = ERROR_INIT;
        if (fd_read_file_at(-1, m->path, MANIFEST_MAX, &text, &n, &e) < 0 ||
            json_parse(text, n, MANIFEST_MAX, &m->json, &e) < 0) {
                log_warn("the manifest of template %s is not readable: %s", m->digest, e.msg);
                return 0;
        }
        return db_run(c, err, "UPDATE templates SET manifest = ? WHERE digest = ?", "js", m->json, m->digest);
}

static void on_manifest(void *arg, int err, const struct error *e) {
        struct manifest *m = arg;
        struct build *bd = m->bd;
        json_t *disk = json_object_get(m->json, "disk");
        uint64_t bytes = bd->tmpl->disk_bytes;
        if (json_read_u64(disk, "bytes", false, 0, 1ULL << 44, &bytes, NULL) >= 0)
                bd->tmpl->disk_bytes = bytes;
        if (json_is_object(m->json)) {
                json_decref(bd->tmpl->manifest);
                bd->tmpl->manifest = json_incref(m->json);
        }
        json_decref(m->json);
        free(m);
        if (bd->app->stopping)
                return;
        if (err < 0)
                build_fail(bd, api_code_from_errno(err), e->msg);
        else
                step_variant(bd);
}

static void step_manifest(struct build *bd) {
        char name[DIGEST_LEN + 64];
        bd->stage = MANIFEST;
        struct manifest *m = calloc(1, sizeof *m);
        (void) snprintf(name, sizeof name, "templates/%s/manifest.json", bd->digest);
        if (!m || conf_data_path(&bd->app->conf, name, m->path, sizeof m->path) < 0) {
                free(m);
                build_fail(bd, API_INTERNAL, "out of memory");
                return;
        }
        m->bd = bd;
        memcpy(m->digest, bd->digest, sizeof m->digest);
        if (db_submit(bd->app->db, manifest_work, on_manifest, m) < 0) {
                free(m);
                build_fail(bd, API_UNAVAILABLE, "the database is busy");
        }
}

static void on_committed(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        (void) p;
        struct build *bd = arg;
        if (err == -ECANCELED && bd->app->stopping)
                return;
        if (bd->publish && (err == -ECONNRESET || err == -ENOTCONN))
                publish_again(bd, err, e->msg);
        else if (err < 0)
                build_fail(bd, err == -ENOSPC ? API_STORAGE_FULL : API_BUILD_FAILED, e->msg);
        else
                step_manifest(bd);
}

static void on_template_row(void *arg, int err, const struct error *e) {
        struct build *bd = arg;
        struct error own = ERROR_INIT;
        struct ipc_template_commit m = { 0 };
        uint8_t body[256];
        size_t n = 0;
        if (bd->app->stopping)
                return;
        if (err < 0) {
                build_fail(bd, api_code_from_errno(err), e->msg);
                return;
        }
        (void) str_copy(m.id, sizeof m.id, bd->id);
        (void) str_copy(m.digest, sizeof m.digest, bd->digest);
        if (bd->publish && bd->publish->full) {
                (void) str_copy(m.engine, sizeof m.engine, rootd_engine(bd->app->rootd));
                m.memory_mb = bd->memory_mb;
                m.cpus = bd->cpus;
        }
        int r = ipc_template_commit_encode(&m, body, sizeof body, &n);
        if (r >= 0)
                r = rootd_call(bd->app->rootd, IPC_TEMPLATE_COMMIT, body, n, NULL, 0, COMMIT_TIMEOUT_MS, on_committed, bd, &own);
        if (r == -ENOTCONN && bd->publish)
                publish_again(bd, r, own.msg);
        else if (r < 0)
                build_fail(bd, api_code_from_errno(r), own.msg);
}

void build_commit(struct build *bd) {
        struct app *app = bd->app;
        bd->stage = COMMIT;
        struct op *o = op_find(app, bd->id);
        if (o)
                op_progress(o, "storing the template", BUILD_SHARE, -1);
        struct tmpl *known = template_find(app, bd->digest);
        if (known && known->removing) {
                build_fail(bd, API_CONFLICT, "the same content is just being removed; build it again");
                return;
        }
        struct db_batch *b = db_batch_new();
        if (bd->tmpl)
                bd->tmpl->pins--; /* once more, after cspace-rootd was lost */
        bd->tmpl = template_add(app, bd->digest, bd->disk_bytes, b);
        if (!bd->tmpl) {
                db_batch_free(b);
                build_fail(bd, API_TOO_MANY, "this host keeps no more templates; remove some");
                return;
        }
        bd->tmpl->pins++;
        int r = db_batch_submit(app->db, b, on_template_row, bd);
        if (r < 0)
                build_fail(bd, api_code_from_errno(r), "the template could not be stored");
}

/* ---- building ------------------------------------------------------------------------------ */

static int estimate(const struct build *bd, int percent) {
        uint64_t gone = clock_mono_ms() - bd->t0_ms;
        if (percent < 5 || gone < 2000)
                return -1;
        return (int) (gone * (uint64_t) (100 - percent) / (uint64_t) percent / 1000);
}

static void on_line(struct build *bd, const char *line, size_t n) {
        _cleanup_json_ json_t *j = NULL;
        const char *step = NULL, *message = NULL, *digest = NULL, *error = NULL, *code = NULL, *tail = NULL;
        uint64_t overall = 0;
        struct op *o = op_find(bd->app, bd->id);
        if (!o || json_parse(line, n, LINE_MAX_BYTES, &j, NULL) < 0 || !json_is_object(j))
                return;
        (void) json_read_str(j, "step", false, 64, &step, NULL);
        (void) json_read_str(j, "message", false, 1024, &message, NULL);
        (void) json_read_str(j, "digest", false, DIGEST_LEN, &digest, NULL);
        (void) json_read_str(j, "error", false, LINE_MAX_BYTES, &error, NULL);
        (void) json_read_str(j, "code", false, 63, &code, NULL);
        (void) json_read_str(j, "log", false, LINE_MAX_BYTES, &tail, NULL);
        if (digest && digest_valid(digest))
                (void) str_copy(bd->digest, sizeof bd->digest, digest);
        if (error)
                (void) snprintf(bd->said_error, sizeof bd->said_error, "%s", error);
        if (code)
                (void) str_copy(bd->said_code, sizeof bd->said_code, code);
        if (tail)
                op_log_append(o, tail, strlen(tail));
        if (json_read_u64(j, "overall", true, 0, 100, &overall, NULL) >= 0) {
                int percent = (int) overall * BUILD_SHARE / 100;
                op_progress(o, step ? step : o->step, percent, estimate(bd, percent));
        }
        if (message) {
                char text[1200];
                int len = snprintf(text, sizeof text, "%s: %s\n", step ? step : "build", message);
                op_log_append(o, text, strnlen(text, len > 0 ? (size_t) len : 0));
        }
}

static void end_progress(struct build *bd) {
        stream_close(bd->progress);
        bd->progress = NULL;
        bd->eof = true;
        built(bd);
}

static void on_data(void *arg, const uint8_t *data, size_t n) {
        struct build *bd = arg;
        while (n > 0) {
                const uint8_t *nl = memchr(data, '\n', n);
                size_t len = nl ? (size_t) (nl - data) : n;
                /* A line that is too long is dropped with what follows of it. */
                if (bd->line.len + len <= LINE_MAX_BYTES)
                        (void) buf_append(&bd->line, data, len);
                if (nl) {
                        on_line(bd, (const char *) buf_data(&bd->line), bd->line.len);
                        buf_clear(&bd->line);
                        len++;
                }
                data += len;
                n -= len;
        }
}

static void on_eof(void *arg) {
        end_progress(arg);
}

static void on_error(void *arg, int err) {
        (void) err;
        end_progress(arg);
}

static const struct stream_handler progress_handler = { .on_data = on_data, .on_eof = on_eof, .on_error = on_error };

static void on_last_lines(void *arg) {
        struct build *bd = arg;
        bd->last_lines = NULL;
        if (bd->progress)
                end_progress(bd);
}

static void built(struct build *bd) {
        if (!bd->replied || !bd->eof)
                return;
        timer_cancel(bd->last_lines);
        bd->last_lines = NULL;
        if (bd->said_error[0]) {
                char why[ERROR_MSG_MAX + 80];
                (void) snprintf(why, sizeof why, "%s (%s)", bd->said_error, bd->said_code[0] ? bd->said_code : "build_failed");
                build_fail(bd, strcmp(bd->said_code, "no_space") == 0 ? API_STORAGE_FULL : API_BUILD_FAILED, why);
        } else if (!bd->digest[0]) {
                build_fail(bd, API_BUILD_FAILED, "the builder ended without a result");
        } else {
                build_commit(bd);
        }
}

static void on_built(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        (void) p;
        struct build *bd = arg;
        if (err == -ECANCELED && bd->app->stopping)
                return;
        bd->replied = true;
        if (err < 0 && !bd->said_error[0])
                (void) snprintf(bd->said_error, sizeof bd->said_error, "%s", e->msg);
        if (err < 0 && !bd->said_code[0] && err == -ENOSPC)
                (void) str_copy(bd->said_code, sizeof bd->said_code, "no_space");
        if (!bd->eof)
                bd->last_lines = timer_start(bd->app->loop, LAST_LINES_MS, on_last_lines, bd);
        built(bd);
}

static int ask(struct build *bd, int progress_fd, struct error *err) {
        struct ipc_build *m = calloc(1, sizeof *m);
        uint8_t *body = malloc(sizeof *m + 64);
        size_t n = 0;
        int r = m && body ? 0 : -ENOMEM;
        if (r >= 0) {
                m->disk_bytes = bd->disk_bytes;
                m->timeout_s = (uint32_t) bd->timeout_s;
                m->checkpoint_every_s = (uint32_t) bd->checkpoint_every_s;
                m->checkpoint_keep = (uint32_t) bd->checkpoint_keep;
                if (str_copy(m->id, sizeof m->id, bd->id) < 0 || str_copy(m->source, sizeof m->source, bd->source) < 0 ||
                    str_copy(m->packages, sizeof m->packages, bd->packages) < 0 ||
                    str_copy(m->suite, sizeof m->suite, bd->suite) < 0)
                        r = -ENAMETOOLONG;
        }
        if (r >= 0)
                r = ipc_build_encode(m, body, sizeof *m + 64, &n);
        if (r >= 0) {
                int fds[2] = { progress_fd, bd->tar_fd };
                r = rootd_call(bd->app->rootd, IPC_BUILD, body, n, fds, bd->tar_fd >= 0 ? 2 : 1,
                               (unsigned) (bd->timeout_s + 120) * 1000, on_built, bd, err);
        } else {
                (void) error_errno(err, r, "could not make the request");
        }
        free(m);
        free(body);
        return r;
}

static void start(struct build *bd) {
        struct error e = ERROR_INIT;
        int pair[2];
        bd->stage = BUILDING;
        bd->t0_ms = clock_mono_ms();
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
                build_fail(bd, API_INTERNAL, "out of descriptors");
                return;
        }
        _cleanup_fd_ int theirs = pair[1];
        int r = fd_nonblock(pair[0], &e);
        if (r < 0)
                (void) fd_close(pair[0]);
        else
                r = stream_from_fd(bd->app->loop, pair[0], &bd->progress, &e);
        if (r >= 0) {
                stream_set_handler(bd->progress, &progress_handler, bd);
                stream_read_start(bd->progress);
                r = ask(bd, theirs, &e);
        }
        if (r < 0) {
                build_fail(bd, api_code_from_errno(r), e.msg);
                return;
        }
        bd->tar_fd = fd_close(bd->tar_fd);
}

static void start_queued(struct app *app) {
        unsigned running = 0;
        if (app->stopping)
                return;
        for (const struct build *bd = app->templates->builds; bd; bd = bd->next)
                running += bd->stage != QUEUED && !bd->publish;
        for (struct build *bd = app->templates->builds, *next; bd && running < app->conf.builds; bd = next) {
                next = bd->next;
                if (bd->stage == QUEUED && !bd->publish && !bd->cb) { /* its row is written */
                        running++;
                        start(bd);
                }
        }
}

/* ---- entry --------------------------------------------------------------------------------- */

static void on_durable(void *arg, int err, const struct error *e) {
        struct build *bd = arg;
        struct app *app = bd->app;
        struct op *o = op_find(app, bd->id);
        template_build_cb cb = bd->cb;
        bd->cb = NULL;
        idem_settle(app, bd->idem, err >= 0);
        if (err < 0) {
                op_discard(app, o);
                cb(bd->arg, err, e, NULL);
                build_free(bd);
                return;
        }
        cb(bd->arg, 0, NULL, o);
        start_queued(app);
}

static int check(struct app *app, const struct template_build_params *p, char ref[TEMPLATE_REF_SIZE], struct op **ret,
                 struct error *err) {
        unsigned n = 0;
        int r = template_ref_parse(p->ref, ref, err);
        if (r < 0)
                return r;
        for (const struct build *bd = app->templates->builds; bd; bd = bd->next, n++)
                if (strcmp(bd->ref, ref) == 0) {
                        *ret = op_find(app, bd->id);
                        return error_set(err, -EALREADY, "template \"%s\" is being built by operation %s", ref, bd->id);
                }
        if (n >= BUILDS_WAITING_MAX)
                return error_set(err, -EAGAIN, "%u build%s running or waiting; try again later", n, n == 1 ? " is" : "s are");
        return 0;
}

/* The last of the builds; NULL: out of memory. */
static struct build *build_new(struct app *app, const char *ref, size_t line_max) {
        struct build *bd = calloc(1, sizeof *bd), **end = &app->templates->builds;
        if (!bd)
                return NULL;
        bd->app = app;
        bd->line = BUF_INIT(line_max);
        bd->tar_fd = -EBADF;
        (void) str_copy(bd->ref, sizeof bd->ref, ref);
        while (*end)
                end = &(*end)->next;
        *end = bd;
        return bd;
}

/* Takes b. On failure there is no operation. */
static int enter(struct app *app, struct build *bd, const struct template_build_params *p, struct op **ret) {
        struct db_batch *b = db_batch_new();
        struct op *o = b ? op_new(app, b, OP_BUILD, NULL, bd->ref, p->owner) : NULL;
        bd->packages = strdup(p->packages ? p->packages : "");
        if (p->idem)
                bd->idem = strdup(p->idem);
        if (!o || !bd->packages || (p->idem && !bd->idem)) {
                db_batch_free(b);
                op_discard(app, o);
                return -ENOMEM;
        }
        memcpy(bd->id, o->id, sizeof bd->id);
        op_progress(o, "queued", 0, -1);
        idem_bind_op(app, p->idem, o->id, b);
        int r = db_batch_submit(app->db, b, on_durable, bd);
        if (r < 0) {
                idem_settle(app, p->idem, false);
                op_discard(app, o);
                return r;
        }
        *ret = o;
        return 0;
}

int template_build(struct app *app, const struct template_build_params *p, template_build_cb cb, void *arg,
                   struct op **ret, struct error *err) {
        char ref[TEMPLATE_REF_SIZE];
        _cleanup_fd_ int tar_fd = p->tar_fd;
        int r = check(app, p, ref, ret, err);
        if (r < 0)
                return r;
        r = sandbox_size_check(app, p->memory_mb, p->cpus, err);
        if (r < 0)
                return r;
        struct build *bd = build_new(app, ref, LINE_MAX_BYTES + 1);
        if (!bd)
                return error_set(err, -ENOMEM, "out of memory");
        bd->cb = cb;
        bd->arg = arg;
        bd->disk_bytes = p->disk_bytes ? p->disk_bytes : app->conf.build_disk_bytes;
        bd->checkpoint_every_s = p->checkpoint_every_s;
        bd->checkpoint_keep = p->checkpoint_keep ? p->checkpoint_keep : CHECKPOINT_KEEP_DEFAULT;
        bd->timeout_s = p->timeout_s ? p->timeout_s : app->conf.build_timeout_s;
        bd->memory_mb = p->memory_mb ? p->memory_mb : app->conf.memory_mb;
        bd->cpus = p->cpus ? p->cpus : app->conf.cpus;
        bd->tar_fd = fd_steal(&tar_fd);
        r = str_copy(bd->source, sizeof bd->source, p->source);
        if (r >= 0)
                r = str_copy(bd->suite, sizeof bd->suite, p->suite ? p->suite : "");
        if (r >= 0)
                r = enter(app, bd, p, ret);
        if (r < 0) {
                build_free(bd);
                return error_errno(err, r, "could not start the build");
        }
        return 0;
}

int build_reserve(struct app *app, const char *name, struct build **ret, struct op **ret_other, struct error *err) {
        const struct template_build_params p = { .ref = name };
        char ref[TEMPLATE_REF_SIZE];
        int r = check(app, &p, ref, ret_other, err);
        if (r < 0)
                return r;
        struct build *bd = build_new(app, ref, 0);
        if (!bd)
                return error_set(err, -ENOMEM, "out of memory");
        *ret = bd;
        return 0;
}

bool template_build_known(const struct app *app, const char *id) {
        for (const struct build *bd = app->templates->builds; bd; bd = bd->next)
                if (strcmp(bd->id, id) == 0)
                        return true;
        return false;
}

bool template_building(const struct app *app, const struct tmpl *t) {
        for (const struct build *bd = app->templates->builds; bd; bd = bd->next)
                if (bd->tmpl == t)
                        return true;
        return false;
}

/* The database may still owe them answers: they are freed after its last one. */
void template_builds_abandon(struct app *app) {
        for (struct build *bd = app->templates ? app->templates->builds : NULL; bd; bd = bd->next) {
                stream_close(bd->progress);
                bd->progress = NULL;
                timer_cancel(STEAL(bd->last_lines));
                timer_cancel(STEAL(bd->again));
                struct variant_wait *w = STEAL(bd->variant);
                variant_wait_cancel(w);
        }
}

void template_builds_free(struct templates *all) {
        while (all->builds)
                build_free(all->builds);
}

void template_builds_interrupted(struct app *app) {
        struct db_batch *b = db_batch_new();
        for (struct op *o = op_newest(app); o; o = o->prev) {
                if ((o->kind != OP_BUILD && o->kind != OP_PUBLISH) || o->state != OP_RUNNING)
                        continue;
                if (o->kind == OP_PUBLISH)
                        publish_interrupted(app, o);
                op_fail(app, o, b, API_INTERRUPTED,
                        o->kind == OP_PUBLISH ? "cspaced was restarted; nothing was published"
                                              : "the build was interrupted by a restart of cspaced");
                (void) removal_start(app, REMOVAL_BUILD, o->id, NULL, NULL);
        }
        (void) db_batch_submit(app->db, b, NULL, NULL);
}
