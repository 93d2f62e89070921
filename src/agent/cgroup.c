/* SPDX-License-Identifier: Apache-2.0 */
#include "cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "list.h"

#define CGROUP2_MAGIC 0x63677270
#define SPARE_MAX 8          /* empty ones kept for the next command */
#define PROCS_FILE_MAX (8 * 1024 * 1024)
#define SIGNAL_ROUNDS 8      /* a tree that forks while it is being signalled is walked again */

struct cgroups {
        int top_fd, fd;
        uint64_t pids_total; /* what all commands together may have; 0: no limit is known */
        int pids_fd;         /* what they have now */
        char name[32];
        unsigned long next;
        struct list spare, lingering;
        size_t n_spare;
};

struct cgroup {
        struct list link;
        struct cgroups *m;
        int fd, events_fd;
        int procs_fd; /* held, not read: the kernel asks its inode for leave at each clone into the group */
        char name[24];
        uint64_t pids_max; /* as it was set; 0: never */
        bool killed; /* by cgroup.kill: some kernels kill what is cloned into it later, too */
};

/* "max", or no such file: no limit. */
static void find_pids_total(struct cgroups *m) {
        _cleanup_free_ char *text = NULL;
        uint64_t total;
        if (m->fd < 0 || fd_read_file_at(m->fd, "pids.max", 64, &text, NULL, NULL) < 0)
                return;
        text[strcspn(text, "\n")] = '\0';
        if (str_to_u64(text, UINT32_MAX, &total) < 0)
                return;
        m->pids_fd = openat(m->fd, "pids.current", O_RDONLY | O_CLOEXEC);
        if (m->pids_fd >= 0)
                m->pids_total = total;
}

uint64_t cgroup_pids_share(uint64_t total, uint64_t used) {
        uint64_t share = (total > used ? total - used : 0) / CGROUP_PIDS_DIVISOR;
        uint64_t step = total / CGROUP_PIDS_STEPS;
        if (step > 0 && share > step)
                share -= share % step;
        return share > CGROUP_PIDS_MIN ? share : CGROUP_PIDS_MIN;
}

/* Set anew for every command, as a group is used again. */
static void limit_pids(struct cgroup *c) {
        char text[32];
        uint64_t used = 0;
        if (c->m->pids_total == 0)
                return;
        ssize_t n = pread(c->m->pids_fd, text, sizeof text - 1, 0);
        text[n > 0 ? n : 0] = '\0';
        text[strcspn(text, "\n")] = '\0';
        if (str_to_u64(text, UINT32_MAX, &used) < 0)
                used = 0;
        uint64_t share = cgroup_pids_share(c->m->pids_total, used);
        if (share == c->pids_max)
                return;
        _cleanup_fd_ int fd = openat(c->fd, "pids.max", O_WRONLY | O_CLOEXEC);
        (void) snprintf(text, sizeof text, "%llu", (unsigned long long) share);
        if (fd >= 0 && write(fd, text, strlen(text)) > 0)
                c->pids_max = share;
}

int cgroups_new(const char *dir, struct cgroups **ret, struct error *err) {
        struct cgroups *m = calloc(1, sizeof *m);
        if (!m)
                return error_set(err, -ENOMEM, "out of memory");
        m->top_fd = m->fd = m->pids_fd = -EBADF;
        list_init(&m->spare);
        list_init(&m->lingering);
        *ret = m;
        if (!dir)
                return 0;
        m->top_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        struct statfs fs;
        if (m->top_fd < 0 || fstatfs(m->top_fd, &fs) < 0 || fs.f_type != CGROUP2_MAGIC)
                return 0;
        (void) str_copy(m->name, sizeof m->name, "cspace");
        if (getpid() != 1)
                (void) snprintf(m->name, sizeof m->name, "cspace-%d", (int) getpid());
        if (mkdirat(m->top_fd, m->name, 0755) < 0 && errno != EEXIST)
                return 0;
        m->fd = openat(m->top_fd, m->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        find_pids_total(m);
        return 0;
}

static void destroy(struct cgroup *c) {
        list_remove(&c->link);
        fd_close(c->events_fd);
        fd_close(c->procs_fd);
        fd_close(c->fd);
        (void) unlinkat(c->m->fd, c->name, AT_REMOVEDIR);
        free(c);
}

void cgroups_free(struct cgroups *m) {
        if (!m)
                return;
        LIST_FOREACH(it, &m->spare)
                destroy(CONTAINER_OF(it, struct cgroup, link));
        LIST_FOREACH(it, &m->lingering)
                destroy(CONTAINER_OF(it, struct cgroup, link));
        fd_close(m->pids_fd);
        fd_close(m->fd);
        if (m->name[0]) /* stays while something runs in it */
                (void) unlinkat(m->top_fd, m->name, AT_REMOVEDIR);
        fd_close(m->top_fd);
        free(m);
}

static struct cgroup *create(struct cgroups *m) {
        struct cgroup *c = calloc(1, sizeof *c);
        if (!c)
                return NULL;
        c->m = m;
        list_init(&c->link);
        (void) snprintf(c->name, sizeof c->name, "p%lu", m->next++);
        c->events_fd = c->procs_fd = -EBADF;
        c->fd = -EBADF;
        if (mkdirat(m->fd, c->name, 0755) == 0 || errno == EEXIST)
                c->fd = openat(m->fd, c->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (c->fd >= 0)
                c->procs_fd = openat(c->fd, "cgroup.procs", O_PATH | O_CLOEXEC);
        if (c->fd >= 0)
                c->events_fd = openat(c->fd, "cgroup.events", O_RDONLY | O_CLOEXEC);
        if (c->events_fd < 0) {
                destroy(c);
                return NULL;
        }
        return c;
}

struct cgroup *cgroup_get(struct cgroups *m) {
        struct cgroup *c;
        if (m->fd < 0)
                return NULL;
        if (list_empty(&m->spare)) {
                c = create(m);
        } else {
                c = CONTAINER_OF(m->spare.next, struct cgroup, link);
                list_remove(&c->link);
                m->n_spare--;
        }
        if (c)
                limit_pids(c);
        return c;
}

int cgroup_fd(const struct cgroup *c) {
        return c ? c->fd : -EBADF;
}

bool cgroup_populated(const struct cgroup *c) {
        char text[128];
        ssize_t n = pread(c->events_fd, text, sizeof text - 1, 0);
        if (n <= 0)
                return false;
        text[n] = '\0';
        return strstr(text, "populated 1") != NULL;
}

static void settle(struct cgroup *c) {
        list_remove(&c->link);
        if (cgroup_populated(c))
                list_append(&c->m->lingering, &c->link);
        else if (c->m->n_spare < SPARE_MAX && !c->killed) {
                list_append(&c->m->spare, &c->link);
                c->m->n_spare++;
        } else
                destroy(c);
}

void cgroup_put(struct cgroup *c) {
        if (!c)
                return;
        struct cgroups *m = c->m;
        LIST_FOREACH(it, &m->lingering) {
                struct cgroup *old = CONTAINER_OF(it, struct cgroup, link);
                if (!cgroup_populated(old))
                        settle(old);
        }
        settle(c);
}

int cgroups_freeze(struct cgroups *m, bool frozen) {
        _cleanup_fd_ int fd = m->fd < 0 ? -EBADF : openat(m->fd, "cgroup.freeze", O_WRONLY | O_CLOEXEC);
        if (fd < 0)
                return m->fd < 0 ? -EOPNOTSUPP : -errno;
        return write(fd, frozen ? "1" : "0", 1) == 1 ? 0 : -errno;
}

static int signal_cgroup(struct cgroup *c, int sig) {
        if (sig == SIGKILL) {
                _cleanup_fd_ int fd = openat(c->fd, "cgroup.kill", O_WRONLY | O_CLOEXEC);
                c->killed = true;
                if (fd >= 0 && write(fd, "1", 1) == 1)
                        return 0;
        }
        _cleanup_free_ char *text = NULL;
        if (fd_read_file_at(c->fd, "cgroup.procs", PROCS_FILE_MAX, &text, NULL, NULL) < 0)
                return -EIO;
        int sent = 0;
        for (char *p = text, *end; *p; p = end) {
                long pid = strtol(p, &end, 10);
                if (end == p)
                        break;
                if (pid > 1 && kill((pid_t) pid, sig) == 0)
                        sent++;
        }
        return sent ? 0 : -ESRCH;
}

struct proc_entry {
        pid_t pid, ppid, session;
        bool in_tree;
};

static int read_entry(int proc_fd, const char *name, struct proc_entry *e) {
        uint64_t pid;
        char path[64];
        if (str_to_u64(name, INT32_MAX, &pid) < 0 || snprintf(path, sizeof path, "%s/stat", name) >= 64)
                return -EINVAL;
        _cleanup_free_ char *text = NULL;
        if (fd_read_file_at(proc_fd, path, 4096, &text, NULL, NULL) < 0)
                return -ESRCH;
        const char *p = strrchr(text, ')'); /* the name before it may hold anything */
        int ppid, session;
        char run_state;
        if (!p || sscanf(p + 1, " %c %d %*d %d", &run_state, &ppid, &session) != 3 || run_state == 'Z')
                return -EINVAL;
        *e = (struct proc_entry){ .pid = (pid_t) pid, .ppid = ppid, .session = session };
        return 0;
}

static struct proc_entry *read_processes(size_t *ret_n) {
        int proc_fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = proc_fd >= 0 ? fdopendir(proc_fd) : NULL;
        if (!d) {
                fd_close(proc_fd);
                return NULL;
        }
        struct proc_entry *all = NULL;
        size_t n = 0, cap = 0;
        for (struct dirent *de; (de = readdir(d));) {
                struct proc_entry e;
                if (read_entry(proc_fd, de->d_name, &e) < 0)
                        continue;
                if (n == cap) {
                        size_t want = cap ? 2 * cap : 256;
                        struct proc_entry *more = realloc(all, want * sizeof *all);
                        if (!more)
                                break;
                        all = more;
                        cap = want;
                }
                all[n++] = e;
        }
        closedir(d);
        *ret_n = n;
        return all;
}

/* Marks the leader's session and everything descending from a marked process. */
static void mark_tree(struct proc_entry *all, size_t n, pid_t leader) {
        for (size_t i = 0; i < n; i++)
                all[i].in_tree = all[i].pid == leader || all[i].session == leader;
        for (bool grew = true; grew;) {
                grew = false;
                for (size_t i = 0; i < n; i++)
                        for (size_t k = 0; !all[i].in_tree && k < n; k++)
                                if (all[k].in_tree && all[k].pid == all[i].ppid)
                                        all[i].in_tree = grew = true;
        }
}

static int signal_scan(pid_t leader, int sig) {
        size_t n = 0;
        _cleanup_free_ struct proc_entry *all = read_processes(&n);
        if (!all)
                return kill(-leader, sig) < 0 ? -errno : 0;
        mark_tree(all, n, leader);
        int sent = 0;
        for (size_t i = 0; i < n; i++)
                if (all[i].in_tree && all[i].pid != getpid() && kill(all[i].pid, sig) == 0)
                        sent++;
        return sent ? 0 : -ESRCH;
}

int cgroup_signal_tree(struct cgroup *c, pid_t leader, int sig) {
        if (c)
                return signal_cgroup(c, sig);
        int r = signal_scan(leader, sig);
        for (int i = 1; sig == SIGKILL && r == 0 && i < SIGNAL_ROUNDS; i++)
                if (signal_scan(leader, sig) < 0)
                        break;
        return r;
}
