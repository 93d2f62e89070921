/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The VM stub: a process that rootd has confined as a VM is to be (its own uid, no capabilities,
 * the sandbox's namespace and cgroup) and that waits on a seqpacket socket for what to become. The
 * warden sends one message, argv, environment and descriptors; the stub puts the descriptors at
 * the numbers asked for and execs.
 *
 *   magic u32 | n_argv u32 | n_env u32 | n_fds u32 | n_fds numbers u32 | argv and env strings, each
 *   with its NUL; descriptors beside it (SCM_RIGHTS)
 *
 * After a successful exec the socket closes; before, the stub may send one text: why not.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define STUB_FD 5
#define STUB_FDS_MAX 16
#define STUB_STRINGS_MAX 256
#define STUB_MESSAGE_MAX 32768

struct stub_fd {
        int from; /* here */
        int to;   /* there */
};

/* strings: n_argv + n_env NUL-terminated strings in a row. Descriptors stay open here. */
int stub_send(int sock, const void *strings, size_t len, size_t n_argv, size_t n_env, const struct stub_fd *fds,
              size_t n_fds, struct error *err);

/* The stub's side. Returns only on failure. */
int stub_main(int sock);
