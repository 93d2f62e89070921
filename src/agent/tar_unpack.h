/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Unpacks a tar stream into a folder, with the rights of its thread. Names that are absolute or
 * have ".." end it. A link that was there before is followed where it leads to a folder, as
 * tar and docker do ("/bin/x" where /bin is a link to usr/bin); a link that this archive made is
 * never followed, so that no member can aim where another one goes. Files are made anew, never
 * written through. Devices are left out and counted.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define TAR_UNPACK_ENTRIES_MAX 10000000u
#define TAR_UNPACK_REMEMBER_MAX 2000000u /* links and folders of one archive */
#define TAR_UNPACK_KEPT_MAX 100u         /* paths that are named */
#define TAR_UNPACK_LISTS_MAX (16u << 20) /* bytes of folders' default access lists of one archive */

struct tar_unpack_result {
        uint64_t entries, bytes, skipped;
        uint64_t kept; /* members of which the place was left as it is */
        uint64_t xattrs_lost; /* extended attributes that could not be set */
};

struct tar_unpack;
struct tar_unpack_how {
        bool set_id; /* set-uid and set-gid bits are taken over */
        /* As it was: owner and group are the archive's too (which takes root), and folders that are there already, `dir` among
         * them where the archive has it, become what they are in it. No link below `dir` is followed then. What is no folder is
         * replaced, by whatever the archive has there, and so is an empty folder. One with something in it is left as it is where the archive
         * has no folder, as is what something is mounted on: such members are counted (`kept`) and named, and the rest goes on. */
        bool owner; /* and extended attributes: user.*, security.capability, access lists */
        const char *as; /* NULL, or the name in `dir` of what the archive has right at its top; borrowed */
};
int tar_unpack_open(const char *dir, const struct tar_unpack_how *how, struct tar_unpack **ret, struct error *err);
int tar_unpack_write(struct tar_unpack *u, const uint8_t *data, size_t n, struct error *err);
/* The stream has ended. -EPROTO: before the archive had. */
int tar_unpack_finish(struct tar_unpack *u, struct tar_unpack_result *ret, struct error *err);
/* The first TAR_UNPACK_KEPT_MAX members that were left out for what is in their place: paths below `dir`, borrowed. */
const char *const *tar_unpack_kept(const struct tar_unpack *u, size_t *ret_n);
void tar_unpack_free(struct tar_unpack *u); /* a file that is not complete is removed */
