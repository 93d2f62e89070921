/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/reap.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"

#define STEP_MAX_MS 20

struct reap {
        uv_timer_t timer;
        struct rootd *rootd;
        struct reap_target target;
        uint64_t deadline, step;
        reap_cb cb;
        void *arg;
};

/*
 * Kills all processes of a uid; true if there were any. From inside the uid: kill(-1) then reaches
 * exactly its processes, and no fork runs away from it as it could from a walk over /proc.
 */
static bool kill_uid(uid_t uid) {
        pid_t pid = fork();
        if (pid == 0) {
                if (syscall(SYS_setresgid, uid, uid, uid) < 0 || syscall(SYS_setresuid, uid, uid, uid) < 0)
                        _exit(2);
                _exit(kill(-1, SIGKILL) < 0 && errno == ESRCH ? 0 : 1);
        }
        int status = 0;
        while (pid > 0 && waitpid(pid, &status, 0) < 0)
                if (errno != EINTR)
                        return true;
        return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static bool all_gone(const struct rootd *r, const struct reap_target *t) {
        cgroup_kill(&r->cgroups, t->leaf);
        bool gone = cgroup_empty(&r->cgroups, t->leaf);
        for (size_t i = 0; i < REAP_PROCS_MAX; i++)
                if (t->procs[i] && t->procs[i]->pid && !t->procs[i]->gone) {
                        proc_kill(t->procs[i]);
                        gone = false;
                }
        if (str_eq(r->cgroups.version, "none"))
                for (size_t i = 0; i < REAP_UIDS_MAX; i++)
                        if (t->uids[i] && kill_uid(t->uids[i]))
                                gone = false;
        return gone;
}

static void on_closed(uv_handle_t *h) {
        free(h->data);
}

static void on_timer(uv_timer_t *timer) {
        struct reap *w = timer->data;
        struct error e = ERROR_INIT;
        bool gone = all_gone(w->rootd, &w->target);
        if (!gone && clock_mono_ms() < w->deadline) {
                w->step = w->step * 2 > STEP_MAX_MS ? STEP_MAX_MS : w->step * 2;
                (void) uv_timer_start(timer, on_timer, w->step, 0);
                return;
        }
        if (!gone)
                (void) error_set(&e, -ETIMEDOUT, "processes in cgroup \"%s\" do not end within %d s", w->target.leaf,
                                 REAP_TIMEOUT_MS / 1000);
        reap_cb cb = w->cb;
        void *arg = w->arg;
        uv_close((uv_handle_t *) timer, on_closed);
        cb(arg, gone ? NULL : &e);
}

int reap_start(struct rootd *r, const struct reap_target *t, reap_cb cb, void *arg, struct error *err) {
        struct reap *w = calloc(1, sizeof *w);
        if (!w)
                return error_set(err, -ENOMEM, "out of memory");
        *w = (struct reap){ .rootd = r, .target = *t, .step = 1, .cb = cb, .arg = arg };
        w->deadline = clock_mono_ms() + REAP_TIMEOUT_MS;
        (void) uv_timer_init(r->loop, &w->timer);
        w->timer.data = w;
        (void) all_gone(r, t); /* dying takes a moment: begin at once, look later */
        (void) uv_timer_start(&w->timer, on_timer, 1, 0);
        return 0;
}

int reap_wait(const struct rootd *r, const struct reap_target *t, struct error *err) {
        uint64_t deadline = clock_mono_ms() + REAP_TIMEOUT_MS;
        while (!all_gone(r, t)) {
                if (clock_mono_ms() > deadline)
                        return error_set(err, -ETIMEDOUT, "processes in cgroup \"%s\" do not end", t->leaf);
                (void) usleep(2000);
        }
        return 0;
}
