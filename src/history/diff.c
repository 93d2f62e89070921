/* SPDX-License-Identifier: Apache-2.0 */
#include "diff.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "changes.h"
#include "meta.h"
#include "record.h"

/* "/a" holds "/a" and "/a/b", not "/ab". */
static bool is_below(const char *path, const char *prefix) {
        size_t n = strlen(prefix);

        if (strcmp(prefix, "/") == 0)
                return true;
        return strncmp(path, prefix, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

static bool wanted(const struct change *c, const struct options *o) {
        if (o->cursor[0] && strcmp(c->path, o->cursor) <= 0)
                return false;
        return is_below(c->path, o->prefix) || (c->from && is_below(c->from, o->prefix));
}

struct page {
        uint64_t n;
        bool more;
        const char *last;
};

/* Changes are looked at only when their turn comes: a page costs what is on it. */
static int put_page(struct recorder *rec, const struct changes *c, const struct options *o, struct output *out,
                    struct page *page, struct error *err) {
        for (size_t i = 0; i < c->n && !page->more; i++) {
                json_t *line = NULL;
                if (!wanted(&c->v[i], o))
                        continue;
                int r = record_make(rec, &c->v[i], &line, err);
                if (r < 0)
                        return r;
                if (!line)
                        continue;
                /* Two changes of one path are never torn apart: the cursor is a path. */
                page->more = page->n >= o->limit && strcmp(c->v[i].path, page->last) != 0;
                if (page->more) {
                        json_decref(line);
                        break;
                }
                r = output_line(out, line, err);
                if (r < 0)
                        return r;
                page->n++;
                page->last = c->v[i].path;
        }
        return 0;
}

static int add_cursor(json_t *line, const char *path) {
        size_t n = strlen(path);
        _cleanup_free_ char *text = malloc(base64_encoded_len(n) + 1);

        if (!text)
                return -ENOMEM;
        base64_encode(path, n, text);
        return json_object_set_new(line, "cursor", json_string(text)) < 0 ? -ENOMEM : 0;
}

static json_t *side_json(const struct hfs *fs, bool too_deep) {
        _cleanup_json_ json_t *o = json_object();

        if (!o || meta_add_image(o, fs) < 0 || (too_deep && meta_add_warning(o, "too_deep") < 0))
                return NULL;
        return STEAL(o);
}

static int put_end(struct hfs *old, struct hfs *new, const struct tree *t, const struct changes *c,
                   const struct suspect *s, const struct page *page, struct output *out, struct error *err) {
        _cleanup_json_ json_t *line = json_pack(
                "{s:b,s:I,s:b,s:o,s:o,s:{s:b,s:I,s:I,s:I,s:I}}", "end", 1, "changes", (json_int_t) page->n, "more",
                page->more, "old", side_json(old, c->too_deep_old), "new", side_json(new, c->too_deep_new), "stats", "shared", !suspect_all(s),
                "suspect_blocks", (json_int_t) s->count, "touched_inodes", (json_int_t) t->scan->touched_n,
                "unreachable_names", (json_int_t) c->unreachable, "bad_names", (json_int_t) t->bad_names);

        if (!line || (page->more && add_cursor(line, page->last) < 0))
                return error_set(err, -ENOMEM, "out of memory");
        return output_line(out, STEAL(line), err);
}

int diff_suspects(struct hfs *old, struct hfs *new, const struct suspect *s, const struct options *o, struct output *out,
                  struct error *err) {
        _cleanup_(scan_done) struct scan scan = { .inodes = 0 };
        _cleanup_(tree_done) struct tree tree = { .old = NULL };
        _cleanup_(changes_done) struct changes c = { .v = NULL };
        struct page page = { .n = 0 };

        int r = scan_inodes(old, new, s, &scan, err);
        if (r == 0)
                r = tree_read(old, new, &scan, &tree, err);
        if (r == 0)
                r = changes_find(&tree, &c, err);
        struct recorder rec = { .old = old, .new = new, .suspect = s, .patch = o->patch };
        if (r == 0)
                r = put_page(&rec, &c, o, out, &page, err);
        return r < 0 ? r : put_end(old, new, &tree, &c, s, &page, out, err);
}

int diff_run(struct hfs *old, struct hfs *new, const struct options *o, struct output *out, struct error *err) {
        _cleanup_(suspect_done) struct suspect s = { .changed = NULL };

        int r = suspect_make(old, new, &s, err);
        return r < 0 ? r : diff_suspects(old, new, &s, o, out, err);
}
