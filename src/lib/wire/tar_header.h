/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Inside of the tar codec: one header block, and what extension headers say. */

#include "wire/tar.h"

/* Offsets and sizes of the fields of a header. */
#define TAR_F_NAME 0, 100
#define TAR_F_MODE 100, 8
#define TAR_F_UID 108, 8
#define TAR_F_GID 116, 8
#define TAR_F_SIZE 124, 12
#define TAR_F_MTIME 136, 12
#define TAR_F_CHECKSUM 148, 8
#define TAR_F_TYPE 156
#define TAR_F_LINK 157, 100
#define TAR_F_MAGIC 257, 8
#define TAR_F_PREFIX 345, 155

/* Values that take the place of those in the header that follows. */
struct tar_ext {
        bool has_name, has_link, has_size, has_mtime, has_uid, has_gid;
        uint64_t size, uid, gid;
        int64_t mtime_s;
        uint32_t mtime_ns;
        char name[TAR_NAME_MAX + 1], link[TAR_NAME_MAX + 1];
        struct {
                size_t name_at, value_at, n; /* in bytes */
        } xattrs[TAR_XATTRS_MAX];
        size_t n_xattrs;
        struct buf bytes;
};
void tar_ext_init(struct tar_ext *x);
void tar_ext_clear(struct tar_ext *x);

bool tar_header_is_zero(const uint8_t block[TAR_BLOCK]);
bool tar_header_is_extension(char type);
uint32_t tar_header_sum(const uint8_t block[TAR_BLOCK]); /* of bytes, the checksum's own as blanks */

/* The functions below return NULL, or the reason for refusing. */

/* Fills *e; its strings are in name and link (TAR_NAME_MAX + 1 bytes each). */
const char *tar_header_parse(const uint8_t block[TAR_BLOCK], struct tar_entry *e, char *name, char *link,
                             char *ret_type);
/* Takes in what an extension header of this type ('x', 'g', 'L', 'K') holds. */
const char *tar_ext_parse(struct tar_ext *x, char type, const char *data, size_t n);
/* Puts it over the entry, and checks the whole. Its attributes are in `xattrs` (TAR_XATTRS_MAX of them) and point into x. */
const char *tar_ext_apply(const struct tar_ext *x, struct tar_entry *e, char *name, char *link, struct tar_xattr *xattrs);
