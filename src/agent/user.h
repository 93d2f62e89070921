/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Users and groups, read from /etc/passwd and /etc/group by the agent itself: a static glibc cannot
 * load NSS modules, and a guest's own libc is none of the agent's business. The files are opened
 * anew for each request, because users come and go while the sandbox runs.
 */

#include <limits.h>
#include <sys/types.h>

#include "base/error.h"

#define USER_NAME_MAX 256
#define USER_GROUPS_MAX 256

struct user {
        char name[USER_NAME_MAX];
        uid_t uid;
        gid_t gid;
        char home[PATH_MAX]; /* absolute; "/" when the entry has none */
        gid_t groups[USER_GROUPS_MAX];
        size_t n_groups;
};

/* name may also be a decimal uid that has an entry. -ENOENT: no such user. Uid 0 is known as root
 * even where there is no passwd file. */
int user_lookup(const char *name, struct user *ret, struct error *err);

/* Names of ids for listings; a decimal number where there is no entry. Loaded once per listing. */
struct user_names;
struct user_names *user_names_load(void); /* NULL: no memory */
void user_names_free(struct user_names *n);
void user_names_freep(struct user_names **n);
const char *user_names_uid(struct user_names *n, uid_t uid); /* valid until the next call or free */
const char *user_names_gid(struct user_names *n, gid_t gid);

/* For tests: folder that holds passwd and group instead of /etc. */
void user_set_etc(const char *dir);
