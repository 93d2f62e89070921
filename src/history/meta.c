/* SPDX-License-Identifier: Apache-2.0 */
#include "meta.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "hfile.h"
#include "output.h"

static int add_special(struct hfs *fs, const struct hinode *i, json_t *o) {
        char target[LIMIT_PATH];

        if (S_ISLNK(i->l.i_mode) && hfile_link_target(fs, i, target) == 0)
                return output_set_name(o, "link_target", target, strlen(target));
        if (S_ISCHR(i->l.i_mode) || S_ISBLK(i->l.i_mode)) {
                uint64_t dev = hinode_device(i);
                return json_object_set_new(o, "device",
                                           json_pack("{s:I,s:I}", "major", (json_int_t) (dev >> 32), "minor",
                                                     (json_int_t) (dev & 0xffffffff))) < 0
                               ? -ENOMEM
                               : 0;
        }
        return 0;
}

json_t *meta_json(struct hfs *fs, const struct hinode *i) {
        char when[RFC3339_SIZE];
        int64_t s;
        uint32_t ns;

        hinode_mtime(i, &s, &ns);
        clock_rfc3339(s * 1000 + ns / 1000000, when);
        uint64_t size = S_ISREG(i->l.i_mode) || S_ISLNK(i->l.i_mode) ? hinode_size(i) : 0;
        _cleanup_json_ json_t *o =
                json_pack("{s:s,s:I,s:I,s:I,s:I,s:s,s:I,s:I}", "type", hinode_type(i), "size", (json_int_t) size, "mode",
                          (json_int_t) (i->l.i_mode & 07777), "uid", (json_int_t) hinode_uid(i), "gid",
                          (json_int_t) hinode_gid(i), "modified_at", when, "inode", (json_int_t) i->ino, "links",
                          (json_int_t) i->l.i_links_count);
        if (!o || add_special(fs, i, o) < 0)
                return NULL;
        return STEAL(o);
}

int meta_add_warning(json_t *obj, const char *word) {
        json_t *warnings = json_object_get(obj, "warnings");
        int r = 0;

        if (!warnings) {
                warnings = json_array();
                r = json_object_set_new(obj, "warnings", warnings);
        }
        if (r == 0)
                r = json_array_append_new(warnings, json_string(word));
        return r < 0 ? -ENOMEM : 0;
}

int meta_add_image(json_t *obj, const struct hfs *fs) {
        int r = json_object_set_new(obj, "journal_transactions", json_integer((json_int_t) fs->journal.transactions));

        if (r == 0 && fs->journal.damaged)
                r = meta_add_warning(obj, "journal_damaged");
        if (r == 0 && fs->journal.fast_commits)
                r = meta_add_warning(obj, "fast_commits_not_replayed");
        return r < 0 ? -ENOMEM : 0;
}
