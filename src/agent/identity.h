/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Who this sandbox is: what the host hands over with POST /control/init after each boot, restore
 * and fork, and what must differ between two clones of one memory image.
 */

#include <stdbool.h>

#include "base/error.h"
#include "base/json.h"
#include "user.h"

#define IDENTITY_ID_MAX 128
#define IDENTITY_HOSTNAME_MAX 64 /* HOST_NAME_MAX of Linux */
#define IDENTITY_TOKEN_MAX 512
#define BOOT_ID_SIZE 37
#define IDENTITY_DIR "/run/cspace"          /* in memory; hosts, hostname, machine-id, boot_id */
#define IDENTITY_FILE_MAX (128 * 1024)

struct identity {
        bool owns_machine; /* clock, host name, files under /etc and /run are the agent's to set */
        bool saved; /* may have been saved since init or thaw: then these are somebody's of before */
        bool ready; /* init was called, or is not needed */
        char sandbox_id[IDENTITY_ID_MAX + 1];
        json_t *env; /* of all commands; object of strings, never NULL */
        char *token; /* NULL: none, everything is open */
        char default_user[USER_NAME_MAX];
        char *default_workdir; /* NULL: the user's home */
        bool has_ca;           /* there is a certificate authority to be trusted (trust.h) */
        char boot_id[BOOT_ID_SIZE];
        char *hosts; /* /etc/hosts as it was written here last; NULL: not yet */
        struct error warning; /* of the last apply: what could not be done, and did not matter */
};

int identity_init(struct identity *id, bool owns_machine, struct error *err);
void identity_done(struct identity *id);

/* Applies the body of POST /control/init. Nothing is merged: what the request leaves out is gone. */
int identity_apply(struct identity *id, const json_t *req, struct error *err);
/* The members "timeNs" and "entropy" of that body alone: the same sandbox goes on after a while. */
int identity_resync(struct identity *id, const json_t *req, struct error *err);
/* What somebody has written into /etc/hosts lies in memory, behind a link: puts it on the disk, in the link's place. For all who
 * look at the disk, or go on from it, without the memory. */
void identity_settle(struct identity *id);
/* Forgets everything that belonged to one sandbox, before a snapshot. */
void identity_forget(struct identity *id);

/* token may be NULL (header absent). */
bool identity_token_ok(const struct identity *id, const char *token);
/* The user a request names, or the default one when name is NULL or empty. A default user that
 * the template does not have falls back to root. */
int identity_user(const struct identity *id, const char *name, struct user *ret, struct error *err);
