/* SPDX-License-Identifier: Apache-2.0 */
#include "hpath.h"

#include <errno.h>
#include <string.h>

#include "hfile.h"

struct step {
        uint32_t ino;
        size_t path_n; /* length of the path up to here */
};

struct way {
        struct hfs *fs;
        struct step steps[HISTORY_DEPTH_MAX];
        size_t n;
        struct hinode here; /* of the last step */
        char path[LIMIT_PATH]; /* "" is the root */
        char rest[2 * LIMIT_PATH];
        unsigned links;
};

struct find {
        const char *name;
        size_t name_n;
        uint32_t ino;
};

static int on_entry(void *ctx, const struct hentry *e) {
        struct find *f = ctx;

        if (e->name_n != f->name_n || memcmp(e->name, f->name, e->name_n) != 0)
                return 0;
        f->ino = e->ino;
        return 1;
}

static int find_child(struct hfs *fs, const struct hinode *dir, const char *name, size_t n, struct hinode *ret) {
        struct find f = { .name = name, .name_n = n };
        struct hinode child;

        int r = hdir_walk(fs, dir, on_entry, &f, NULL);
        if (r < 0)
                return r;
        if (r == 0)
                return -ENOENT;
        r = hfs_inode(fs, f.ino, &child);
        if (r == 0 && !hinode_used(&child))
                r = -EUCLEAN;
        if (r == 0)
                *ret = child;
        return r;
}

/* Puts a link's target in front of what is left of the path. */
static int follow(struct way *w, const struct hinode *link) {
        char target[LIMIT_PATH];

        if (++w->links > HISTORY_SYMLINKS_MAX)
                return -ELOOP;
        int r = hfile_link_target(w->fs, link, target);
        if (r < 0)
                return r;
        size_t n = strlen(target), rest_n = strlen(w->rest);
        if (n + 1 + rest_n >= sizeof w->rest)
                return -ENAMETOOLONG;
        memmove(w->rest + n + 1, w->rest, rest_n + 1);
        memcpy(w->rest, target, n);
        w->rest[n] = '/';
        if (target[0] != '/')
                return 0;
        w->n = 1;
        return hfs_inode(w->fs, EXT2_ROOT_INO, &w->here);
}

static int push(struct way *w, const struct hinode *i, const char *name, size_t n) {
        size_t at = w->steps[w->n - 1].path_n;

        if (w->n >= HISTORY_DEPTH_MAX || at + 1 + n >= sizeof w->path)
                return -ENAMETOOLONG;
        w->path[at] = '/';
        memcpy(w->path + at + 1, name, n);
        w->steps[w->n++] = (struct step){ .ino = i->ino, .path_n = at + 1 + n };
        w->here = *i;
        return 0;
}

/* Takes one component off the rest; 0 at its end. */
static size_t take(struct way *w, char name[HISTORY_NAME_MAX + 1], bool *last) {
        size_t lead = strspn(w->rest, "/"), n = strcspn(w->rest + lead, "/");
        size_t after = lead + n + strspn(w->rest + lead + n, "/");

        if (n > HISTORY_NAME_MAX)
                return SIZE_MAX;
        memcpy(name, w->rest + lead, n);
        name[n] = '\0';
        *last = w->rest[after] == '\0';
        memmove(w->rest, w->rest + lead + n, strlen(w->rest + lead + n) + 1);
        return n;
}

static int walk(struct way *w, bool follow_last) {
        char name[HISTORY_NAME_MAX + 1];
        struct hinode child;
        bool last = false;

        for (;;) {
                size_t n = take(w, name, &last);
                if (n == 0)
                        return 0;
                if (n == SIZE_MAX)
                        return -ENAMETOOLONG;
                if (!S_ISDIR(w->here.l.i_mode))
                        return -ENOTDIR;
                if (strcmp(name, ".") == 0)
                        continue;
                int r;
                if (strcmp(name, "..") == 0) {
                        w->n -= w->n > 1;
                        r = hfs_inode(w->fs, w->steps[w->n - 1].ino, &w->here);
                        if (r < 0)
                                return r;
                        continue;
                }
                r = find_child(w->fs, &w->here, name, n, &child);
                if (r == 0 && S_ISLNK(child.l.i_mode) && (follow_last || !last || w->rest[0] == '/'))
                        r = follow(w, &child);
                else if (r == 0)
                        r = push(w, &child, name, n);
                if (r < 0)
                        return r;
        }
}

int hpath_resolve(struct hfs *fs, const char *path, bool follow_last, struct hpath *ret, struct error *err) {
        _cleanup_free_ struct way *w = calloc(1, sizeof *w);

        if (!w)
                return error_set(err, -ENOMEM, "out of memory");
        if (strlen(path) >= LIMIT_PATH)
                return error_set(err, -ENAMETOOLONG, "the path is longer than %d bytes", LIMIT_PATH - 1);
        w->fs = fs;
        w->n = 1;
        memcpy(w->rest, path, strlen(path) + 1);
        w->steps[0].ino = EXT2_ROOT_INO;
        int r = hfs_inode(fs, EXT2_ROOT_INO, &w->here);
        if (r == 0)
                r = walk(w, follow_last);
        if (r < 0)
                return error_errno(err, r, "\"%s\"", path);
        size_t n = w->steps[w->n - 1].path_n;
        ret->inode = w->here;
        memcpy(ret->path, w->path, n);
        ret->path[n] = '\0';
        if (n == 0)
                memcpy(ret->path, "/", 2);
        return 0;
}
