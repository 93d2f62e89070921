/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/process_image.h"

/*
 * Writing the image of a VM's process.
 *
 * The VM may have been taken over. What is read here is what the kernel says of it (mappings, descriptors, threads)
 * and bytes that are copied: an image of a process that lies about itself is one that does harm to whoever
 * becomes it, with the same few rights. Tables have limits, and what an image cannot hold is refused.
 *
 * Of a mapping of the image that the process itself was thawed from, only the pages that it has written are new: the file
 * is a reflink of the older one, and they go to where they were.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/if_tun.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/str.h"
#include "procimage/format.h"
#include "rootd/disk.h"
#include "rootd/process_stop.h"

#define PAGE PROCIMAGE_PAGE
#define PM_PRESENT (1ull << 63)
#define PM_SWAPPED (1ull << 62)
#define PM_FILE (1ull << 61)
#define PIECE_PAGES 256u
#define GAP_PAGES 16u /* of zeros between two runs of an anonymous mapping: not worth a mapping of its own */
#define TRIES_MAX 50
#define TRY_AFTER_MS 10
#define STACK_ROOM (4ull << 20) /* below the main thread's stack: the kernel does not let the copy grow by itself */
#define LINE_MAX_BYTES 8192

/* Descriptors that the warden gives each VM (its qemu_args.h), and the three standard ones. */
static const int inherited[] = { 0, 1, 2, 10, 11, 12, 13, 14 };
#define NULL_FD 0
#define TAP_FD 12
#define DISK_FD 13
#define MEMORY_FD 14

struct mapping {
        uint64_t start, end, offset, inode;
        unsigned major, minor;
        uint32_t prot;
        bool shared, memory, image, stack;
        char name[64];
};

struct saving {
        pid_t pid;
        uint64_t memory_bytes;
        struct stat disk;
        const struct image_runs *runs;
        int proc, mem, pagemap, out; /* descriptors */
        uint64_t end;                /* of what is in the file */
        uint64_t written;
        uint64_t copied, span; /* bytes read for it and addresses looked at, of which there is an end */
        struct procimage_head *head;
        struct stat base; /* the image that it was thawed from; st_ino 0: none */
        bool deltas;      /* they fit so far */
        uint64_t delta_bytes;
        uint64_t entries[PIECE_PAGES];
        uint8_t data[PIECE_PAGES * PAGE];
};

/* ---- mappings -------------------------------------------------------------------------------- */

static int parse_mapping(const char *line, struct mapping *m) {
        unsigned long long start, end, offset, inode;
        char perms[5] = "";
        int at = 0;
        *m = (struct mapping){ 0 };
        if (sscanf(line, "%llx-%llx %4s %llx %x:%x %llu %n", &start, &end, perms, &offset, &m->major, &m->minor, &inode, &at) < 7)
                return -EBADMSG;
        m->start = start;
        m->end = end;
        m->offset = offset;
        m->inode = inode;
        m->prot = (perms[0] == 'r' ? PROT_READ : 0u) | (perms[1] == 'w' ? PROT_WRITE : 0u) | (perms[2] == 'x' ? PROT_EXEC : 0u);
        m->shared = perms[3] == 's';
        size_t n = strcspn(line + at, "\n");
        if (n < sizeof m->name)
                memcpy(m->name, line + at, n);
        m->stack = str_eq(m->name, "[stack]");
        return 0;
}

static int add_map(struct saving *s, uint64_t start, uint64_t end, uint64_t offset, uint32_t prot, uint32_t kind, struct error *err) {
        struct procimage_head *h = s->head;
        struct procimage_map *last = h->n_maps ? &h->maps[h->n_maps - 1] : NULL;
        /* What a base has and what comes after it are in two files. */
        bool seam = kind == PROCIMAGE_MAP_IMAGE && s->base.st_ino && offset == (uint64_t) s->base.st_size;
        if (last && last->end == start && last->prot == prot && last->kind == kind && !seam &&
            (kind == PROCIMAGE_MAP_ZERO || last->offset + (last->end - last->start) == offset)) {
                last->end = end;
                return 0;
        }
        if (h->n_maps == PROCIMAGE_MAPS_MAX)
                return error_set(err, -E2BIG, "the VM's process has more than %d mappings", PROCIMAGE_MAPS_MAX);
        h->maps[h->n_maps++] = (struct procimage_map){ .start = start, .end = end, .offset = offset, .prot = prot, .kind = kind };
        return 0;
}

/* A taken-over VM can map its few files any number of times, and all addresses there are. */
static int take_share(struct saving *s, uint64_t span, uint64_t bytes, struct error *err) {
        s->span += span;
        s->copied += bytes;
        if (s->span > PROCIMAGE_SPAN_MAX || s->copied > PROCIMAGE_BYTES_MAX || s->end > PROCIMAGE_BYTES_MAX)
                return error_set(err, -E2BIG, "the VM's process has more mapped than an image may hold");
        return 0;
}

static bool is_zero(const uint8_t *p) {
        return p[0] == 0 && memcmp(p, p + 1, PAGE - 1) == 0;
}

/* Pages [at, at + n) of the process, without those that are zero, to the file at `to`. */
static int write_pages(struct saving *s, uint64_t at, size_t n, uint64_t to, struct error *err) {
        int r = fd_pread_all(s->mem, s->data, n * PAGE, at);
        if (r < 0)
                return error_errno(err, r, "cannot read the VM's process");
        for (size_t i = 0; i < n;) {
                size_t run = 0;
                while (i + run < n && !is_zero(s->data + (i + run) * PAGE))
                        run++;
                if (run > 0) {
                        r = fd_pwrite_all(s->out, s->data + i * PAGE, run * PAGE, to + i * PAGE);
                        if (r < 0)
                                return error_errno(err, r, "cannot write the image of the VM's process");
                        s->written += run * PAGE;
                }
                i += run + 1;
        }
        return 0;
}

static int read_entries(struct saving *s, uint64_t at, size_t pages, struct error *err) {
        int r = fd_pread_all(s->pagemap, s->entries, pages * sizeof s->entries[0], at / PAGE * sizeof s->entries[0]);
        return r < 0 ? error_errno(err, r, "cannot see the VM's pages") : 0;
}

/* A file's pages that the process has not touched are that file's, so all are read. */
static int save_file(struct saving *s, const struct mapping *m, struct error *err) {
        uint64_t offset = s->end;
        s->end += m->end - m->start;
        int taken = take_share(s, 0, m->end - m->start, err);
        if (taken < 0)
                return taken;
        for (uint64_t at = m->start; at < m->end; at += PIECE_PAGES * PAGE) {
                uint64_t left = (m->end - at) / PAGE;
                int r = write_pages(s, at, left < PIECE_PAGES ? left : PIECE_PAGES, offset + (at - m->start), err);
                if (r < 0)
                        return r;
        }
        return add_map(s, m->start, m->end, offset, m->prot, PROCIMAGE_MAP_IMAGE, err);
}

static void add_delta(struct saving *s, uint64_t address, uint64_t offset, uint64_t bytes, uint32_t prot, bool in_memory) {
        struct procimage_head *h = s->head;
        struct procimage_delta *last = h->n_deltas ? &h->deltas[h->n_deltas - 1] : NULL;
        s->delta_bytes += bytes;
        if (h->n_deltas == PROCIMAGE_DELTAS_MAX || s->delta_bytes > PROCIMAGE_DELTA_BYTES)
                s->deltas = false;
        if (!s->deltas)
                return;
        if (last && last->address + last->bytes == address && last->offset + last->bytes == offset && last->prot == prot &&
            last->in_memory == in_memory)
                last->bytes += bytes;
        else
                h->deltas[h->n_deltas++] = (struct procimage_delta){ address, offset, bytes, in_memory, prot };
}

/* Of the image that it came from: the pages that are its own now, over what the reflink has there. */
static int save_thawed(struct saving *s, const struct mapping *m, struct error *err) {
        int taken = take_share(s, m->end - m->start, 0, err);
        if (taken < 0)
                return taken;
        for (uint64_t at = m->start; at < m->end; at += PIECE_PAGES * PAGE) {
                uint64_t left = (m->end - at) / PAGE;
                size_t n = left < PIECE_PAGES ? left : PIECE_PAGES;
                int r = read_entries(s, at, n, err);
                for (size_t i = 0; r == 0 && i < n;) {
                        size_t run = 0;
                        while (i + run < n && (s->entries[i + run] & (PM_PRESENT | PM_SWAPPED)) && !(s->entries[i + run] & PM_FILE))
                                run++;
                        uint64_t from = at + i * PAGE;
                        if (run > 0) {
                                if ((r = take_share(s, 0, run * PAGE, err)) < 0)
                                        return r;
                                r = fd_pread_all(s->mem, s->data, run * PAGE, from);
                                if (r == 0)
                                        r = fd_pwrite_all(s->out, s->data, run * PAGE, m->offset + (from - m->start));
                                if (r < 0)
                                        return error_errno(err, r, "cannot write the image of the VM's process");
                                s->written += run * PAGE;
                                add_delta(s, from, m->offset + (from - m->start), run * PAGE, m->prot, false);
                        }
                        i += run + 1;
                }
                if (r < 0)
                        return r;
        }
        return add_map(s, m->start, m->end, m->offset, m->prot, PROCIMAGE_MAP_IMAGE, err);
}

struct run {
        uint64_t start, end; /* addresses; start == end: none yet */
};

static int flush_run(struct saving *s, struct run *r, uint32_t prot, struct error *err) {
        if (r->start == r->end)
                return 0;
        struct mapping part = { .start = r->start, .end = r->end, .prot = prot };
        return save_file(s, &part, err);
}

/* Touched pages in runs, which come to the file; what is between them is made of nothing. */
static int save_anonymous(struct saving *s, const struct mapping *m, struct error *err) {
        struct run run = { m->start, m->start };
        uint64_t done = m->start;
        int r = take_share(s, m->end - m->start, 0, err);
        for (uint64_t at = m->start; r == 0 && at < m->end; at += PIECE_PAGES * PAGE) {
                uint64_t entries[PIECE_PAGES], left = (m->end - at) / PAGE;
                size_t n = left < PIECE_PAGES ? left : PIECE_PAGES;
                r = read_entries(s, at, n, err);
                memcpy(entries, s->entries, n * sizeof entries[0]); /* writing pages out uses the buffers */
                for (size_t i = 0; r == 0 && i < n; i++) {
                        uint64_t page = at + i * PAGE;
                        if (!(entries[i] & (PM_PRESENT | PM_SWAPPED)))
                                continue;
                        if (run.end > run.start && page - run.end <= GAP_PAGES * PAGE) {
                                run.end = page + PAGE;
                                continue;
                        }
                        r = flush_run(s, &run, m->prot, err);
                        done = run.end > run.start ? run.end : done;
                        if (r == 0 && page > done)
                                r = add_map(s, done, page, 0, m->prot, PROCIMAGE_MAP_ZERO, err);
                        run = (struct run){ page, page + PAGE };
                }
        }
        if (r == 0)
                r = flush_run(s, &run, m->prot, err);
        done = run.end > run.start ? run.end : done;
        if (r == 0 && done < m->end)
                r = add_map(s, done, m->end, 0, m->prot, PROCIMAGE_MAP_ZERO, err);
        return r;
}

static int save_special(struct saving *s, const struct mapping *m, struct error *err) {
        struct procimage_head *h = s->head;
        if (str_eq(m->name, "[vsyscall]"))
                return 0;
        if (h->n_specials == PROCIMAGE_SPECIALS_MAX)
                return error_set(err, -EOPNOTSUPP, "this kernel gives a process more mappings of its own than are known");
        if (str_eq(m->name, "[vdso]"))
                h->vdso = m->start;
        h->specials[h->n_specials++] = (struct procimage_special){ .start = m->start, .bytes = m->end - m->start };
        return 0;
}

static int save_mapping(struct saving *s, const struct mapping *m, struct error *err) {
        if (str_has_prefix(m->name, "[v"))
                return save_special(s, m, err);
        if (m->start < PROCIMAGE_STUB_END && m->end > PROCIMAGE_STUB_START)
                return 0; /* cspace-thaw's own, of which there will be another */
        if (m->memory)
                return add_map(s, m->start, m->end, m->offset, m->prot, PROCIMAGE_MAP_MEMORY, err);
        if (m->shared)
                return error_set(err, -EOPNOTSUPP, "the VM's process shares memory with another");
        if (m->stack) {
                int r = add_map(s, m->start - STACK_ROOM, m->start, 0, m->prot, PROCIMAGE_MAP_ZERO, err);
                return r < 0 ? r : save_anonymous(s, m, err);
        }
        if (m->prot == PROT_NONE)
                return add_map(s, m->start, m->end, 0, 0, PROCIMAGE_MAP_ZERO, err);
        if (m->image)
                return save_thawed(s, m, err);
        return m->inode ? save_file(s, m, err) : save_anonymous(s, m, err);
}

/* Guest memory: the file that has its size, as image_memory.c finds it. */
static void classify(const struct saving *s, struct mapping *m) {
        char path[64];
        struct stat st;
        if (!m->inode)
                return;
        (void) snprintf(path, sizeof path, "map_files/%llx-%llx", (unsigned long long) m->start, (unsigned long long) m->end);
        if (fstatat(s->proc, path, &st, 0) < 0)
                return;
        m->memory = m->end - m->start == s->memory_bytes && (uint64_t) st.st_size == s->memory_bytes;
        m->image = s->base.st_ino && st.st_ino == s->base.st_ino && st.st_dev == s->base.st_dev;
}

static int save_mappings(struct saving *s, struct error *err) {
        _cleanup_fd_ int fd = openat(s->proc, "maps", O_RDONLY | O_CLOEXEC);
        FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
        if (!f)
                return error_errno(err, errno, "cannot look at the VM's mappings");
        fd = -EBADF;
        static char line[LINE_MAX_BYTES];
        int r = 0;
        bool memory = false;
        while (r == 0 && fgets(line, sizeof line, f)) {
                struct mapping m;
                if (parse_mapping(line, &m) < 0)
                        r = error_set(err, -EBADMSG, "a mapping of the VM cannot be read");
                if (r == 0) {
                        classify(s, &m);
                        memory = memory || m.memory;
                        r = save_mapping(s, &m, err);
                }
        }
        (void) fclose(f);
        for (uint32_t i = 0; i < s->head->n_specials; i++)
                s->head->specials[i].from_vdso = (int64_t) (s->head->specials[i].start - s->head->vdso);
        if (r == 0 && (!memory || !s->head->vdso))
                r = error_set(err, -EOPNOTSUPP, "the VM's process has no %s", memory ? "vDSO" : "memory of a guest");
        return r;
}

/* ---- descriptors ------------------------------------------------------------------------------- */

static bool is_inherited(int number) {
        for (size_t i = 0; i < ARRAY_SIZE(inherited); i++)
                if (inherited[i] == number)
                        return true;
        return false;
}

/* Of which inherited descriptor a regular file is another. (QEMU closes the disk's own number with its last monitor
 * connection, and goes on with copies.) What its devices were saved to stays open, unused, until it runs again: the number
 * must not become another's, and nothing else is open for writing alone. */
static int copied_from(const struct saving *s, const struct stat *st, mode_t link) {
        if (S_ISCHR(st->st_mode) && st->st_rdev == makedev(1, 3)) /* in the next generation */
                return NULL_FD;
        if (!S_ISREG(st->st_mode))
                return -1;
        if (st->st_ino == s->disk.st_ino && st->st_dev == s->disk.st_dev)
                return DISK_FD;
        if ((link & (S_IRUSR | S_IWUSR)) == S_IWUSR)
                return NULL_FD;
        return !(link & S_IWUSR) && (uint64_t) st->st_size == s->memory_bytes ? MEMORY_FD : -1;
}

static int save_event(struct saving *s, int epoll, const char *line, struct error *err) {
        struct procimage_head *h = s->head;
        int fd;
        unsigned events;
        unsigned long long data;
        if (sscanf(line, "tfd: %d events: %x data: %llx", &fd, &events, &data) != 3)
                return 0;
        if (h->n_events == PROCIMAGE_EVENTS_MAX)
                return error_set(err, -E2BIG, "the VM's process waits for more than %d descriptors", PROCIMAGE_EVENTS_MAX);
        h->events[h->n_events++] = (struct procimage_event){ .epoll = epoll, .fd = fd, .events = events, .data = data };
        return 0;
}

/* What /proc says of one descriptor's inside. */
static int save_details(struct saving *s, struct procimage_fd *f, struct error *err) {
        char path[32], line[256];
        (void) snprintf(path, sizeof path, "fdinfo/%d", f->number);
        _cleanup_fd_ int fd = openat(s->proc, path, O_RDONLY | O_CLOEXEC);
        FILE *in = fd >= 0 ? fdopen(fd, "r") : NULL;
        if (!in)
                return error_errno(err, errno, "cannot look at descriptor %d of the VM", f->number);
        fd = -EBADF;
        int r = 0;
        while (r == 0 && fgets(line, sizeof line, in)) {
                unsigned long long v;
                if (sscanf(line, "flags: %llo", &v) == 1) {
                        f->nonblocking = (v & O_NONBLOCK) != 0;
                        f->cloexec = (v & O_CLOEXEC) != 0;
                } else if (f->kind == PROCIMAGE_FD_EVENTFD && sscanf(line, "eventfd-count: %llx", &v) == 1)
                        f->value = v;
                else if (f->kind == PROCIMAGE_FD_SIGNALFD && sscanf(line, "sigmask: %llx", &v) == 1)
                        f->value = v;
                else if (f->kind == PROCIMAGE_FD_EPOLL)
                        r = save_event(s, f->number, line, err);
        }
        (void) fclose(in);
        return r;
}

static int save_fd(struct saving *s, int number, struct error *err) {
        char path[32], target[64] = "";
        struct stat st, mode; /* mode: the link's tells what it is open for (proc(5)) */
        struct procimage_fd f = { .number = number };
        (void) snprintf(path, sizeof path, "fd/%d", number);
        ssize_t n = readlinkat(s->proc, path, target, sizeof target - 1);
        if (n < 0 || fstatat(s->proc, path, &st, 0) < 0 || fstatat(s->proc, path, &mode, AT_SYMLINK_NOFOLLOW) < 0)
                return error_errno(err, errno, "cannot look at descriptor %d of the VM", number);
        target[n] = '\0';
        int from = -1;
        if (is_inherited(number))
                f.kind = PROCIMAGE_FD_INHERITED;
        else if (str_eq(target, "anon_inode:[eventfd]"))
                f.kind = PROCIMAGE_FD_EVENTFD;
        else if (str_eq(target, "anon_inode:[signalfd]"))
                f.kind = PROCIMAGE_FD_SIGNALFD;
        else if (str_eq(target, "anon_inode:[eventpoll]"))
                f.kind = PROCIMAGE_FD_EPOLL;
        else if ((from = copied_from(s, &st, mode.st_mode)) >= 0) {
                f.kind = PROCIMAGE_FD_COPY;
                f.value = (uint64_t) from;
        } else
                return error_set(err, -EAGAIN, "descriptor %d of the VM (%.40s) cannot be kept",
                                 number, target);
        if (s->head->n_fds == PROCIMAGE_FDS_MAX)
                return error_set(err, -E2BIG, "the VM's process has more than %d descriptors open", PROCIMAGE_FDS_MAX);
        int r = save_details(s, &f, err);
        s->head->fds[s->head->n_fds++] = f;
        return r;
}

static int save_fds(struct saving *s, struct error *err) {
        int fd = openat(s->proc, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
        if (!d) {
                (void) fd_close(fd);
                return error_errno(err, errno, "cannot look at the VM's descriptors");
        }
        int r = 0;
        for (const struct dirent *e; r == 0 && (e = readdir(d));) {
                char *end;
                long number = strtol(e->d_name, &end, 10);
                if (end != e->d_name && !*end)
                        r = save_fd(s, (int) number, err);
        }
        (void) closedir(d);
        return r;
}

/* Two settings that QEMU made on the device behind the descriptor: the kernel tells the one, and of the other what
 * became of it. In the VM's network namespace, into which this child goes. */
static int save_tap(struct saving *s, struct error *err) {
        struct procimage_head *h = s->head;
        _cleanup_fd_ int pidfd = (int) syscall(SYS_pidfd_open, s->pid, 0);
        _cleanup_fd_ int tap = pidfd >= 0 ? (int) syscall(SYS_pidfd_getfd, pidfd, TAP_FD, 0) : -EBADF;
        struct ifreq ifr = { 0 };
        int bytes = 0;
        if (tap < 0)
                return errno == EBADF ? 0 : error_errno(err, errno, "cannot look at the VM's network card");
        _cleanup_fd_ int ns = openat(s->proc, "ns/net", O_RDONLY | O_CLOEXEC);
        if (ioctl(tap, TUNGETVNETHDRSZ, &bytes) < 0 || ioctl(tap, TUNGETIFF, &ifr) < 0 || ns < 0 || setns(ns, CLONE_NEWNET) < 0)
                return error_errno(err, errno, "cannot look at the VM's network card");
        _cleanup_fd_ int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        struct ethtool_value csum = { .cmd = ETHTOOL_GTXCSUM }, tso = { .cmd = ETHTOOL_GTSO };
        ifr.ifr_data = (char *) &csum;
        if (sock < 0 || ioctl(sock, SIOCETHTOOL, &ifr) < 0)
                return error_errno(err, errno, "cannot look at the VM's network card");
        ifr.ifr_data = (char *) &tso;
        if (ioctl(sock, SIOCETHTOOL, &ifr) < 0)
                return error_errno(err, errno, "cannot look at the VM's network card");
        h->tap_fd = TAP_FD;
        h->vnet_header_bytes = (uint32_t) bytes;
        h->tap_offload = (csum.data ? TUN_F_CSUM : 0u) | (csum.data && tso.data ? TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN : 0u);
        return 0;
}

/* ---- the whole --------------------------------------------------------------------------------- */

/* What the process was thawed from, if it was: the base of its image or that itself, of which cspace-thaw leaves the
 * head mapped. */
static int find_base(struct saving *s, int dir, struct error *err) {
        int fd = openat(s->proc, "map_files", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
        _cleanup_fd_ int base = -EBADF;
        unsigned long long start, best = 0;
        if (!d) {
                (void) fd_close(fd);
                return error_errno(err, errno, "cannot look at the VM's mappings");
        }
        for (const struct dirent *e; (e = readdir(d));) {
                struct stat st;
                uint64_t magic = 0;
                if (sscanf(e->d_name, "%llx-", &start) != 1 || (start != PROCIMAGE_HEAD_AT && start != PROCIMAGE_BASE_AT) || start < best)
                        continue;
                _cleanup_fd_ int file = openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
                if (file < 0 || fstat(file, &st) < 0 || !S_ISREG(st.st_mode) || st.st_uid != 0 ||
                    pread(file, &magic, sizeof magic, 0) != (ssize_t) sizeof magic || magic != PROCIMAGE_MAGIC)
                        continue;
                (void) fd_close(base);
                base = fd_steal(&file);
                s->base = st;
                best = start;
        }
        (void) closedir(d);
        if (base < 0)
                return 0;
        s->deltas = true;
        return disk_clone(base, dir, PROCESS_IMAGE_NAME, 0, 0, &s->out, &s->end, err);
}

static int open_pages(struct saving *s, int dir, struct error *err) {
        s->mem = openat(s->proc, "mem", O_RDONLY | O_CLOEXEC);
        s->pagemap = openat(s->proc, "pagemap", O_RDONLY | O_CLOEXEC);
        if (s->mem < 0 || s->pagemap < 0)
                return error_errno(err, errno, "cannot open the VM's process");
        int r = find_base(s, dir, err);
        if (r == 0 && s->out < 0) {
                r = disk_create(dir, PROCESS_IMAGE_NAME, 0, &s->out, err);
                s->end = PROCIMAGE_HEAD;
        }
        return r;
}

static struct procimage_file file_of(const struct stat *st) {
        return (struct procimage_file){ st->st_ino, (uint64_t) st->st_size, (uint64_t) st->st_mtim.tv_sec, (uint64_t) st->st_mtim.tv_nsec };
}

/* Differences from the base, as far as they are few enough. */
static void keep_base(struct saving *s) {
        const struct image_runs *runs = s->runs;
        if (!runs || runs->over)
                s->deltas = false;
        for (size_t i = 0; s->deltas && i < runs->n; i++)
                add_delta(s, runs->run[i].address, runs->run[i].offset, runs->run[i].bytes, PROT_READ | PROT_WRITE, true);
        if (s->deltas) {
                s->head->base = file_of(&s->base);
                s->head->base_memory = file_of(&runs->base);
        } else
                s->head->n_deltas = 0;
}

static int save_all(struct saving *s, const char *host, struct error *err) {
        struct procimage_head *h = s->head;
        h->magic = PROCIMAGE_MAGIC;
        (void) str_copy(h->host, sizeof h->host, host);
        (void) str_copy(h->name, sizeof h->name, "qemu-system-x86");
        h->memory_bytes = s->memory_bytes;
        h->memory_fd = MEMORY_FD;
        int r = save_mappings(s, err);
        if (r == 0)
                r = save_tap(s, err);
        if (r == 0)
                keep_base(s);
        h->bytes = s->end;
        h->sum = procimage_sum(h);
        if (r == 0 && ftruncate(s->out, (off_t) s->end) < 0)
                r = error_errno(err, errno, "cannot write the image of the VM's process");
        if (r == 0 && fd_pwrite_all(s->out, h, sizeof *h, 0) < 0)
                r = error_errno(err, errno, "cannot write the image of the VM's process");
        return r;
}

static int save_once(struct saving *s, const char *host, int dir, struct error *err) {
        memset(s->head, 0, sizeof *s->head);
        s->deltas = false;
        s->delta_bytes = s->copied = s->span = 0;
        int r = process_stop(s->pid, s->head, err);
        if (r < 0)
                return r;
        r = save_fds(s, err);
        if (r == 0)
                r = open_pages(s, dir, err);
        if (r == 0)
                r = save_all(s, host, err);
        process_continue(s->pid);
        return r;
}

int process_image_save(pid_t pid, uint64_t bytes, const struct stat *disk, const struct image_runs *runs, const char *host, int dir,
                       uint64_t *ret_written, struct error *err) {
        struct saving *s = malloc(sizeof *s);
        struct procimage_head *head = calloc(1, sizeof *head);
        char path[32];
        (void) snprintf(path, sizeof path, "/proc/%d", pid);
        if (!s || !head) {
                free(s);
                free(head);
                return error_set(err, -ENOMEM, "out of memory");
        }
        *s = (struct saving){ .pid = pid, .memory_bytes = bytes, .disk = *disk, .runs = runs, .proc = -EBADF, .mem = -EBADF, .pagemap = -EBADF, .out = -EBADF, .head = head };
        int r = 0;
        s->proc = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (s->proc < 0)
                r = error_errno(err, errno, "the VM's process is gone");
        for (unsigned try = 1; s->proc >= 0; try++) {
                r = save_once(s, host, dir, err);
                if (r != -EAGAIN || try == TRIES_MAX)
                        break;
                /* Its end of a connection that was closed, and what it was sent by it, is closed by its main loop, of which nobody
                 * else can tell. */
                (void) nanosleep(&(struct timespec){ .tv_nsec = TRY_AFTER_MS * 1000000L }, NULL);
        }
        if (r == 0)
                *ret_written = s->written;
        else
                (void) unlinkat(dir, PROCESS_IMAGE_NAME, 0);
        (void) fd_close(s->proc);
        (void) fd_close(s->mem);
        (void) fd_close(s->pagemap);
        (void) fd_close(s->out);
        free(head);
        free(s);
        return r;
}

static bool is_file(int fd, const struct procimage_file *f) {
        struct stat st;
        if (fstat(fd, &st) < 0)
                return false;
        const struct procimage_file now = file_of(&st);
        return f->inode != 0 && memcmp(&now, f, sizeof now) == 0;
}

bool process_image_based_on(int image, int process, int memory) {
        struct procimage_file f[2];
        _Static_assert(offsetof(struct procimage_head, base_memory) == offsetof(struct procimage_head, base) + sizeof f[0], "read at once");
        return pread(image, f, sizeof f, offsetof(struct procimage_head, base)) == (ssize_t) sizeof f && is_file(process, &f[0]) &&
               is_file(memory, &f[1]);
}
