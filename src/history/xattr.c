/* SPDX-License-Identifier: Apache-2.0 */
#include "xattr.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"

void xattrs_done(struct xattrs *a) {
        for (size_t i = 0; i < a->n; i++) {
                free(a->v[i].name);
                free(a->v[i].value);
        }
        free(a->v);
        *a = (struct xattrs) { .v = NULL };
}

static int add(struct xattrs *a, const char *name, const char *value, size_t n) {
        a->bytes += strlen(name) + n;
        if (a->bytes > HISTORY_XATTR_BYTES_MAX)
                return -EDQUOT;
        struct xattr t = { .name = strdup(name), .value = malloc(n ? n : 1), .n = n };
        if (!t.name || !t.value) {
                free(t.name);
                free(t.value);
                return -ENOMEM;
        }
        if (n)
                memcpy(t.value, value, n);
        int r = ARRAY_ADD(a->v, a->n, a->cap, HISTORY_XATTR_BYTES_MAX, t);
        if (r < 0) {
                free(t.name);
                free(t.value);
        }
        return r;
}

static int on_attr(char *name, char *value, size_t n, void *ctx) {
        struct xattrs *a = ctx;

        if (strcmp(name, "system.data") != 0)
                a->r = add(a, name, value, n);
        return a->r < 0 ? XATTR_ABORT : 0;
}

static int by_name(const void *x, const void *y) {
        const struct xattr *a = x, *b = y;

        return strcmp(a->name, b->name);
}

/* Where the attributes inside the inode begin; inode_bytes when there are none. */
static size_t inside(const struct hfs *fs, const struct hinode *i) {
        size_t at = EXT2_GOOD_OLD_INODE_SIZE + (size_t) i->l.i_extra_isize;

        if (fs->inode_bytes <= EXT2_GOOD_OLD_INODE_SIZE || at + 4 > fs->inode_bytes)
                return fs->inode_bytes;
        uint32_t magic;
        memcpy(&magic, i->raw + at, sizeof magic);
        return magic == EXT2_EXT_ATTR_MAGIC ? at : fs->inode_bytes;
}

static int collect(struct hfs *fs, const struct hinode *i, struct xattrs *ret) {
        struct ext2_xattr_handle *h = NULL;
        unsigned flags = XATTR_HANDLE_FLAG_RAW;

        if (hinode_acl_block(i) == 0 && inside(fs, i) == fs->inode_bytes)
                return 0;
        errcode_t e = ext2fs_xattrs_open(fs->fs, i->ino, &h);
        if (e)
                return e == EXT2_ET_NO_MEMORY ? -ENOMEM : -EUCLEAN;
        e = ext2fs_xattrs_flags(h, &flags, NULL);
        if (!e)
                e = ext2fs_xattrs_read(h);
        if (!e)
                e = ext2fs_xattrs_iterate(h, on_attr, ret);
        ext2fs_xattrs_close(&h);
        if (ret->r < 0)
                return ret->r;
        if (e)
                return -EUCLEAN;
        if (ret->n > 1)
                qsort(ret->v, ret->n, sizeof *ret->v, by_name);
        return 0;
}

/* Both have nothing but the same bytes inside the inode. */
static bool same_bytes(const struct hfs *fa, const struct hinode *a, const struct hfs *fb, const struct hinode *b) {
        size_t at = inside(fa, a), bt = inside(fb, b);

        return hinode_acl_block(a) == 0 && hinode_acl_block(b) == 0 && !hinode_inline(a) && !hinode_inline(b) &&
               fa->inode_bytes - at == fb->inode_bytes - bt &&
               memcmp(a->raw + at, b->raw + bt, fa->inode_bytes - at) == 0;
}

int xattr_equal(struct hfs *fa, const struct hinode *a, struct hfs *fb, const struct hinode *b) {
        _cleanup_(xattrs_done) struct xattrs x = { .v = NULL }, y = { .v = NULL };

        if (same_bytes(fa, a, fb, b))
                return 1;
        int r = collect(fa, a, &x);
        if (r == 0)
                r = collect(fb, b, &y);
        if (r < 0)
                return r;
        if (x.n != y.n)
                return 0;
        for (size_t i = 0; i < x.n; i++)
                if (strcmp(x.v[i].name, y.v[i].name) != 0 || x.v[i].n != y.v[i].n ||
                    memcmp(x.v[i].value, y.v[i].value, x.v[i].n) != 0)
                        return 0;
        return 1;
}

/*
 * An access list on the disk is a version (32 bits) and entries of 4 bytes, tag and permissions, with 4 more, who, where the tag is of a
 * named user or group. Programs see another version, and all entries have 8.
 */
#define ACL_ON_DISK 1u
#define ACL_OF_PROGRAMS 2u
#define ACL_USER 2u
#define ACL_GROUP 8u
#define ACL_NOBODY UINT32_MAX

static int convert_list(struct xattr *a) {
        const uint8_t *p = a->value, *end = p + a->n;
        uint32_t version, who;
        uint16_t entry[2];

        if (a->n < sizeof version)
                return -EUCLEAN;
        memcpy(&version, p, sizeof version);
        if (version != ACL_ON_DISK)
                return -EUCLEAN;
        uint8_t *list = malloc(4 + (a->n - 4) / 4 * 8), *to = list;
        if (!list)
                return -ENOMEM;
        version = ACL_OF_PROGRAMS;
        memcpy(to, &version, 4);
        to += 4;
        for (p += 4; end - p >= 4;) {
                memcpy(entry, p, sizeof entry);
                memcpy(to, entry, sizeof entry);
                p += 4;
                who = ACL_NOBODY;
                if (entry[0] == ACL_USER || entry[0] == ACL_GROUP) {
                        if (end - p < 4)
                                break;
                        memcpy(&who, p, sizeof who);
                        p += 4;
                }
                memcpy(to + 4, &who, sizeof who);
                to += 8;
        }
        if (p != end) {
                free(list);
                return -EUCLEAN;
        }
        free(a->value);
        a->value = list;
        a->n = (size_t) (to - list);
        return 0;
}

int xattrs_read(struct hfs *fs, const struct hinode *i, struct xattrs *ret) {
        int r = collect(fs, i, ret);

        for (size_t k = 0; r == 0 && k < ret->n; k++)
                if (strncmp(ret->v[k].name, "system.posix_acl_", 17) == 0)
                        r = convert_list(&ret->v[k]);
        return r;
}
