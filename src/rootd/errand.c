/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/errand.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "rootd/errand_child.h"
#include "rootd/reap.h"

static void on_timer_closed(uv_handle_t *h) {
        free(h);
}

static void errand_free(struct errand *e) {
        for (struct errand **at = &e->rootd->errands; *at; at = &(*at)->next)
                if (*at == e) {
                        *at = e->next;
                        break;
                }
        if (e->timer)
                uv_close((uv_handle_t *) e->timer, on_timer_closed);
        e->watch = watch_free(e->watch);
        e->hangup = fd_close(e->hangup);
        e->out = fd_close(e->out);
        proc_done(&e->proc);
        free(e);
}

void errand_free_all(struct rootd *r) {
        while (r->errands) {
                proc_kill(&r->errands->proc);
                errand_free(r->errands);
        }
}

void errand_drop(struct errand *e) {
        cgroup_kill(&e->rootd->cgroups, e->leaf);
        (void) cgroup_remove(&e->rootd->cgroups, e->leaf, NULL);
        errand_free(e);
}

/* ---- the end -------------------------------------------------------------------------------- */

static void on_reaped(void *arg, const struct error *failed) {
        struct errand *e = arg;
        struct error err = ERROR_INIT;
        if (failed)
                log_error("%s of %s: %s", e->kind->what, e->subject, failed->msg); /* the next start sweeps */
        else if (cgroup_remove(&e->rootd->cgroups, e->leaf, &err) < 0)
                log_warn("%s", err.msg);
        errand_free(e);
}

static void end(struct errand *e) {
        struct error err = ERROR_INIT;
        /* Its own uid alone: one that the operator named may have other processes. */
        struct reap_target t = { .procs = { &e->proc }, .uids = { e->uid } };
        if (e->ending)
                return;
        e->ending = true;
        e->watch = watch_free(e->watch);
        (void) uv_timer_stop(e->timer);
        (void) str_copy(t.leaf, sizeof t.leaf, e->leaf);
        if (reap_start(e->rootd, &t, on_reaped, e, &err) < 0)
                on_reaped(e, &err);
}

static void on_exit_of_child(struct proc *p) {
        struct errand *e = p->owner;
        e->watch = watch_free(e->watch);
        e->hangup = fd_close(e->hangup);
        e->out = fd_close(e->out); /* the reader's end of file */
        reap_poke(e->rootd);
        end(e);
}

static void on_hangup(void *arg) {
        end(arg);
}

static void on_timeout(uv_timer_t *t) {
        struct errand *e = t->data;
        log_info("%s of %s: its %u s are up", e->kind->what, e->subject, e->time_s);
        end(e);
}

/* ---- the start ------------------------------------------------------------------------------ */

/* Whoever asks again may be heard before the loop is told that the first question was given up. */
static bool given_up(const struct errand *e) {
        struct pollfd p = { .fd = e->hangup, .events = POLLIN };
        return e->ending || (e->hangup >= 0 && poll(&p, 1, 0) > 0);
}

static int free_place(const struct rootd *r, const struct errand_kind *k, const char *subject, unsigned *ret, struct error *err) {
        bool taken[ERRAND_PLACES_MAX] = {};
        for (const struct errand *e = r->errands; e; e = e->next) {
                if (e->kind != k)
                        continue;
                if (str_eq(e->subject, subject) && !given_up(e))
                        return error_set(err, -EALREADY, "a question about the %s of %s is being answered", k->what, subject);
                taken[e->place] = true;
        }
        for (unsigned n = 0; n < k->places; n++)
                if (!taken[n]) {
                        *ret = n;
                        return 0;
                }
        return error_set(err, -EAGAIN, "this host has its limit of %u questions of %s at one time", k->places, k->what);
}

static int watch_reader(struct errand *e, struct error *err) {
        struct epoll_event event = { .events = EPOLLRDHUP };
        e->hangup = epoll_create1(EPOLL_CLOEXEC);
        if (e->hangup < 0 || epoll_ctl(e->hangup, EPOLL_CTL_ADD, e->out, &event) < 0)
                return error_errno(err, errno, "cannot watch the reader");
        return watch_new(e->rootd->loop, e->hangup, on_hangup, e, &e->watch, err);
}

static int fill(struct errand *e, struct error *err) {
        int r = watch_reader(e, err);
        if (r == 0)
                r = cgroup_make(&e->rootd->cgroups, e->leaf, err);
        return r < 0 ? r : cgroup_limit(&e->rootd->cgroups, e->leaf, &e->kind->limits, err);
}

int errand_new(struct rootd *r, const struct errand_kind *k, const char *subject, struct errand **ret, int *ret_reader,
               struct error *err) {
        unsigned place = 0;
        int sv[2], res = free_place(r, k, subject, &place, err);
        if (res < 0)
                return res;
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv) < 0)
                return error_errno(err, errno, "cannot make a socket pair");
        _cleanup_fd_ int reader = sv[0], writer = sv[1];
        struct errand *e = calloc(1, sizeof *e);
        uv_timer_t *timer = calloc(1, sizeof *timer);
        if (!e || !timer) {
                free(e);
                free(timer);
                return error_set(err, -ENOMEM, "out of memory");
        }
        *e = (struct errand){ .rootd = r, .kind = k, .place = place, .uid = k->uid(&r->instance, place), .proc = PROC_INIT,
                              .out = fd_steal(&writer), .hangup = -EBADF, .timer = timer };
        (void) str_copy(e->subject, sizeof e->subject, subject);
        (void) snprintf(e->leaf, sizeof e->leaf, "%c%u", k->letter, place);
        (void) uv_timer_init(r->loop, timer);
        timer->data = e;
        e->next = r->errands;
        r->errands = e;
        res = fill(e, err);
        if (res < 0) {
                errand_drop(e);
                return res;
        }
        *ret_reader = fd_steal(&reader);
        *ret = e;
        return 0;
}

int errand_run(struct errand *e, const struct errand_start *s, unsigned time_s, struct error *err) {
        pid_t pid = 0;
        int pidfd = -EBADF;
        int r = errand_child_start(e, s, &pid, &pidfd, err);
        if (r == 0)
                r = proc_watch(&e->proc, e->rootd->loop, pid, pidfd, on_exit_of_child, e, err);
        if (r < 0) {
                errand_drop(e);
                return r;
        }
        e->time_s = time_s;
        (void) uv_timer_start(e->timer, on_timeout, time_s * 1000ull, 0);
        return 0;
}
