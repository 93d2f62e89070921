/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "base/error.h"

/* -EPERM when this process has the uids of the host: then package scripts would be root on it. */
int isolate_check_uids(struct error *err);
/* Private mounts, a /proc of this pid namespace, empty /tmp, /var/tmp, /run and /dev/shm. The host's
 * resolver configuration and what the NULL-terminated list names survive at their paths. */
#define ISOLATE_KEEP_MAX 8
int isolate_mounts(const char *const *keep, struct error *err);
/* A network namespace with nothing but a loopback device that is up. */
int isolate_network(struct error *err);
