/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/build.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "rootd/build_child.h"
#include "rootd/job.h"
#include "rootd/publish.h"
#include "rootd/reap.h"
#include "rootd/server.h"

#define BUILD_MEMORY_BYTES (4ull << 30)
#define BUILD_PIDS_MAX 4096
#define BUILD_CPUS 2
#define GRACE_S 60 /* beyond the builder's own time limit */

/*
 *             what ends it
 * RUNNING     the builder ends, its time is up, or BUILD_REMOVE
 * ENDING      its cgroup is being emptied; then the BUILD is answered, and BUILD_REMOVEs after it
 */
enum build_state { BUILD_RUNNING, BUILD_ENDING };

struct remove_wait {
        struct ticket ticket;
        struct remove_wait *next;
};

struct build {
        struct rootd *rootd;
        struct ticket ticket;
        char id[ID_SIZE];
        char leaf[CGROUP_LEAF_MAX + 1];
        unsigned range;
        uid_t base;
        enum build_state state;
        struct proc proc;
        uv_timer_t *timer;
        const char *why; /* killed: the reason; else NULL */
        struct remove_wait *removes;
        struct build *next;
};

static struct build *find(const struct rootd *r, const char *id) {
        for (struct build *b = r->builds; b; b = b->next)
                if (str_eq(b->id, id))
                        return b;
        return NULL;
}

bool build_running(const struct rootd *r, const char *id) {
        return find(r, id) != NULL;
}

static void on_timer_closed(uv_handle_t *h) {
        free(h);
}

static void build_free(struct build *b) {
        struct rootd *r = b->rootd;
        for (struct build **at = &r->builds; *at; at = &(*at)->next)
                if (*at == b) {
                        *at = b->next;
                        break;
                }
        if (b->timer)
                uv_close((uv_handle_t *) b->timer, on_timer_closed);
        proc_done(&b->proc);
        build_range_drop(&r->instance, b->range);
        free(b);
}

void build_free_all(struct rootd *r) {
        while (r->builds)
                build_free(r->builds);
}

/* ---- removal --------------------------------------------------------------------------------- */

struct removal {
        struct rootd *rootd;
        struct ticket ticket;
        char id[ID_SIZE];
};

static int removal_work(struct rootd *r, void *arg, struct error *err) {
        const struct removal *x = arg;
        return fd_remove_tree_at(r->dirs.builds, x->id, err);
}

static void on_removal_done(void *arg, const struct error *e) {
        struct removal *x = arg;
        ticket_end(x->rootd, &x->ticket, e);
        free(x);
}

static void start_removal(struct rootd *r, const struct ticket *t, const char *id) {
        struct error e = ERROR_INIT;
        struct removal *x = calloc(1, sizeof *x);
        if (x) {
                *x = (struct removal){ .rootd = r, .ticket = *t };
                (void) str_copy(x->id, sizeof x->id, id);
        }
        if (!x || job_start(r, removal_work, on_removal_done, x, &e) < 0) {
                if (!x)
                        (void) error_set(&e, -ENOMEM, "out of memory");
                ticket_error(r, t, &e);
                free(x);
        }
}

/* ---- the end of a build ---------------------------------------------------------------------- */

static void on_reaped(void *arg, const struct error *failed) {
        struct build *b = arg;
        struct rootd *r = b->rootd;
        struct error e = ERROR_INIT;
        int status = b->proc.status;
        if (failed)
                e = *failed;
        else if (b->why)
                (void) error_set(&e, -ECANCELED, "build %s was stopped: %s", b->id, b->why);
        else if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
                (void) error_set(&e, WEXITSTATUS(status) == 127 ? -ENOENT : -EIO, "build %s failed: %s",
                                 b->id,
                                 WEXITSTATUS(status) == 127 ? "cspace-builder cannot be executed"
                                                            : "see its progress for the reason");
        else if (!WIFEXITED(status))
                (void) error_set(&e, -EIO, "build %s failed: the builder was killed by signal %d", b->id,
                                 WTERMSIG(status));
        struct error c = ERROR_INIT;
        if (cgroup_remove(&r->cgroups, b->leaf, &c) < 0)
                log_warn("%s", c.msg);
        if (e.code < 0)
                ticket_error(r, &b->ticket, &e);
        else
                ticket_ok(r, &b->ticket);
        for (struct remove_wait *w = b->removes, *next; w; w = next) {
                next = w->next;
                if (failed)
                        ticket_error(r, &w->ticket, failed);
                else
                        start_removal(r, &w->ticket, b->id);
                free(w);
        }
        build_free(b);
}

static void end(struct build *b) {
        struct error e = ERROR_INIT;
        struct reap_target t = { .procs = { &b->proc } };
        if (b->state == BUILD_ENDING)
                return;
        b->state = BUILD_ENDING;
        (void) str_copy(t.leaf, sizeof t.leaf, b->leaf);
        if (reap_start(b->rootd, &t, on_reaped, b, &e) < 0)
                on_reaped(b, &e);
}

static void on_exit_of_builder(struct proc *p) {
        end(p->owner);
}

static void on_timeout(uv_timer_t *t) {
        struct build *b = t->data;
        b->why = "its time was up";
        end(b);
}

void build_remove_handle(struct rootd *r, const struct ticket *t, const struct ipc_build_remove *m) {
        struct error e = ERROR_INIT;
        if (!id_valid(m->id)) {
                (void) error_set(&e, -EINVAL, "\"%s\" is not a build id", m->id);
                ticket_error(r, t, &e);
                return;
        }
        if (publish_running(r, m->id)) {
                (void) error_set(&e, -EBUSY, "%s is being published", m->id);
                ticket_error(r, t, &e);
                return;
        }
        struct build *b = find(r, m->id);
        if (!b) {
                start_removal(r, t, m->id);
                return;
        }
        struct remove_wait *w = calloc(1, sizeof *w);
        if (!w) {
                (void) error_set(&e, -ENOMEM, "out of memory");
                ticket_error(r, t, &e);
                return;
        }
        *w = (struct remove_wait){ *t, b->removes };
        b->removes = w;
        if (!b->why)
                b->why = "it was removed";
        end(b);
}

/* ---- the start ------------------------------------------------------------------------------- */

/* Debian package names (policy 5.6.1), with "=version", ":arch" or "/suite" as apt takes them, blanks
 * between; nothing here can be taken for an option. */
static bool packages_valid(const char *s) {
        bool start = true;
        for (; *s; s++) {
                bool alnum = (*s >= 'a' && *s <= 'z') || (*s >= '0' && *s <= '9') || (*s >= 'A' && *s <= 'Z');
                if (*s == ' ') {
                        start = true;
                        continue;
                }
                if (!alnum && (start || !strchr("+-.:=~/_", *s)))
                        return false;
                start = false;
        }
        return true;
}

static bool suite_valid(const char *s) {
        for (const char *p = s; *p; p++)
                if (!((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9') || (p > s && strchr("-.", *p))))
                        return false;
        return true;
}

static int check(const struct rootd *r, const struct ipc_build *m, const int fds[2], struct error *err) {
        unsigned running = 0;
        struct stat st;
        for (const struct build *b = r->builds; b; b = b->next)
                running++;
        bool tar = str_eq(m->source, "tar");
        if (!id_valid(m->id))
                return error_set(err, -EINVAL, "\"%s\" is not a build id", m->id);
        if (!tar && !str_eq(m->source, "packages"))
                return error_set(err, -EINVAL, "\"%s\" is not a source of templates", m->source);
        if (!packages_valid(m->packages))
                return error_set(err, -EINVAL,
                                 "the list of packages has a character that no package's name has");
        if (!suite_valid(m->suite))
                return error_set(err, -EINVAL, "\"%s\" is not the name of a suite", m->suite);
        if (m->disk_bytes < 64ull << 20)
                return error_set(err, -EINVAL, "a disk of %llu bytes is smaller than the limit of 64 MiB",
                                 (unsigned long long) m->disk_bytes);
        if (m->timeout_s < 10)
                return error_set(err, -EINVAL, "a build gets at least 10 seconds");
        if (fds[0] < 0 || (tar && fds[1] < 0))
                return error_set(err, -EBADF, "the descriptor for %s is missing",
                                 fds[0] < 0 ? "progress" : "the archive");
        if (tar && (fstat(fds[1], &st) < 0 || S_ISDIR(st.st_mode)))
                return error_set(err, -EINVAL, "the archive is not a file");
        if (find(r, m->id))
                return error_set(err, -EALREADY, "build %s runs already", m->id);
        if (running >= r->opt.conf.builds)
                return error_set(err, -EAGAIN, "this host has its limit of %u builds at one time",
                                 r->opt.conf.builds);
        return 0;
}

static int make_dir(int at, const char *name, uid_t owner, bool must_be_new, struct error *err) {
        if (mkdirat(at, name, 0700) < 0 && (errno != EEXIST || must_be_new))
                return error_errno(err, errno, "cannot make folder \"%s\" of the build", name);
        _cleanup_fd_ int fd = fd_open_beneath(at, name, O_RDONLY | O_DIRECTORY, 0, err);
        if (fd < 0)
                return fd;
        if (fchown(fd, owner, owner) < 0 || fchmod(fd, 0700) < 0)
                return error_errno(err, errno, "cannot give folder \"%s\" to the build", name);
        return 0;
}

static int start_child(struct build *b, const struct ipc_build *m, const int fds[2], pid_t *ret_pid,
                       int *ret_pidfd, struct error *err) {
        const struct conf *conf = &b->rootd->opt.conf;
        char program[CONF_STR_MAX + 32], agent[CONF_STR_MAX + 32], dir[CONF_STR_MAX + 64],
                cache[CONF_STR_MAX + 64];
        char disk[24], timeout[16], sources[CONF_STR_MAX + 1], source[16], packages[sizeof m->packages],
                suite[64], every[16] = "", keep[16] = "";
        if (conf_libexec_path(conf, "cspace-builder", program, sizeof program) < 0 ||
            conf_libexec_path(conf, "cspace-agent", agent, sizeof agent) < 0)
                return error_set(err, -ENAMETOOLONG, "path of the programs is too long");
        (void) snprintf(dir, sizeof dir, "%s/builds/%s", conf->data, b->id);
        (void) snprintf(cache, sizeof cache, "%s/cache/r%u", conf->data, b->range);
        (void) snprintf(disk, sizeof disk, "%llu", (unsigned long long) m->disk_bytes);
        (void) snprintf(timeout, sizeof timeout, "%u", m->timeout_s);
        if (m->checkpoint_every_s) {
                (void) snprintf(every, sizeof every, "%u", m->checkpoint_every_s);
                (void) snprintf(keep, sizeof keep, "%u", m->checkpoint_keep);
        }
        memcpy(sources, conf->sources, sizeof sources);
        memcpy(source, m->source, sizeof source);
        memcpy(packages, m->packages, sizeof packages);
        memcpy(suite, m->suite, sizeof suite);
        char *argv[BUILD_ARGS_MAX] = { program, (char[]){ "--dir" },        dir,   (char[]){ "--source" },
                                       source,  (char[]){ "--disk-bytes" }, disk,  (char[]){ "--agent" },
                                       agent,   (char[]){ "--cache" },      cache, (char[]){ "--timeout" },
                                       timeout };
        size_t n = 13;
        const struct {
                char *option, *value;
        } optional[] = { { (char[]){ "--packages" }, packages },
                         { (char[]){ "--suite" }, suite },
                         { (char[]){ "--sources" }, sources },
                         { (char[]){ "--checkpoint-every" }, every },
                         { (char[]){ "--checkpoint-keep" }, keep } };
        for (size_t i = 0; i < ARRAY_SIZE(optional); i++)
                if (optional[i].value[0]) {
                        argv[n++] = optional[i].option;
                        argv[n++] = optional[i].value;
                }
        const struct build_start s = { .dir = dir,
                                       .cache = cache,
                                       .leaf = b->leaf,
                                       .base = b->base,
                                       .progress = fds[0],
                                       .archive = str_eq(source, "tar") ? fds[1] : -EBADF,
                                       .argv = argv };
        return build_child_start(b->rootd, &s, ret_pid, ret_pidfd, err);
}

static int prepare(struct build *b, const struct ipc_build *m, const int fds[2], struct error *err) {
        struct rootd *r = b->rootd;
        char cache[16];
        pid_t pid;
        int pidfd;
        const struct cgroup_limits limits = { BUILD_MEMORY_BYTES, BUILD_PIDS_MAX, BUILD_CPUS };
        (void) snprintf(cache, sizeof cache, "r%u", b->range);
        int res = make_dir(r->dirs.builds, b->id, b->base, true, err);
        if (res < 0)
                return res;
        res = make_dir(r->dirs.cache, cache, b->base, false, err);
        if (res == 0)
                res = cgroup_make(&r->cgroups, b->leaf, err);
        if (res == 0)
                res = cgroup_limit(&r->cgroups, b->leaf, &limits, err);
        if (res == 0)
                res = start_child(b, m, fds, &pid, &pidfd, err);
        if (res == 0)
                res = proc_watch(&b->proc, r->loop, pid, pidfd, on_exit_of_builder, b, err);
        if (res < 0) {
                cgroup_kill(&r->cgroups, b->leaf);
                (void) cgroup_remove(&r->cgroups, b->leaf, NULL);
                (void) fd_remove_tree_at(r->dirs.builds, b->id, NULL);
        }
        return res;
}

static int begin(struct rootd *r, const struct ticket *t, const struct ipc_build *m, const int fds[2],
                 struct error *err) {
        int res = check(r, m, fds, err);
        if (res < 0)
                return res;
        struct build *b = calloc(1, sizeof *b);
        uv_timer_t *timer = calloc(1, sizeof *timer);
        if (!b || !timer) {
                free(b);
                free(timer);
                return error_set(err, -ENOMEM, "out of memory");
        }
        *b = (struct build){ .rootd = r, .ticket = *t, .proc = PROC_INIT };
        res = build_range_take(&r->instance, &b->range, &b->base, err);
        if (res < 0) {
                free(b);
                free(timer);
                return res;
        }
        (void) str_copy(b->id, sizeof b->id, m->id);
        (void) snprintf(b->leaf, sizeof b->leaf, "b%u", b->range);
        (void) uv_timer_init(r->loop, timer);
        timer->data = b;
        b->timer = timer;
        b->next = r->builds;
        r->builds = b;
        res = prepare(b, m, fds, err);
        if (res < 0) {
                build_free(b);
                return res;
        }
        (void) uv_timer_start(timer, on_timeout, (m->timeout_s + GRACE_S) * 1000ull, 0);
        return 0;
}

void build_handle(struct rootd *r, const struct ticket *t, const struct ipc_build *m, int fds[2]) {
        struct error e = ERROR_INIT;
        if (begin(r, t, m, fds, &e) < 0)
                ticket_error(r, t, &e);
        fds[0] = fd_close(fds[0]);
        fds[1] = fd_close(fds[1]);
}
