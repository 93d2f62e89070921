/* SPDX-License-Identifier: Apache-2.0 */
#include "changes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "content.h"

/* So many files of the same size are compared with one that came. */
#define SAME_SIZE_MAX 16

/* One name that went or came. */
struct end {
        uint32_t ino;
        bool done;
        uint64_t size; /* of a file with bytes; else 0 */
        char *path;
};

struct ends {
        struct end *v;
        size_t n;
};

struct finder {
        struct tree *t;
        struct ends removed, added;
        struct changes *out;
};

static void ends_done(struct ends *e) {
        for (size_t i = 0; i < e->n; i++)
                free(e->v[i].path);
        free(e->v);
}

static void finder_done(struct finder *f) {
        ends_done(&f->removed);
        ends_done(&f->added);
}

static int add_change(struct finder *f, const struct change *c) {
        struct changes *o = f->out;

        return ARRAY_ADD(o->v, o->n, o->cap, HISTORY_CHANGES_MAX, *c);
}

/* Takes both strings, also when it fails. */
static int take_change(struct finder *f, struct change c) {
        if (c.from && c.path && strcmp(c.from, c.path) == 0) {
                free(c.from);
                c.from = NULL;
        }
        int r = c.path ? add_change(f, &c) : -ENOMEM;
        if (r < 0) {
                free(c.path);
                free(c.from);
        }
        return r;
}

/* -ENOENT where no way leads to the name. */
static int path_of(struct finder *f, bool old, const struct link *l, char **ret) {
        char path[LIMIT_PATH];

        int r = tree_path(f->t, old ? &f->t->old_links : &f->t->new_links, l, path);
        if (r == -ENOENT || r == -ENAMETOOLONG) {
                f->out->unreachable++;
                *(old ? &f->out->too_deep_old : &f->out->too_deep_new) |= r == -ENAMETOOLONG;
                return -ENOENT;
        }
        *ret = strdup(path);
        return *ret ? 0 : -ENOMEM;
}

static int make_ends(struct finder *f, bool old, const struct links *links, struct ends *ret) {
        struct hfs *fs = old ? f->t->old : f->t->new;
        struct hinode inode;

        ret->v = calloc(links->n + 1, sizeof *ret->v);
        if (!ret->v)
                return -ENOMEM;
        for (size_t i = 0; i < links->n; i++) {
                struct end e = { .ino = links->v[i].child };
                int r = path_of(f, old, &links->v[i], &e.path);
                if (r == -ENOENT)
                        continue;
                if (r < 0)
                        return r;
                if (hfs_inode(fs, e.ino, &inode) == 0 && hinode_used(&inode) && S_ISREG(inode.l.i_mode))
                        e.size = hinode_size(&inode);
                ret->v[ret->n++] = e;
        }
        return 0;
}

/* -- 1: the same name, the same path ------------------------------------------------------------------------------ */

static int find_pairs(struct finder *f) {
        for (size_t i = 0; i < f->t->pairs_n; i++) {
                const struct link_pair *p = &f->t->pairs[i];
                struct change c = { .kind = CHANGE_CHANGED, .old_ino = p->old.child, .new_ino = p->new.child };
                int r = path_of(f, true, &p->old, &c.from);
                if (r == 0)
                        r = path_of(f, false, &p->new, &c.path);
                if (r == -ENOENT) {
                        free(c.from);
                        continue;
                }
                r = take_change(f, c);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int by_path(const void *x, const void *y) {
        const struct end *a = x, *b = y;

        return a->done != b->done ? a->done - b->done : strcmp(a->path, b->path);
}

static int find_same_paths(struct finder *f) {
        struct ends *o = &f->removed, *n = &f->added;

        qsort(o->v, o->n, sizeof *o->v, by_path);
        qsort(n->v, n->n, sizeof *n->v, by_path);
        for (size_t i = 0, k = 0; i < o->n && k < n->n && !o->v[i].done && !n->v[k].done;) {
                int order = strcmp(o->v[i].path, n->v[k].path);
                if (order != 0) {
                        i += order < 0;
                        k += order > 0;
                        continue;
                }
                o->v[i].done = n->v[k].done = true;
                struct change c = { .kind = CHANGE_CHANGED, .old_ino = o->v[i].ino, .new_ino = n->v[k].ino };
                c.path = strdup(n->v[k].path);
                int r = take_change(f, c);
                if (r < 0)
                        return r;
                i++;
                k++;
        }
        return 0;
}

/* -- 2 and 3: renames --------------------------------------------------------------------------------------------- */

static int take_rename(struct finder *f, struct end *o, struct end *n, bool by_content) {
        struct change c = { .kind = CHANGE_RENAMED,
                            .by_content = by_content,
                            .old_ino = o->ino,
                            .new_ino = n->ino,
                            .path = strdup(n->path),
                            .from = strdup(o->path) };

        if (strcmp(n->path, o->path) == 0)
                c.kind = CHANGE_CHANGED;
        o->done = n->done = true;
        return take_change(f, c);
}

/* Open ends first, by inode, then by path. */
static int by_inode(const void *x, const void *y) {
        const struct end *a = x, *b = y;

        if (a->done != b->done)
                return a->done - b->done;
        if (a->ino != b->ino)
                return a->ino < b->ino ? -1 : 1;
        return strcmp(a->path, b->path);
}

static int find_renames(struct finder *f, bool folders) {
        struct ends *o = &f->removed, *n = &f->added;
        const struct scan *s = f->t->scan;

        /* Without a common layout an inode's number says nothing. */
        if (!suspect_same_layout(f->t->old, f->t->new))
                return 0;
        qsort(o->v, o->n, sizeof *o->v, by_inode);
        qsort(n->v, n->n, sizeof *n->v, by_inode);
        for (size_t i = 0, k = 0; i < o->n && k < n->n && !o->v[i].done && !n->v[k].done;) {
                uint32_t a = o->v[i].ino, b = n->v[k].ino;
                if (a != b || a > s->inodes || scan_bit(s->replaced, a) || (folders && !scan_bit(s->new_dirs, a))) {
                        i += a <= b;
                        k += a > b;
                        continue;
                }
                int r = take_rename(f, &o->v[i++], &n->v[k++], false);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int by_size(const void *x, const void *y) {
        const struct end *a = x, *b = y;

        if (a->done != b->done)
                return a->done - b->done;
        if (a->size != b->size)
                return a->size < b->size ? -1 : 1;
        return strcmp(a->path, b->path);
}

static int same_bytes(struct finder *f, const struct end *o, const struct end *n, uint64_t *budget) {
        _cleanup_(hfile_done) struct hfile a = { .fs = f->t->old }, b = { .fs = f->t->new };
        struct hinode i;

        int r = hfs_inode(f->t->old, o->ino, &i);
        if (r == 0)
                r = hfile_open(f->t->old, &i, &a);
        if (r == 0)
                r = hfs_inode(f->t->new, n->ino, &i);
        if (r == 0)
                r = hfile_open(f->t->new, &i, &b);
        return r < 0 ? r : content_equal(&a, &b, NULL, budget);
}

/* What cannot be compared is no rename; its own record will say what is wrong. */
static int find_copies(struct finder *f) {
        struct ends *o = &f->removed, *n = &f->added;
        uint64_t budget = HISTORY_RENAME_BYTES_MAX;
        size_t from = 0;

        qsort(o->v, o->n, sizeof *o->v, by_size);
        qsort(n->v, n->n, sizeof *n->v, by_size);
        for (size_t k = 0; k < n->n && !n->v[k].done && budget > 0; k++) {
                if (n->v[k].size == 0)
                        continue;
                while (from < o->n && !o->v[from].done && o->v[from].size < n->v[k].size)
                        from++;
                unsigned tried = 0;
                for (size_t i = from; i < o->n && o->v[i].size == n->v[k].size && tried < SAME_SIZE_MAX; i++) {
                        if (o->v[i].done)
                                continue;
                        tried++;
                        if (same_bytes(f, &o->v[i], &n->v[k], &budget) != 1)
                                continue;
                        int r = take_rename(f, &o->v[i], &n->v[k], true);
                        if (r < 0)
                                return r;
                        n->v[k].done = true;
                        break;
                }
        }
        return 0;
}

/* -- 4 and 5 -------------------------------------------------------------------------------------------------------- */

static int take_rest(struct finder *f, struct ends *ends, bool old) {
        for (size_t i = 0; i < ends->n; i++) {
                struct end *e = &ends->v[i];
                if (e->done)
                        continue;
                int r = take_change(f, (struct change){ .kind = old ? CHANGE_DELETED : CHANGE_ADDED,
                                                        .old_ino = old ? e->ino : 0,
                                                        .new_ino = old ? 0 : e->ino,
                                                        .path = STEAL(e->path) });
                if (r < 0)
                        return r;
        }
        return 0;
}

/* A link that stayed has the same parent and name in the older image, whose path may be another one. */
static int take_stayed(struct finder *f, const struct link *l) {
        struct change c = { .kind = CHANGE_CHANGED, .old_ino = l->child, .new_ino = l->child };

        int r = path_of(f, false, l, &c.path);
        if (r == 0)
                r = path_of(f, true, l, &c.from);
        if (r < 0) {
                free(c.path);
                return r == -ENOENT ? 0 : r;
        }
        return take_change(f, c);
}

static int find_touched(struct finder *f) {
        const struct scan *s = f->t->scan;

        if (scan_bit(s->touched, EXT2_ROOT_INO)) {
                int r = take_change(f, (struct change){ .kind = CHANGE_CHANGED,
                                                        .old_ino = EXT2_ROOT_INO,
                                                        .new_ino = EXT2_ROOT_INO,
                                                        .path = strdup("/") });
                if (r < 0)
                        return r;
        }
        for (size_t i = 0; i < f->t->new_links.n; i++) {
                const struct link *l = &f->t->new_links.v[i];
                if (l->told || l->child > s->inodes || !scan_bit(s->touched, l->child))
                        continue;
                int r = take_stayed(f, l);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int find_broken(struct finder *f) {
        size_t n = 0;

        for (size_t i = 0; i < f->t->broken_n; i++) {
                uint32_t ino = f->t->broken[i].ino;
                struct change c = { .kind = CHANGE_UNREADABLE, .new_ino = ino, .error = f->t->broken[i].error };
                const struct link *l = links_of(&f->t->new_links, ino, &n);
                bool old = !l;
                if (!l)
                        l = links_of(&f->t->old_links, ino, &n);
                if (!l && ino != EXT2_ROOT_INO)
                        continue;
                int r = 0;
                if (l)
                        r = path_of(f, old, l, &c.path);
                else
                        c.path = strdup("/");
                if (r == -ENOENT)
                        continue;
                r = r < 0 ? r : take_change(f, c);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int changes_by_path(const void *x, const void *y) {
        const struct change *a = x, *b = y;
        int r = strcmp(a->path, b->path);

        return r != 0 ? r : (int) a->kind - (int) b->kind;
}

static int find_all(struct finder *f) {
        int r = make_ends(f, true, &f->t->removed, &f->removed);

        if (r == 0)
                r = make_ends(f, false, &f->t->added, &f->added);
        if (r == 0)
                r = find_pairs(f);
        if (r == 0)
                r = find_renames(f, true);
        if (r == 0)
                r = find_same_paths(f);
        if (r == 0)
                r = find_renames(f, false);
        if (r == 0)
                r = find_copies(f);
        if (r == 0)
                r = take_rest(f, &f->removed, true);
        if (r == 0)
                r = take_rest(f, &f->added, false);
        if (r == 0)
                r = find_touched(f);
        return r < 0 ? r : find_broken(f);
}

int changes_find(struct tree *t, struct changes *ret, struct error *err) {
        _cleanup_(changes_done) struct changes c = { .v = NULL };
        _cleanup_(finder_done) struct finder f = { .t = t, .out = &c };

        int r = find_all(&f);
        if (r < 0)
                return error_errno(err, r, "more has changed than can be held");
        if (c.n > 1)
                qsort(c.v, c.n, sizeof *c.v, changes_by_path);
        *ret = c;
        c = (struct changes){ .v = NULL };
        return 0;
}

void changes_done(struct changes *c) {
        for (size_t i = 0; i < c->n; i++) {
                free(c->v[i].path);
                free(c->v[i].from);
        }
        free(c->v);
        *c = (struct changes){ .v = NULL };
}
