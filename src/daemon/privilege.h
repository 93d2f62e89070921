/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * cspaced is started as root only to make its sockets where the user it becomes may not, and by
 * service managers that do not change users. After privilege_drop() it has that user's rights and
 * nothing gives it others again.
 */

#include <stdbool.h>
#include <sys/types.h>

#include "base/error.h"

struct identity {
        uid_t uid;
        gid_t gid;
};

int privilege_lookup(const char *user, struct identity *ret, struct error *err);
/* Only the group of that user, its uid, no capability, no_new_privs; checked afterwards. */
int privilege_drop(const struct identity *id, struct error *err);
/* No core file, no ptrace by others of the same user, no new privileges, umask 077. */
void privilege_harden(void);
/* Takes away, for good, the system calls that no part of cspaced has a use for: to run programs, to
 * look into other processes, to change the machine or its namespaces. After privilege_harden(). */
int privilege_filter(struct error *err);
/* Whether the peer of a Unix socket is root, our own user, or in our group. */
bool privilege_peer_trusted(int fd);
