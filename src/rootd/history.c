/* SPDX-License-Identifier: Apache-2.0 */

/*
 * HISTORY. Of the images nothing is looked at here but that they are files: what is in them is a guest's.
 *
 *             what ends it
 * RUNNING     cspace-history ends, its reader has gone, or its time is up
 * ENDING      its cgroup is being emptied and removed; then its place is free
 *
 * The reader sees the end of file when the process is gone: rootd keeps a descriptor of the writing side, to be told
 * that the reading one was closed.
 */
#include "rootd/history.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "rootd/history_child.h"
#include "rootd/reap.h"
#include "rootd/server.h"
#include "rootd/source.h"
#include "rootd/watch.h"

#define HISTORY_MEMORY_BYTES (1280ull << 20) /* its own limit is 1 GiB; and what is cached of the images */
#define HISTORY_PIDS_MAX 4
#define HISTORY_CPUS 1

struct history {
        struct rootd *rootd;
        char id[ID_SIZE];
        char leaf[CGROUP_LEAF_MAX + 1];
        unsigned n; /* its place, from which uid and cgroup follow */
        bool ending;
        struct proc proc;
        int out;    /* as the process's standard output */
        int hangup; /* epoll: readable when nobody reads any more. Watching `out` would make it non-blocking */
        struct watch *watch;
        uv_timer_t *timer;
        struct history *next;
};

static void on_timer_closed(uv_handle_t *h) {
        free(h);
}

static void history_free(struct history *h) {
        for (struct history **at = &h->rootd->histories; *at; at = &(*at)->next)
                if (*at == h) {
                        *at = h->next;
                        break;
                }
        if (h->timer)
                uv_close((uv_handle_t *) h->timer, on_timer_closed);
        h->watch = watch_free(h->watch);
        h->hangup = fd_close(h->hangup);
        h->out = fd_close(h->out);
        proc_done(&h->proc);
        free(h);
}

void history_free_all(struct rootd *r) {
        while (r->histories) {
                proc_kill(&r->histories->proc);
                history_free(r->histories);
        }
}

/* ---- the end -------------------------------------------------------------------------------- */

static void on_reaped(void *arg, const struct error *failed) {
        struct history *h = arg;
        struct error e = ERROR_INIT;
        if (failed)
                log_error("history of %s: %s", h->id, failed->msg); /* the next start sweeps */
        else if (cgroup_remove(&h->rootd->cgroups, h->leaf, &e) < 0)
                log_warn("%s", e.msg);
        history_free(h);
}

static void end(struct history *h) {
        struct error e = ERROR_INIT;
        struct reap_target t = { .procs = { &h->proc },
                                 .uids = { instance_history_uid(&h->rootd->instance, h->n) } };
        if (h->ending)
                return;
        h->ending = true;
        h->watch = watch_free(h->watch);
        (void) uv_timer_stop(h->timer);
        (void) str_copy(t.leaf, sizeof t.leaf, h->leaf);
        if (reap_start(h->rootd, &t, on_reaped, h, &e) < 0)
                on_reaped(h, &e);
}

static void on_exit_of_child(struct proc *p) {
        struct history *h = p->owner;
        h->watch = watch_free(h->watch);
        h->hangup = fd_close(h->hangup);
        h->out = fd_close(h->out); /* the reader's end of file */
        reap_poke(h->rootd);
        end(h);
}

static void on_hangup(void *arg) {
        end(arg);
}

static void on_timeout(uv_timer_t *t) {
        struct history *h = t->data;
        log_info("history of %s: its %d s are up", h->id, HISTORY_TIME_S);
        end(h);
}

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
        char path[DIGEST_LEN + sizeof m->variant + 32];
        int res = -ENOENT;
        (void) snprintf(path, sizeof path, "%s/variants/%s/disk.img", m->digest, m->variant);
        if (m->variant[0])
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
        if (!diff && !str_eq(m->verb, "stat") && !str_eq(m->verb, "cat"))
                return error_set(err, -EINVAL, "\"%s\" is no question about an image", m->verb);
        if (!image_valid(m->from) || (diff ? !image_valid(m->to) : m->to[0] != '\0'))
                return error_set(err, -EINVAL, "\"%s\" or \"%s\" is not an image", m->from, m->to);
        if (m->path[0] != '/')
                return error_set(err, -EINVAL, "a path must be absolute");
        return 0;
}

static int free_place(const struct rootd *r, const char *id, unsigned *ret, struct error *err) {
        bool taken[HISTORY_RUNNING_MAX] = {};
        for (const struct history *h = r->histories; h; h = h->next) {
                if (str_eq(h->id, id) && !h->ending)
                        return error_set(err, -EALREADY, "a question about the history of %s is being answered", id);
                taken[h->n] = true;
        }
        for (unsigned n = 0; n < HISTORY_RUNNING_MAX; n++)
                if (!taken[n]) {
                        *ret = n;
                        return 0;
                }
        return error_set(err, -EAGAIN, "this host has its limit of %u questions about histories at one time",
                         HISTORY_RUNNING_MAX);
}

static int spawn(struct history *h, const struct ipc_history *m, const struct history_start *images, pid_t *ret_pid,
                 int *ret_pidfd, struct error *err) {
        struct ipc_history own = *m; /* argv is not const */
        char program[CONF_STR_MAX + 32], limit[16], bytes[24], diff[] = "diff", stat_[] = "stat", cat[] = "cat";
        bool is_diff = str_eq(m->verb, "diff"), is_cat = str_eq(m->verb, "cat");
        char *argv[HISTORY_ARGS_MAX] = { program, is_diff ? diff : is_cat ? cat : stat_ };
        size_t n = 2;
        if (conf_libexec_path(&h->rootd->opt.conf, "cspace-history", program, sizeof program) < 0)
                return error_set(err, -ENAMETOOLONG, "path of the programs is too long");
        (void) snprintf(limit, sizeof limit, "%u", m->count);
        (void) snprintf(bytes, sizeof bytes, "%llu", (unsigned long long) m->max_bytes);
        const struct {
                bool given;
                char *option, *value;
        } options[] = { { is_diff, (char[]){ "--prefix" }, own.path },
                        { !is_diff, (char[]){ "--path" }, own.path },
                        { is_diff && m->cursor[0], (char[]){ "--cursor" }, own.cursor },
                        { is_diff && m->count, (char[]){ "--limit" }, limit },
                        { is_cat && m->max_bytes, (char[]){ "--max-bytes" }, bytes },
                        { is_diff && m->patch, (char[]){ "--patch" }, NULL } };
        for (size_t i = 0; i < ARRAY_SIZE(options); i++) {
                if (!options[i].given)
                        continue;
                argv[n++] = options[i].option;
                if (options[i].value)
                        argv[n++] = options[i].value;
        }
        struct history_start s = *images;
        s.leaf = h->leaf;
        s.uid = instance_history_uid(&h->rootd->instance, h->n);
        s.out = h->out;
        s.argv = argv;
        return history_child_start(h->rootd, &s, ret_pid, ret_pidfd, err);
}

static int watch_reader(struct history *h, struct error *err) {
        struct epoll_event event = { .events = EPOLLRDHUP };
        h->hangup = epoll_create1(EPOLL_CLOEXEC);
        if (h->hangup < 0 || epoll_ctl(h->hangup, EPOLL_CTL_ADD, h->out, &event) < 0)
                return error_errno(err, errno, "cannot watch the reader");
        return watch_new(h->rootd->loop, h->hangup, on_hangup, h, &h->watch, err);
}

static int start(struct history *h, const struct ipc_history *m, struct error *err) {
        struct rootd *r = h->rootd;
        const struct cgroup_limits limits = { HISTORY_MEMORY_BYTES, HISTORY_PIDS_MAX, HISTORY_CPUS };
        _cleanup_fd_ int from = -EBADF, to = -EBADF;
        struct history_start images = {};
        pid_t pid = 0;
        int pidfd = -EBADF;
        int res = open_one(r, m, m->from, &from, &images.moment[0], err);
        if (res == 0 && m->to[0])
                res = open_one(r, m, m->to, &to, &images.moment[1], err);
        if (res == 0)
                res = cgroup_make(&r->cgroups, h->leaf, err);
        if (res == 0)
                res = cgroup_limit(&r->cgroups, h->leaf, &limits, err);
        if (res == 0)
                res = watch_reader(h, err);
        images.images[0] = from;
        images.images[1] = to;
        if (res == 0)
                res = spawn(h, m, &images, &pid, &pidfd, err);
        if (res == 0)
                res = proc_watch(&h->proc, r->loop, pid, pidfd, on_exit_of_child, h, err);
        if (res < 0) {
                cgroup_kill(&r->cgroups, h->leaf);
                (void) cgroup_remove(&r->cgroups, h->leaf, NULL);
        }
        return res;
}

static int begin(struct rootd *r, const struct ipc_history *m, int *ret_fd, struct error *err) {
        unsigned n = 0;
        int sv[2], res = check(m, err);
        if (res == 0)
                res = free_place(r, m->id, &n, err);
        if (res < 0)
                return res;
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv) < 0)
                return error_errno(err, errno, "cannot make a socket pair");
        _cleanup_fd_ int reader = sv[0], writer = sv[1];
        struct history *h = calloc(1, sizeof *h);
        uv_timer_t *timer = calloc(1, sizeof *timer);
        if (!h || !timer) {
                free(h);
                free(timer);
                return error_set(err, -ENOMEM, "out of memory");
        }
        *h = (struct history){ .rootd = r, .n = n, .proc = PROC_INIT, .out = fd_steal(&writer), .hangup = -EBADF };
        (void) str_copy(h->id, sizeof h->id, m->id);
        (void) snprintf(h->leaf, sizeof h->leaf, "h%u", n);
        (void) uv_timer_init(r->loop, timer);
        timer->data = h;
        h->timer = timer;
        h->next = r->histories;
        r->histories = h;
        res = start(h, m, err);
        if (res < 0) {
                history_free(h);
                return res;
        }
        (void) uv_timer_start(timer, on_timeout, HISTORY_TIME_S * 1000ull, 0);
        *ret_fd = fd_steal(&reader);
        return 0;
}

void history_handle(struct rootd *r, const struct ticket *t, const struct ipc_history *m) {
        struct error e = ERROR_INIT;
        _cleanup_fd_ int fd = -EBADF;
        if (begin(r, m, &fd, &e) < 0)
                ticket_error(r, t, &e);
        else
                ticket_fd(r, t, fd);
}
