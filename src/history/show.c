/* SPDX-License-Identifier: Apache-2.0 */
#include "show.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "bounds.h"
#include "extract.h"
#include "hfile.h"
#include "hpath.h"
#include "meta.h"

static int header(struct hfs *fs, const struct hpath *p, const char *kind, struct output *out, struct error *err) {
        _cleanup_json_ json_t *line = meta_json(fs, &p->inode);

        if (!line || json_object_set_new(line, "kind", json_string(kind)) < 0 ||
            output_set_name(line, "path", p->path, strlen(p->path)) < 0 || meta_add_image(line, fs) < 0)
                return error_set(err, -ENOMEM, "out of memory");
        return output_line(out, STEAL(line), err);
}

static int resolve(struct hfs *fs, const struct options *o, struct hpath **ret, struct error *err) {
        _cleanup_free_ struct hpath *p = calloc(1, sizeof *p);

        if (!p)
                return error_set(err, -ENOMEM, "out of memory");
        int r = hpath_resolve(fs, o->path, !o->no_follow, p, err);
        if (r == 0)
                *ret = STEAL(p);
        return r;
}

int show_cat(struct hfs *fs, const struct options *o, struct output *out, struct error *err) {
        _cleanup_(hfile_done) struct hfile f = { .fs = fs };
        _cleanup_free_ struct hpath *p = NULL;

        int r = resolve(fs, o, &p, err);
        if (r < 0)
                return r;
        if (S_ISDIR(p->inode.l.i_mode))
                return error_set(err, -EISDIR, "\"%s\" is a directory", o->path);
        if (!S_ISREG(p->inode.l.i_mode))
                return error_set(err, -EINVAL, "\"%s\" is a %s, not a file", o->path, hinode_type(&p->inode));
        r = extract_open(fs, &p->inode, &f);
        if (r < 0)
                return error_errno(err, r, "\"%s\" cannot be read", o->path);
        if (f.size > o->max_bytes)
                return error_set(err, -EDQUOT, "\"%s\" has %llu bytes; the limit is %llu", o->path,
                                 (unsigned long long) f.size, (unsigned long long) o->max_bytes);
        r = header(fs, p, "file", out, err);
        return r < 0 ? r : extract_bytes(&f, out, err);
}

int show_extract(struct hfs *fs, const struct options *o, struct output *out, struct error *err) {
        _cleanup_free_ struct hpath *p = NULL;

        int r = resolve(fs, o, &p, err);
        if (r < 0)
                return r;
        const unsigned type = p->inode.l.i_mode & S_IFMT;
        if (type != S_IFDIR && type != S_IFREG && type != S_IFLNK && type != S_IFIFO)
                return error_set(err, -EINVAL, "\"%s\" is a %s, which has no place in an archive", o->path, hinode_type(&p->inode));
        r = header(fs, p, "tar", out, err);
        return r < 0 ? r : extract_tree(fs, p, o->max_bytes, out, err);
}
