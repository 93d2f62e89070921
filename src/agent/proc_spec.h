/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What to run and how: the common form of the E2B and the native request. */

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"

#define PROC_ARGS_MAX (256 * 1024) /* arguments; the kernel's limit on their bytes comes on top */
#define PROC_TAG_MAX 256
#define PROC_TIMEOUT_MAX_MS (30ULL * 86400 * 1000)

struct proc_spec {
        char **argv;   /* argv[0] is the command */
        json_t *envs;  /* object of strings, or NULL */
        char *cwd;     /* NULL: default */
        char *user;    /* NULL: default */
        char *tag;     /* NULL: none */
        bool pty, stdin_open;
        uint16_t cols, rows;
        uint64_t timeout_ms; /* 0: none */
};

void proc_spec_done(struct proc_spec *s);

/* Reads cmd, args, cwd and the environment (under env_key) of obj into s. -EINVAL with a message. */
int proc_spec_command(struct proc_spec *s, const json_t *obj, const char *env_key, struct error *err);
/* Reads {"cols","rows"}. */
int proc_spec_size(const json_t *size, uint16_t *ret_cols, uint16_t *ret_rows, struct error *err);
