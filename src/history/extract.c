/* SPDX-License-Identifier: Apache-2.0 */
#include "extract.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "base/buf.h"
#include "base/str.h"
#include "wire/tar.h"
#include "xattr.h"

#define CHUNK_BYTES (1u << 20)

/* -- one file ------------------------------------------------------------------------------------------------- */

int extract_open(struct hfs *fs, const struct hinode *i, struct hfile *ret) {
        if (i->l.i_flags & (EXT4_ENCRYPT_FL | EXT2_COMPRBLK_FL))
                return -EOPNOTSUPP;
        return hfile_open(fs, i, ret);
}

/* Whether the logical blocks from off on are a hole, and up to which byte that is known. */
static bool is_hole(const struct hfile *f, uint64_t off, uint64_t *end) {
        uint64_t bs = f->fs->block_size, next = 0;

        if (f->small) {
                *end = f->size;
                return false;
        }
        const struct run *r = hfile_run(f, off / bs, &next);
        *end = next > f->size / bs ? f->size : next * bs;
        return !r || r->kind == RUN_UNWRITTEN;
}

int extract_bytes(struct hfile *f, struct output *out, struct error *err) {
        size_t chunk = f->size < CHUNK_BYTES ? (size_t) f->size + 1 : CHUNK_BYTES;
        _cleanup_free_ uint8_t *buf = malloc(chunk);
        uint64_t end = 0;
        int r = 0;

        if (!buf)
                return error_set(err, -ENOMEM, "out of memory");
        for (uint64_t off = 0; r == 0 && off < f->size;) {
                if (is_hole(f, off, &end)) {
                        r = output_zeros(out, end - off, err);
                        off = end;
                        continue;
                }
                size_t n = end - off < chunk ? (size_t) (end - off) : chunk;
                r = hfile_read(f, off, buf, n);
                if (r < 0)
                        return error_errno(err, r, "the file cannot be read");
                r = output_bytes(out, buf, n, err);
                off += n;
        }
        return r;
}

/* -- a tree --------------------------------------------------------------------------------------------------- */

struct seen {
        uint32_t ino;
        char *name;
};

struct child {
        uint32_t ino;
        size_t name_n;
        char *name;
};

struct children {
        struct child *v;
        size_t n, cap;
};

struct tree {
        struct hfs *fs;
        struct output *out;
        struct error *err;
        uint64_t left;      /* of max_bytes */
        uint8_t *dirs_seen; /* a bit for each inode: a folder that is met twice is refused */
        struct seen *seen;  /* files with more than one name */
        size_t seen_n, seen_cap, entries;
};

static void children_done(struct children *c) {
        for (size_t i = 0; i < c->n; i++)
                free(c->v[i].name);
        free(c->v);
}

static int on_child(void *ctx, const struct hentry *e) {
        struct children *c = ctx;

        char *name = strndup(e->name, e->name_n);
        if (!name)
                return -ENOMEM;
        const struct child child = { .ino = e->ino, .name_n = e->name_n, .name = name };
        int r = ARRAY_ADD(c->v, c->n, c->cap, HISTORY_CHANGES_MAX, child);
        if (r < 0)
                free(name);
        return r;
}

static int by_name(const void *x, const void *y) {
        const struct child *a = x, *b = y;

        return strcmp(a->name, b->name);
}

/* The name under which a file was written already, or NULL; then this one is kept. */
static int first_name(struct tree *t, uint32_t ino, const char *name, const char **ret) {
        for (size_t i = 0; i < t->seen_n; i++)
                if (t->seen[i].ino == ino) {
                        *ret = t->seen[i].name;
                        return 0;
                }
        char *copy = strdup(name);
        if (!copy)
                return -ENOMEM;
        const struct seen one = { .ino = ino, .name = copy };
        int r = ARRAY_ADD(t->seen, t->seen_n, t->seen_cap, HISTORY_CHANGES_MAX, one);
        if (r < 0)
                free(copy);
        else
                *ret = NULL;
        return r;
}

/* What the sandbox's agent takes: the others are the kernel's own, or of no use without what wrote them. */
static bool is_wanted(const char *name) {
        return (str_has_prefix(name, "user.") || str_eq(name, "security.capability") || str_eq(name, "system.posix_acl_access") ||
                str_eq(name, "system.posix_acl_default")) &&
               !strchr(name, '=');
}

/* Of the members of an archive that can have any; v has TAR_XATTRS_MAX places. */
static int take_xattrs(struct tree *t, const struct hinode *i, struct xattrs *a, struct tar_xattr *v, struct tar_entry *e) {
        size_t n = 0, bytes = 0;

        int r = xattrs_read(t->fs, i, a);
        for (size_t k = 0; r == 0 && k < a->n; k++) {
                if (!is_wanted(a->v[k].name))
                        continue;
                bytes += strlen(a->v[k].name) + 1 + a->v[k].n;
                if (n == TAR_XATTRS_MAX || bytes > TAR_XATTRS_BYTES_MAX) {
                        r = -EDQUOT;
                } else {
                        v[n] = (struct tar_xattr) { .name = a->v[k].name, .value = a->v[k].value, .n = a->v[k].n };
                        n++;
                }
        }
        if (r == -EDQUOT)
                return error_set(t->err, r, "\"%s\" has more extended attributes than is accepted", e->name);
        if (r < 0)
                return error_errno(t->err, r, "the extended attributes of \"%s\" cannot be read", e->name);
        e->xattrs = v;
        e->n_xattrs = n;
        return 0;
}

static int put_entry(struct tree *t, const struct tar_entry *e) {
        _cleanup_buf_ struct buf b = BUF_INIT(0);

        int r = tar_write_entry(&b, e);
        if (r < 0)
                return error_errno(t->err, r, "\"%s\" has no place in a tar stream", e->name);
        return output_bytes(t->out, buf_data(&b), b.len, t->err);
}

static int put_file(struct tree *t, const struct hinode *i, struct tar_entry *e) {
        static const uint8_t zeros[TAR_BLOCK];
        _cleanup_(hfile_done) struct hfile f = { .fs = t->fs };

        int r = extract_open(t->fs, i, &f);
        if (r < 0)
                return error_errno(t->err, r, "\"%s\" cannot be read", e->name);
        if (f.size > t->left)
                return error_set(t->err, -EDQUOT, "the tree is larger than the limit");
        t->left -= f.size;
        e->size = f.size;
        r = put_entry(t, e);
        if (r == 0)
                r = extract_bytes(&f, t->out, t->err);
        return r < 0 ? r : output_bytes(t->out, zeros, (TAR_BLOCK - f.size % TAR_BLOCK) % TAR_BLOCK, t->err);
}

static int put_node(struct tree *t, const struct hinode *i, const char *name) {
        char target[LIMIT_PATH];
        struct tar_xattr attributes[TAR_XATTRS_MAX];
        _cleanup_(xattrs_done) struct xattrs kept = { .v = NULL };
        const char *first = NULL;
        struct tar_entry e = { .name = name,
                               .link = "",
                               .mode = i->l.i_mode & 07777,
                               .uid = hinode_uid(i),
                               .gid = hinode_gid(i) };
        int r = 0;

        if (++t->entries > HISTORY_CHANGES_MAX)
                return error_set(t->err, -EDQUOT, "the tree has more than %u entries", HISTORY_CHANGES_MAX);
        hinode_mtime(i, &e.mtime_s, &e.mtime_ns);
        if (!S_ISDIR(i->l.i_mode) && i->l.i_links_count > 1)
                r = first_name(t, i->ino, name, &first);
        if (r < 0)
                return error_set(t->err, r, "out of memory");
        if (first) {
                e.type = TAR_HARDLINK;
                e.link = first;
                return put_entry(t, &e);
        }
        if (S_ISREG(i->l.i_mode) || S_ISDIR(i->l.i_mode))
                r = take_xattrs(t, i, &kept, attributes, &e);
        if (r < 0)
                return r;
        switch (i->l.i_mode & S_IFMT) {
        case S_IFREG:
                e.type = TAR_FILE;
                return put_file(t, i, &e);
        case S_IFDIR:
                e.type = TAR_DIR;
                return put_entry(t, &e);
        case S_IFLNK:
                r = hfile_link_target(t->fs, i, target);
                if (r < 0)
                        return error_errno(t->err, r, "\"%s\" has no target", name);
                e.type = TAR_SYMLINK;
                e.link = target;
                return put_entry(t, &e);
        case S_IFIFO:
                e.type = TAR_FIFO;
                return put_entry(t, &e);
        case S_IFCHR:
        case S_IFBLK: /* for whoever unpacks it to tell that it is left out */
                e.type = S_ISCHR(i->l.i_mode) ? TAR_CHARDEV : TAR_BLOCKDEV;
                return put_entry(t, &e);
        default:
                return 0;
        }
}

static bool first_visit(struct tree *t, uint32_t ino) {
        uint8_t bit = (uint8_t) (1u << (ino % 8));
        bool first = !(t->dirs_seen[ino / 8] & bit);

        t->dirs_seen[ino / 8] |= bit;
        return first;
}

/* `path` ends with "/"; what is appended is taken away again. */
static int put_dir(struct tree *t, const struct hinode *dir, char path[TAR_NAME_MAX], size_t n, unsigned depth) {
        _cleanup_(children_done) struct children c = { .v = NULL };
        struct hinode child;

        if (depth >= HISTORY_DEPTH_MAX)
                return error_set(t->err, -EDQUOT, "the tree is deeper than %d folders", HISTORY_DEPTH_MAX);
        if (!first_visit(t, dir->ino))
                return error_set(t->err, -EUCLEAN, "the folder \"%s\" has two places", path);
        int r = put_node(t, dir, path);
        if (r < 0)
                return r;
        r = hdir_walk(t->fs, dir, on_child, &c, NULL);
        if (r < 0)
                return error_errno(t->err, r, "the folder \"%s\" cannot be read", path);
        if (c.n > 1)
                qsort(c.v, c.n, sizeof *c.v, by_name);
        for (size_t i = 0; r == 0 && i < c.n; i++) {
                if (n + c.v[i].name_n + 2 > TAR_NAME_MAX)
                        return error_set(t->err, -EDQUOT, "a path in the tree is longer than %d bytes", TAR_NAME_MAX);
                memcpy(path + n, c.v[i].name, c.v[i].name_n + 1);
                r = hfs_inode(t->fs, c.v[i].ino, &child);
                if (r < 0 || !hinode_used(&child))
                        r = error_set(t->err, -EUCLEAN, "\"%s\" has no inode", path);
                else if (S_ISDIR(child.l.i_mode)) {
                        memcpy(path + n + c.v[i].name_n, "/", 2);
                        r = put_dir(t, &child, path, n + c.v[i].name_n + 1, depth + 1);
                } else
                        r = put_node(t, &child, path);
        }
        path[n] = '\0';
        return r;
}

static void tree_done(struct tree *t) {
        for (size_t i = 0; i < t->seen_n; i++)
                free(t->seen[i].name);
        free(t->seen);
        free(t->dirs_seen);
}

int extract_tree(struct hfs *fs, const struct hpath *p, uint64_t max_bytes, struct output *out, struct error *err) {
        static const uint8_t end[2 * TAR_BLOCK];
        _cleanup_(tree_done) struct tree t = { .fs = fs, .out = out, .err = err, .left = max_bytes };
        char path[TAR_NAME_MAX] = "./";

        t.dirs_seen = calloc(1, fs->inodes / 8 + 1);
        if (!t.dirs_seen)
                return error_set(err, -ENOMEM, "out of memory");
        int r = S_ISDIR(p->inode.l.i_mode) ? put_dir(&t, &p->inode, path, 2, 0)
                                           : put_node(&t, &p->inode, strrchr(p->path, '/') + 1);
        return r < 0 ? r : output_bytes(out, end, sizeof end, err);
}
