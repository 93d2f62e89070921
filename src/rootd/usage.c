/* SPDX-License-Identifier: Apache-2.0 */

/*
 * USAGE and LIST. All figures are the host's own, so a guest that lies about itself changes
 * nothing. Memory is the sum of Anonymous: what the sandbox costs beyond the template's pages,
 * which all its clones share in the page cache.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/str.h"
#include "rootd/disk.h"
#include "rootd/placement.h"
#include "rootd/pool.h"
#include "rootd/server.h"

#define PROCESSES_MAX 1024
#define IDS_MAX (160u * 1024)

struct sum {
        uint64_t anonymous, cpu_us;
        uint32_t processes;
};

static uint64_t anonymous_of(pid_t pid) {
        char path[48];
        _cleanup_free_ char *text = NULL;
        (void) snprintf(path, sizeof path, "/proc/%d/smaps_rollup", pid);
        if (fd_read_file_at(AT_FDCWD, path, 16384, &text, NULL, NULL) < 0)
                return 0;
        const char *line = strstr(text, "\nAnonymous:");
        return line ? strtoull(line + strlen("\nAnonymous:"), NULL, 10) * 1024 : 0;
}

/* utime and stime, fields 14 and 15 of stat: where no cgroup counts. */
static uint64_t cpu_of(pid_t pid) {
        char path[32];
        unsigned long long user = 0, system = 0;
        _cleanup_free_ char *text = NULL;
        (void) snprintf(path, sizeof path, "/proc/%d/stat", pid);
        if (fd_read_file_at(AT_FDCWD, path, 4096, &text, NULL, NULL) < 0)
                return 0;
        const char *p = strrchr(text, ')');
        if (!p ||
            sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system) != 2)
                return 0;
        return (user + system) * 1000000ull / (unsigned long long) sysconf(_SC_CLK_TCK);
}

static void add(void *arg, pid_t pid) {
        struct sum *s = arg;
        s->anonymous += anonymous_of(pid);
        s->cpu_us += cpu_of(pid);
        s->processes++;
}

static uint64_t disk_of(const struct rootd *r, const char *id, uint64_t *ret_written_ns) {
        char path[ID_SIZE + 16];
        struct stat st;
        (void) snprintf(path, sizeof path, "%s/disk.img", id);
        _cleanup_fd_ int fd =
                fd_open_beneath(r->dirs.sandboxes, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, NULL);
        if (fd < 0)
                return 0;
        if (fstat(fd, &st) == 0 && st.st_mtim.tv_sec > 0)
                *ret_written_ns = (uint64_t) st.st_mtim.tv_sec * 1000000000u + (uint64_t) st.st_mtim.tv_nsec;
        return disk_own_bytes(fd);
}

void usage_handle(struct rootd *r, const struct ticket *t, const struct ipc_usage *m) {
        struct error e = ERROR_INIT;
        const struct placement *p = id_valid(m->id) ? placement_find(r, m->id) : NULL;
        if (!p || !p->has_slot) {
                (void) error_set(&e, -ENOENT, "sandbox \"%s\" is not placed on this host", m->id);
                ticket_error(r, t, &e);
                return;
        }
        char leaf[SLOT_NAME_MAX + 1];
        struct sum s = {};
        slot_name(p->rec.slot, leaf);
        if (cgroup_each_pid(&r->cgroups, leaf, PROCESSES_MAX, add, &s) < 0) {
                const struct proc *all[] = { &p->warden, &p->vm, &p->gateway };
                for (size_t i = 0; i < ARRAY_SIZE(all); i++)
                        if (all[i]->pid && !all[i]->gone)
                                add(&s, all[i]->pid);
        }
        (void) cgroup_cpu_us(&r->cgroups, leaf, &s.cpu_us);
        struct ipc_usage_info info = { .cpu_us = s.cpu_us, .memory_bytes = s.anonymous, .processes = s.processes };
        info.disk_bytes = disk_of(r, m->id, &info.written_ns);
        uint8_t body[64];
        size_t n;
        if (ipc_usage_info_encode(&info, body, sizeof body, &n) == 0)
                ticket_send(r, t, body, n);
}

/* Placements, and disks without one (of before a restart of the host). */
static int collect(const struct rootd *r, struct buf *ids) {
        int res = 0;
        for (const struct placement *p = r->placements; p && res == 0; p = p->next)
                res = buf_printf(ids, "%s\n", p->rec.id);
        int fd = openat(r->dirs.sandboxes, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
        if (!d) {
                (void) fd_close(fd);
                return -errno;
        }
        for (const struct dirent *e; res == 0 && (e = readdir(d));)
                if (id_valid(e->d_name) && !placement_find(r, e->d_name))
                        res = buf_printf(ids, "%s\n", e->d_name);
        (void) closedir(d);
        return res;
}

void list_handle(struct rootd *r, const struct ticket *t) {
        static uint8_t body[IDS_MAX + 64];
        _cleanup_buf_ struct buf ids = BUF_INIT(IDS_MAX);
        struct error e = ERROR_INIT;
        size_t n;
        int res = collect(r, &ids);
        const struct ipc_placement_list m = { .ids = buf_data(&ids), .ids_n = ids.len };
        if (res == 0)
                res = ipc_placement_list_encode(&m, body, sizeof body, &n);
        if (res < 0) {
                (void) error_errno(&e, res, "cannot list the sandboxes");
                ticket_error(r, t, &e);
                return;
        }
        ticket_send(r, t, body, n);
}
