/* SPDX-License-Identifier: Apache-2.0 */

/* HISTORY. Of the images nothing is looked at here but that they are files: what is in them is a guest's. */
#include "rootd/history.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "rootd/disk.h"
#include "rootd/errand.h"
#include "rootd/process_image.h"
#include "rootd/server.h"
#include "rootd/source.h"

#define HISTORY_MEMORY_BYTES (1280ull << 20) /* its own limit is 1 GiB; and what is cached of the images */
#define HISTORY_PIDS_MAX 4
#define HISTORY_CPUS 1
#define HISTORY_FILES 16
#define HISTORY_FILE_BYTES 1 /* it writes none */
#define HISTORY_OOM_ADJ 600
#define HISTORY_ARGS_MAX 16

static const struct errand_kind kind = { .what = "history",
                                         .letter = 'h',
                                         .places = HISTORY_RUNNING_MAX,
                                         .limits = { HISTORY_MEMORY_BYTES, HISTORY_PIDS_MAX, HISTORY_CPUS },
                                         .uid = instance_history_uid };
_Static_assert(HISTORY_RUNNING_MAX <= ERRAND_PLACES_MAX, "places");

/* ---- the images ----------------------------------------------------------------------------- */

static int open_image(int dir, const char *path, int *ret, struct error *err) {
        struct stat st;
        _cleanup_fd_ int fd = fd_open_beneath(dir, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, err);
        if (fd < 0)
                return fd;
        if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
                return error_set(err, -EBADMSG, "\"%s\" is not a regular file", path);
        *ret = fd_steal(&fd);
        return 0;
}

static int open_template(const struct rootd *r, const struct ipc_history *m, int *ret, struct error *err) {
        char path[DIGEST_LEN + sizeof m->variant + 48];
        int res = -ENOENT;
        /* What a sandbox began with, as source.c chooses it. */
        (void) snprintf(path, sizeof path, "%s/variants/%s/" VARIANT_FROZEN "/disk.img", m->digest, m->variant);
        if (m->variant[0] && r->process_host[0])
                res = open_image(r->dirs.templates, path, ret, NULL);
        (void) snprintf(path, sizeof path, "%s/variants/%s/disk.img", m->digest, m->variant);
        if (m->variant[0] && res < 0)
                res = open_image(r->dirs.templates, path, ret, NULL);
        (void) snprintf(path, sizeof path, "%s/disk.img", m->digest);
        return res == -ENOENT ? open_image(r->dirs.templates, path, ret, err)
                              : res < 0 ? error_errno(err, res, "cannot open the template's disk") : 0;
}

static int open_one(const struct rootd *r, const struct ipc_history *m, const char *name, int *ret, bool *ret_moment,
                    struct error *err) {
        char path[ID_SIZE + 16];
        *ret_moment = str_eq(name, "now");
        if (str_eq(name, "template"))
                return open_template(r, m, ret, err);
        (void) snprintf(path, sizeof path, "%s/disk.img", *ret_moment ? m->id : name);
        return open_image(*ret_moment ? r->dirs.sandboxes : r->dirs.checkpoints, path, ret, err);
}

/* ---- in the child ---------------------------------------------------------------------------- */

struct images {
        int fd[ERRAND_FDS_MAX];
        bool moment[ERRAND_FDS_MAX]; /* is written to: a copy of this moment is taken */
};

static void images_done(struct images *i) {
        for (size_t n = 0; n < ERRAND_FDS_MAX; n++)
                i->fd[n] = fd_close(i->fd[n]);
}

/* What is told is of the host, and has nothing in it that JSON would need escaped. */
static void tell_failure(int out, const char *what, int code) {
        char line[256];
        int n = snprintf(line, sizeof line, "{\"error\":\"%s: %s\",\"code\":\"io_error\"}\n", what, strerror(-code));
        (void) fd_write_all(out, line, (size_t) n, NULL);
}

static int take_moments(const struct rootd *r, struct errand_start *s, struct error *err) {
        const struct images *images = s->arg;
        for (size_t i = 0; i < ERRAND_FDS_MAX; i++) {
                int copy = -EBADF;
                if (s->fds[i] < 0 || !images->moment[i])
                        continue;
                int res = disk_moment(s->fds[i], r->dirs.sandboxes, &copy, NULL);
                if (res < 0)
                        return error_set(err, res, "the disk cannot be copied");
                (void) fd_close(s->fds[i]);
                s->fds[i] = copy;
        }
        return 0;
}

/* ---- the start ------------------------------------------------------------------------------ */

static bool image_valid(const char *name) {
        return str_eq(name, "template") || str_eq(name, "now") || id_valid(name);
}

/* A folder's name, as variant_name() makes it. */
static bool variant_valid(const char *s) {
        for (const char *p = s; *p; p++)
                if (!((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9') || *p == '-'))
                        return false;
        return true;
}

static int check(const struct ipc_history *m, struct error *err) {
        bool diff = str_eq(m->verb, "diff");
        if (!id_valid(m->id) || !digest_valid(m->digest) || !variant_valid(m->variant))
                return error_set(err, -EINVAL, "\"%s\" is not a sandbox, or its template is none", m->id);
        if (!diff && !str_eq(m->verb, "cat") && !str_eq(m->verb, "extract"))
                return error_set(err, -EINVAL, "\"%s\" is no question about an image", m->verb);
        if (!image_valid(m->from) || (diff ? !image_valid(m->to) : m->to[0] != '\0'))
                return error_set(err, -EINVAL, "\"%s\" or \"%s\" is not an image", m->from, m->to);
        if (m->path[0] != '/')
                return error_set(err, -EINVAL, "a path must be absolute");
        return 0;
}

/* Takes e. */
static int spawn(struct errand *e, const struct ipc_history *m, const struct images *images, struct error *err) {
        struct ipc_history own = *m; /* argv is not const */
        char program[CONF_STR_MAX + 32], limit[16], bytes[24], *verb = own.verb;
        bool is_diff = str_eq(m->verb, "diff"), is_tree = str_eq(m->verb, "extract"), is_cat = str_eq(m->verb, "cat");
        char *argv[HISTORY_ARGS_MAX] = { program, verb };
        size_t n = 2;
        if (conf_libexec_path(&e->rootd->opt.conf, "cspace-history", program, sizeof program) < 0) {
                errand_drop(e);
                return error_set(err, -ENAMETOOLONG, "path of the programs is too long");
        }
        (void) snprintf(limit, sizeof limit, "%u", m->count);
        (void) snprintf(bytes, sizeof bytes, "%llu", (unsigned long long) m->max_bytes);
        const struct {
                bool given;
                char *option, *value;
        } options[] = { { is_diff, (char[]){ "--prefix" }, own.path },
                        { !is_diff, (char[]){ "--path" }, own.path },
                        { is_diff && m->cursor[0], (char[]){ "--cursor" }, own.cursor },
                        { is_diff && m->count, (char[]){ "--limit" }, limit },
                        { is_tree, (char[]){ "--no-follow" }, NULL },
                        { (is_cat || is_tree) && m->max_bytes, (char[]){ "--max-bytes" }, bytes },
                        { is_diff && m->patch, (char[]){ "--patch" }, NULL } };
        for (size_t i = 0; i < ARRAY_SIZE(options); i++) {
                if (!options[i].given)
                        continue;
                argv[n++] = options[i].option;
                if (options[i].value)
                        argv[n++] = options[i].value;
        }
        static char *const no_env[] = { NULL };
        const struct errand_start s = { .uid = e->uid,
                                        .namespaces = CLONE_NEWNET,
                                        .view = e->rootd->views.plain,
                                        .fds = { images->fd[0], images->fd[1] },
                                        .confine = { .files = HISTORY_FILES,
                                                     .processes = HISTORY_PIDS_MAX,
                                                     .file_bytes = HISTORY_FILE_BYTES,
                                                     .oom_score_adj = HISTORY_OOM_ADJ },
                                        .argv = argv,
                                        .env = no_env,
                                        .prepare = take_moments,
                                        .arg = (void *) (uintptr_t) images,
                                        .fail = tell_failure };
        return errand_run(e, &s, HISTORY_TIME_S, err);
}

static int begin(struct rootd *r, const struct ipc_history *m, int *ret_fd, struct error *err) {
        _cleanup_(images_done) struct images images = { .fd = { -EBADF, -EBADF } };
        _cleanup_fd_ int reader = -EBADF;
        struct errand *e = NULL;
        int res = check(m, err);
        if (res == 0)
                res = errand_new(r, &kind, m->id, &e, &reader, err);
        if (res < 0)
                return res;
        res = open_one(r, m, m->from, &images.fd[0], &images.moment[0], err);
        if (res == 0 && m->to[0])
                res = open_one(r, m, m->to, &images.fd[1], &images.moment[1], err);
        if (res < 0) {
                errand_drop(e);
                return res;
        }
        res = spawn(e, m, &images, err);
        if (res == 0)
                *ret_fd = fd_steal(&reader);
        return res;
}

void history_handle(struct rootd *r, const struct ticket *t, const struct ipc_history *m) {
        struct error e = ERROR_INIT;
        _cleanup_fd_ int fd = -EBADF;
        if (begin(r, m, &fd, &e) < 0)
                ticket_error(r, t, &e);
        else
                ticket_fd(r, t, fd);
}
