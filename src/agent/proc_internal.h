/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Shared by proc.c, proc_io.c and procs.c only. */

#include <uv.h>

#include "cgroup.h"
#include "identity.h"
#include "proc.h"
#include "procs.h"
#include "timer.h"

struct procs {
        uv_loop_t *loop;
        const struct identity *identity;
        struct cgroups *cgroups;
        bool is_root, reset_oom;
        struct list all;
        struct list forgotten; /* not to be found any more, but pinned */
        size_t n;              /* in both */
        struct timer *sweep;
        bool sweeping;
        uv_signal_t *sigchld;
        void (*reaped)(void *arg);
        void *reaped_arg;

        /* procs_stop_all() under way */
        void (*stop_done)(void *arg, int err);
        void *stop_arg;
        struct timer *stop_timer;
        unsigned stop_kill_ms;
        bool stop_killed, stop_everyone;
};

/* One of the agent's ends of a command's pipes; for a pty one serves both directions. */
struct proc_fd {
        uv_poll_t poll;
        struct proc *p;
        int fd;
        int events;          /* polled for */
        enum proc_channel ch;
        bool is_out, is_in;
        uint64_t must_read;  /* bytes that were in the pipe when the process exited */
};

struct proc_input {
        struct list link;
        struct proc *p;
        proc_input_cb cb;
        void *arg;
        size_t n, off;
        uint8_t data[];
};

struct proc {
        struct list link;
        struct procs *t;
        char id[ID_SIZE];
        struct proc_spec spec;
        enum proc_state state;
        enum proc_start_error start_error;
        char start_message[ERROR_MSG_MAX];
        unsigned pins;
        uint64_t ended_ms;

        pid_t pid;
        struct cgroup *cg;
        bool reaped, killed, timed_out;
        int wstatus;

        struct proc_fd *out[2], *in;
        struct list inputs;
        size_t input_bytes;
        bool input_end;
        struct list watches, *watch_next; /* watch_next: where a running walk goes on */
        unsigned holds;
        struct timer *deadline, *grace;
        uint64_t grace_end_ms;
};

/* proc_io.c */
int proc_fd_new(struct proc *p, int fd, enum proc_channel ch, bool is_out, bool is_in, struct proc_fd **ret);
void proc_fd_free(struct proc_fd *f);
void proc_fd_update(struct proc_fd *f);
void proc_inputs_fail(struct proc *p, int err);
/* proc.c */
void proc_output(struct proc *p, struct proc_fd *f, const uint8_t *data, size_t n);
void proc_output_eof(struct proc *p, struct proc_fd *f);
void proc_reaped(struct proc *p, int wstatus);
void proc_free(struct proc *p); /* off the table already */
/* procs.c */
void procs_ended(struct proc *p);
