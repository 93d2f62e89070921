/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/commit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "manifest/manifest.h"
#include "rootd/build.h"
#include "rootd/disk.h"
#include "rootd/egress.h"
#include "rootd/job.h"
#include "rootd/placement.h"
#include "rootd/pool.h"
#include "rootd/publish.h"
#include "rootd/reap.h"
#include "rootd/server.h"
#include "rootd/source.h"

/* kernel and initrd are opened by the VM itself, through /proc/self/fd; manifests by cspaced. */
static const struct file {
        const char *name;
        mode_t mode;
} template_files[] = {
        { MANIFEST_NAME, 0444 }, { "manifest.json", 0444 }, { "kernel", 0444 },
        { "initrd", 0444 },      { "disk.img", 0400 },
}, variant_files[] = { { "mem", 0400 }, { "state", 0400 }, { "disk.img", 0400 } },
  memory_files[] = { { "mem", 0400 }, { "state", 0400 } };

struct commit {
        struct rootd *rootd;
        struct ticket ticket;
        char id[ID_SIZE];
        char digest[DIGEST_LEN + 1];
        struct record rec; /* VARIANT_COMMIT; TEMPLATE_COMMIT of a published memory: engine and size */
        struct commit *next; /* of rootd->template_commits */
};

/* ---- in the child --------------------------------------------------------------------------- */

static int take_file(int from, const struct file *f, struct error *err) {
        struct stat st;
        _cleanup_fd_ int fd = fd_open_beneath(from, f->name, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, err);
        if (fd < 0)
                return fd;
        if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_nlink != 1)
                return error_set(err, -EBADMSG, "\"%s\" is not a regular file with one name", f->name);
        if (fchown(fd, 0, 0) < 0 || fchmod(fd, f->mode) < 0)
                return error_errno(err, errno, "cannot take \"%s\"", f->name);
        if (fsync(fd) < 0)
                return error_errno(err, errno, "cannot sync \"%s\"", f->name);
        return 0;
}

static int move_files(int from, int to, const struct file *files, size_t n, struct error *err) {
        for (size_t i = 0; i < n; i++)
                if (renameat(from, files[i].name, to, files[i].name) < 0)
                        return error_errno(err, errno, "cannot move \"%s\"", files[i].name);
        return 0;
}

static int make_dir(int at, const char *name, gid_t gid, int *ret, struct error *err) {
        int r = fd_remove_tree_at(at, name, err);
        if (r < 0)
                return r;
        if (mkdirat(at, name, 0700) < 0)
                return error_errno(err, errno, "cannot create folder \"%s\"", name);
        _cleanup_fd_ int fd = fd_open_beneath(at, name, O_RDONLY | O_DIRECTORY, 0, err);
        if (fd < 0)
                return fd;
        if (fchown(fd, 0, gid) < 0 || fchmod(fd, 0750) < 0)
                return error_errno(err, errno, "cannot set the mode of \"%s\"", name);
        *ret = fd_steal(&fd);
        return 0;
}

/* hidden -> name, durably. Somebody was first: theirs is as good, ours goes. */
static int publish(int at, const char *hidden, int hidden_fd, const char *name, struct error *err) {
        if (fsync(hidden_fd) < 0)
                return error_errno(err, errno, "cannot sync \"%s\"", hidden);
        if (renameat2(at, hidden, at, name, RENAME_NOREPLACE) < 0) {
                if (errno != EEXIST)
                        return error_errno(err, errno, "cannot rename to \"%s\"", name);
                return fd_remove_tree_at(at, hidden, err);
        }
        return fsync(at) < 0 ? error_errno(err, errno, "cannot sync the folder of \"%s\"", name) : 0;
}

static int write_variant_json(const struct commit *c, int to, struct error *err) {
        char text[256];
        int n = snprintf(text, sizeof text,
                         "{\"format\":1,\"engine\":\"%s\",\"memoryMb\":%u,\"cpus\":%u,\"diskBytes\":%llu}\n",
                         c->rec.engine, c->rec.memory_mb, c->rec.cpus,
                         (unsigned long long) c->rec.disk_bytes);
        return fd_replace_file_at(to, "variant.json", text, (size_t) n, 0444, err);
}

/* The memory that was published with this disk: the one variant there will be. */
static int take_memory(const struct commit *c, int out, int template, int variants, struct error *err) {
        char name[VARIANT_NAME_MAX + 1];
        struct commit own = *c;
        _cleanup_fd_ int to = -EBADF, copy = -EBADF;
        variant_name(c->rec.engine, c->rec.memory_mb, c->rec.cpus, name);
        int r = make_dir(variants, name, c->rootd->opt.gid, &to, err);
        if (r == 0)
                r = move_files(out, to, memory_files, ARRAY_SIZE(memory_files), err);
        _cleanup_fd_ int disk = r == 0 ? fd_open_beneath(template, "disk.img", O_RDONLY, 0, err) : r;
        if (disk < 0)
                return disk;
        r = disk_clone(disk, to, "disk.img", 0, 0, &copy, &own.rec.disk_bytes, err);
        if (r == 0 && (fchmod(copy, 0400) < 0 || fsync(copy) < 0))
                r = error_errno(err, errno, "cannot sync the disk");
        if (r == 0)
                r = write_variant_json(&own, to, err);
        if (r == 0 && (fsync(to) < 0 || fsync(variants) < 0))
                r = error_errno(err, errno, "cannot sync the variant");
        return r;
}

/* A build has no say in what its sandboxes' memory is. */
static int memory_expected(const struct commit *c, int out, struct error *err) {
        struct stat st;
        bool has = false;
        for (size_t i = 0; i < ARRAY_SIZE(memory_files); i++)
                has |= fstatat(out, memory_files[i].name, &st, AT_SYMLINK_NOFOLLOW) == 0;
        if (has && !c->rec.engine[0])
                return error_set(err, -EBADMSG, "the build has a memory, which builds have not");
        for (size_t i = 0; c->rec.engine[0] && i < ARRAY_SIZE(memory_files); i++) {
                int r = take_file(out, &memory_files[i], err);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int take_template(const struct commit *c, int templates, const char *hidden, struct error *err) {
        char path[ID_SIZE + 8];
        (void) snprintf(path, sizeof path, "%s/out", c->id);
        _cleanup_fd_ int out = fd_open_beneath(c->rootd->dirs.builds, path, O_RDONLY | O_DIRECTORY, 0, err);
        if (out < 0)
                return out;
        /* No process of the build lives any more; from here on its uids own nothing of this either. */
        if (fchown(out, 0, 0) < 0 || fchmod(out, 0700) < 0)
                return error_errno(err, errno, "cannot take the build's folder");
        for (size_t i = 0; i < ARRAY_SIZE(template_files); i++) {
                int r = take_file(out, &template_files[i], err);
                if (r < 0)
                        return r;
        }
        int r = memory_expected(c, out, err);
        if (r < 0)
                return r;
        fault_point("template:1");
        r = manifest_check(out, c->digest, err);
        if (r < 0)
                return r;
        _cleanup_fd_ int to = -EBADF, variants = -EBADF;
        r = make_dir(templates, hidden, c->rootd->opt.gid, &to, err);
        fault_point("template:2");
        if (r == 0)
                r = make_dir(to, "variants", c->rootd->opt.gid, &variants, err);
        if (r == 0)
                r = move_files(out, to, template_files, ARRAY_SIZE(template_files), err);
        if (r == 0 && c->rec.engine[0])
                r = take_memory(c, out, to, variants, err);
        fault_point("template:3");
        return r < 0 ? r : publish(templates, hidden, to, c->digest, err);
}

static int template_work(struct rootd *r, void *arg, struct error *err) {
        const struct commit *c = arg;
        char hidden[ID_SIZE + 8];
        (void) snprintf(hidden, sizeof hidden, COMMIT_HIDDEN "%s", c->id);
        int res = take_template(c, r->dirs.templates, hidden, err);
        if (res < 0)
                (void) fd_remove_tree_at(r->dirs.templates, hidden, NULL);
        return res;
}

static int take_variant(const struct commit *c, int variants, const char *hidden, struct error *err) {
        char name[VARIANT_NAME_MAX + 1];
        variant_name(c->rec.engine, c->rec.memory_mb, c->rec.cpus, name);
        _cleanup_fd_ int from =
                fd_open_beneath(c->rootd->dirs.sandboxes, c->id, O_RDONLY | O_DIRECTORY, 0, err);
        if (from < 0)
                return from;
        int r = 0;
        for (size_t i = 0; i < ARRAY_SIZE(variant_files) && r == 0; i++)
                r = take_file(from, &variant_files[i], err);
        fault_point("variant:1");
        _cleanup_fd_ int to = -EBADF;
        if (r == 0)
                r = make_dir(variants, hidden, c->rootd->opt.gid, &to, err);
        if (r == 0)
                r = move_files(from, to, variant_files, ARRAY_SIZE(variant_files), err);
        fault_point("variant:2");
        if (r == 0)
                r = write_variant_json(c, to, err);
        return r < 0 ? r : publish(variants, hidden, to, name, err);
}

/* Snapshots of the same size for an earlier QEMU or command line: no new VM can load them, and those
 * that run hold their files open. */
static void drop_outdated(const struct commit *c, int variants, const char *name) {
        char prefix[VARIANT_NAME_MAX + 1];
        (void) snprintf(prefix, sizeof prefix, "%s-%um-%uc", c->rec.engine, c->rec.memory_mb, c->rec.cpus);
        size_t n = strlen(prefix);
        int fd = openat(variants, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
        if (!d) {
                fd_close(fd);
                return;
        }
        for (struct dirent *e; (e = readdir(d));)
                if (str_has_prefix(e->d_name, prefix) && (e->d_name[n] == '-' || !e->d_name[n]) &&
                    !str_eq(e->d_name, name))
                        (void) fd_remove_tree_at(variants, e->d_name, NULL);
        (void) closedir(d);
}

static int variant_work(struct rootd *r, void *arg, struct error *err) {
        const struct commit *c = arg;
        char hidden[ID_SIZE + 8], path[DIGEST_LEN + 16], name[VARIANT_NAME_MAX + 1];
        struct stat st;
        (void) snprintf(path, sizeof path, "%s/variants", c->digest);
        (void) snprintf(hidden, sizeof hidden, COMMIT_HIDDEN "%s", c->id);
        _cleanup_fd_ int variants = fd_open_beneath(r->dirs.templates, path, O_RDONLY | O_DIRECTORY, 0, err);
        if (variants < 0)
                return variants == -ENOENT ? error_set(err, -ENOENT, "there is no template %.12s", c->digest)
                                           : variants;
        variant_name(c->rec.engine, c->rec.memory_mb, c->rec.cpus, name);
        if (fstatat(variants, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
                return 0;
        int res = take_variant(c, variants, hidden, err);
        if (res < 0)
                (void) fd_remove_tree_at(variants, hidden, NULL);
        else
                drop_outdated(c, variants, name);
        return res;
}

/* ---- requests ------------------------------------------------------------------------------- */

static struct commit *commit_new(struct rootd *r, const struct ticket *t, const char *id,
                                 const char *digest) {
        struct commit *c = calloc(1, sizeof *c);
        if (c) {
                c->rootd = r;
                c->ticket = *t;
                (void) str_copy(c->id, sizeof c->id, id);
                (void) str_copy(c->digest, sizeof c->digest, digest);
        }
        return c;
}

static void answer(void *arg, const struct error *e) {
        struct commit *c = arg;
        ticket_end(c->rootd, &c->ticket, e);
        free(c);
}

/* A job that died could not clean up. */
static void on_template_done(void *arg, const struct error *e) {
        struct commit *c = arg;
        char hidden[ID_SIZE + 8];
        (void) snprintf(hidden, sizeof hidden, COMMIT_HIDDEN "%s", c->id);
        if (e)
                (void) fd_remove_tree_at(c->rootd->dirs.templates, hidden, NULL);
        for (struct commit **at = &c->rootd->template_commits; *at; at = &(*at)->next)
                if (*at == c) {
                        *at = c->next;
                        break;
                }
        answer(c, e);
}

static bool template_committing(const struct rootd *r, const char *digest) {
        for (const struct commit *c = r->template_commits; c; c = c->next)
                if (str_eq(c->digest, digest))
                        return true;
        return false;
}

static bool template_there(const struct rootd *r, const char *digest) {
        struct stat st;
        return fstatat(r->dirs.templates, digest, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

void template_commit_handle(struct rootd *r, const struct ticket *t, const struct ipc_template_commit *m) {
        struct error e = ERROR_INIT;
        if (!id_valid(m->id) || !digest_valid(m->digest))
                (void) error_set(&e, -EINVAL, "\"%s\" or \"%s\" is not an id and a digest", m->id, m->digest);
        else if (m->engine[0] && strspn(m->engine, "abcdefghijklmnopqrstuvwxyz-") != strlen(m->engine))
                (void) error_set(&e, -EINVAL, "\"%s\" is not an engine", m->engine);
        else if (build_running(r, m->id) || publish_running(r, m->id))
                (void) error_set(&e, -EBUSY, "build %s still runs", m->id);
        if (e.code < 0) {
                ticket_error(r, t, &e);
                return;
        }
        if (template_there(r, m->digest)) {
                ticket_ok(r, t);
                return;
        }
        struct commit *c = commit_new(r, t, m->id, m->digest);
        if (c && m->engine[0]) {
                (void) str_copy(c->rec.engine, sizeof c->rec.engine, m->engine);
                c->rec.memory_mb = m->memory_mb;
                c->rec.cpus = m->cpus;
        }
        if (!c || job_start(r, template_work, on_template_done, c, &e) < 0) {
                if (!c)
                        (void) error_set(&e, -ENOMEM, "out of memory");
                ticket_error(r, t, &e);
                free(c);
                return;
        }
        c->next = r->template_commits;
        r->template_commits = c;
}

static int remove_work(struct rootd *r, void *arg, struct error *err) {
        const struct commit *c = arg;
        char hidden[DIGEST_LEN + 8];
        (void) snprintf(hidden, sizeof hidden, COMMIT_HIDDEN "%s", c->digest);
        return fd_remove_tree_at(r->dirs.templates, hidden, err);
}

void template_remove_handle(struct rootd *r, const struct ticket *t, const struct ipc_template_remove *m) {
        struct error e = ERROR_INIT;
        char hidden[DIGEST_LEN + 8];
        if (!digest_valid(m->digest)) {
                (void) error_set(&e, -EINVAL, "\"%s\" is not a template digest", m->digest);
                ticket_error(r, t, &e);
                return;
        }
        if (template_committing(r, m->digest)) { /* for a cspaced that has ended: it would be there after all, and nobody's */
                (void) error_set(&e, -EBUSY, "template %.12s is just being stored", m->digest);
                ticket_error(r, t, &e);
                return;
        }
        /* Gone at once for everybody who looks; its blocks follow. Live sandboxes hold what they
         * need open. */
        (void) snprintf(hidden, sizeof hidden, COMMIT_HIDDEN "%s", m->digest);
        (void) fd_remove_tree_at(r->dirs.templates, hidden, NULL);
        if (renameat(r->dirs.templates, m->digest, r->dirs.templates, hidden) < 0 && errno != ENOENT) {
                (void) error_errno(&e, errno, "cannot remove template %.12s", m->digest);
                ticket_error(r, t, &e);
                return;
        }
        struct commit *c = commit_new(r, t, "", m->digest);
        if (!c || job_start(r, remove_work, answer, c, &e) < 0) {
                if (!c)
                        (void) error_set(&e, -ENOMEM, "out of memory");
                ticket_error(r, t, &e);
                free(c);
        }
}

static void on_variant_done(void *arg, const struct error *e) {
        struct commit *c = arg;
        struct placement *p = placement_find(c->rootd, c->id);
        if (p)
                p->committing = false;
        answer(c, e);
}

/* Every process that had the files open for writing is gone: only now may they become a template's. */
static void on_variant_reaped(void *arg, const struct error *failed) {
        struct commit *c = arg;
        struct error e = ERROR_INIT;
        if (failed)
                e = *failed;
        else if (job_start(c->rootd, variant_work, on_variant_done, c, &e) == 0)
                return;
        on_variant_done(c, &e);
}

static int check_variant(const struct rootd *r, const struct ipc_variant_commit *m, struct placement **ret,
                         struct error *err) {
        char name[VARIANT_NAME_MAX + 1];
        if (!id_valid(m->id) || !digest_valid(m->digest))
                return error_set(err, -EINVAL, "\"%s\" or \"%s\" is not an id and a digest", m->id,
                                 m->digest);
        struct placement *p = placement_find(r, m->id);
        if (!p || p->rec.state != RECORD_LIVE)
                return error_set(err, -ENOENT, "sandbox %s is not placed", m->id);
        if (!str_eq(p->rec.mode, "boot"))
                return error_set(err, -EINVAL, "sandbox %s was not placed to boot", m->id);
        if (!str_eq(p->rec.digest, m->digest))
                return error_set(err, -EINVAL, "sandbox %s is of another template", m->id);
        variant_name(p->rec.engine, p->rec.memory_mb, p->rec.cpus, name);
        if (!str_eq(name, m->variant))
                return error_set(err, -EINVAL, "sandbox %s makes variant \"%s\", not \"%s\"", m->id, name,
                                 m->variant);
        if (p->committing)
                return error_set(err, -EALREADY, "the variant of sandbox %s is being stored already", m->id);
        *ret = p;
        return 0;
}

void variant_commit_handle(struct rootd *r, const struct ticket *t, const struct ipc_variant_commit *m) {
        struct error e = ERROR_INIT;
        struct placement *p = NULL;
        if (check_variant(r, m, &p, &e) < 0) {
                ticket_error(r, t, &e);
                return;
        }
        struct commit *c = commit_new(r, t, m->id, m->digest);
        if (!c) {
                (void) error_set(&e, -ENOMEM, "out of memory");
                ticket_error(r, t, &e);
                return;
        }
        c->rec = p->rec;
        struct reap_target target = { .procs = { &p->warden, &p->vm, &p->gateway },
                                      .uids = { p->rec.warden_uid, p->rec.vm_uid, p->rec.gateway_uid } };
        slot_name(p->rec.slot, target.leaf);
        revive_cancel(p);
        egress_cancel(p);
        if (reap_start(r, &target, on_variant_reaped, c, &e) < 0)
                answer(c, &e);
        else
                p->committing = true;
}

/* A name as variant_name() makes them, now or in another version: one part of a path, and not a hidden one. */
static bool variant_name_valid(const char *name) {
        return name[0] >= 'a' && name[0] <= 'z' && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == strlen(name);
}

struct variant_removal {
        struct rootd *rootd;
        struct ticket ticket;
        char path[DIGEST_LEN + 16], hidden[VARIANT_NAME_MAX + 8];
};

static int variant_remove_work(struct rootd *r, void *arg, struct error *err) {
        const struct variant_removal *v = arg;
        _cleanup_fd_ int variants = fd_open_beneath(r->dirs.templates, v->path, O_RDONLY | O_DIRECTORY, 0, err);
        return variants < 0 ? variants : fd_remove_tree_at(variants, v->hidden, err);
}

static void on_variant_removed(void *arg, const struct error *e) {
        struct variant_removal *v = arg;
        ticket_end(v->rootd, &v->ticket, e);
        free(v);
}

/* Gone at once for everybody who looks; its blocks follow. 1: there was nothing to remove. */
static int hide_variant(struct variant_removal *v, const char *name, struct error *err) {
        _cleanup_fd_ int variants = fd_open_beneath(v->rootd->dirs.templates, v->path, O_RDONLY | O_DIRECTORY, 0, err);
        if (variants < 0)
                return variants == -ENOENT ? 1 : variants;
        (void) fd_remove_tree_at(variants, v->hidden, NULL);
        if (renameat(variants, name, variants, v->hidden) < 0)
                return errno == ENOENT ? 1 : error_errno(err, errno, "cannot remove variant %s", name);
        return 0;
}

void variant_remove_handle(struct rootd *r, const struct ticket *t, const struct ipc_variant_remove *m) {
        struct error e = ERROR_INIT;
        struct variant_removal *v = NULL;
        int res;
        if (!digest_valid(m->digest) || !variant_name_valid(m->variant))
                res = error_set(&e, -EINVAL, "\"%s\" or \"%s\" is not a digest and a variant", m->digest, m->variant);
        else if (!(v = calloc(1, sizeof *v)))
                res = error_set(&e, -ENOMEM, "out of memory");
        else {
                v->rootd = r;
                v->ticket = *t;
                (void) snprintf(v->path, sizeof v->path, "%s/variants", m->digest);
                (void) snprintf(v->hidden, sizeof v->hidden, COMMIT_HIDDEN "%s", m->variant);
                res = hide_variant(v, m->variant, &e);
                if (res == 0)
                        res = job_start(r, variant_remove_work, on_variant_removed, v, &e);
                if (res == 0)
                        return;
        }
        if (res < 0)
                ticket_error(r, t, &e);
        else
                ticket_ok(r, t);
        free(v);
}

/* ---- at start ------------------------------------------------------------------------------- */

static void sweep(int at) {
        int fd = openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
        if (!d) {
                (void) fd_close(fd);
                return;
        }
        for (const struct dirent *e; (e = readdir(d));) {
                struct error err = ERROR_INIT;
                if (str_has_prefix(e->d_name, COMMIT_HIDDEN) && fd_remove_tree_at(at, e->d_name, &err) < 0)
                        log_warn("\"%s\": %s", e->d_name, err.msg);
        }
        (void) closedir(d);
}

/* In the folder of each variant too, where one that is being frozen is hidden (freeze.c). */
static void sweep_variants(int variants) {
        sweep(variants);
        int fd = openat(variants, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
        if (!d) {
                (void) fd_close(fd);
                return;
        }
        for (const struct dirent *e; (e = readdir(d));) {
                _cleanup_fd_ int variant = e->d_name[0] == '.' ? -EBADF
                                                               : fd_open_beneath(variants, e->d_name, O_RDONLY | O_DIRECTORY, 0, NULL);
                if (variant >= 0)
                        sweep(variant);
        }
        (void) closedir(d);
}

void commit_sweep(struct rootd *r) {
        sweep(r->dirs.templates);
        sweep(r->dirs.checkpoints);
        int fd = openat(r->dirs.templates, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
        if (!d) {
                (void) fd_close(fd);
                return;
        }
        for (const struct dirent *e; (e = readdir(d));) {
                char path[DIGEST_LEN + 16];
                if (!digest_valid(e->d_name))
                        continue;
                (void) snprintf(path, sizeof path, "%s/variants", e->d_name);
                _cleanup_fd_ int variants =
                        fd_open_beneath(r->dirs.templates, path, O_RDONLY | O_DIRECTORY, 0, NULL);
                if (variants >= 0)
                        sweep_variants(variants);
        }
        (void) closedir(d);
}
