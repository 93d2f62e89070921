/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"

#define FILE_NAME_MAX 64

static int open_file(int base, const char *leaf, const char *file, int flags) {
        char path[CGROUP_LEAF_MAX + FILE_NAME_MAX + 2];
        if (base < 0 || snprintf(path, sizeof path, "%s/%s", leaf, file) >= (int) sizeof path)
                return -ENOENT;
        int fd = openat(base, path, flags | O_CLOEXEC | O_NOFOLLOW);
        return fd < 0 ? -errno : fd;
}

static int put(int base, const char *leaf, const char *file, const char *text) {
        _cleanup_fd_ int fd = open_file(base, leaf, file, O_WRONLY);
        if (fd < 0)
                return fd;
        return write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

static int put_u64(int base, const char *leaf, const char *file, uint64_t v) {
        char text[24];
        (void) snprintf(text, sizeof text, "%llu", (unsigned long long) v);
        return put(base, leaf, file, text);
}

static int get(int base, const char *leaf, const char *file, char *out, size_t cap) {
        _cleanup_fd_ int fd = open_file(base, leaf, file, O_RDONLY);
        if (fd < 0)
                return fd;
        ssize_t n = read(fd, out, cap - 1);
        if (n < 0)
                return -errno;
        out[n] = 0;
        return 0;
}

int cgroup_make(const struct cgroups *cg, const char *leaf, struct error *err) {
        for (unsigned k = 0; k < CGROUP_KIND_MAX_; k++)
                if (cg->base[k] >= 0 && mkdirat(cg->base[k], leaf, 0755) < 0 && errno != EEXIST)
                        return error_errno(err, errno, "cannot make cgroup \"%s\"", leaf);
        return 0;
}

static int limit_v1(const struct cgroups *cg, const char *leaf, const struct cgroup_limits *l) {
        int r = 0;
        if (l->memory_bytes && cg->base[CGROUP_MEMORY] >= 0) {
                r = put_u64(cg->base[CGROUP_MEMORY], leaf, "memory.limit_in_bytes", l->memory_bytes);
                /* Only where swap is accounted; guest memory on a swap device would outlive the guest. */
                (void) put_u64(cg->base[CGROUP_MEMORY], leaf, "memory.memsw.limit_in_bytes", l->memory_bytes);
                (void) put(cg->base[CGROUP_MEMORY], leaf, "memory.swappiness", "0");
        }
        if (r == 0 && l->pids && cg->base[CGROUP_PIDS] >= 0)
                r = put_u64(cg->base[CGROUP_PIDS], leaf, "pids.max", l->pids);
        if (r == 0 && cg->base[CGROUP_CPU] >= 0)
                r = put_u64(cg->base[CGROUP_CPU], leaf, "cpu.shares", 1024ull * l->cpus);
        return r;
}

static int limit_v2(int base, const char *leaf, const struct cgroup_limits *l) {
        int r = 0;
        if (l->memory_bytes) {
                r = put_u64(base, leaf, "memory.max", l->memory_bytes);
                (void) put(base, leaf, "memory.swap.max", "0");
                (void) put(base, leaf, "memory.oom.group", "1");
        }
        if (r == 0 && l->pids)
                r = put_u64(base, leaf, "pids.max", l->pids);
        uint64_t weight = 100ull * l->cpus;
        (void) put_u64(base, leaf, "cpu.weight", weight > 10000 ? 10000 : weight);
        return r;
}

int cgroup_limit(const struct cgroups *cg, const char *leaf, const struct cgroup_limits *l,
                 struct error *err) {
        int r = cg->v2_limits ? limit_v2(cg->base[CGROUP_UNIFIED], leaf, l) : limit_v1(cg, leaf, l);
        if (r < 0)
                return error_errno(err, r, "cannot set the limits of cgroup \"%s\"", leaf);
        return 0;
}

int cgroup_open_leaf(const struct cgroups *cg, const char *leaf) {
        if (cg->base[CGROUP_UNIFIED] < 0)
                return -EBADF;
        int fd = openat(cg->base[CGROUP_UNIFIED], leaf, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        return fd < 0 ? -EBADF : fd;
}

int cgroup_enter_v1(const struct cgroups *cg, const char *leaf, struct error *err) {
        for (unsigned k = CGROUP_MEMORY; k < CGROUP_KIND_MAX_; k++) {
                int r = cg->base[k] >= 0 ? put(cg->base[k], leaf, "cgroup.procs", "0") : 0;
                if (r < 0)
                        return error_errno(err, r, "cannot enter cgroup \"%s\"", leaf);
        }
        return 0;
}

static int each_pid_of(int base, const char *leaf, unsigned max, void (*fn)(void *arg, pid_t pid),
                       void *arg) {
        int fd = open_file(base, leaf, "cgroup.procs", O_RDONLY);
        FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
        if (!f)
                return fd_close(fd), -ENOENT;
        char line[32];
        int n = 0;
        while ((unsigned) n < max && fgets(line, sizeof line, f)) {
                long pid = strtol(line, NULL, 10);
                if (pid <= 0)
                        continue;
                n++;
                fn(arg, (pid_t) pid);
        }
        (void) fclose(f);
        return n;
}

static int some_base(const struct cgroups *cg) {
        for (unsigned k = 0; k < CGROUP_KIND_MAX_; k++)
                if (cg->base[k] >= 0)
                        return cg->base[k];
        return -EBADF;
}

int cgroup_each_pid(const struct cgroups *cg, const char *leaf, unsigned max,
                    void (*fn)(void *arg, pid_t pid), void *arg) {
        return each_pid_of(some_base(cg), leaf, max, fn, arg);
}

static void kill_one(void *arg, pid_t pid) {
        (void) arg;
        (void) kill(pid, SIGKILL);
}

void cgroup_kill(const struct cgroups *cg, const char *leaf) {
        if (put(cg->base[CGROUP_UNIFIED], leaf, "cgroup.kill", "1") == 0)
                return;
        /* A kernel before 5.14, or v1 alone: one by one; the caller comes back until it is empty. */
        for (unsigned k = 0; k < CGROUP_KIND_MAX_; k++)
                (void) each_pid_of(cg->base[k], leaf, UINT32_MAX, kill_one, NULL);
}

static void count_one(void *arg, pid_t pid) {
        (void) pid;
        ++*(unsigned *) arg;
}

bool cgroup_empty(const struct cgroups *cg, const char *leaf) {
        char text[256];
        if (get(cg->base[CGROUP_UNIFIED], leaf, "cgroup.events", text, sizeof text) == 0)
                return strstr(text, "populated 0") != NULL;
        unsigned n = 0;
        for (unsigned k = 0; k < CGROUP_KIND_MAX_; k++)
                (void) each_pid_of(cg->base[k], leaf, 1, count_one, &n);
        return n == 0;
}

int cgroup_remove(const struct cgroups *cg, const char *leaf, struct error *err) {
        for (unsigned k = 0; k < CGROUP_KIND_MAX_; k++)
                if (cg->base[k] >= 0 && unlinkat(cg->base[k], leaf, AT_REMOVEDIR) < 0 && errno != ENOENT)
                        return error_errno(err, errno, "cannot remove cgroup \"%s\"", leaf);
        return 0;
}

int cgroup_cpu_us(const struct cgroups *cg, const char *leaf, uint64_t *ret) {
        char text[1024];
        uint64_t v;
        if (get(cg->base[CGROUP_CPUACCT], leaf, "cpuacct.usage", text, sizeof text) == 0) {
                text[strcspn(text, "\n")] = 0;
                if (str_to_u64(text, UINT64_MAX, &v) < 0)
                        return -EINVAL;
                *ret = v / 1000;
                return 0;
        }
        /* Counted in every v2 cgroup, with the cpu controller or without. */
        if (get(cg->base[CGROUP_UNIFIED], leaf, "cpu.stat", text, sizeof text) < 0 ||
            !str_has_prefix(text, "usage_usec "))
                return -ENOENT;
        char *v_text = text + strlen("usage_usec ");
        v_text[strcspn(v_text, "\n")] = 0;
        return str_to_u64(v_text, UINT64_MAX, ret);
}

void cgroup_each_leaf(const struct cgroups *cg, void (*fn)(void *arg, const char *leaf), void *arg) {
        for (unsigned k = 0; k < CGROUP_KIND_MAX_; k++) {
                int fd = cg->base[k] >= 0 ? openat(cg->base[k], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                                          : -EBADF;
                DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
                if (!d) {
                        fd_close(fd);
                        continue;
                }
                for (const struct dirent *e; (e = readdir(d));)
                        if (e->d_type == DT_DIR && e->d_name[0] != '.' &&
                            strlen(e->d_name) <= CGROUP_LEAF_MAX)
                                fn(arg, e->d_name);
                closedir(d);
        }
}
