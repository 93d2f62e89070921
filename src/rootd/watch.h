/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A descriptor on the loop, and a process on the loop by its pidfd: our own child (which is then
 * reaped) or one that an earlier rootd started. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "base/error.h"

struct watch;
typedef void (*watch_cb)(void *arg);

/* Calls cb when fd is readable or has ended; fd stays the caller's and must outlive the watch. */
int watch_new(uv_loop_t *loop, int fd, watch_cb cb, void *arg, struct watch **ret, struct error *err);
/* No callback after this; fine in the callback; NULL is fine. Returns NULL. */
struct watch *watch_free(struct watch *w);

struct proc {
        pid_t pid; /* 0: none */
        int pidfd;
        uint64_t start; /* field 22 of /proc/PID/stat: tells this process from a later one of its pid */
        bool gone;
        int status; /* wait status once gone, -1 if it was not our child */
        struct watch *watch;
        void (*on_exit)(struct proc *p);
        void *owner;
};

#define PROC_INIT ((struct proc){ .pidfd = -EBADF })

/* Takes pidfd. */
int proc_watch(struct proc *p, uv_loop_t *loop, pid_t pid, int pidfd, void (*on_exit)(struct proc *p),
               void *owner, struct error *err);
/* Opens a process started earlier: -ESRCH when it is gone or another. */
int proc_adopt(struct proc *p, uv_loop_t *loop, pid_t pid, uint64_t start, uid_t uid,
               void (*on_exit)(struct proc *p), void *owner, struct error *err);
void proc_done(struct proc *p);
void proc_kill(const struct proc *p);
/* Also when the loop has not come to tell its end yet. */
bool proc_alive(const struct proc *p);

int proc_start_time(pid_t pid, uint64_t *ret);
