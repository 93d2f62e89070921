/* SPDX-License-Identifier: Apache-2.0 */
#include "record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "content.h"
#include "meta.h"
#include "output.h"
#include "patch.h"
#include "xattr.h"

enum what {
        WHAT_TYPE = 1 << 0,
        WHAT_CONTENT = 1 << 1,
        WHAT_TARGET = 1 << 2,
        WHAT_DEVICE = 1 << 3,
        WHAT_MODE = 1 << 4,
        WHAT_OWNER = 1 << 5,
        WHAT_XATTR = 1 << 6,
};

static const char *const what_names[] = { "type", "content", "target", "device", "mode", "owner", "xattr" };

static const char *const kind_names[] = {
        [CHANGE_ADDED] = "added",     [CHANGE_DELETED] = "deleted",       [CHANGE_CHANGED] = "changed",
        [CHANGE_RENAMED] = "renamed", [CHANGE_UNREADABLE] = "unreadable",
};

static int compare_bytes(const struct recorder *r, const struct hinode *o, const struct hinode *n) {
        _cleanup_(hfile_done) struct hfile a = { .fs = r->old }, b = { .fs = r->new };

        if (hinode_size(o) != hinode_size(n))
                return WHAT_CONTENT;
        int e = hfile_open(r->old, o, &a);
        if (e < 0)
                return e;
        e = hfile_open(r->new, n, &b);
        if (e < 0)
                return e;
        e = content_equal(&a, &b, r->suspect, NULL);
        return e < 0 ? e : e ? 0 : WHAT_CONTENT;
}

static int compare_targets(const struct recorder *r, const struct hinode *o, const struct hinode *n) {
        char a[LIMIT_PATH] = "", b[LIMIT_PATH] = "";

        int e = hfile_link_target(r->old, o, a);
        if (e == 0)
                e = hfile_link_target(r->new, n, b);
        return e < 0 ? e : strcmp(a, b) == 0 ? 0 : WHAT_TARGET;
}

/* A set of enum what, or a negative errno. */
static int compare(const struct recorder *r, const struct hinode *o, const struct hinode *n) {
        unsigned what = 0;
        int e = 0;

        if ((o->l.i_mode & 07777) != (n->l.i_mode & 07777))
                what |= WHAT_MODE;
        if (hinode_uid(o) != hinode_uid(n) || hinode_gid(o) != hinode_gid(n))
                what |= WHAT_OWNER;
        if ((o->l.i_mode & S_IFMT) != (n->l.i_mode & S_IFMT))
                what |= WHAT_TYPE;
        else if (S_ISREG(n->l.i_mode))
                e = compare_bytes(r, o, n);
        else if (S_ISLNK(n->l.i_mode))
                e = compare_targets(r, o, n);
        else if ((S_ISCHR(n->l.i_mode) || S_ISBLK(n->l.i_mode)) && hinode_device(o) != hinode_device(n))
                e = WHAT_DEVICE;
        if (e < 0)
                return e;
        what |= (unsigned) e;
        e = xattr_equal(r->old, o, r->new, n);
        return e < 0 ? e : (int) (what | (e ? 0 : WHAT_XATTR));
}

/* -- patches ------------------------------------------------------------------------------------------------------ */

/* The bytes of a side that is a small text. 1, 0 (with *why) or a negative errno. */
static int read_text(struct hfs *fs, const struct hinode *i, uint8_t **ret, size_t *ret_n, const char **why) {
        _cleanup_(hfile_done) struct hfile f = { .fs = fs };
        uint64_t size = hinode_size(i);

        if (size > HISTORY_PATCH_FILE_MAX) {
                *why = "too_large";
                return 0;
        }
        int r = hfile_open(fs, i, &f);
        if (r < 0)
                return r;
        _cleanup_free_ uint8_t *data = malloc((size_t) size + 1);
        if (!data)
                return -ENOMEM;
        r = hfile_read(&f, 0, data, (size_t) size);
        if (r < 0)
                return r;
        const char *unfit = patch_unfit(data, (size_t) size);
        if (unfit) {
                *why = unfit;
                return 0;
        }
        *ret = STEAL(data);
        *ret_n = (size_t) size;
        return 1;
}

static int make_patch(struct recorder *r, const struct change *c, const struct hinode *o, const struct hinode *n,
                      struct buf *out, const char **why) {
        _cleanup_free_ uint8_t *a = NULL, *b = NULL;
        struct patch_side x = { .path = o ? (c->from ? c->from : c->path) : NULL }, y = { .path = n ? c->path : NULL };

        int e = o ? read_text(r->old, o, &a, &x.n, why) : 1;
        if (e == 1 && n)
                e = read_text(r->new, n, &b, &y.n, why);
        if (e != 1)
                return e;
        if (x.n == 0 && y.n == 0)
                return 0;
        x.data = a ? a : (const uint8_t *) "";
        y.data = b ? b : (const uint8_t *) "";
        e = patch_write(out, &x, &y);
        if (e == -ENOBUFS) {
                *why = "limit";
                return 0;
        }
        return e < 0 ? e : 1;
}

/* o or n is NULL where the file was added or deleted. */
static int add_patch(struct recorder *r, const struct change *c, const struct hinode *o, const struct hinode *n,
                     json_t *rec) {
        _cleanup_buf_ struct buf out = BUF_INIT(HISTORY_PATCH_BYTES_MAX);
        const char *why = NULL;

        if ((o && !S_ISREG(o->l.i_mode)) || (n && !S_ISREG(n->l.i_mode)))
                return 0;
        int e = make_patch(r, c, o, n, &out, &why);
        if (e == -ENOMEM || e == -EDQUOT)
                return e;
        if (e < 0)
                why = "unreadable";
        if (e == 1 && out.len > HISTORY_PATCH_BYTES_MAX - r->patch_bytes)
                why = "limit";
        if (why)
                return json_object_set_new(rec, "patch_omitted", json_string(why)) < 0 ? -ENOMEM : 0;
        if (e == 0)
                return 0;
        r->patch_bytes += out.len;
        /* A label may have bytes that are no UTF-8. */
        return output_set_name(rec, "patch", (const char *) buf_data(&out), out.len);
}

/* -- the record --------------------------------------------------------------------------------------------------- */

static int add_side(json_t *rec, const char *key, struct hfs *fs, const struct hinode *i) {
        return i && json_object_set_new(rec, key, meta_json(fs, i)) < 0 ? -ENOMEM : 0;
}

static json_t *make_json(const struct change *c, const char *status) {
        _cleanup_json_ json_t *rec = json_pack("{s:s}", "status", status);

        if (!rec || output_set_name(rec, "path", c->path, strlen(c->path)) < 0 ||
            (c->from && output_set_name(rec, "from", c->from, strlen(c->from)) < 0))
                return NULL;
        if (c->kind == CHANGE_RENAMED &&
            json_object_set_new(rec, "by", json_string(c->by_content ? "content" : "inode")) < 0)
                return NULL;
        return STEAL(rec);
}

static int add_what(json_t *rec, unsigned what) {
        json_t *list = json_array();

        if (!list || json_object_set_new(rec, "what", list) < 0)
                return -ENOMEM;
        for (size_t i = 0; i < ARRAY_SIZE(what_names); i++)
                if (what & 1u << i && json_array_append_new(list, json_string(what_names[i])) < 0)
                        return -ENOMEM;
        return 0;
}

/* The inode of a side: 1, 0 when there is none or it is not in use, or a negative errno. */
static int load(struct hfs *fs, uint32_t ino, struct hinode *ret) {
        if (ino == 0)
                return 0;
        int r = hfs_inode(fs, ino, ret);
        if (r == -EUCLEAN)
                return 0;
        return r < 0 ? r : hinode_used(ret);
}

static bool is_fatal(int r) {
        return r == -ENOMEM || r == -EDQUOT;
}

static const char *reason(int r) {
        return r == -EOPNOTSUPP ? "unsupported" : r == -EIO ? "io_error" : "corrupt";
}

/* Fills `rec`; *drop when there is nothing to tell. */
static int fill(struct recorder *r, const struct change *c, const struct hinode *o, const struct hinode *n, json_t *rec,
                bool *drop) {
        int what = 0;

        if (o && n) {
                what = compare(r, o, n);
                if (is_fatal(what))
                        return what;
                if (what == 0 && c->kind == CHANGE_CHANGED) {
                        *drop = true;
                        return 0;
                }
                if (what < 0 && json_object_set_new(rec, "error", json_string(reason(what))) < 0)
                        return -ENOMEM;
                if (add_what(rec, what < 0 ? 0 : (unsigned) what) < 0)
                        return -ENOMEM;
        }
        if (add_side(rec, "old", r->old, o) < 0 || add_side(rec, "new", r->new, n) < 0)
                return -ENOMEM;
        if (!r->patch || what < 0 || (o && n && !(what & (WHAT_CONTENT | WHAT_TYPE))))
                return 0;
        return add_patch(r, c, o, n, rec);
}

int record_make(struct recorder *r, const struct change *c, json_t **ret, struct error *err) {
        struct hinode o, n;
        bool drop = false;

        if (c->kind == CHANGE_UNREADABLE) {
                *ret = make_json(c, kind_names[c->kind]);
                if (!*ret || json_object_set_new(*ret, "error", json_string(reason(c->error))) < 0)
                        return error_set(err, -ENOMEM, "out of memory");
                return 0;
        }
        int has_old = load(r->old, c->old_ino, &o), has_new = load(r->new, c->new_ino, &n);
        if (has_old < 0 || has_new < 0)
                return error_errno(err, has_old < 0 ? has_old : has_new, "an inode cannot be read");
        /* A name that stands for no file on one side is a file that is gone, or new. */
        enum change_kind kind = c->kind;
        if (kind == CHANGE_CHANGED || kind == CHANGE_RENAMED)
                kind = has_old && has_new ? kind : has_new ? CHANGE_ADDED : CHANGE_DELETED;
        if (!has_old && !has_new) {
                *ret = NULL;
                return 0;
        }
        _cleanup_json_ json_t *rec = make_json(c, kind_names[kind]);
        int e = rec ? fill(r, c, has_old ? &o : NULL, has_new ? &n : NULL, rec, &drop) : -ENOMEM;
        if (e < 0)
                return error_errno(err, e, "\"%s\"", c->path);
        *ret = drop ? NULL : STEAL(rec);
        return 0;
}
