/* SPDX-License-Identifier: Apache-2.0 */
#include "procs.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "proc_internal.h"

static void on_sigchld(uv_signal_t *sig, int signum);
static void sweep(void *arg);

static bool oom_needs_reset(void) {
        _cleanup_free_ char *text = NULL;
        return fd_read_file_at(AT_FDCWD, "/proc/self/oom_score_adj", 16, &text, NULL, NULL) == 0 &&
               strcmp(text, "0\n") != 0;
}

int procs_new(uv_loop_t *loop, const struct identity *id, struct cgroups *cgroups, struct procs **ret,
              struct error *err) {
        struct procs *t = calloc(1, sizeof *t);
        if (!t)
                return error_set(err, -ENOMEM, "out of memory");
        t->loop = loop;
        t->identity = id;
        t->cgroups = cgroups;
        t->is_root = geteuid() == 0;
        t->reset_oom = oom_needs_reset();
        list_init(&t->all);
        list_init(&t->forgotten);
        t->sweep = timer_new(loop, sweep, t);
        t->sigchld = calloc(1, sizeof *t->sigchld);
        if (!t->sweep || !t->sigchld) {
                timer_free(t->sweep);
                free(t->sigchld);
                free(t);
                return error_set(err, -ENOMEM, "out of memory");
        }
        if (getpid() != 1)
                (void) prctl(PR_SET_CHILD_SUBREAPER, 1);
        (void) uv_signal_init(loop, t->sigchld);
        t->sigchld->data = t;
        (void) uv_signal_start(t->sigchld, on_sigchld, SIGCHLD);
        *ret = t;
        return 0;
}

static void forget(struct proc *p) {
        list_remove(&p->link);
        p->t->n--;
        proc_free(p);
}

static void forget_forgotten(struct procs *t, bool all) {
        LIST_FOREACH(it, &t->forgotten) {
                struct proc *p = CONTAINER_OF(it, struct proc, link);
                if (all || p->pins == 0)
                        forget(p);
        }
}

static void signal_closed(uv_handle_t *h) {
        free(h);
}

void procs_free(struct procs *t) {
        if (!t)
                return;
        LIST_FOREACH(it, &t->all) {
                struct proc *p = CONTAINER_OF(it, struct proc, link);
                procs_delete(p);
        }
        forget_forgotten(t, true);
        timer_free(t->sweep);
        timer_free(t->stop_timer);
        t->sigchld->data = NULL;
        uv_close((uv_handle_t *) t->sigchld, signal_closed);
        free(t);
}

/* --- table ---------------------------------------------------------------------------------- */

/* With something left running it stays known, so that this can be signalled and killed by its name. */
static bool idle(const struct proc *p) {
        return p->state == PROC_ENDED && p->pins == 0 && !p->out[0] && !p->out[1] &&
               !(p->cg && cgroup_populated(p->cg));
}

/* Forgets what has been kept long enough; the timer runs only while there is something to forget. */
static void sweep(void *arg) {
        struct procs *t = arg;
        uint64_t now = clock_mono_ms(), next = 0;
        forget_forgotten(t, false);
        LIST_FOREACH(it, &t->all) {
                struct proc *p = CONTAINER_OF(it, struct proc, link);
                if (!idle(p))
                        continue;
                uint64_t due = p->ended_ms + PROCS_RETAIN_MS;
                if (due <= now)
                        forget(p);
                else if (!next || due < next)
                        next = due;
        }
        if (next)
                timer_start(t->sweep, next - now);
        else
                timer_stop(t->sweep);
        t->sweeping = next != 0;
}

/* Room for a new command: the oldest ended one that nobody needs makes way; one that left something running only
 * when there is no other, since nobody reads that one's output any more then. */
static bool make_room(struct procs *t) {
        struct proc *found = NULL;
        LIST_FOREACH(it, &t->all) {
                struct proc *p = CONTAINER_OF(it, struct proc, link);
                if (p->state != PROC_ENDED || p->pins > 0)
                        continue;
                if (idle(p)) {
                        found = p;
                        break;
                }
                if (!found)
                        found = p;
        }
        if (found)
                forget(found);
        return found != NULL;
}

int procs_create(struct procs *t, struct proc_spec *spec, struct proc **ret, struct error *err) {
        struct proc_spec mine = *spec;
        *spec = (struct proc_spec){ 0 };
        struct proc *p = NULL;
        if (t->n >= PROCS_MAX && !make_room(t)) {
                proc_spec_done(&mine);
                return error_set(err, -EAGAIN, "the sandbox has %d commands already, which is the limit", PROCS_MAX);
        }
        p = calloc(1, sizeof *p);
        if (!p || id_new(p->id) < 0) {
                free(p);
                proc_spec_done(&mine);
                return error_set(err, -ENOMEM, "out of memory");
        }
        p->t = t;
        p->spec = mine;
        list_init(&p->inputs);
        list_init(&p->watches);
        list_append(&t->all, &p->link);
        t->n++;
        *ret = p;
        return 0;
}

void procs_ended(struct proc *p) {
        p->ended_ms = clock_mono_ms();
        if (!p->t->sweeping) {
                p->t->sweeping = true;
                timer_start(p->t->sweep, PROCS_RETAIN_MS);
        }
}

void proc_pin(struct proc *p) {
        p->pins++;
}

void proc_unpin(struct proc *p) {
        if (--p->pins == 0 && p->state == PROC_ENDED)
                procs_ended(p);
}

void procs_delete(struct proc *p) {
        proc_kill_tree(p, PROC_KILLED);
        if (p->state == PROC_RUNNING) { /* nobody will know its exit: it must not look like success */
                if (!p->reaped)
                        p->wstatus = SIGKILL;
                p->state = PROC_ENDED;
        }
        p->pins++; /* on_end of a watch may unpin */
        struct procs *t = p->t;
        list_remove(&p->link);
        t->n--;
        proc_free(p);
}

struct proc *procs_by_id(struct procs *t, const char *id) {
        LIST_FOREACH(it, &t->all) {
                struct proc *p = CONTAINER_OF(it, struct proc, link);
                if (str_eq(p->id, id))
                        return p;
        }
        return NULL;
}

/* A pid may come again: the running one wins, then the one that ended last. */
struct proc *procs_by_pid(struct procs *t, pid_t pid) {
        struct proc *found = NULL;
        LIST_FOREACH(it, &t->all) {
                struct proc *p = CONTAINER_OF(it, struct proc, link);
                if (p->pid != pid || p->state == PROC_PREPARED || p->start_error)
                        continue;
                if (p->state == PROC_RUNNING)
                        return p;
                if (!found || p->ended_ms >= found->ended_ms)
                        found = p;
        }
        return found;
}

struct proc *procs_by_tag(struct procs *t, const char *tag) {
        struct proc *found = NULL;
        LIST_FOREACH(it, &t->all) {
                struct proc *p = CONTAINER_OF(it, struct proc, link);
                if (!str_eq(p->spec.tag, tag) || p->state == PROC_PREPARED || p->start_error)
                        continue;
                if (p->state == PROC_RUNNING)
                        return p;
                found = p;
        }
        return found;
}

void procs_each(struct procs *t, void (*cb)(void *arg, struct proc *p), void *arg) {
        LIST_FOREACH(it, &t->all)
                cb(arg, CONTAINER_OF(it, struct proc, link));
}

/* --- reaping -------------------------------------------------------------------------------- */

static void stop_finish(struct procs *t, int err) {
        void (*done)(void *arg, int e) = t->stop_done;
        t->stop_done = NULL;
        timer_free(t->stop_timer);
        t->stop_timer = NULL;
        if (done)
                done(t->stop_arg, err);
}

static struct proc *running_pid(struct procs *t, pid_t pid) {
        LIST_FOREACH(it, &t->all) {
                struct proc *p = CONTAINER_OF(it, struct proc, link);
                if (p->pid == pid && p->state == PROC_RUNNING && !p->reaped)
                        return p;
        }
        return NULL;
}

static void reap(struct procs *t) {
        for (;;) {
                int wstatus;
                pid_t pid = waitpid(-1, &wstatus, WNOHANG);
                if (pid < 0 && errno == EINTR)
                        continue;
                if (pid <= 0) {
                        if (pid < 0 && t->stop_done)
                                stop_finish(t, 0);
                        return;
                }
                struct proc *p = running_pid(t, pid);
                if (p)
                        proc_reaped(p, wstatus);
                if (t->reaped)
                        t->reaped(t->reaped_arg);
        }
}

void procs_on_reaped(struct procs *t, void (*cb)(void *arg), void *arg) {
        t->reaped = cb;
        t->reaped_arg = arg;
}

static void on_sigchld(uv_signal_t *sig, int signum) {
        (void) signum;
        if (sig->data)
                reap(sig->data);
}

/* --- stopping ------------------------------------------------------------------------------- */

static void signal_all(struct procs *t, int sig) {
        if (t->stop_everyone && getpid() == 1) {
                (void) kill(-1, sig);
                return;
        }
        LIST_FOREACH(it, &t->all) {
                struct proc *p = CONTAINER_OF(it, struct proc, link);
                if (sig == SIGKILL)
                        proc_kill_tree(p, PROC_KILLED);
                else
                        (void) proc_signal(p, sig);
        }
}

static void stop_step(void *arg) {
        struct procs *t = arg;
        if (t->stop_killed) {
                stop_finish(t, -ETIMEDOUT);
                return;
        }
        t->stop_killed = true;
        signal_all(t, SIGKILL);
        timer_start(t->stop_timer, t->stop_kill_ms);
        reap(t);
}

int procs_stop_all(struct procs *t, unsigned term_ms, unsigned kill_ms, bool everyone,
                   void (*done)(void *arg, int err), void *arg) {
        if (t->stop_done)
                return -EALREADY;
        t->stop_timer = timer_new(t->loop, stop_step, t);
        if (!t->stop_timer)
                return -ENOMEM;
        t->stop_done = done;
        t->stop_arg = arg;
        t->stop_kill_ms = kill_ms;
        t->stop_killed = false;
        t->stop_everyone = everyone;
        if (term_ms > 0)
                signal_all(t, SIGTERM);
        timer_start(t->stop_timer, term_ms);
        reap(t);
        return 0;
}

void procs_forget_ended(struct procs *t) {
        LIST_FOREACH(it, &t->all) {
                struct proc *p = CONTAINER_OF(it, struct proc, link);
                if (p->state == PROC_RUNNING)
                        continue;
                if (p->pins == 0) {
                        procs_delete(p);
                } else { /* a stream still tells its end: nobody else finds it */
                        list_remove(&p->link);
                        list_append(&t->forgotten, &p->link);
                }
        }
}
