/* SPDX-License-Identifier: Apache-2.0 */
#include "pack.h"

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
#include "wire/tar.h"

#define PACK_READ (256u * 1024)

/* A file with several names: the second is packed as a hard link to the first. */
struct linked {
        dev_t dev;
        ino_t ino;
        char *name;
        struct linked *next;
};

#define PACK_BUCKETS 4096

struct pack {
        pack_sink sink;
        void *arg;
        uint64_t skipped;
        struct linked *links[PACK_BUCKETS];
        struct buf out;
        uint8_t data[PACK_READ];
};

static int flush(struct pack *p, struct error *err) {
        int r = p->out.len > 0 ? p->sink(p->arg, buf_data(&p->out), p->out.len) : 0;

        buf_clear(&p->out);
        return r < 0 ? error_set(err, -ECANCELED, "stopped") : 0;
}

int pack_new(pack_sink sink, void *arg, struct pack **ret, struct error *err) {
        struct pack *p = mem_new(sizeof *p);

        (void) err;
        p->sink = sink;
        p->arg = arg;
        *ret = p;
        return 0;
}

static const char *find_link(struct pack *p, const struct stat *st, const char *as) {
        struct linked **l = &p->links[st->st_ino % PACK_BUCKETS];

        if (!S_ISREG(st->st_mode) || st->st_nlink < 2)
                return NULL;
        for (; *l; l = &(*l)->next)
                if ((*l)->dev == st->st_dev && (*l)->ino == st->st_ino)
                        return (*l)->name;
        *l = mem_new(sizeof **l);
        (*l)->dev = st->st_dev;
        (*l)->ino = st->st_ino;
        (*l)->name = mem_dup(as);
        return NULL;
}

/* The header has said how long the file is: exactly that many bytes follow. */
static int pack_data(struct pack *p, int fd, const char *what, uint64_t size, struct error *err) {
        uint64_t left = size;

        while (left > 0) {
                ssize_t n = read(fd, p->data, left < sizeof p->data ? (size_t) left : sizeof p->data);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return error_errno(err, errno, "cannot read \"%s\"", what);
                if (n == 0)
                        return error_set(err, -EIO, "\"%s\" became shorter while it was read", what);
                if (p->sink(p->arg, p->data, (size_t) n) < 0)
                        return error_set(err, -ECANCELED, "stopped");
                left -= (uint64_t) n;
        }
        return tar_write_padding(&p->out, size);
}

static int write_entry(struct pack *p, const struct tar_entry *e, const char *access, const char *what,
                       struct error *err) {
        _cleanup_fd_ int fd = -EBADF;

        if (e->size > 0) {
                fd = open(access, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
                if (fd < 0)
                        return error_errno(err, errno, "cannot open \"%s\"", what);
        }
        int r = tar_write_entry(&p->out, e);
        if (r < 0)
                return error_set(err, r, "\"%s\" does not fit into an archive: its name or link is too long",
                                 what);
        if (e->size > 0 || p->out.len > PACK_READ)
                r = flush(p, err);
        return r < 0 || e->size == 0 ? r : pack_data(p, fd, what, e->size, err);
}

static int add_one(struct pack *p, const char *access, const char *what, const char *as,
                   const struct stat *st, struct error *err) {
        char target[TAR_NAME_MAX + 1];
        const char *hard = find_link(p, st, as);
        struct tar_entry e = {
                .name = as,
                .link = hard ? hard : "",
                .mode = st->st_mode & 0777, /* who owns it in the sandbox is for --user to say */
                .mtime_s = st->st_mtim.tv_sec,
                .mtime_ns = (uint32_t) st->st_mtim.tv_nsec,
        };

        if (hard) {
                e.type = TAR_HARDLINK;
        } else if (S_ISREG(st->st_mode)) {
                e.type = TAR_FILE;
                e.size = (uint64_t) st->st_size;
        } else if (S_ISDIR(st->st_mode)) {
                e.type = TAR_DIR;
        } else if (S_ISLNK(st->st_mode)) {
                ssize_t n = readlink(access, target, sizeof target);
                if (n < 0)
                        return error_errno(err, errno, "cannot read the link \"%s\"", what);
                if ((size_t) n == sizeof target)
                        return error_set(err, -ENAMETOOLONG, "the link \"%s\" is too long", what);
                target[n] = '\0';
                e.type = TAR_SYMLINK;
                e.link = target;
        } else {
                cli_note("\"%s\" is left out: it is neither a file, a folder nor a link", what);
                p->skipped++;
                return 0;
        }
        return write_entry(p, &e, access, what, err);
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
        if (tar_write_end(&p->out) < 0)
                return error_set(err, -ENOMEM, "out of memory");
        return flush(p, err);
}

uint64_t pack_skipped(const struct pack *p) {
        return p->skipped;
}

void pack_free(struct pack *p) {
        if (!p)
                return;
        for (size_t i = 0; i < PACK_BUCKETS; i++) {
                while (p->links[i]) {
                        struct linked *l = p->links[i];
                        p->links[i] = l->next;
                        free(l->name);
                        free(l);
                }
        }
        buf_done(&p->out);
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
