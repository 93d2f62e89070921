/* SPDX-License-Identifier: Apache-2.0 */
#include "entry.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"
#include "jsonw.h"
#include "path.h"

static enum entry_type type_of(mode_t m) {
        return S_ISREG(m) ? ENTRY_FILE : S_ISDIR(m) ? ENTRY_DIR : S_ISLNK(m) ? ENTRY_LINK : ENTRY_OTHER;
}

int entry_read(const char *path, struct entry *e, struct error *err) {
        if (str_copy(e->path, sizeof e->path, path) < 0)
                return error_set(err, -ENAMETOOLONG, "the path is longer than %d bytes", PATH_MAX - 1);
        if (lstat(path, &e->st) < 0)
                return error_errno(err, errno, "path '%s'", path);
        e->type = type_of(e->st.st_mode);
        e->target_mode = e->st.st_mode;
        e->target_size = (uint64_t) e->st.st_size;
        e->target[0] = '\0';
        if (e->type != ENTRY_LINK)
                return 0;
        struct stat target;
        if (realpath(path, e->target) && stat(e->target, &target) == 0) {
                e->type = type_of(target.st_mode);
                e->target_mode = target.st_mode;
                e->target_size = (uint64_t) target.st_size;
                return 0;
        }
        ssize_t n = readlink(path, e->target, sizeof e->target - 1);
        e->target[n > 0 ? n : 0] = '\0';
        return 0;
}

void entry_permissions(mode_t mode, char out[16]) {
        static const char rwx[] = "rwxrwxrwx";
        size_t n = 0;
        if (S_ISDIR(mode))
                out[n++] = 'd';
        if (S_ISLNK(mode))
                out[n++] = 'L';
        if (S_ISBLK(mode) || S_ISCHR(mode))
                out[n++] = 'D';
        if (S_ISFIFO(mode))
                out[n++] = 'p';
        if (S_ISSOCK(mode))
                out[n++] = 'S';
        if (mode & S_ISUID)
                out[n++] = 'u';
        if (mode & S_ISGID)
                out[n++] = 'g';
        if (S_ISCHR(mode))
                out[n++] = 'c';
        if (mode & S_ISVTX)
                out[n++] = 't';
        if (n == 0)
                out[n++] = '-';
        for (unsigned i = 0; i < 9; i++)
                out[n++] = mode & (0400u >> i) ? rwx[i] : '-';
        out[n] = '\0';
}

static void format_time(const struct timespec *t, char out[48]) {
        char ms[RFC3339_SIZE];
        clock_rfc3339((int64_t) t->tv_sec * 1000, ms); /* "...:05.000Z" */
        size_t n = strlen(ms);
        if (n < 5)
                out[0] = '\0';
        else
                (void) snprintf(out, 48, "%.*s.%09ldZ", (int) (n - 5), ms, t->tv_nsec);
}

int entry_json_e2b(const struct entry *e, struct user_names *names, struct buf *out) {
        static const char *const types[] = {
                [ENTRY_OTHER] = NULL, [ENTRY_FILE] = "FILE_TYPE_FILE", [ENTRY_DIR] = "FILE_TYPE_DIRECTORY",
                [ENTRY_LINK] = "FILE_TYPE_SYMLINK",
        };
        char perm[16], mtime[48];
        entry_permissions(e->st.st_mode, perm);
        format_time(&e->st.st_mtim, mtime);
        int r = buf_puts(out, "{");
        if (r == 0)
                r = jsonw_member(out, true, "name", path_base(e->path));
        if (r == 0 && types[e->type])
                r = jsonw_member(out, false, "type", types[e->type]);
        if (r == 0)
                r = jsonw_member(out, false, "path", e->path);
        if (r == 0)
                r = buf_printf(out, ",\"size\":\"%lld\",\"mode\":%u,\"permissions\":\"%s\",\"modifiedTime\":\"%s\"",
                               (long long) e->st.st_size, (unsigned) e->target_mode & 0777, perm, mtime);
        if (r == 0)
                r = jsonw_member(out, false, "owner", user_names_uid(names, e->st.st_uid));
        if (r == 0)
                r = jsonw_member(out, false, "group", user_names_gid(names, e->st.st_gid));
        if (r == 0 && e->target[0])
                r = jsonw_member(out, false, "symlinkTarget", e->target);
        if (r == 0 && e->type == ENTRY_FILE)
                r = metadata_json(e->path, out);
        return r < 0 ? r : buf_puts(out, "}");
}

int entry_json(const struct entry *e, bool follow, struct user_names *names, struct buf *out) {
        static const char *const types[] = {
                [ENTRY_OTHER] = "other", [ENTRY_FILE] = "file", [ENTRY_DIR] = "directory", [ENTRY_LINK] = "symlink"
        };
        char mtime[48];
        format_time(&e->st.st_mtim, mtime);
        uint64_t size = follow ? e->target_size : (uint64_t) e->st.st_size;
        mode_t mode = follow ? e->target_mode : e->st.st_mode;
        int r = buf_puts(out, "{");
        if (r == 0)
                r = jsonw_member(out, true, "name", path_base(e->path));
        if (r == 0)
                r = jsonw_member(out, false, "path", e->path);
        if (r == 0)
                r = jsonw_member(out, false, "type", types[follow ? e->type : type_of(e->st.st_mode)]);
        if (r == 0)
                r = buf_printf(out, ",\"size\":%llu,\"mode\":%u,\"uid\":%u,\"gid\":%u,\"modified_at\":\"%s\"",
                               (unsigned long long) size, (unsigned) mode & 07777, e->st.st_uid, e->st.st_gid, mtime);
        if (r == 0)
                r = jsonw_member(out, false, "user", user_names_uid(names, e->st.st_uid));
        if (r == 0)
                r = jsonw_member(out, false, "group", user_names_gid(names, e->st.st_gid));
        if (r == 0 && e->target[0])
                r = jsonw_member(out, false, "link_target", e->target);
        return r < 0 ? r : buf_puts(out, "}");
}
