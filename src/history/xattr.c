/* SPDX-License-Identifier: Apache-2.0 */
#include "xattr.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"

struct attr {
        char *name;
        uint8_t *value;
        size_t value_n;
};

struct attrs {
        struct attr *v;
        size_t n, cap, bytes;
        int r;
};

static void attrs_done(struct attrs *a) {
        for (size_t i = 0; i < a->n; i++) {
                free(a->v[i].name);
                free(a->v[i].value);
        }
        free(a->v);
}

static int add(struct attrs *a, const char *name, const char *value, size_t n) {
        a->bytes += strlen(name) + n;
        if (a->bytes > HISTORY_XATTR_BYTES_MAX)
                return -EDQUOT;
        struct attr t = { .name = strdup(name), .value = malloc(n ? n : 1), .value_n = n };
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
        struct attrs *a = ctx;

        if (strcmp(name, "system.data") != 0)
                a->r = add(a, name, value, n);
        return a->r < 0 ? XATTR_ABORT : 0;
}

static int by_name(const void *x, const void *y) {
        const struct attr *a = x, *b = y;

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

static int collect(struct hfs *fs, const struct hinode *i, struct attrs *ret) {
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
        _cleanup_(attrs_done) struct attrs x = { .v = NULL }, y = { .v = NULL };

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
                if (strcmp(x.v[i].name, y.v[i].name) != 0 || x.v[i].value_n != y.v[i].value_n ||
                    memcmp(x.v[i].value, y.v[i].value, x.v[i].value_n) != 0)
                        return 0;
        return 1;
}
