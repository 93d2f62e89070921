/* SPDX-License-Identifier: Apache-2.0 */

/*
 * VARIANT_FREEZE: a sandbox that was restored from a variant and parked becomes what sandboxes of it start from.
 *
 *   variants/<variant>/.new-frozen/   1 made   2 disk cloned   3 memory   4 process   5 durable
 *   variants/<variant>/frozen/        6 renamed
 *
 * The three belong together: the process remembers what it has told the guest of its memory and disk. Until the rename it
 * is nothing; another try removes it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "manifest/variant.h"
#include "rootd/commit.h"
#include "rootd/disk.h"
#include "rootd/image_memory.h"
#include "rootd/job.h"
#include "rootd/placement.h"
#include "rootd/process_image.h"
#include "rootd/server.h"

#define HIDDEN COMMIT_HIDDEN VARIANT_FROZEN

struct freeze {
        struct rootd *rootd;
        struct ticket ticket;
        char id[ID_SIZE], digest[DIGEST_LEN + 1], variant[VARIANT_NAME_MAX + 1];
        pid_t vm;
        uint64_t memory_bytes;
};

/* ---- in the child --------------------------------------------------------------------------- */

static int make_folder(int variant, int *ret, struct error *err) {
        int r = fd_remove_tree_at(variant, HIDDEN, err);
        if (r < 0)
                return r;
        if (mkdirat(variant, HIDDEN, 0700) < 0)
                return error_errno(err, errno, "cannot make a folder");
        r = fd_open_beneath(variant, HIDDEN, O_RDONLY | O_DIRECTORY, 0, err);
        if (r < 0)
                return r;
        *ret = r;
        return 0;
}

static int fill(struct rootd *r, const struct freeze *f, int dir, struct error *err) {
        char path[ID_SIZE + 16];
        struct stat st;
        uint64_t bytes, written;
        _cleanup_fd_ int copy = -EBADF;
        (void) snprintf(path, sizeof path, "%s/disk.img", f->id);
        _cleanup_fd_ int disk = fd_open_beneath(r->dirs.sandboxes, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, err);
        if (disk < 0)
                return disk;
        if (fstat(disk, &st) < 0)
                return error_errno(err, errno, "cannot stat the disk");
        int res = disk_clone(disk, dir, "disk.img", 0, 0, &copy, &bytes, err);
        fault_point("freeze:2");
        if (res == 0)
                res = image_memory_save_whole(f->vm, f->memory_bytes, dir, err);
        fault_point("freeze:3");
        if (res == 0)
                res = process_image_save(f->vm, f->memory_bytes, &st, NULL, r->process_host, dir, &written, err);
        fault_point("freeze:4");
        static const char *const names[] = { "disk.img", "mem", PROCESS_IMAGE_NAME };
        for (size_t i = 0; res == 0 && i < ARRAY_SIZE(names); i++) {
                _cleanup_fd_ int fd = fd_open_beneath(dir, names[i], O_RDONLY, 0, err);
                if (fd < 0)
                        return fd;
                if (fchmod(fd, 0400) < 0 || fsync(fd) < 0)
                        res = error_errno(err, errno, "cannot make \"%s\" durable", names[i]);
        }
        if (res == 0 && fsync(dir) < 0)
                res = error_errno(err, errno, "cannot make the frozen variant durable");
        fault_point("freeze:5");
        return res;
}

static int work(struct rootd *r, void *arg, struct error *err) {
        const struct freeze *f = arg;
        char path[DIGEST_LEN + VARIANT_NAME_MAX + 16];
        struct stat st;
        (void) snprintf(path, sizeof path, "%s/variants/%s", f->digest, f->variant);
        _cleanup_fd_ int variant = fd_open_beneath(r->dirs.templates, path, O_RDONLY | O_DIRECTORY, 0, err), dir = -EBADF;
        if (variant < 0)
                return variant;
        if (fstatat(variant, VARIANT_FROZEN, &st, AT_SYMLINK_NOFOLLOW) == 0)
                return 0;
        int res = make_folder(variant, &dir, err);
        fault_point("freeze:1");
        if (res == 0)
                res = fill(r, f, dir, err);
        if (res == 0 && renameat2(variant, HIDDEN, variant, VARIANT_FROZEN, RENAME_NOREPLACE) < 0)
                res = error_errno(err, errno, "cannot name the frozen variant");
        if (res == 0 && fsync(variant) < 0)
                res = error_errno(err, errno, "cannot make the frozen variant durable");
        fault_point("freeze:6");
        if (res < 0)
                (void) fd_remove_tree_at(variant, HIDDEN, NULL);
        return res;
}

/* ---- the request ---------------------------------------------------------------------------- */

static void on_done(void *arg, const struct error *e) {
        struct freeze *f = arg;
        struct placement *p = placement_find(f->rootd, f->id);
        if (p && p->imaging > 0)
                p->imaging--;
        ticket_end(f->rootd, &f->ticket, e);
        free(f);
}

static int check(const struct rootd *r, const struct ipc_variant_freeze *m, struct placement **ret, struct error *err) {
        char name[VARIANT_NAME_MAX + 1];
        if (!id_valid(m->id) || !digest_valid(m->digest))
                return error_set(err, -EINVAL, "\"%s\" or \"%s\" is not an id and a digest", m->id, m->digest);
        struct placement *p = placement_find(r, m->id);
        if (!p || p->rec.state != RECORD_LIVE || !proc_alive(&p->vm))
                return error_set(err, -ENOENT, "sandbox %s has no VM", m->id);
        if (!r->process_host[0] || !str_eq(p->rec.engine, "qemu-tcg"))
                return error_set(err, -EOPNOTSUPP, "no images are made of the processes of engine %s here", p->rec.engine);
        variant_name(p->rec.engine, p->rec.memory_mb, p->rec.cpus, name);
        if (!str_eq(p->rec.mode, "restore") || !str_eq(p->rec.digest, m->digest) || !str_eq(name, m->variant))
                return error_set(err, -EINVAL, "sandbox %s was not restored from variant \"%s\" of this template", m->id, m->variant);
        if (p->imaging)
                return error_set(err, -EBUSY, "an image of sandbox %s is being made", m->id);
        *ret = p;
        return 0;
}

void variant_freeze_handle(struct rootd *r, const struct ticket *t, const struct ipc_variant_freeze *m) {
        struct error e = ERROR_INIT;
        struct placement *p = NULL;
        if (check(r, m, &p, &e) < 0) {
                ticket_error(r, t, &e);
                return;
        }
        struct freeze *f = calloc(1, sizeof *f);
        if (f) {
                *f = (struct freeze){ .rootd = r, .ticket = *t, .vm = p->vm.pid, .memory_bytes = (uint64_t) p->rec.memory_mb << 20 };
                (void) str_copy(f->id, sizeof f->id, m->id);
                (void) str_copy(f->digest, sizeof f->digest, m->digest);
                (void) str_copy(f->variant, sizeof f->variant, m->variant);
        }
        if (!f || job_start(r, work, on_done, f, &e) < 0) {
                if (!f)
                        (void) error_set(&e, -ENOMEM, "out of memory");
                ticket_error(r, t, &e);
                free(f);
                return;
        }
        p->imaging++;
}
