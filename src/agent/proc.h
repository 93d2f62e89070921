/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One command: its process, its cgroup, its descriptors. Whoever wants its output watches it; the
 * E2B streams and the native sessions are both watches, and neither going away harms the command.
 *
 *   PREPARED --proc_start()--> RUNNING --exit seen, output read--> ENDED
 *        \--start failed-----------------------------------------> ENDED (start_error set)
 *
 * The end is announced once the process has exited and its output is complete. A descendant that
 * keeps the pipes open (a server left in the background) does not delay that: what was in the
 * pipes at the time of the exit is read in any case, then there is a short grace; afterwards the
 * pipes are read on into nothing, so that the descendant neither blocks nor gets SIGPIPE.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/id.h"
#include "list.h"
#include "proc_spec.h"

#define PROC_INPUT_MAX (16u * 1024 * 1024) /* bytes of stdin waiting for one command */
#define PROC_CHUNK (32u * 1024)            /* bytes of output in one piece; */
#define PROC_CHUNK_PTY (16u * 1024)        /* the E2B sizes */

enum proc_channel { PROC_STDOUT, PROC_STDERR, PROC_PTY };
enum proc_state { PROC_PREPARED, PROC_RUNNING, PROC_ENDED };
enum proc_reason { PROC_EXITED, PROC_SIGNALED, PROC_TIMEOUT, PROC_KILLED };

/* Why a command could not be started. */
enum proc_start_error {
        PROC_START_OK,
        PROC_START_USER,    /* user_not_found */
        PROC_START_CWD,     /* cwd_not_found */
        PROC_START_COMMAND, /* command_not_found */
        PROC_START_EXEC,    /* not_executable */
        PROC_START_ARGS,    /* argument_list_too_long */
        PROC_START_LIMIT,   /* too_many_processes */
        PROC_START_INTERNAL,
};
const char *proc_start_error_name(enum proc_start_error e);

struct proc;
struct procs;

struct proc_watch_ops {
        void (*on_output)(void *arg, enum proc_channel ch, const uint8_t *data, size_t n);
        void (*on_end)(void *arg); /* the watch is already off the process */
};
struct proc_watch {
        struct list link;
        struct proc *proc; /* NULL while it watches nothing */
        const struct proc_watch_ops *ops;
        void *arg;
        bool holding;
};

void proc_watch_add(struct proc *p, struct proc_watch *w, const struct proc_watch_ops *ops, void *arg);
void proc_watch_remove(struct proc_watch *w);
/* While any watch holds, no output is read and the command blocks in write(). */
void proc_watch_hold(struct proc_watch *w);
void proc_watch_release(struct proc_watch *w);

/* Bytes for the command's stdin. cb comes once, later: 0 when all are in the pipe, -EPIPE when
 * the command closed its stdin or ended, -ECANCELED when freed. */
struct proc_input;
typedef void (*proc_input_cb)(void *arg, int err);

int proc_start(struct proc *p, struct error *err); /* 0, or < 0 with proc_start_failure() set */
enum proc_start_error proc_start_failure(const struct proc *p);
const char *proc_start_message(const struct proc *p);

/* Takes a copy. -EPIPE: stdin is closed; -ENOBUFS: PROC_INPUT_MAX bytes are waiting. */
int proc_input(struct proc *p, const void *data, size_t n, proc_input_cb cb, void *arg, struct proc_input **ret);
void proc_input_cancel(struct proc_input *in); /* cb is not called */
int proc_input_end(struct proc *p);            /* end of file after what is waiting; pty: ^D */
bool proc_input_open(const struct proc *p);
size_t proc_input_waiting(const struct proc *p); /* bytes taken and not yet written */

int proc_resize(struct proc *p, uint16_t cols, uint16_t rows); /* -ENOTTY without a pty */
void proc_set_timeout(struct proc *p, uint64_t ms); /* from now; 0: none */
/* To the whole tree of a command, also to what is left of it after its end; -ESRCH: nothing is. */
int proc_signal(struct proc *p, int sig);
/* Kills whatever is left of the tree, also after the end. */
void proc_kill_tree(struct proc *p, enum proc_reason reason);

const char *proc_id(const struct proc *p);
enum proc_state proc_state(const struct proc *p);
const struct proc_spec *proc_spec(const struct proc *p);
pid_t proc_pid(const struct proc *p);
enum proc_reason proc_reason(const struct proc *p);
int proc_exit_code(const struct proc *p);   /* of the program; -1 when killed by a signal */
int proc_exit_signal(const struct proc *p); /* 0 when it exited */
