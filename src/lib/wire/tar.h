/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * tar streams, sans-I/O: POSIX ustar with pax headers, and GNU's long names. Names are bytes: they
 * come out as they went in, whatever their encoding (libarchive turns UTF-8 names into another
 * normal form, so a file could come back under another name).
 *
 * A stream is a list of entries, each a header of TAR_BLOCK bytes and its data, padded to TAR_BLOCK:
 *
 *   [pax header 'x' + its records] header data padding ... two blocks of zeros
 *
 * Refused, with a reason: a wrong checksum, numbers that are none, negative or enormous sizes,
 * names with a NUL, empty or over TAR_NAME_MAX, extension headers over TAR_EXT_MAX or more than
 * TAR_EXT_COUNT before one entry, data after a folder or link, sparse files, several volumes, and
 * an end without the end mark. What a name means (absolute, "..") is for the caller to judge.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define TAR_BLOCK 512
#define TAR_NAME_MAX 4096
#define TAR_EXT_MAX (1024u * 1024)
#define TAR_EXT_COUNT 8
#define TAR_SIZE_MAX (1ULL << 60)
#define TAR_XATTRS_MAX 128     /* of one entry */
#define TAR_XATTR_NAME_MAX 255 /* as the kernel's */
#define TAR_XATTRS_BYTES_MAX (TAR_EXT_MAX - 32768) /* of one entry, names and values: they are written in one header */

enum tar_type {
        TAR_FILE,
        TAR_DIR,
        TAR_SYMLINK,
        TAR_HARDLINK, /* link names an entry before */
        TAR_CHARDEV,
        TAR_BLOCKDEV,
        TAR_FIFO,
        TAR_OTHER, /* of a kind that is not known; its data comes and may be ignored */
};

/* An extended attribute, as GNU tar and libarchive write them: pax records "SCHILY.xattr.NAME". */
struct tar_xattr {
        const char *name;
        const uint8_t *value;
        size_t n;
};

struct tar_entry {
        enum tar_type type;
        const char *name;
        const char *link; /* target of a link, else "" */
        uint32_t mode;    /* 07777 */
        uint64_t uid, gid;
        uint64_t size; /* 0 but for files (and what is not known) */
        int64_t mtime_s;
        uint32_t mtime_ns;
        const struct tar_xattr *xattrs;
        size_t n_xattrs;
};

enum tar_event_type {
        TAR_NEED_DATA, /* all input consumed */
        TAR_ENTRY,     /* ev.entry, valid until the next call */
        TAR_DATA,      /* ev.data, ev.n of the entry: borrowed from the input */
        TAR_ENTRY_END, /* the entry's data is complete */
        TAR_END,       /* the end mark was seen; what follows is consumed and ignored */
        TAR_ERROR,     /* ev.reason; the reader is dead */
};

struct tar_event {
        enum tar_event_type type;
        const struct tar_entry *entry;
        const uint8_t *data;
        size_t n;
        const char *reason;
};

struct tar_reader;
struct tar_reader *tar_reader_new(void); /* NULL: no memory */
void tar_reader_free(struct tar_reader *r);
/* Consumes from data; *used says how much. Call again with the rest until TAR_NEED_DATA. */
void tar_read(struct tar_reader *r, const uint8_t *data, size_t n, size_t *used, struct tar_event *ev);
/* Whether the stream may end here: after the end mark alone. */
bool tar_reader_complete(const struct tar_reader *r);

/* Writers. -EINVAL: a name, link or number that the format has no room for; else as buf_append(). */
int tar_write_entry(struct buf *out, const struct tar_entry *e);
/* After the entry's data. */
int tar_write_padding(struct buf *out, uint64_t size);
int tar_write_end(struct buf *out);
