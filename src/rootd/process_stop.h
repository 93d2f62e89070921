/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <sys/types.h>

#include "base/error.h"
#include "procimage/format.h"

/*
 * Stops all threads of a process and writes them, main thread first, and its signal handlers into `head`. The process
 * stays stopped until process_continue() or the end of the caller.
 *
 * -EAGAIN: a thread is not waiting in a system call that can be begun again: try once more, later.
 */
int process_stop(pid_t pid, struct procimage_head *head, struct error *err);
void process_continue(pid_t pid);
