/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Images: a sandbox's disk, or its disk, memory and devices, as it can be started from again.
 *
 *   IMAGE_BEGIN   <data>/checkpoints/.new-<image>/state made; the VM writes its devices there
 *   IMAGE_COMMIT  1 (halt) processes gone   4 (full) memory cloned, private pages over it
 *                 2 folder open             5 all of it durable, unless it is fleeting
 *                 3 disk cloned             6 renamed to <image>
 *
 * In two parts 1 to 4 are the first and 5 and 6 the second, while the VM runs already.
 *
 * Under emulation the image of the VM's process (process_image.h) is made beside its memory: with it the guest goes on in
 * code that is translated already. Without it, and on another host, the devices' state is enough.
 *
 * Until the rename it is nothing: a start of the program sweeps it away, and whoever wanted it begins anew.
 * The copying is a child's work. An image is root's alone and never written again. One that is being made, or was begun, is listed like one
 * that is there, so that a cspaced which has begun anew learns of it, and can be removed once it is made.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "procimage/format.h"
#include "rootd/commit.h"
#include "rootd/disk.h"
#include "rootd/egress.h"
#include "rootd/image_memory.h"
#include "rootd/job.h"
#include "rootd/packets.h"
#include "rootd/placement.h"
#include "rootd/pool.h"
#include "rootd/process_image.h"
#include "rootd/reap.h"
#include "rootd/server.h"

#define HIDDEN_SIZE (sizeof COMMIT_HIDDEN + ID_LEN)
#define STATE_MAX (256u << 20) /* more than that is no state of devices */

/* What the child tells besides errors: in memory that both have. */
struct result {
        struct image_memory memory;
        uint64_t freeze_us;
};

struct image {
        struct rootd *rootd;
        struct ticket ticket;
        char id[ID_SIZE], name[ID_SIZE], from[ID_SIZE];
        bool full, halt, fleeting;
        unsigned part;
        pid_t vm; /* full */
        bool process; /* full: with the image of its process */
        uint64_t memory_bytes;
        struct result *result;
        struct image *next; /* of rootd->images */
};

static bool being_made(const struct rootd *r, const char *name) {
        for (const struct image *i = r->images; i; i = i->next)
                if (str_eq(i->name, name))
                        return true;
        return false;
}

static void hidden_name(const char *image, char out[HIDDEN_SIZE]) {
        (void) snprintf(out, HIDDEN_SIZE, COMMIT_HIDDEN "%s", image);
}

/* ---- in the child --------------------------------------------------------------------------- */

static int seal(int dir, const char *name, uint64_t max, bool sync, struct error *err) {
        struct stat st;
        _cleanup_fd_ int fd = fd_open_beneath(dir, name, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, err);
        if (fd < 0)
                return fd;
        if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
                return error_set(err, -EBADMSG, "\"%s\" is not a regular file", name);
        if (st.st_size == 0 || (uint64_t) st.st_size > max)
                return error_set(err, -EBADMSG, "\"%s\" has %lld bytes", name, (long long) st.st_size);
        if (fchown(fd, 0, 0) < 0 || fchmod(fd, 0400) < 0 || (sync && fsync(fd) < 0))
                return error_errno(err, errno, "cannot make \"%s\" durable", name);
        return 0;
}

static int take_disk(struct rootd *r, const struct image *i, int dir, struct error *err) {
        char path[ID_SIZE + 16];
        uint64_t bytes;
        _cleanup_fd_ int copy = -EBADF;
        (void) snprintf(path, sizeof path, "%s/disk.img", i->id);
        _cleanup_fd_ int disk = fd_open_beneath(r->dirs.sandboxes, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, err);
        if (disk < 0)
                return disk;
        uint64_t began = clock_mono_us();
        int res = disk_clone(disk, dir, "disk.img", 0, 0, &copy, &bytes, err);
        i->result->freeze_us = clock_mono_us() - began;
        return res;
}

/* A copy of another image, which shares all of its bytes. */
static int copy_image(struct rootd *r, const struct image *i, int dir, struct error *err) {
        static const char *const names[] = { "disk.img", "mem", "state" };
        _cleanup_fd_ int from = fd_open_beneath(r->dirs.checkpoints, i->from, O_RDONLY | O_DIRECTORY, 0, err);
        int res = from < 0 ? from : 0;
        for (size_t n = 0; res == 0 && n < (i->full ? ARRAY_SIZE(names) : 1); n++) {
                uint64_t bytes;
                _cleanup_fd_ int copy = -EBADF;
                _cleanup_fd_ int file = fd_open_beneath(from, names[n], O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, err);
                res = file < 0 ? file : disk_clone(file, dir, names[n], 0, 0, &copy, &bytes, err);
        }
        if (res == 0 && i->full) {
                uint64_t bytes;
                _cleanup_fd_ int copy = -EBADF;
                _cleanup_fd_ int file = fd_open_beneath(from, PROCESS_IMAGE_NAME, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, NULL);
                if (file >= 0)
                        res = disk_clone(file, dir, PROCESS_IMAGE_NAME, 0, 0, &copy, &bytes, err);
                if (file >= 0 && res == 0)
                        res = seal(dir, PROCESS_IMAGE_NAME, UINT64_MAX, true, err);
        }
        return res;
}

/* A "full" one was begun, and has its state; the place of a "disk" is made here. */
static int open_place(struct rootd *r, const struct image *i, const char *hidden, struct error *err) {
        if (!i->full || i->from[0]) {
                int res = fd_remove_tree_at(r->dirs.checkpoints, hidden, err);
                if (res < 0)
                        return res;
                if (mkdirat(r->dirs.checkpoints, hidden, 0700) < 0)
                        return error_errno(err, errno, "cannot make a folder");
        }
        return fd_open_beneath(r->dirs.checkpoints, hidden, O_RDONLY | O_DIRECTORY, 0, err);
}

static int save_process(struct rootd *r, const struct image *i, const struct image_runs *runs, int dir, struct error *err) {
        char path[ID_SIZE + 16];
        struct stat st;
        struct error e = ERROR_INIT;
        uint64_t written = 0;
        (void) snprintf(path, sizeof path, "%s/disk.img", i->id);
        _cleanup_fd_ int disk = fd_open_beneath(r->dirs.sandboxes, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, err);
        if (disk < 0)
                return disk;
        if (fstat(disk, &st) < 0)
                return error_errno(err, errno, "cannot stat the disk");
        int res = process_image_save(i->vm, i->memory_bytes, &st, runs, r->process_host, dir, &written, &e);
        if (res < 0 && res != -ENOSPC && res != -EDQUOT) {
                log_warn("sandbox %s: its image is without its process: %s", i->id, e.msg);
                return 0;
        }
        if (res < 0) {
                *err = e;
                return res;
        }
        i->result->memory.private_bytes += written;
        i->result->memory.written_bytes += written;
        return 0;
}

static int save_memory(struct rootd *r, const struct image *i, int dir, struct error *err) {
        struct image_runs runs = { .max = PROCIMAGE_DELTAS_MAX };
        if (!i->process)
                return image_memory_save(i->vm, i->memory_bytes, dir, &i->result->memory, err);
        runs.run = calloc(runs.max, sizeof *runs.run);
        if (!runs.run)
                return error_set(err, -ENOMEM, "out of memory");
        int res = image_memory_save_runs(i->vm, i->memory_bytes, dir, &runs, &i->result->memory, err);
        if (res == 0)
                res = save_process(r, i, &runs, dir, err);
        free(runs.run);
        return res;
}

static int fill(struct rootd *r, const struct image *i, int dir, struct error *err) {
        int res = i->from[0] ? copy_image(r, i, dir, err) : take_disk(r, i, dir, err);
        fault_point("image:3");
        if (res == 0 && i->full && !i->from[0])
                res = save_memory(r, i, dir, err);
        fault_point("image:4");
        return res;
}

static int seal_all(const struct image *i, int dir, struct error *err) {
        const bool sync = !i->fleeting;
        int res = seal(dir, "disk.img", UINT64_MAX, sync, err);
        if (res == 0 && i->full)
                res = seal(dir, "mem", UINT64_MAX, sync, err);
        if (res == 0 && i->full)
                res = seal(dir, "state", STATE_MAX, sync, err);
        if (res == 0 && i->full && faccessat(dir, PROCESS_IMAGE_NAME, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
                res = seal(dir, PROCESS_IMAGE_NAME, UINT64_MAX, sync, err);
        if (res == 0 && sync && fsync(dir) < 0)
                res = error_errno(err, errno, "cannot make the image durable");
        fault_point("image:5");
        return res;
}

static int give_name(struct rootd *r, const struct image *i, const char *hidden, struct error *err) {
        if (renameat2(r->dirs.checkpoints, hidden, r->dirs.checkpoints, i->name, RENAME_NOREPLACE) < 0)
                return error_errno(err, errno, "cannot name the image");
        return !i->fleeting && fsync(r->dirs.checkpoints) < 0 ? error_errno(err, errno, "cannot make the image durable") : 0;
}

static int work(struct rootd *r, void *arg, struct error *err) {
        const struct image *i = arg;
        char hidden[HIDDEN_SIZE];
        hidden_name(i->name, hidden);
        _cleanup_fd_ int dir = open_place(r, i, hidden, err);
        fault_point("image:2");
        int res = dir < 0 ? dir : i->part == 2 ? 0 : fill(r, i, dir, err);
        if (res == 0 && i->part != 1)
                res = seal_all(i, dir, err);
        if (res == 0 && i->part != 1)
                res = give_name(r, i, hidden, err);
        fault_point("image:6");
        if (res < 0)
                (void) fd_remove_tree_at(r->dirs.checkpoints, hidden, NULL);
        return res;
}

/* ---- IMAGE_COMMIT --------------------------------------------------------------------------- */

static void image_free(struct image *i) {
        for (struct image **at = &i->rootd->images; *at; at = &(*at)->next)
                if (*at == i) {
                        *at = i->next;
                        break;
                }
        job_shared_free(i->result, sizeof *i->result);
        free(i);
}

static void answer(struct image *i, const struct error *e) {
        uint8_t body[64];
        size_t n;
        struct placement *p = i->from[0] || i->part == 2 ? NULL : placement_find(i->rootd, i->id);
        if (p && p->imaging > 0)
                p->imaging--;
        const struct ipc_image_info info = { .private_bytes = i->result->memory.private_bytes,
                                             .written_bytes = i->result->memory.written_bytes,
                                             .freeze_us = i->result->freeze_us,
                                             .took_us = clock_mono_us() - i->ticket.received_us };
        if (e)
                ticket_error(i->rootd, &i->ticket, e);
        else if (ipc_image_info_encode(&info, body, sizeof body, &n) == 0)
                ticket_send(i->rootd, &i->ticket, body, n);
        image_free(i);
}

static void on_done(void *arg, const struct error *e) {
        answer(arg, e);
}

static void on_halted(void *arg, const struct error *failed) {
        struct image *i = arg;
        struct error e = ERROR_INIT;
        fault_point("image:1");
        if (failed)
                e = *failed;
        else if (job_start(i->rootd, work, on_done, i, &e) == 0)
                return;
        answer(i, &e);
}

/* What ends from here on was meant to: nobody is told, and no warden is started again. */
static int halt(struct image *i, struct placement *p, struct error *err) {
        struct reap_target target = { .procs = { &p->warden, &p->vm, &p->gateway },
                                      .uids = { p->rec.warden_uid, p->rec.vm_uid, p->rec.gateway_uid } };
        slot_name(p->rec.slot, target.leaf);
        revive_cancel(p);
        egress_cancel(p);
        packets_tell(p);
        p->halted = true;
        int r = reap_start(i->rootd, &target, on_halted, i, err);
        if (r < 0)
                p->halted = false;
        return r;
}

static int check(const struct rootd *r, const struct ipc_image_commit *m, struct placement **ret, struct error *err) {
        bool full = str_eq(m->kind, "full");
        if (!id_valid(m->id) || !id_valid(m->image))
                return error_set(err, -EINVAL, "\"%s\" or \"%s\" is not an id", m->id, m->image);
        if (!full && !str_eq(m->kind, "disk"))
                return error_set(err, -EINVAL, "\"%s\" is neither \"disk\" nor \"full\"", m->kind);
        if (m->part && (!full || m->halt || m->from[0] || m->fleeting))
                return error_set(err, -EINVAL, "image \"%s\" is not made in parts", m->image);
        if (m->from[0] && (!id_valid(m->from) || m->halt))
                return error_set(err, -EINVAL, "image \"%s\" cannot be copied so", m->from);
        if (being_made(r, m->image))
                return error_set(err, -EBUSY, "image %s is being made already", m->image);
        struct placement *p = m->from[0] ? NULL : placement_find(r, m->id);
        if (m->from[0] || m->part == 2) {
                *ret = NULL;
                return 0;
        }
        if (p && p->rec.state != RECORD_LIVE)
                return error_set(err, -EBUSY, "sandbox %s is being placed or removed", m->id);
        if (p && str_eq(p->rec.mode, "boot"))
                return error_set(err, -EINVAL, "sandbox %s is a template's", m->id);
        if (full && (m->halt || !p || !proc_alive(&p->vm)))
                return error_set(err, -ESRCH, "sandbox %s has no VM whose memory could be saved", m->id);
        *ret = p;
        return 0;
}

static struct image *image_new(struct rootd *r, const struct ticket *t, const struct ipc_image_commit *m,
                               const struct placement *p) {
        struct image *i = calloc(1, sizeof *i);
        if (!i)
                return NULL;
        *i = (struct image){ .rootd = r, .ticket = *t, .full = str_eq(m->kind, "full"), .halt = m->halt, .fleeting = m->fleeting, .part = m->part };
        (void) str_copy(i->id, sizeof i->id, m->id);
        (void) str_copy(i->name, sizeof i->name, m->image);
        (void) str_copy(i->from, sizeof i->from, m->from);
        if (p) {
                i->vm = p->vm.pid;
                i->process = r->process_host[0] && str_eq(p->rec.engine, "qemu-tcg");
                i->memory_bytes = (uint64_t) p->rec.memory_mb << 20;
        }
        i->result = job_shared_new(sizeof *i->result);
        if (!i->result) {
                free(i);
                return NULL;
        }
        i->next = r->images;
        r->images = i;
        return i;
}

static bool is_there(const struct rootd *r, const char *image) {
        return faccessat(r->dirs.checkpoints, image, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

void image_commit_handle(struct rootd *r, const struct ticket *t, const struct ipc_image_commit *m) {
        struct error e = ERROR_INIT;
        struct placement *p = NULL;
        if (check(r, m, &p, &e) < 0) {
                ticket_error(r, t, &e);
                return;
        }
        struct image *i = image_new(r, t, m, p);
        if (!i) {
                (void) error_set(&e, -ENOMEM, "out of memory");
                ticket_error(r, t, &e);
                return;
        }
        if (p)
                p->imaging++;
        if (is_there(r, i->name)) { /* a cspaced that was killed had it made; what was begun anew is not needed */
                char hidden[HIDDEN_SIZE];
                hidden_name(i->name, hidden);
                (void) fd_remove_tree_at(r->dirs.checkpoints, hidden, NULL);
                answer(i, NULL);
        } else if ((i->halt && p ? halt(i, p, &e) : job_start(r, work, on_done, i, &e)) < 0)
                answer(i, &e);
}

/* ---- IMAGE_BEGIN ---------------------------------------------------------------------------- */

static int begin(struct rootd *r, const struct ipc_image_begin *m, int *ret_fd, struct error *err) {
        char hidden[HIDDEN_SIZE];
        if (!id_valid(m->id) || !id_valid(m->image))
                return error_set(err, -EINVAL, "\"%s\" or \"%s\" is not an id", m->id, m->image);
        const struct placement *p = placement_find(r, m->id);
        if (!p || p->rec.state != RECORD_LIVE || p->imaging)
                return error_set(err, p ? -EBUSY : -ENOENT, "sandbox %s is not there to be saved", m->id);
        hidden_name(m->image, hidden);
        int res = fd_remove_tree_at(r->dirs.checkpoints, hidden, err);
        if (res < 0)
                return res;
        if (mkdirat(r->dirs.checkpoints, hidden, 0700) < 0)
                return error_errno(err, errno, "cannot make a folder");
        _cleanup_fd_ int dir = fd_open_beneath(r->dirs.checkpoints, hidden, O_RDONLY | O_DIRECTORY, 0, err);
        if (dir < 0)
                return dir;
        int fd = openat(dir, "state", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
                return error_errno(err, errno, "cannot make a file");
        *ret_fd = fd;
        return 0;
}

void image_begin_handle(struct rootd *r, const struct ticket *t, const struct ipc_image_begin *m) {
        struct error e = ERROR_INIT;
        _cleanup_fd_ int fd = -EBADF;
        if (begin(r, m, &fd, &e) < 0)
                ticket_error(r, t, &e);
        else
                ticket_fd(r, t, fd);
        fault_point("image:7");
}

/* ---- IMAGE_REMOVE --------------------------------------------------------------------------- */

struct removal {
        struct rootd *rootd;
        struct ticket ticket;
        char name[ID_SIZE];
        bool process; /* nothing else of it */
};

static int remove_process(const struct rootd *r, const char *image, struct error *err) {
        _cleanup_fd_ int dir = fd_open_beneath(r->dirs.checkpoints, image, O_RDONLY | O_DIRECTORY, 0, err);
        if (dir < 0)
                return dir == -ENOENT ? 0 : dir;
        if (unlinkat(dir, PROCESS_IMAGE_NAME, 0) < 0 && errno != ENOENT)
                return error_errno(err, errno, "cannot remove the process of image %s", image);
        return 0;
}

static int remove_work(struct rootd *r, void *arg, struct error *err) {
        const struct removal *x = arg;
        char hidden[HIDDEN_SIZE];
        if (x->process)
                return remove_process(r, x->name, err);
        hidden_name(x->name, hidden);
        int res = fd_remove_tree_at(r->dirs.checkpoints, hidden, err);
        if (res < 0)
                return res;
        /* Not half there for a moment. */
        if (renameat(r->dirs.checkpoints, x->name, r->dirs.checkpoints, hidden) < 0)
                return errno == ENOENT ? 0 : error_errno(err, errno, "cannot remove image %s", x->name);
        return fd_remove_tree_at(r->dirs.checkpoints, hidden, err);
}

static void on_removed(void *arg, const struct error *e) {
        struct removal *x = arg;
        ticket_end(x->rootd, &x->ticket, e);
        free(x);
}

void image_remove_handle(struct rootd *r, const struct ticket *t, const struct ipc_image_remove *m) {
        struct error e = ERROR_INIT;
        bool process = str_eq(m->what, "process"), valid = id_valid(m->image) && (process || !m->what[0]);
        struct removal *x = valid ? calloc(1, sizeof *x) : NULL;
        if (!x) {
                (void) error_set(&e, -EINVAL, "\"%s\" is not an image, or out of memory", m->image);
                ticket_error(r, t, &e);
                return;
        }
        if (being_made(r, m->image)) {
                (void) error_set(&e, -EBUSY, "image %s is being made", m->image);
                ticket_error(r, t, &e);
                free(x);
                return;
        }
        *x = (struct removal){ .rootd = r, .ticket = *t, .process = process };
        (void) str_copy(x->name, sizeof x->name, m->image);
        if (job_start(r, remove_work, on_removed, x, &e) < 0)
                on_removed(x, &e);
}

/* ---- IMAGE_USAGE ---------------------------------------------------------------------------- */

void image_usage_handle(struct rootd *r, const struct ticket *t, const struct ipc_image_usage *m) {
        static const char *const names[] = { "disk.img", "mem", "state" };
        struct error e = ERROR_INIT;
        struct ipc_usage_info info = { 0 };
        uint8_t body[64];
        size_t n;
        _cleanup_fd_ int dir = id_valid(m->image)
                                       ? fd_open_beneath(r->dirs.checkpoints, m->image, O_RDONLY | O_DIRECTORY, 0, &e)
                                       : error_set(&e, -EINVAL, "\"%s\" is not an image", m->image);
        if (dir < 0) {
                ticket_error(r, t, &e);
                return;
        }
        for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
                _cleanup_fd_ int fd = fd_open_beneath(dir, names[i], O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, NULL);
                info.disk_bytes += fd < 0 ? 0 : disk_own_bytes(fd);
        }
        if (ipc_usage_info_encode(&info, body, sizeof body, &n) == 0)
                ticket_send(r, t, body, n);
}

/* ---- IMAGES --------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b) {
        return memcmp(a, b, ID_SIZE);
}

static int collect(const struct rootd *r, const char *after, bool builds, struct buf *out) {
        int fd = openat(builds ? r->dirs.builds : r->dirs.checkpoints, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), res = 0;
        DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
        if (!d) {
                (void) fd_close(fd);
                return -errno;
        }
        for (const struct dirent *e; res == 0 && (e = readdir(d));) {
                bool begun = str_has_prefix(e->d_name, COMMIT_HIDDEN);
                const char *id = begun ? e->d_name + strlen(COMMIT_HIDDEN) : e->d_name;
                if (id_valid(id) && strcmp(id, after) > 0 && !(begun && (is_there(r, id) || being_made(r, id))))
                        res = buf_append(out, id, ID_SIZE);
        }
        (void) closedir(d);
        for (const struct image *i = r->images; res == 0 && !builds && i; i = i->next)
                if (!is_there(r, i->name) && strcmp(i->name, after) > 0)
                        res = buf_append(out, i->name, ID_SIZE);
        return res;
}

void images_handle(struct rootd *r, const struct ticket *t, const struct ipc_images *m) {
        static uint8_t body[IPC_IMAGES_PAGE * ID_SIZE + 64];
        _cleanup_buf_ struct buf all = BUF_INIT(SIZE_MAX / 2), page = BUF_INIT(sizeof body);
        struct error e = ERROR_INIT;
        size_t n;
        int res = collect(r, m->after, str_eq(m->what, "builds"), &all);
        char *names = res == 0 ? (char *) (uintptr_t) buf_data(&all) : NULL;
        size_t count = all.len / ID_SIZE;
        if (count > 0 && names)
                qsort(names, count, ID_SIZE, by_name);
        for (size_t i = 0; res == 0 && i < count && i < IPC_IMAGES_PAGE; i++)
                res = buf_printf(&page, "%s\n", names + i * ID_SIZE);
        const struct ipc_placement_list list = { .ids = buf_data(&page), .ids_n = page.len };
        if (res == 0)
                res = ipc_placement_list_encode(&list, body, sizeof body, &n);
        if (res < 0) {
                (void) error_errno(&e, res, "cannot list the images");
                ticket_error(r, t, &e);
                return;
        }
        ticket_send(r, t, body, n);
}
