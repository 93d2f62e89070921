/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Starts a program: a child that shares the agent's memory until it execs (no page table is
 * copied), born in its cgroup. The child makes system calls only, no libc function with state.
 */

#include <stdbool.h>
#include <sys/types.h>

#include "base/error.h"
#include "user.h"

/* Where a start failed; what the client is told follows from it. */
enum spawn_stage {
        SPAWN_STAGE_CLONE, /* no process could be made */
        SPAWN_STAGE_SETUP, /* session, terminal, descriptors, ids */
        SPAWN_STAGE_CWD,
        SPAWN_STAGE_EXEC,
};

struct spawn {
        const char *file;        /* with a slash: this path; else searched in search_path */
        const char *search_path; /* value of PATH */
        char *const *argv, *const *envp;
        const char *cwd;
        const struct user *user;
        bool set_user;           /* false: keep the agent's own (not root) */
        int fds[3];              /* become 0, 1, 2 */
        bool tty;                /* fds[0] is a terminal: make it the controlling one */
        int cgroup_fd;           /* -EBADF: none */
        bool reset_oom;          /* the agent's oom_score_adj is not for its children */
};

/* Returns 0 and the pid, or a negative errno and the stage. */
int spawn_process(const struct spawn *s, pid_t *ret_pid, enum spawn_stage *ret_stage);
