/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/image_memory.h"

/*
 * Guest memory is a private mapping of a file that is never changed: a template's, or that of the image the
 * sandbox was restored from. Pages that were written are the process's own: in /proc/PID/pagemap present or
 * swapped, without bit 61 (page of a file). Everything else is still what the file says.
 *
 * The VM may have been taken over. Nothing of what is read here is looked at: the mapping is found by the
 * kernel's word about sizes, its pages are copied, and whatever a VM mapped there itself becomes its
 * own memory and nobody else's. The file is opened by the kernel's link to it, so that it need not have a
 * name any more.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "rootd/disk.h"

#define PAGE 4096u
#define PM_PRESENT (1ull << 63)
#define PM_SWAPPED (1ull << 62)
#define PM_FILE (1ull << 61)
#define PIECE (1u << 20)
#define BLOCK (64u * 1024)     /* what is a hole, or not */
#define ENTRIES (PIECE / PAGE) /* of pagemap, read at one time */
#define MAPPINGS_MAX 65536     /* of a process: the kernel's own limit */

struct mapping {
        uint64_t start;
        int file; /* open */
};

/* "START-END" in hex, as the kernel names them. */
static int parse_range(const char *name, uint64_t *ret_start, uint64_t *ret_end) {
        char *end;
        *ret_start = strtoull(name, &end, 16);
        if (end == name || *end != '-')
                return -EINVAL;
        const char *second = end + 1;
        *ret_end = strtoull(second, &end, 16);
        return end == second || *end || *ret_end <= *ret_start ? -EINVAL : 0;
}

static int find_mapping(int proc, uint64_t bytes, struct mapping *ret, struct error *err) {
        int fd = openat(proc, "map_files", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
        if (!d) {
                (void) fd_close(fd);
                return error_errno(err, errno, "cannot look at the VM's mappings");
        }
        int r = error_set(err, -ENOENT, "the VM has no memory of %llu bytes", (unsigned long long) bytes);
        const struct dirent *e;
        for (unsigned n = 0; r < 0 && n < MAPPINGS_MAX && (e = readdir(d)); n++) {
                uint64_t start, end;
                struct stat st;
                if (parse_range(e->d_name, &start, &end) < 0 || end - start != bytes)
                        continue;
                _cleanup_fd_ int file = openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
                if (file < 0 || fstat(file, &st) < 0 || !S_ISREG(st.st_mode) || (uint64_t) st.st_size != bytes)
                        continue;
                *ret = (struct mapping){ .start = start, .file = fd_steal(&file) };
                r = 0;
        }
        (void) closedir(d);
        return r;
}

/* *ret_proc: the process's folder in /proc. */
static int find_memory(pid_t pid, uint64_t bytes, int *ret_proc, struct mapping *ret, struct error *err) {
        char path[32];
        (void) snprintf(path, sizeof path, "/proc/%d", pid);
        _cleanup_fd_ int proc = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (proc < 0)
                return error_errno(err, errno, "the VM's process is gone");
        int r = find_mapping(proc, bytes, ret, err);
        if (r == 0)
                *ret_proc = fd_steal(&proc);
        return r;
}

struct copy {
        struct image_runs *runs; /* NULL: not wanted */
        int mem, pagemap, out;
        uint64_t start;
        struct image_memory done;
        uint64_t entries[ENTRIES];
        uint8_t data[PIECE];
};

static bool is_private(uint64_t entry) {
        return (entry & (PM_PRESENT | PM_SWAPPED)) && !(entry & PM_FILE);
}

static void keep_run(struct image_runs *r, uint64_t address, uint64_t offset, uint64_t bytes) {
        struct image_run *last = r->n ? &r->run[r->n - 1] : NULL;
        if (last && last->offset + last->bytes == offset)
                last->bytes += bytes;
        else if (r->n == r->max)
                r->over = true;
        else
                r->run[r->n++] = (struct image_run){ address, offset, bytes };
}

/* The private pages of one piece, run by run. */
static int copy_piece(struct copy *c, uint64_t at, size_t pages, struct error *err) {
        int r = fd_pread_all(c->pagemap, c->entries, pages * sizeof c->entries[0], (c->start + at) / PAGE * sizeof c->entries[0]);
        if (r < 0)
                return error_errno(err, r, "cannot see which pages are the VM's own");
        for (size_t i = 0; i < pages;) {
                size_t n = 0;
                while (i + n < pages && is_private(c->entries[i + n]))
                        n++;
                if (n == 0) {
                        i++;
                        continue;
                }
                uint64_t from = at + i * PAGE;
                r = fd_pread_all(c->mem, c->data, n * PAGE, c->start + from);
                if (r < 0)
                        return error_errno(err, r, "cannot read the VM's memory");
                r = fd_pwrite_all(c->out, c->data, n * PAGE, from);
                if (r < 0)
                        return error_errno(err, r, "cannot write the VM's memory");
                if (c->runs)
                        keep_run(c->runs, c->start + from, from, n * PAGE);
                c->done.private_bytes += n * PAGE;
                c->done.written_bytes += n * PAGE;
                i += n;
        }
        return 0;
}

static int copy_private(int proc, uint64_t start, uint64_t bytes, int out, struct image_runs *runs, struct image_memory *ret,
                        struct error *err) {
        _cleanup_fd_ int mem = openat(proc, "mem", O_RDONLY | O_CLOEXEC);
        _cleanup_fd_ int pagemap = openat(proc, "pagemap", O_RDONLY | O_CLOEXEC);
        if (mem < 0 || pagemap < 0)
                return error_errno(err, errno, "cannot open the VM's memory");
        _cleanup_free_ struct copy *c = malloc(sizeof *c);
        if (!c)
                return error_set(err, -ENOMEM, "out of memory");
        c->runs = runs;
        c->mem = mem;
        c->pagemap = pagemap;
        c->out = out;
        c->start = start;
        c->done = (struct image_memory){ 0 };
        for (uint64_t at = 0; at < bytes; at += PIECE) {
                uint64_t left = bytes - at;
                int r = copy_piece(c, at, (size_t) (left < PIECE ? left : PIECE) / PAGE, err);
                if (r < 0)
                        return r;
        }
        *ret = c->done;
        return 0;
}

int image_memory_save(pid_t pid, uint64_t bytes, int dir, struct image_memory *ret, struct error *err) {
        return image_memory_save_runs(pid, bytes, dir, NULL, ret, err);
}

int image_memory_save_runs(pid_t pid, uint64_t bytes, int dir, struct image_runs *runs, struct image_memory *ret, struct error *err) {
        struct mapping m = { .file = -EBADF };
        _cleanup_fd_ int out = -EBADF, proc = -EBADF;
        uint64_t size;
        int r = find_memory(pid, bytes, &proc, &m, err);
        if (r < 0)
                return r;
        _cleanup_fd_ int file = m.file;
        if (runs && fstat(file, &runs->base) < 0)
                return error_errno(err, errno, "cannot look at the VM's memory");
        r = disk_clone(file, dir, "mem", 0, 0, &out, &size, err);
        return r < 0 ? r : copy_private(proc, m.start, bytes, out, runs, ret, err);
}

/* ---- all of it ------------------------------------------------------------------------------ */

static bool is_zero(const uint8_t *d, size_t n) {
        return d[0] == 0 && memcmp(d, d + 1, n - 1) == 0;
}

/* What is not zero of one piece, in as few writings as that makes. */
static int write_blocks(int out, const uint8_t *d, size_t n, uint64_t at) {
        int r = 0;
        for (size_t i = 0, end; i < n && r >= 0; i = end) {
                bool zero = is_zero(d + i, n - i < BLOCK ? n - i : BLOCK);
                for (end = i; end < n && is_zero(d + end, n - end < BLOCK ? n - end : BLOCK) == zero;)
                        end += n - end < BLOCK ? n - end : BLOCK;
                if (!zero)
                        r = fd_pwrite_all(out, d + i, end - i, at + i);
        }
        return r;
}

int image_memory_save_whole(pid_t pid, uint64_t bytes, int dir, struct error *err) {
        struct mapping m = { .file = -EBADF };
        _cleanup_fd_ int proc = -EBADF;
        int r = find_memory(pid, bytes, &proc, &m, err);
        if (r < 0)
                return r;
        (void) fd_close(m.file);
        _cleanup_fd_ int mem = openat(proc, "mem", O_RDONLY | O_CLOEXEC);
        _cleanup_fd_ int out = openat(dir, "mem", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        _cleanup_free_ uint8_t *piece = malloc(PIECE);
        if (mem < 0 || out < 0 || !piece)
                return error_errno(err, piece ? errno : ENOMEM, "cannot copy the VM's memory");
        if (ftruncate(out, (off_t) bytes) < 0)
                return error_errno(err, errno, "cannot write the VM's memory");
        for (uint64_t at = 0; at < bytes; at += PIECE) {
                size_t n = bytes - at < PIECE ? (size_t) (bytes - at) : PIECE;
                r = fd_pread_all(mem, piece, n, m.start + at);
                if (r < 0)
                        return error_errno(err, r, "cannot read the VM's memory");
                r = write_blocks(out, piece, n, at);
                if (r < 0)
                        return error_errno(err, r, "cannot write the VM's memory");
        }
        return 0;
}
