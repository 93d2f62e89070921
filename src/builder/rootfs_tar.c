/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Unpacks a root filesystem from a tar archive. The archive is hostile: a child that has the new root filesystem as
 * its root directory does the work, with limits on what it may write, so that neither "..", nor absolute names,
 * nor links lead anywhere else. Device nodes are left out, as the guest's kernel makes its own.
 */
#include "rootfs.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "child.h"

#define TAR_ENTRIES_MAX 4000000u
#define TAR_PATH_MAX 4096
#define TAR_BLOCK (256 * 1024)
#define TAR_ID_MAX 65535

/* Written by the child, read by the parent. */
struct tar_result {
        struct error err;
        char code[32];
        uint64_t entries, bytes, skipped;
        uint64_t newest;
        bool image; /* a container image was met instead of a root filesystem */
};

struct tar_job {
        struct tar_result *res;
        uint64_t bytes_max;
        uint64_t now;
        uint64_t size; /* of the archive, 0 when it is a pipe: for the percentage */
};

static int fail(struct tar_job *j, const char *code, const char *fmt, const char *what) {
        (void) str_copy(j->res->code, sizeof j->res->code, code);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        (void) error_set(&j->res->err, -EBADMSG, fmt, what);
#pragma GCC diagnostic pop
        return 1;
}

/* The name below the root: without leading "./" and "/". NULL when it leaves the root. */
static const char *clean_path(const char *path) {
        while (path[0] == '/' || (path[0] == '.' && (path[1] == '/' || path[1] == '\0')))
                path++;
        for (const char *p = path; *p;) {
                size_t n = strcspn(p, "/");
                if (n == 2 && p[0] == '.' && p[1] == '.')
                        return NULL;
                p += n + (p[n] == '/');
        }
        return path;
}

/* What must not be unpacked though it is legal in a tar. */
static bool left_out(const struct archive_entry *e_const, const char *path) {
        struct archive_entry *e = NULL;
        memcpy(&e, &e_const, sizeof e); /* libarchive's getters are not const */
        mode_t type = archive_entry_filetype(e);

        if (type == AE_IFCHR || type == AE_IFBLK)
                return true;
        return str_has_prefix(path, "dev/") || str_has_prefix(path, "proc/") || str_has_prefix(path, "sys/");
}

static bool is_image_part(const char *path) {
        return str_eq(path, "oci-layout") || str_eq(path, "manifest.json") || str_eq(path, "repositories");
}

static int check_entry(struct tar_job *j, struct archive_entry *e, const char **ret_path) {
        const char *raw = archive_entry_pathname(e);

        if (++j->res->entries > TAR_ENTRIES_MAX)
                return fail(j, "archive_invalid", "the archive has more than 4000000 entries%s", "");
        if (!raw || strlen(raw) >= TAR_PATH_MAX)
                return fail(j, "archive_invalid", "the archive has a name that is too long or not text%s", "");
        const char *path = clean_path(raw);
        if (!path)
                return fail(j, "archive_invalid", "the archive leaves its root with \"%.300s\"", raw);
        const char *link = archive_entry_hardlink(e);
        if (link && !clean_path(link))
                return fail(j, "archive_invalid", "the archive leaves its root with a link to \"%.300s\"", link);
        if (archive_entry_uid(e) < 0 || archive_entry_uid(e) > TAR_ID_MAX || archive_entry_gid(e) < 0 ||
            archive_entry_gid(e) > TAR_ID_MAX)
                return fail(j, "archive_invalid", "the owner of \"%.300s\" is outside 0 to 65535", raw);
        if (is_image_part(path))
                j->res->image = true;
        *ret_path = path;
        return 0;
}

static int copy_data(struct tar_job *j, struct archive *in, struct archive *out, const char *path) {
        for (;;) {
                const void *block;
                size_t n;
                la_int64_t off;
                int r = archive_read_data_block(in, &block, &n, &off);
                if (r == ARCHIVE_EOF)
                        return 0;
                if (r < ARCHIVE_WARN)
                        return fail(j, "archive_invalid", "the archive is damaged: %s", archive_error_string(in));
                j->res->bytes += n;
                if (j->res->bytes > j->bytes_max)
                        return fail(j, "disk_too_small", "the archive holds more than the disk: ask for a larger disk%s", "");
                if (archive_write_data_block(out, block, n, off) < ARCHIVE_WARN) {
                        bool full = archive_errno(out) == ENOSPC || archive_errno(out) == EDQUOT;
                        return fail(j, full ? "no_space" : "build_failed", "cannot write \"%.300s\"", path);
                }
        }
}

static int unpack_entry(struct tar_job *j, struct archive *in, struct archive *out, struct archive_entry *e) {
        const char *path = NULL, *link;

        int r = check_entry(j, e, &path);
        if (r != 0)
                return r;
        if (!path[0])
                return 0; /* the root itself */
        if (left_out(e, path)) {
                j->res->skipped++;
                return 0;
        }
        time_t mtime = archive_entry_mtime(e);
        if (mtime > 0 && (uint64_t) mtime < j->now && (uint64_t) mtime > j->res->newest)
                j->res->newest = (uint64_t) mtime;
        /* The string belongs to the entry that it replaces. */
        char *own = strdup(path);
        link = archive_entry_hardlink(e);
        char *own_link = link ? strdup(clean_path(link)) : NULL;
        if (!own || (link && !own_link)) {
                free(own);
                return fail(j, "build_failed", "out of memory%s", "");
        }
        archive_entry_set_pathname(e, own);
        if (own_link)
                archive_entry_set_hardlink(e, own_link);
        if (archive_write_header(out, e) < ARCHIVE_WARN)
                r = fail(j, archive_errno(out) == ENOSPC ? "no_space" : "archive_invalid", "cannot unpack: %s",
                         archive_error_string(out));
        if (r == 0 && archive_entry_size_is_set(e) && archive_entry_size(e) > 0)
                r = copy_data(j, in, out, own);
        if (r == 0 && archive_write_finish_entry(out) < ARCHIVE_WARN)
                r = fail(j, "build_failed", "cannot unpack: %s", archive_error_string(out));
        free(own);
        free(own_link);
        return r;
}

static void report(const struct tar_job *j, struct archive *in) {
        /* Read by on_line() of the parent. */
        if (j->size > 0)
                dprintf(STDERR_FILENO, "at %llu\n",
                        (unsigned long long) ((uint64_t) archive_filter_bytes(in, -1) * 100 / j->size));
}

static int unpack_all(struct tar_job *j, struct archive *in, struct archive *out) {
        struct archive_entry *e = NULL;

        for (;;) {
                int r = archive_read_next_header(in, &e);
                if (r == ARCHIVE_EOF)
                        return 0;
                if (r < ARCHIVE_WARN)
                        return fail(j, "archive_invalid", "not a tar archive, or a damaged one: %s", archive_error_string(in));
                r = unpack_entry(j, in, out, e);
                if (r != 0)
                        return r;
                if (j->res->entries % 512 == 0)
                        report(j, in);
        }
}

/* The child: its root is the new root filesystem, its stdin the archive. */
static int unpack(void *arg) {
        struct tar_job *j = arg;
        struct archive *in = archive_read_new(), *out = archive_write_disk_new();
        int r = 1;

        umask(0);
        if (!in || !out)
                return fail(j, "build_failed", "out of memory%s", "");
        /* Only methods that libarchive has inside: it would run a program for the others. */
        archive_read_support_filter_gzip(in);
        archive_read_support_filter_xz(in);
        archive_read_support_filter_bzip2(in);
        archive_read_support_filter_zstd(in);
        archive_read_support_filter_lz4(in);
        archive_read_support_format_tar(in);
        archive_write_disk_set_options(out, ARCHIVE_EXTRACT_OWNER | ARCHIVE_EXTRACT_PERM | ARCHIVE_EXTRACT_TIME |
                                                    ARCHIVE_EXTRACT_XATTR | ARCHIVE_EXTRACT_UNLINK |
                                                    ARCHIVE_EXTRACT_SPARSE | ARCHIVE_EXTRACT_SECURE_NODOTDOT |
                                                    ARCHIVE_EXTRACT_SECURE_NOABSOLUTEPATHS);
        /* Not SECURE_SYMLINKS: archives put files below links such as /lib, and here they all end inside. */
        if (archive_read_open_fd(in, STDIN_FILENO, TAR_BLOCK) != ARCHIVE_OK)
                (void) fail(j, "archive_invalid", "not a tar archive: %s", archive_error_string(in));
        else
                r = unpack_all(j, in, out);
        if (archive_write_free(out) < ARCHIVE_WARN && r == 0)
                r = fail(j, "build_failed", "cannot finish unpacking%s", "");
        archive_read_free(in);
        return r;
}

static void on_line(void *arg, const char *line) {
        struct build *b = arg;
        unsigned percent;

        if (sscanf(line, "at %u", &percent) == 1)
                build_progress(b, percent > 99 ? 99 : percent, "unpacking the archive");
}

static int tar_error(struct build *b, const struct tar_result *res, struct error *err) {
        static const char *const codes[] = { "archive_invalid", "disk_too_small", "no_space", "build_failed" };

        for (size_t i = 0; i < ARRAY_SIZE(codes); i++)
                if (str_eq(codes[i], res->code))
                        b->code = codes[i];
        if (err)
                *err = res->err;
        return res->err.code;
}

int rootfs_from_tar(struct build *b, struct error *err) {
        struct tar_result *res = mmap(NULL, sizeof *res, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        struct tar_job job = { .res = res, .bytes_max = b->disk_bytes, .now = (uint64_t) time(NULL) };
        struct child c = CHILD_INIT;
        struct stat st;
        int status = 0;

        build_step(b, STEP_ROOTFS, "unpacking the archive");
        if (res == MAP_FAILED)
                return error_set(err, -ENOMEM, "out of memory");
        if (fstat(b->tar_fd, &st) == 0 && S_ISREG(st.st_mode))
                job.size = (uint64_t) st.st_size;
        c.call = unpack;
        c.call_arg = &job;
        c.in_fd = b->tar_fd;
        c.root = b->rootfs;
        c.no_network = true;
        c.on_line = on_line;
        c.line_arg = b;
        int r = child_run_status(b, &c, &status, err);
        if (r == 0 && status != 0)
                r = res->err.code ? tar_error(b, res, err) : error_set(err, -EIO, "unpacking ended with status %d", status);
        if (r == 0 && res->entries == 0)
                r = build_error(b, "archive_invalid", err, -EBADMSG, "the archive is empty");
        build_logf(b, "%llu entries, %llu bytes, %llu left out\n", (unsigned long long) res->entries,
                   (unsigned long long) res->bytes, (unsigned long long) res->skipped);
        b->looks_like_image = res->image;
        if (res->newest > b->epoch)
                b->epoch = res->newest;
        (void) munmap(res, sizeof *res);
        return r;
}
