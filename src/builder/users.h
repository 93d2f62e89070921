/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * /etc/passwd, group and shadow as text in memory: adding one user, and making the dates of
 * passwords the same in every build. Written here because in an image of another distribution
 * there may be no useradd, and nothing of an image is ever run.
 */

#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

#define USERS_FILE_MAX (4u << 20)
#define USERS_UID_FIRST 1000
#define USERS_UID_LAST 60000

/* Ids of the user in passwd, or of the group in group; -ENOENT when there is none of this name. */
int users_find(const char *passwd, const char *name, uint32_t *ret_uid, uint32_t *ret_gid);
int users_find_group(const char *group, const char *name, uint32_t *ret_gid);

/* First id from USERS_UID_FIRST that neither file uses; 0 when all are taken. */
uint32_t users_free_id(const char *passwd, const char *group);

/* Copies shadow with each date of the last password change set to `day` (days since 1970). */
int users_set_dates(const char *shadow, uint64_t day, struct buf *out);
