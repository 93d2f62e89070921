/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * All commands of the sandbox, and the reaping of children: the agent is PID 1 (or a subreaper), so
 * every orphan ends here. An ended command stays known for PROCS_RETAIN_MS, longer while a session
 * pins it or something that it left behind runs.
 */

#include <uv.h>

#include "cgroup.h"
#include "identity.h"
#include "proc.h"

#define PROCS_MAX 2048          /* prepared, running, and ended ones still known */
#define PROCS_RETAIN_MS 30000

struct procs;

int procs_new(uv_loop_t *loop, const struct identity *id, struct cgroups *cgroups, struct procs **ret,
              struct error *err);
void procs_free(struct procs *t);
/* cb(arg) whenever processes have ended, those that commands left behind too. */
void procs_on_reaped(struct procs *t, void (*cb)(void *arg), void *arg);

/* Takes the contents of spec, also on failure. -EAGAIN: PROCS_MAX reached. */
int procs_create(struct procs *t, struct proc_spec *spec, struct proc **ret, struct error *err);
struct proc *procs_by_id(struct procs *t, const char *id);
struct proc *procs_by_pid(struct procs *t, pid_t pid); /* running, or ended and retained */
struct proc *procs_by_tag(struct procs *t, const char *tag);
void procs_each(struct procs *t, void (*cb)(void *arg, struct proc *p), void *arg);

void proc_pin(struct proc *p);
void proc_unpin(struct proc *p);
/* Kills the tree and forgets the command; watches get on_end first. */
void procs_delete(struct proc *p);

/* Kills everything and calls done when no child of the agent is left, or with -ETIMEDOUT. With
 * term_ms, SIGTERM and that much time come first. everyone: also processes that no command
 * started (PID 1 only). */
int procs_stop_all(struct procs *t, unsigned term_ms, unsigned kill_ms, bool everyone,
                   void (*done)(void *arg, int err), void *arg);
/* Forgets every command that does not run; nothing finds one any more, also while it is pinned. */
void procs_forget_ended(struct procs *t);
