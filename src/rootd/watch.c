/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"

struct watch {
        uv_poll_t poll; /* first: closing frees through it */
        watch_cb cb;
        void *arg;
};

static void on_poll(uv_poll_t *poll, int status, int events) {
        (void) status; /* an error is also something to be read */
        (void) events;
        struct watch *w = poll->data;
        w->cb(w->arg);
}

int watch_new(uv_loop_t *loop, int fd, watch_cb cb, void *arg, struct watch **ret, struct error *err) {
        _cleanup_free_ struct watch *w = calloc(1, sizeof *w);
        if (!w)
                return error_set(err, -ENOMEM, "out of memory");
        int r = uv_poll_init(loop, &w->poll, fd);
        if (r < 0)
                return error_errno(err, r, "cannot watch a descriptor");
        w->poll.data = w;
        w->cb = cb;
        w->arg = arg;
        (void) uv_poll_start(&w->poll, UV_READABLE, on_poll);
        *ret = STEAL(w);
        return 0;
}

static void on_closed(uv_handle_t *h) {
        free(h->data);
}

struct watch *watch_free(struct watch *w) {
        if (w) {
                (void) uv_poll_stop(&w->poll);
                uv_close((uv_handle_t *) &w->poll, on_closed);
        }
        return NULL;
}

static void on_pidfd(void *arg) {
        struct proc *p = arg;
        siginfo_t info = {};
        p->status = -1;
        if (waitid(P_PIDFD, (id_t) p->pidfd, &info, WEXITED | WNOHANG) == 0) {
                if (info.si_pid == 0)
                        return; /* not yet */
                p->status = info.si_code == CLD_EXITED ? info.si_status << 8 : info.si_status;
        }
        p->watch = watch_free(p->watch);
        p->pidfd = fd_close(p->pidfd);
        p->gone = true;
        if (p->on_exit)
                p->on_exit(p);
}

int proc_watch(struct proc *p, uv_loop_t *loop, pid_t pid, int pidfd, void (*on_exit)(struct proc *p),
               void *owner, struct error *err) {
        *p = (struct proc){ .pid = pid, .pidfd = pidfd, .on_exit = on_exit, .owner = owner };
        (void) proc_start_time(pid, &p->start);
        int r = watch_new(loop, pidfd, on_pidfd, p, &p->watch, err);
        if (r < 0)
                p->pidfd = fd_close(p->pidfd);
        return r;
}

int proc_adopt(struct proc *p, uv_loop_t *loop, pid_t pid, uint64_t start, uid_t uid,
               void (*on_exit)(struct proc *p), void *owner, struct error *err) {
        char path[32];
        struct stat st;
        uint64_t now = 0;
        _cleanup_fd_ int pidfd = (int) syscall(SYS_pidfd_open, pid, 0);
        if (pidfd < 0)
                return error_errno(err, errno, "process %d", pid);
        /* Looked at after the pidfd was opened: what is seen here is what the pidfd holds. */
        (void) snprintf(path, sizeof path, "/proc/%d", pid);
        if (proc_start_time(pid, &now) < 0 || now != start || stat(path, &st) < 0 ||
            (st.st_uid != uid && st.st_uid != 0) /* 0: not dumpable */)
                return error_set(err, -ESRCH, "process %d is another one by now", pid);
        return proc_watch(p, loop, pid, fd_steal(&pidfd), on_exit, owner, err);
}

void proc_done(struct proc *p) {
        p->watch = watch_free(p->watch);
        p->pidfd = fd_close(p->pidfd);
        p->pid = 0;
}

void proc_kill(const struct proc *p) {
        if (p->pidfd >= 0)
                (void) syscall(SYS_pidfd_send_signal, p->pidfd, SIGKILL, NULL, 0);
}

bool proc_alive(const struct proc *p) {
        struct pollfd fd = { .fd = p->pidfd, .events = POLLIN };
        return p->pid && !p->gone && p->pidfd >= 0 && poll(&fd, 1, 0) == 0;
}

int proc_start_time(pid_t pid, uint64_t *ret) {
        char path[32];
        _cleanup_free_ char *text = NULL;
        (void) snprintf(path, sizeof path, "/proc/%d/stat", pid);
        int r = fd_read_file_at(AT_FDCWD, path, 4096, &text, NULL, NULL);
        if (r < 0)
                return r;
        /* The second field is a name that may hold anything, so count from its closing bracket. */
        char *p = strrchr(text, ')'), *save = NULL;
        char *field = p ? strtok_r(p + 1, " ", &save) : NULL;
        for (int i = 3; field && i < 22; i++)
                field = strtok_r(NULL, " ", &save);
        return field ? str_to_u64(field, UINT64_MAX, ret) : -EINVAL;
}
