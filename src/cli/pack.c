/* SPDX-License-Identifier: Apache-2.0 */
#include "pack.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli.h"
#include "mem.h"

#define PACK_READ (256u * 1024)
#define PACK_LINK_MAX (64u * 1024)

struct pack {
        struct archive *a;
        struct archive_entry_linkresolver *links; /* hard links inside what is packed */
        pack_sink sink;
        void *arg;
        bool stopped;
        uint64_t skipped;
        uint8_t data[PACK_READ];
};

static la_ssize_t on_write(struct archive *a, void *arg, const void *data, size_t n) {
        struct pack *p = arg;

        if (p->sink(p->arg, data, n) < 0) {
                p->stopped = true;
                archive_set_error(a, ECANCELED, "stopped");
                return -1;
        }
        return (la_ssize_t) n;
}

static int archive_failed(struct pack *p, const char *what, struct error *err) {
        if (p->stopped)
                return error_set(err, -ECANCELED, "stopped");
        return error_set(err, -EIO, "cannot pack \"%s\": %s", what, archive_error_string(p->a));
}

int pack_new(pack_sink sink, void *arg, struct pack **ret, struct error *err) {
        struct pack *p = mem_new(sizeof *p);

        p->sink = sink;
        p->arg = arg;
        p->a = archive_write_new();
        p->links = archive_entry_linkresolver_new();
        if (!p->a || !p->links || archive_write_set_format_pax(p->a) != ARCHIVE_OK ||
            archive_write_set_format_option(p->a, "pax", "hdrcharset", "BINARY") != ARCHIVE_OK ||
            archive_write_set_bytes_per_block(p->a, PACK_READ) != ARCHIVE_OK ||
            archive_write_set_bytes_in_last_block(p->a, 1) != ARCHIVE_OK ||
            archive_write_open(p->a, p, NULL, on_write, NULL) != ARCHIVE_OK) {
                pack_free(p);
                return error_set(err, -ENOMEM, "cannot make an archive");
        }
        archive_entry_linkresolver_set_strategy(p->links, archive_format(p->a));
        *ret = p;
        return 0;
}

/* The header has said how long the file is: that many bytes follow, whatever became of it. */
static int pack_data(struct pack *p, int fd, const char *what, int64_t size, struct error *err) {
        while (size > 0) {
                size_t want = size < (int64_t) sizeof p->data ? (size_t) size : sizeof p->data;
                ssize_t n = read(fd, p->data, want);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return error_errno(err, errno, "cannot read \"%s\"", what);
                if (n == 0)
                        return error_set(err, -EIO, "\"%s\" became shorter while it was read", what);
                if (archive_write_data(p->a, p->data, (size_t) n) != n)
                        return archive_failed(p, what, err);
                size -= n;
        }
        return 0;
}

static int write_entry(struct pack *p, struct archive_entry *e, const char *access, const char *what, struct error *err) {
        _cleanup_fd_ int fd = -EBADF;
        bool has_data = archive_entry_filetype(e) == AE_IFREG && !archive_entry_hardlink(e) && archive_entry_size(e) > 0;

        if (has_data) {
                fd = open(access, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
                if (fd < 0)
                        return error_errno(err, errno, "cannot open \"%s\"", what);
        }
        if (archive_write_header(p->a, e) < ARCHIVE_WARN)
                return archive_failed(p, what, err);
        return has_data ? pack_data(p, fd, what, archive_entry_size(e), err) : 0;
}

static int add_link_target(struct archive_entry *e, const char *access, const char *what, struct error *err) {
        _cleanup_free_ char *target = mem_new(PACK_LINK_MAX);

        ssize_t n = readlink(access, target, PACK_LINK_MAX - 1);
        if (n < 0)
                return error_errno(err, errno, "cannot read the link \"%s\"", what);
        archive_entry_copy_symlink(e, target);
        return 0;
}

static int add_one(struct pack *p, const char *access, const char *what, const char *as, const struct stat *st,
                   struct error *err) {
        struct archive_entry *e, *later = NULL;
        int r = 0;

        if (!S_ISREG(st->st_mode) && !S_ISDIR(st->st_mode) && !S_ISLNK(st->st_mode)) {
                cli_note("\"%s\" is left out: it is neither a file, a folder nor a link", what);
                p->skipped++;
                return 0;
        }
        e = archive_entry_new();
        if (!e)
                return error_set(err, -ENOMEM, "out of memory");
        archive_entry_copy_stat(e, st);
        archive_entry_copy_pathname(e, as);
        /* Who owns it in the sandbox is for --user to say. */
        archive_entry_set_uid(e, 0);
        archive_entry_set_gid(e, 0);
        if (!S_ISREG(st->st_mode))
                archive_entry_set_size(e, 0);
        if (S_ISLNK(st->st_mode))
                r = add_link_target(e, access, what, err);
        if (r == 0) {
                archive_entry_linkify(p->links, &e, &later);
                if (e)
                        r = write_entry(p, e, access, what, err);
        }
        archive_entry_free(e);
        archive_entry_free(later);
        return r;
}

static int add_found(struct pack *p, FTSENT *f, const char *root, const char *as, struct error *err) {
        const char *inside = f->fts_path + strlen(root);
        _cleanup_free_ char *name = NULL;

        while (*inside == '/')
                inside++;
        switch (f->fts_info) {
        case FTS_DNR:
        case FTS_ERR:
        case FTS_NS:
                return error_errno(err, f->fts_errno, "cannot read \"%s\"", f->fts_path);
        case FTS_DC:
                return error_set(err, -ELOOP, "\"%s\" contains itself", f->fts_path);
        case FTS_DP:
                return 0;
        default:
                break;
        }
        if (!*inside && !*as)
                name = mem_dup("./");
        else
                name = mem_printf("%s%s%s", as, *as && *inside ? "/" : "", inside);
        return add_one(p, f->fts_accpath, f->fts_path, name, f->fts_statp, err);
}

static int by_name(const FTSENT **a, const FTSENT **b) {
        return strcmp((*a)->fts_name, (*b)->fts_name);
}

int pack_add(struct pack *p, const char *path, const char *as, struct error *err) {
        _cleanup_free_ char *root = mem_dup(path);
        char *roots[2] = { root, NULL };
        int r = 0;

        /* FTS_COMHFOW follows the named path alone. */
        FTS *fts = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW, by_name);
        if (!fts)
                return error_errno(err, errno, "cannot read \"%s\"", path);
        for (FTSENT *f; r == 0 && (errno = 0, f = fts_read(fts));)
                r = add_found(p, f, root, as, err);
        if (r == 0 && errno != 0)
                r = error_errno(err, errno, "cannot read \"%s\"", path);
        fts_close(fts);
        return r;
}

int pack_finish(struct pack *p, struct error *err) {
        return archive_write_close(p->a) == ARCHIVE_OK ? 0 : archive_failed(p, "the end", err);
}

uint64_t pack_skipped(const struct pack *p) {
        return p->skipped;
}

void pack_free(struct pack *p) {
        if (!p)
                return;
        p->sink = NULL;
        if (p->links)
                archive_entry_linkresolver_free(p->links);
        if (p->a) {
                /* Freeing would finish the archive, as if it were complete. */
                archive_write_fail(p->a);
                archive_write_free(p->a);
        }
        free(p);
}

uint64_t pack_size(const char *path) {
        _cleanup_free_ char *root = mem_dup(path);
        char *roots[2] = { root, NULL };
        uint64_t sum = 0;

        FTS *fts = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW, NULL);
        if (!fts)
                return 0;
        for (FTSENT *f; (f = fts_read(fts));)
                if (f->fts_info == FTS_F)
                        sum += (uint64_t) f->fts_statp->st_size;
        fts_close(fts);
        return sum;
}
