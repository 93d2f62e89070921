/* SPDX-License-Identifier: Apache-2.0 */
#include "proc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "env.h"
#include "path.h"
#include "proc_internal.h"
#include "spawn.h"

#define GRACE_IDLE_MS 250  /* after the exit: no output for this long is the end, */
#define GRACE_MAX_MS 1000  /* and so is this long with output */
#define TTY_GID 5          /* Debian's group tty */

static const char *const start_error_names[] = {
        [PROC_START_OK] = "ok",
        [PROC_START_USER] = "user_not_found",
        [PROC_START_CWD] = "cwd_not_found",
        [PROC_START_COMMAND] = "command_not_found",
        [PROC_START_EXEC] = "not_executable",
        [PROC_START_ARGS] = "argument_list_too_long",
        [PROC_START_LIMIT] = "too_many_processes",
        [PROC_START_INTERNAL] = "internal",
};

const char *proc_start_error_name(enum proc_start_error e) {
        return start_error_names[e];
}

/* --- watches -------------------------------------------------------------------------------- */

void proc_watch_add(struct proc *p, struct proc_watch *w, const struct proc_watch_ops *ops, void *arg) {
        *w = (struct proc_watch){ .proc = p, .ops = ops, .arg = arg };
        list_append(&p->watches, &w->link);
}

void proc_watch_remove(struct proc_watch *w) {
        struct proc *p = w->proc;
        if (!p)
                return;
        proc_watch_release(w);
        if (p->watch_next == &w->link)
                p->watch_next = w->link.next;
        list_remove(&w->link);
        w->proc = NULL;
}

static void update_outputs(struct proc *p) {
        proc_fd_update(p->out[0]);
        proc_fd_update(p->out[1]);
}

void proc_watch_hold(struct proc_watch *w) {
        if (w->holding || !w->proc)
                return;
        w->holding = true;
        if (w->proc->holds++ == 0)
                update_outputs(w->proc);
}

void proc_watch_release(struct proc_watch *w) {
        if (!w->holding)
                return;
        w->holding = false;
        struct proc *p = w->proc;
        if (--p->holds == 0) {
                update_outputs(p);
                if (p->grace)
                        timer_start(p->grace, GRACE_IDLE_MS);
        }
}

/* Walks the watches while callbacks may remove any of them. */
static struct proc_watch *walk_next(struct proc *p, struct list *from) {
        if (from == &p->watches)
                return NULL;
        p->watch_next = from->next;
        return CONTAINER_OF(from, struct proc_watch, link);
}

/* --- the end -------------------------------------------------------------------------------- */

static void finish(struct proc *p) {
        timer_free(p->grace);
        timer_free(p->deadline);
        p->grace = p->deadline = NULL;
        p->state = PROC_ENDED;
        proc_inputs_fail(p, -EPIPE);
        if (p->cg && !cgroup_populated(p->cg)) {
                cgroup_put(p->cg);
                p->cg = NULL;
        }
        proc_pin(p);
        while (!list_empty(&p->watches)) {
                struct proc_watch *w = CONTAINER_OF(p->watches.next, struct proc_watch, link);
                proc_watch_remove(w);
                w->ops->on_end(w->arg);
        }
        procs_ended(p);
        proc_unpin(p);
}

static void grace_over(void *arg) {
        struct proc *p = arg;
        if (p->holds == 0) /* else the release starts the grace again */
                finish(p);
}

/* Nobody has the other end open any more, so the end of file comes behind what is left. */
static bool writers_gone(const struct proc_fd *f) {
        struct pollfd pfd = { .fd = f->fd, .events = 0 };
        return poll(&pfd, 1, 0) > 0 && (pfd.revents & (POLLHUP | POLLERR));
}

/* Called after the exit, whenever output was read or ended. */
static void finish_if_due(struct proc *p) {
        if (!p->reaped || p->state != PROC_RUNNING)
                return;
        bool open = false, owed = false;
        for (size_t i = 0; i < 2; i++) {
                open |= p->out[i] != NULL;
                owed |= p->out[i] && (p->out[i]->must_read > 0 || writers_gone(p->out[i]));
        }
        if (!open || (!owed && (p->killed || p->timed_out))) {
                finish(p);
                return;
        }
        if (owed)
                return;
        uint64_t now = clock_mono_ms();
        if (!p->grace) {
                p->grace = timer_new(p->t->loop, grace_over, p);
                p->grace_end_ms = now + GRACE_MAX_MS;
        }
        if (!p->grace || now >= p->grace_end_ms) {
                finish(p);
                return;
        }
        uint64_t left = p->grace_end_ms - now;
        timer_start(p->grace, left < GRACE_IDLE_MS ? left : GRACE_IDLE_MS);
}

void proc_reaped(struct proc *p, int wstatus) {
        p->reaped = true;
        p->wstatus = wstatus;
        for (size_t i = 0; i < 2; i++) {
                int n = 0;
                if (p->out[i] && ioctl(p->out[i]->fd, FIONREAD, &n) == 0 && n > 0)
                        p->out[i]->must_read = (uint64_t) n;
        }
        finish_if_due(p);
}

void proc_output(struct proc *p, struct proc_fd *f, const uint8_t *data, size_t n) {
        f->must_read -= n < f->must_read ? n : f->must_read;
        if (p->state != PROC_RUNNING)
                return;
        for (struct proc_watch *w = walk_next(p, p->watches.next); w; w = walk_next(p, p->watch_next))
                w->ops->on_output(w->arg, f->ch, data, n);
        p->watch_next = NULL;
        finish_if_due(p);
}

void proc_output_eof(struct proc *p, struct proc_fd *f) {
        if (p->in == f) {
                proc_inputs_fail(p, -EPIPE);
                p->in = NULL;
        }
        for (size_t i = 0; i < 2; i++)
                if (p->out[i] == f)
                        p->out[i] = NULL;
        proc_fd_free(f);
        finish_if_due(p);
        if (p->state == PROC_ENDED && p->pins == 0 && !p->out[0] && !p->out[1])
                procs_ended(p); /* the last that it left behind has gone: may be forgotten */
}

/* --- start ---------------------------------------------------------------------------------- */

static int start_failed(struct proc *p, enum proc_start_error code, const struct error *e, struct error *err) {
        p->start_error = code;
        (void) str_copy(p->start_message, sizeof p->start_message, e->msg);
        p->state = PROC_ENDED;
        if (err)
                *err = *e;
        procs_ended(p);
        return e->code;
}

/* The child's three descriptors and the agent's ends of them. */
struct plumbing {
        int child[3];
        int out[2], in;
};

static void plumbing_done(struct plumbing *pl) {
        for (int i = 0; i < 3; i++)
                if (i == 0 || pl->child[i] != pl->child[0])
                        fd_close(pl->child[i]);
        fd_close(pl->out[0]);
        fd_close(pl->out[1]);
        if (pl->in != pl->out[0])
                fd_close(pl->in);
}

static int open_pty(struct plumbing *pl, const struct proc_spec *spec, const struct user *u) {
        int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
        if (master < 0)
                return -errno;
        pl->out[0] = pl->in = master;
        int unlock = 0;
        if (ioctl(master, TIOCSPTLCK, &unlock) < 0)
                return -errno;
        int tty = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
        if (tty < 0)
                return -errno;
        pl->child[0] = pl->child[1] = pl->child[2] = tty;
        struct winsize ws = { .ws_col = spec->cols, .ws_row = spec->rows };
        (void) ioctl(master, TIOCSWINSZ, &ws);
        if (fchown(tty, u->uid, TTY_GID) == 0)
                (void) fchmod(tty, 0620);
        return 0;
}

static int make_pipe(int *read_end, int *write_end, const struct user *u) {
        int fds[2];
        if (pipe2(fds, O_CLOEXEC) < 0)
                return -errno;
        *read_end = fds[0];
        *write_end = fds[1];
        if (u->uid != 0) /* so that the user may open /dev/stdout */
                (void) !fchown(fds[0], u->uid, u->gid);
        return 0;
}

static int open_pipes(struct plumbing *pl, const struct proc_spec *spec, const struct user *u) {
        int r = make_pipe(&pl->out[0], &pl->child[1], u);
        if (r == 0)
                r = make_pipe(&pl->out[1], &pl->child[2], u);
        if (r < 0)
                return r;
        if (spec->stdin_open)
                return make_pipe(&pl->child[0], &pl->in, u);
        pl->child[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        return pl->child[0] < 0 ? -errno : 0;
}

static int adopt_fds(struct proc *p, struct plumbing *pl) {
        int r;
        if (p->spec.pty) {
                pl->in = -EBADF;
                r = proc_fd_new(p, fd_steal(&pl->out[0]), PROC_PTY, true, true, &p->out[0]);
                if (r == 0)
                        p->in = p->out[0];
                return r;
        }
        r = proc_fd_new(p, fd_steal(&pl->out[0]), PROC_STDOUT, true, false, &p->out[0]);
        if (r == 0)
                r = proc_fd_new(p, fd_steal(&pl->out[1]), PROC_STDERR, true, false, &p->out[1]);
        if (r == 0 && pl->in >= 0)
                r = proc_fd_new(p, fd_steal(&pl->in), PROC_STDOUT, false, true, &p->in);
        return r;
}

static enum proc_start_error classify(struct proc *p, enum spawn_stage stage, int r, const char *cwd,
                                      struct error *e) {
        const char *cmd = p->spec.argv[0];
        if (stage == SPAWN_STAGE_CWD) {
                if (r == -ENOENT)
                        (void) error_set(e, r, "cwd '%s' does not exist", cwd);
                else
                        (void) error_errno(e, r, "cwd '%s' cannot be entered", cwd);
                return PROC_START_CWD;
        }
        if (stage == SPAWN_STAGE_EXEC) {
                switch (r) {
                case -ENOENT:
                case -ENOTDIR:
                        (void) error_set(e, r, "command not found: '%.256s'", cmd);
                        return PROC_START_COMMAND;
                case -E2BIG:
                        (void) error_set(e, r, "the argument list and environment are longer than the kernel takes");
                        return PROC_START_ARGS;
                case -ENOMEM:
                case -EAGAIN:
                        break;
                default:
                        (void) error_errno(e, r, "cannot execute '%.256s'", cmd);
                        return PROC_START_EXEC;
                }
        }
        (void) error_errno(e, r, "cannot start a process");
        return r == -EAGAIN || r == -ENOMEM || r == -EMFILE || r == -ENFILE ? PROC_START_LIMIT
                                                                             : PROC_START_INTERNAL;
}

static void deadline_over(void *arg) {
        proc_kill_tree(arg, PROC_TIMEOUT);
}

void proc_set_timeout(struct proc *p, uint64_t ms) {
        if (p->state != PROC_RUNNING)
                return;
        if (ms == 0) {
                timer_free(p->deadline);
                p->deadline = NULL;
        } else if (p->deadline || (p->deadline = timer_new(p->t->loop, deadline_over, p)))
                timer_start(p->deadline, ms);
}

static int run(struct proc *p, const struct user *u, const char *cwd, char **env, struct plumbing *pl,
               enum spawn_stage *ret_stage) {
        struct procs *t = p->t;
        p->cg = cgroup_get(t->cgroups);
        struct spawn s = {
                .file = p->spec.argv[0],
                .search_path = env_get(env, "PATH"),
                .argv = p->spec.argv,
                .envp = env,
                .cwd = cwd,
                .user = u,
                .set_user = t->is_root,
                .fds = { pl->child[0], pl->child[1], pl->child[2] },
                .tty = p->spec.pty,
                .cgroup_fd = cgroup_fd(p->cg),
                .reset_oom = t->reset_oom,
        };
        int r = spawn_process(&s, &p->pid, ret_stage);
        if (r < 0) {
                cgroup_put(p->cg);
                p->cg = NULL;
        }
        return r;
}

int proc_start(struct proc *p, struct error *err) {
        struct error e = ERROR_INIT;
        const struct identity *id = p->t->identity;
        struct user u;
        char cwd[PATH_MAX];
        if (identity_user(id, p->spec.user, &u, &e) < 0)
                return start_failed(p, PROC_START_USER, &e, err);
        if (path_resolve(p->spec.cwd ? p->spec.cwd : "", u.home, id->default_workdir, cwd, &e) < 0)
                return start_failed(p, PROC_START_CWD, &e, err);
        /* A home that does not exist is no reason to fail when nobody asked for it. */
        struct stat st;
        if (!p->spec.cwd && stat(cwd, &st) < 0)
                (void) str_copy(cwd, sizeof cwd, "/");
        _cleanup_(env_freep) char **env = env_build(id, &u, p->spec.envs, p->spec.pty);
        struct plumbing pl = { .child = { -EBADF, -EBADF, -EBADF }, .out = { -EBADF, -EBADF }, .in = -EBADF };
        int r = !env ? -ENOMEM : p->spec.pty ? open_pty(&pl, &p->spec, &u) : open_pipes(&pl, &p->spec, &u);
        enum spawn_stage stage = SPAWN_STAGE_CLONE;
        if (r == 0)
                r = adopt_fds(p, &pl);
        if (r == 0)
                r = run(p, &u, cwd, env, &pl, &stage);
        plumbing_done(&pl);
        if (r < 0) {
                proc_inputs_fail(p, -EPIPE);
                for (size_t i = 0; i < 2; i++) {
                        proc_fd_free(p->out[i]);
                        p->out[i] = NULL;
                }
                return start_failed(p, classify(p, stage, r, cwd, &e), &e, err);
        }
        p->state = PROC_RUNNING;
        update_outputs(p);
        if (p->spec.timeout_ms > 0)
                proc_set_timeout(p, p->spec.timeout_ms);
        return 0;
}

/* --- control -------------------------------------------------------------------------------- */

int proc_signal(struct proc *p, int sig) {
        bool left_behind = p->state == PROC_ENDED && p->cg && cgroup_populated(p->cg);
        if (p->state != PROC_RUNNING && !left_behind)
                return -ESRCH;
        if (sig == SIGKILL && p->state == PROC_RUNNING)
                p->killed = true;
        return cgroup_signal_tree(p->cg, p->pid, sig);
}

void proc_kill_tree(struct proc *p, enum proc_reason reason) {
        if (p->state == PROC_RUNNING) {
                p->timed_out |= reason == PROC_TIMEOUT;
                p->killed = true;
                (void) cgroup_signal_tree(p->cg, p->pid, SIGKILL);
        } else if (p->state == PROC_ENDED && (p->cg || p->out[0] || p->out[1]))
                (void) cgroup_signal_tree(p->cg, p->pid, SIGKILL); /* what it left behind */
}

int proc_resize(struct proc *p, uint16_t cols, uint16_t rows) {
        if (!p->spec.pty)
                return -ENOTTY;
        p->spec.cols = cols;
        p->spec.rows = rows;
        if (!p->out[0])
                return p->state == PROC_PREPARED ? 0 : -ESRCH;
        struct winsize ws = { .ws_col = cols, .ws_row = rows };
        return ioctl(p->out[0]->fd, TIOCSWINSZ, &ws) < 0 ? -errno : 0;
}

void proc_free(struct proc *p) {
        while (!list_empty(&p->watches)) {
                struct proc_watch *w = CONTAINER_OF(p->watches.next, struct proc_watch, link);
                proc_watch_remove(w);
                w->ops->on_end(w->arg);
        }
        proc_inputs_fail(p, -ECANCELED);
        proc_fd_free(p->out[0]);
        proc_fd_free(p->out[1]);
        timer_free(p->deadline);
        timer_free(p->grace);
        cgroup_put(p->cg);
        proc_spec_done(&p->spec);
        free(p);
}

/* --- facts ---------------------------------------------------------------------------------- */

enum proc_start_error proc_start_failure(const struct proc *p) {
        return p->start_error;
}
const char *proc_start_message(const struct proc *p) {
        return p->start_message;
}
const char *proc_id(const struct proc *p) {
        return p->id;
}
enum proc_state proc_state(const struct proc *p) {
        return p->state;
}
const struct proc_spec *proc_spec(const struct proc *p) {
        return &p->spec;
}
pid_t proc_pid(const struct proc *p) {
        return p->pid;
}
enum proc_reason proc_reason(const struct proc *p) {
        if (p->timed_out)
                return PROC_TIMEOUT;
        if (WIFSIGNALED(p->wstatus))
                return p->killed ? PROC_KILLED : PROC_SIGNALED;
        return PROC_EXITED;
}
int proc_exit_code(const struct proc *p) {
        return WIFEXITED(p->wstatus) ? WEXITSTATUS(p->wstatus) : -1;
}
int proc_exit_signal(const struct proc *p) {
        return WIFSIGNALED(p->wstatus) ? WTERMSIG(p->wstatus) : 0;
}
