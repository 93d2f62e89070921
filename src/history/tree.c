/* SPDX-License-Identifier: Apache-2.0 */
#include "tree.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"

static int links_add(struct links *l, const struct link *link) {
        return ARRAY_ADD(l->v, l->n, l->cap, HISTORY_LINKS_MAX, *link);
}

static int add_pair(struct tree *t, const struct link *o, const struct link *n) {
        const struct link_pair p = { .old = *o, .new = *n };

        return ARRAY_ADD(t->pairs, t->pairs_n, t->pairs_cap, HISTORY_CHANGES_MAX, p);
}

static int add_broken(struct tree *t, uint32_t ino, int error) {
        const struct broken_dir d = { .ino = ino, .error = error };

        return ARRAY_ADD(t->broken, t->broken_n, t->broken_cap, HISTORY_CHANGES_MAX, d);
}

static int add_name(struct tree *t, const struct hentry *e, uint32_t *ret) {
        if (t->arena_n + e->name_n > t->arena_cap) {
                size_t want = t->arena_cap ? t->arena_cap * 2 : 65536;
                if (want > HISTORY_NAMES_BYTES_MAX)
                        return -EDQUOT;
                char *p = realloc(t->arena, want);
                if (!p)
                        return -ENOMEM;
                t->arena = p;
                t->arena_cap = want;
        }
        memcpy(t->arena + t->arena_n, e->name, e->name_n);
        *ret = (uint32_t) t->arena_n;
        t->arena_n += e->name_n;
        return 0;
}

static bool interesting(const struct tree *t, uint32_t ino) {
        const struct scan *s = t->scan;

        return ino <= s->inodes && (scan_bit(s->touched, ino) || scan_bit(s->new_dirs, ino) || scan_bit(s->old_dirs, ino));
}

static bool is_replaced(const struct tree *t, uint32_t ino) {
        return ino <= t->scan->inodes && scan_bit(t->scan->replaced, ino);
}

/* Only what is wrong with the guest's data may be passed over. */
static bool is_fatal(int r) {
        return r < 0 && r != -EUCLEAN && r != -ERANGE && r != -EOPNOTSUPP && r != -ENOTDIR && r != -EIO;
}

/* -- a directory that is the same in both ------------------------------------------------------------------------- */

struct walk {
        struct tree *t;
        uint32_t parent;
        struct links *all; /* where all entries are wanted */
};

static int on_same(void *ctx, const struct hentry *e) {
        struct walk *w = ctx;
        struct tree *t = w->t;
        struct link l = { .parent = w->parent, .child = e->ino, .name_n = (uint8_t) e->name_n };

        if (!interesting(t, e->ino))
                return 0;
        int r = add_name(t, e, &l.name);
        l.told = is_replaced(t, e->ino);
        if (r == 0 && l.told)
                r = add_pair(t, &l, &l);
        if (r == 0)
                r = links_add(&t->old_links, &l);
        return r < 0 ? r : links_add(&t->new_links, &l);
}

/* *note is the next one that is not used up; they come in the order of the inodes. */
/* In the older image, as with inode tables (scan.c): its blocks are the newer one's too. */
static int read_same(struct tree *t, uint32_t ino, size_t *note) {
        struct walk w = { .t = t, .parent = ino };
        const struct scan *s = t->scan;
        struct hinode dir = { .ino = ino };
        int r = 0;

        while (*note < s->notes_n && s->notes[*note].ino < ino)
                ++*note;
        if (*note < s->notes_n && s->notes[*note].ino == ino) {
                const struct dir_note *n = &s->notes[*note];
                dir.l.i_mode = S_IFDIR;
                dir.l.i_flags = n->flags;
                dir.l.i_size = (uint32_t) n->size;
                dir.l.i_size_high = (uint32_t) (n->size >> 32);
                memcpy(dir.l.i_block, n->block, sizeof n->block);
        } else
                r = hfs_inode(t->old, ino, &dir);
        return r < 0 ? r : hdir_walk(t->old, &dir, on_same, &w, &t->bad_names);
}

/* -- a directory that may differ ---------------------------------------------------------------------------------- */

static int on_any(void *ctx, const struct hentry *e) {
        struct walk *w = ctx;
        struct link l = { .parent = w->parent, .child = e->ino, .name_n = (uint8_t) e->name_n };

        int r = add_name(w->t, e, &l.name);
        return r < 0 ? r : links_add(w->all, &l);
}

static int read_entries(struct tree *t, struct hfs *fs, uint32_t ino, struct links *ret) {
        struct walk w = { .t = t, .parent = ino, .all = ret };
        struct hinode dir;

        int r = hfs_inode(fs, ino, &dir);
        return r < 0 ? r : hdir_walk(fs, &dir, on_any, &w, &t->bad_names);
}

static int compare_names(const char *arena, const struct link *a, const struct link *b) {
        size_t n = a->name_n < b->name_n ? a->name_n : b->name_n;
        int r = memcmp(arena + a->name, arena + b->name, n);

        return r != 0 ? r : (int) a->name_n - (int) b->name_n;
}

static int by_name(const void *x, const void *y, void *arena) {
        const struct link *a = x, *b = y;
        int r = compare_names(arena, a, b);

        return r != 0 ? r : a->child < b->child ? -1 : a->child > b->child;
}

static int keep(struct tree *t, struct links *where, struct link *l, bool told) {
        l->told = told;
        return interesting(t, l->child) ? links_add(where, l) : 0;
}

static int keep_removed(struct tree *t, struct link *l) {
        int r = links_add(&t->removed, l);

        return r < 0 ? r : keep(t, &t->old_links, l, true);
}

static int keep_added(struct tree *t, struct link *l) {
        int r = links_add(&t->added, l);

        return r < 0 ? r : keep(t, &t->new_links, l, true);
}

/* A folder that is in both images carries all below it along, so it must be followed to where it is now. */
static bool lives_on(const struct tree *t, uint32_t ino) {
        const struct scan *s = t->scan;

        return ino <= s->inodes && scan_bit(s->old_dirs, ino) && scan_bit(s->new_dirs, ino) && !scan_bit(s->replaced, ino);
}

static int keep_both(struct tree *t, struct link *o, struct link *n) {
        bool told = o->child != n->child || is_replaced(t, n->child);
        int r = 0;

        if (told && (lives_on(t, o->child) || lives_on(t, n->child))) {
                r = keep_removed(t, o);
                return r < 0 ? r : keep_added(t, n);
        }
        if (told)
                r = add_pair(t, o, n);

        if (r == 0)
                r = keep(t, &t->old_links, o, told);
        return r < 0 ? r : keep(t, &t->new_links, n, told);
}

static void sort_names(const struct tree *t, struct links *l) {
        if (l->n > 1)
                qsort_r(l->v, l->n, sizeof *l->v, by_name, t->arena);
}

/* `apart`: the directory itself is another one now, so that no name of it goes on. */
static int merge_entries(struct tree *t, struct links *o, struct links *n, bool apart) {
        size_t i = 0, k = 0;
        int r = 0;

        sort_names(t, o);
        sort_names(t, n);
        while (r == 0 && (i < o->n || k < n->n)) {
                int order = i >= o->n ? 1 : k >= n->n ? -1 : compare_names(t->arena, &o->v[i], &n->v[k]);
                if (order == 0 && !apart)
                        r = keep_both(t, &o->v[i++], &n->v[k++]);
                else if (order <= 0)
                        r = keep_removed(t, &o->v[i++]);
                else
                        r = keep_added(t, &n->v[k++]);
        }
        return r;
}

static void links_done(struct links *l) {
        free(l->v);
}

static int read_differing(struct tree *t, uint32_t ino) {
        _cleanup_(links_done) struct links o = { .v = NULL }, n = { .v = NULL };
        bool in_old = scan_bit(t->scan->old_dirs, ino), in_new = scan_bit(t->scan->new_dirs, ino);
        int r = in_old ? read_entries(t, t->old, ino, &o) : 0;

        if (r == 0 && in_new)
                r = read_entries(t, t->new, ino, &n);
        if (r < 0)
                return r;
        return merge_entries(t, &o, &n, is_replaced(t, ino));
}

/* -- all directories ---------------------------------------------------------------------------------------------- */

static int by_child(const void *x, const void *y) {
        const struct link *a = x, *b = y;

        if (a->child != b->child)
                return a->child < b->child ? -1 : 1;
        if (a->parent != b->parent)
                return a->parent < b->parent ? -1 : 1;
        return a->name < b->name ? -1 : a->name > b->name;
}

/* Most directories have one extent; where they lie on a disk, one after the other would be as many waits. */
static void expect_noted(const struct hfs *fs, const struct scan *s) {
        for (size_t i = 0; i < s->notes_n; i++) {
                struct ext3_extent e;
                memcpy(&e, (const uint8_t *) s->notes[i].block + sizeof(struct ext3_extent_header), sizeof e);
                uint64_t block = (uint64_t) e.ee_start_hi << 32 | e.ee_start;
                if (s->notes[i].flags & EXT4_EXTENTS_FL && block < fs->blocks && e.ee_len <= EXT_INIT_MAX_LEN)
                        image_expect(fs->img, block * fs->block_size, (uint64_t) e.ee_len * fs->block_size);
        }
}

int tree_read(struct hfs *old, struct hfs *new, const struct scan *scan, struct tree *ret, struct error *err) {
        _cleanup_(tree_done) struct tree t = { .old = old, .new = new, .scan = scan };
        size_t note = 0;

        expect_noted(old, scan);
        for (uint32_t ino = 1; ino <= scan->inodes; ino++) {
                if (scan->new_dirs[ino / 8] == 0 && scan->old_dirs[ino / 8] == 0) {
                        ino |= 7;
                        continue;
                }
                if (!scan_bit(scan->new_dirs, ino) && !scan_bit(scan->old_dirs, ino))
                        continue;
                int r = scan_bit(scan->touched, ino) ? read_differing(&t, ino) : read_same(&t, ino, &note);
                if (is_fatal(r))
                        return error_errno(err, r, "the directories have more names than can be held");
                if (r < 0 && add_broken(&t, ino, r) < 0)
                        return error_set(err, -EDQUOT, "too many directories cannot be read");
        }
        if (t.old_links.n > 1)
                qsort(t.old_links.v, t.old_links.n, sizeof *t.old_links.v, by_child);
        if (t.new_links.n > 1)
                qsort(t.new_links.v, t.new_links.n, sizeof *t.new_links.v, by_child);
        *ret = t;
        t = (struct tree){ .old = NULL };
        return 0;
}

void tree_done(struct tree *t) {
        free(t->arena);
        free(t->old_links.v);
        free(t->new_links.v);
        free(t->removed.v);
        free(t->added.v);
        free(t->pairs);
        free(t->broken);
        *t = (struct tree){ .old = NULL };
}

struct link *links_of(const struct links *l, uint32_t child, size_t *ret_n) {
        size_t lo = 0, hi = l->n, n = 0;

        while (lo < hi) {
                size_t mid = lo + (hi - lo) / 2;
                if (l->v[mid].child < child)
                        lo = mid + 1;
                else
                        hi = mid;
        }
        while (lo + n < l->n && l->v[lo + n].child == child)
                n++;
        *ret_n = n;
        return n ? &l->v[lo] : NULL;
}

int tree_path(const struct tree *t, const struct links *links, const struct link *l, char path[LIMIT_PATH]) {
        size_t at = LIMIT_PATH - 1, n = 0;
        char text[LIMIT_PATH];

        text[at] = '\0';
        for (unsigned depth = 0;; depth++) {
                if (depth > HISTORY_DEPTH_MAX || at < (size_t) l->name_n + 1)
                        return -ENAMETOOLONG;
                at -= l->name_n;
                memcpy(text + at, t->arena + l->name, l->name_n);
                text[--at] = '/';
                if (l->parent == EXT2_ROOT_INO)
                        break;
                l = links_of(links, l->parent, &n);
                if (!l)
                        return -ENOENT;
        }
        memcpy(path, text + at, LIMIT_PATH - at);
        return 0;
}
