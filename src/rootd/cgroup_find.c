/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Finding the hierarchies and making the bases. cgroup.c works beneath the descriptors found here.
 *
 * A line of mountinfo (proc(5)):  id parent maj:min ROOT MOUNTPOINT options [optional...] - FSTYPE
 * source SUPEROPTIONS; in a container ROOT may be our own cgroup rather than "/", and then the
 * path in /proc/self/cgroup, which counts from the hierarchy's root, is relative to it.
 */
#include "rootd/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/str.h"

#define PROC_TEXT_MAX (1024 * 1024)

static const char *const kind_names[] = {
        [CGROUP_UNIFIED] = "unified", [CGROUP_MEMORY] = "memory",   [CGROUP_PIDS] = "pids",
        [CGROUP_CPU] = "cpu",         [CGROUP_CPUACCT] = "cpuacct",
};
_Static_assert(ARRAY_SIZE(kind_names) == CGROUP_KIND_MAX_, "one name per kind");

static bool listed(const char *list, const char *word) {
        size_t n = strlen(word);
        for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',')
                if (strcspn(p, ",") == n && strncmp(p, word, n) == 0)
                        return true;
        return false;
}

/* Undoes the \040 escapes of mountinfo in place. */
static void unescape(char *s) {
        char *out = s;
        while (*s)
                if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] && s[3]) {
                        *out++ = (char) ((unsigned) (s[1] - '0') * 64 + (unsigned) (s[2] - '0') * 8 +
                                         (unsigned) (s[3] - '0'));
                        s += 4;
                } else {
                        *out++ = *s++;
                }
        *out = 0;
}

struct mount_line {
        char *root, *point, *fstype, *super;
};

static bool split_line(char *line, struct mount_line *m) {
        char *save = NULL, *dash = strstr(line, " - ");
        if (!dash)
                return false;
        *dash = 0;
        (void) strtok_r(line, " ", &save);
        (void) strtok_r(NULL, " ", &save);
        (void) strtok_r(NULL, " ", &save);
        m->root = strtok_r(NULL, " ", &save);
        m->point = strtok_r(NULL, " ", &save);
        m->fstype = strtok_r(dash + 3, " ", &save);
        (void) strtok_r(NULL, " ", &save);
        m->super = strtok_r(NULL, " ", &save);
        if (!m->root || !m->point || !m->fstype || !m->super)
                return false;
        unescape(m->root);
        unescape(m->point);
        return true;
}

/* Our path in the hierarchy of this v1 controller, from /proc/self/cgroup; NULL if it has none. */
static const char *own_path(const char *self, const char *controller, char *out, size_t cap) {
        for (const char *p = self; *p; p += strcspn(p, "\n"), p += *p == '\n') {
                const char *list = strchr(p, ':');
                const char *path = list ? strchr(list + 1, ':') : NULL;
                if (!path || path[1] != '/')
                        continue;
                char controllers[256];
                size_t n = (size_t) (path - list) - 1;
                if (n >= sizeof controllers)
                        continue;
                memcpy(controllers, list + 1, n);
                controllers[n] = 0;
                n = strcspn(path + 1, "\n");
                if (!listed(controllers, controller) || n >= cap)
                        continue;
                memcpy(out, path + 1, n);
                out[n] = 0;
                return out;
        }
        return NULL;
}

static void locate_v1(const struct mount_line *m, const char *self, struct cgroup_where *ret) {
        for (unsigned k = CGROUP_MEMORY; k < CGROUP_KIND_MAX_; k++) {
                char path[PATH_MAX];
                if (ret->dir[k][0] || !listed(m->super, kind_names[k]) ||
                    !own_path(self, kind_names[k], path, sizeof path))
                        continue;
                const char *rest = path;
                size_t n = strlen(m->root);
                if (n > 1)
                        rest = strncmp(path, m->root, n) == 0 && (path[n] == '/' || !path[n]) ? path + n : "";
                if (strstr(rest, "/../") || str_has_suffix(rest, "/.."))
                        rest = ""; /* we live outside of our cgroup namespace */
                if (str_eq(rest, "/"))
                        rest = "";
                if (snprintf(ret->dir[k], sizeof ret->dir[k], "%s%s", m->point, rest) >=
                    (int) sizeof ret->dir[k])
                        ret->dir[k][0] = 0;
                ret->unified_only = false;
        }
}

void cgroup_locate(const char *mountinfo, const char *self, struct cgroup_where *ret) {
        memset(ret, 0, sizeof *ret);
        ret->unified_only = true;
        _cleanup_free_ char *copy = strdup(mountinfo);
        if (!copy)
                return;
        char *save = NULL;
        for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
                struct mount_line m;
                if (!split_line(line, &m))
                        continue;
                if (str_eq(m.fstype, "cgroup2") && !ret->dir[CGROUP_UNIFIED][0])
                        (void) str_copy(ret->dir[CGROUP_UNIFIED], PATH_MAX, m.point);
                else if (str_eq(m.fstype, "cgroup"))
                        locate_v1(&m, self, ret);
        }
}

/* ---- bases --------------------------------------------------------------------------------- */

static int put(int dirfd, const char *file, const char *text) {
        _cleanup_fd_ int fd = openat(dirfd, file, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
                return -errno;
        return write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

static bool has_controller(int dirfd, const char *name) {
        _cleanup_free_ char *text = NULL;
        if (fd_read_file_at(dirfd, "cgroup.controllers", 4096, &text, NULL, NULL) < 0)
                return false;
        for (char *p = text; *p; p++)
                if (*p == ' ' || *p == '\n')
                        *p = ',';
        return listed(text, name);
}

/*
 * Hands the controllers down from the root. The real root may have processes and children with
 * controllers at once; the root of a container may not (EBUSY, "no internal processes"), and if we
 * are its only process, stepping aside into a leaf of our own is enough.
 */
static void hand_down(int root, const char *aside) {
        static const char *const wanted[] = { "+memory", "+pids", "+cpu" };
        for (size_t i = 0; i < ARRAY_SIZE(wanted); i++) {
                if (put(root, "cgroup.subtree_control", wanted[i]) != -EBUSY)
                        continue;
                (void) mkdirat(root, aside, 0755);
                _cleanup_fd_ int leaf = openat(root, aside, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                if (leaf < 0 || put(leaf, "cgroup.procs", "0") < 0)
                        continue;
                (void) put(root, "cgroup.subtree_control", wanted[i]);
        }
}

static int make_base(const char *dir, int *ret) {
        if (mkdir(dir, 0755) < 0 && errno != EEXIST)
                return -errno;
        int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
                return -errno;
        *ret = fd;
        return 0;
}

static void open_unified(struct cgroups *cg, const char *dir, const char *root_dir, const char *name,
                         bool only) {
        char aside[128];
        _cleanup_fd_ int root = open(root_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (root < 0)
                return;
        (void) snprintf(aside, sizeof aside, "%.100s-rootd", name);
        if (only)
                hand_down(root, aside);
        int r = make_base(dir, &cg->base[CGROUP_UNIFIED]);
        if (r < 0) {
                (void) snprintf(cg->note, sizeof cg->note, "cannot make %.120s: %s", dir, strerror(-r));
                return;
        }
        if (!only)
                return;
        (void) put(cg->base[CGROUP_UNIFIED], "cgroup.subtree_control", "+memory");
        (void) put(cg->base[CGROUP_UNIFIED], "cgroup.subtree_control", "+pids");
        (void) put(cg->base[CGROUP_UNIFIED], "cgroup.subtree_control", "+cpu");
        cg->v2_limits = has_controller(cg->base[CGROUP_UNIFIED], "memory") &&
                        has_controller(cg->base[CGROUP_UNIFIED], "pids");
        if (!cg->v2_limits)
                (void) snprintf(cg->note, sizeof cg->note,
                                "the memory and pids controllers are not handed down to %.120s", dir);
}

/* Lines "kind path" of the base directories made by an earlier run. */
static void read_bases(int run_fd, char dir[CGROUP_KIND_MAX_][PATH_MAX]) {
        _cleanup_free_ char *text = NULL;
        if (fd_read_file_at(run_fd, "cgroups", 64 * 1024, &text, NULL, NULL) < 0)
                return;
        char *save = NULL;
        for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
                for (unsigned k = 0; k < CGROUP_KIND_MAX_; k++) {
                        size_t n = strlen(kind_names[k]);
                        struct stat st;
                        if (strncmp(line, kind_names[k], n) == 0 && line[n] == ' ' &&
                            stat(line + n + 1, &st) == 0)
                                (void) str_copy(dir[k], PATH_MAX, line + n + 1);
                }
}

static int write_bases(int run_fd, char dir[CGROUP_KIND_MAX_][PATH_MAX], struct error *err) {
        _cleanup_buf_ struct buf b = BUF_INIT(64 * 1024);
        for (unsigned k = 0; k < CGROUP_KIND_MAX_; k++)
                if (dir[k][0] && buf_printf(&b, "%s %s\n", kind_names[k], dir[k]) < 0)
                        return error_set(err, -ENOMEM, "out of memory");
        return fd_replace_file_at(run_fd, "cgroups", buf_data(&b), b.len, 0644, err);
}

int cgroups_open(struct cgroups *cg, int run_fd, const char *name, struct error *err) {
        _cleanup_free_ char *mounts = NULL, *self = NULL;
        _cleanup_free_ struct cgroup_where *where = calloc(1, sizeof *where);
        _cleanup_free_ char(*dir)[PATH_MAX] = calloc(CGROUP_KIND_MAX_, PATH_MAX);
        *cg = (struct cgroups){ .version = "none" };
        for (unsigned k = 0; k < CGROUP_KIND_MAX_; k++)
                cg->base[k] = -EBADF;
        if (!where || !dir)
                return error_set(err, -ENOMEM, "out of memory");
        if (fd_read_file_at(AT_FDCWD, "/proc/self/mountinfo", PROC_TEXT_MAX, &mounts, NULL, err) < 0 ||
            fd_read_file_at(AT_FDCWD, "/proc/self/cgroup", PROC_TEXT_MAX, &self, NULL, err) < 0)
                return error_wrap(err, "cannot find the cgroups");
        cgroup_locate(mounts, self, where);
        for (unsigned k = 0; k < CGROUP_KIND_MAX_; k++)
                if (where->dir[k][0] && snprintf(dir[k], PATH_MAX, "%s/%s", where->dir[k], name) >= PATH_MAX)
                        dir[k][0] = 0;
        read_bases(run_fd, dir);
        int r = write_bases(run_fd, dir, err); /* before the first one is made */
        if (r < 0)
                return r;
        if (dir[CGROUP_UNIFIED][0])
                open_unified(cg, dir[CGROUP_UNIFIED], where->dir[CGROUP_UNIFIED], name, where->unified_only);
        for (unsigned k = CGROUP_MEMORY; k < CGROUP_KIND_MAX_; k++)
                if (dir[k][0] && make_base(dir[k], &cg->base[k]) < 0)
                        (void) snprintf(cg->note, sizeof cg->note, "cannot make %.120s", dir[k]);
        if (cg->v2_limits)
                cg->version = "v2";
        else if (cg->base[CGROUP_MEMORY] >= 0)
                cg->version = "v1";
        else if (!cg->note[0])
                (void) snprintf(cg->note, sizeof cg->note, "no cgroup hierarchy is mounted");
        return 0;
}

void cgroups_remove_bases(int run_fd) {
        _cleanup_free_ char(*dir)[PATH_MAX] = calloc(CGROUP_KIND_MAX_, PATH_MAX);
        if (!dir)
                return;
        read_bases(run_fd, dir);
        for (unsigned k = 0; k < CGROUP_KIND_MAX_; k++)
                if (dir[k][0])
                        (void) rmdir(dir[k]);
}

void cgroups_close(struct cgroups *cg) {
        for (unsigned k = 0; k < CGROUP_KIND_MAX_; k++)
                cg->base[k] = fd_close(cg->base[k]);
}
