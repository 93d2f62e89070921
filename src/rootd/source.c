/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "rootd/process_image.h"
#include "base/str.h"

#define SOURCE_NONE                                                                                                       \
        (struct source) {                                                                                                \
                .disk = -EBADF, .mem = -EBADF, .state = -EBADF, .kernel = -EBADF, .initrd = -EBADF, .base = -EBADF, .delta = -EBADF \
        }

bool engine_valid(const char *engine) {
        return str_eq(engine, "qemu-tcg") || str_eq(engine, "qemu-kvm") || str_eq(engine, "fake");
}

static int open_file(int dirfd, const char *name, int *ret, struct error *err) {
        struct stat st;
        _cleanup_fd_ int fd = fd_open_beneath(dirfd, name, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, err);
        if (fd < 0)
                return fd;
        if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
                return error_set(err, -EBADMSG, "\"%s\" is not a regular file", name);
        *ret = fd_steal(&fd);
        return 0;
}

static int open_boot(int template, struct source *s, struct error *err) {
        int r = open_file(template, "disk.img", &s->disk, err);
        if (r == 0)
                r = open_file(template, "kernel", &s->kernel, err);
        if (r == 0)
                r = open_file(template, "initrd", &s->initrd, err);
        return r;
}

/* The process, where there is one for this host, or the devices' state. */
static int open_memory(const struct rootd *rootd, int dir, const struct ipc_place *m, struct source *s, struct error *err) {
        struct stat st;
        int r = open_file(dir, "mem", &s->mem, err);
        if (r == 0 && rootd->process_host[0] && !m->snapshot && open_file(dir, PROCESS_IMAGE_NAME, &s->state, NULL) == 0) {
                s->thaw = procimage_usable(s->state, rootd->process_host);
                if (!s->thaw)
                        s->state = fd_close(s->state);
        }
        if (r == 0 && !s->thaw)
                r = open_file(dir, "state", &s->state, err);
        if (r == 0 && (fstat(s->mem, &st) < 0 || (uint64_t) st.st_size != (uint64_t) m->memory_mb << 20))
                return error_set(err, -EBADMSG, "its memory has the wrong size");
        return r;
}

/* The base of an image's process, where the sandbox's variant still has it. */
static void open_base(int template, const struct ipc_place *m, struct source *s) {
        char path[VARIANT_NAME_MAX + 32], name[VARIANT_NAME_MAX + 1];
        variant_name(m->engine, m->memory_mb, m->cpus, name);
        (void) snprintf(path, sizeof path, "variants/%s/" VARIANT_FROZEN, name);
        _cleanup_fd_ int dir = fd_open_beneath(template, path, O_RDONLY | O_DIRECTORY, 0, NULL), process = -EBADF, memory = -EBADF;
        if (dir < 0 || open_file(dir, PROCESS_IMAGE_NAME, &process, NULL) < 0 || open_file(dir, "mem", &memory, NULL) < 0 ||
            !process_image_based_on(s->state, process, memory))
                return;
        s->base = fd_steal(&process);
        s->delta = s->mem;
        s->mem = fd_steal(&memory);
}

/* "start" needs the template's kernel too. */
static int open_image(const struct rootd *r, int template, const struct ipc_place *m, struct source *s,
                      struct error *err) {
        _cleanup_fd_ int dir = fd_open_beneath(r->dirs.checkpoints, m->image, O_RDONLY | O_DIRECTORY, 0, err);
        if (dir < 0)
                return error_wrap(err, "image %s", m->image);
        int res = open_file(dir, "disk.img", &s->disk, err);
        if (res == 0 && str_eq(m->mode, "restore"))
                res = open_memory(r, dir, m, s, err);
        if (res < 0)
                return error_wrap(err, "image %s", m->image);
        if (s->thaw)
                open_base(template, m, s);
        if (str_eq(m->mode, "start"))
                res = open_file(template, "kernel", &s->kernel, err);
        if (res == 0 && str_eq(m->mode, "start"))
                res = open_file(template, "initrd", &s->initrd, err);
        return res;
}

static int open_variant(const struct rootd *rootd, int dir, const struct ipc_place *m, struct source *s, struct error *err) {
        int r = open_file(dir, "disk.img", &s->disk, err);
        return r == 0 ? open_memory(rootd, dir, m, s, err) : r;
}

/* Of a variant with a process in it, that with its own memory and disk. */
static int open_frozen(const struct rootd *rootd, int variant, const struct ipc_place *m, struct source *s) {
        struct source own = SOURCE_NONE;
        _cleanup_fd_ int dir = fd_open_beneath(variant, VARIANT_FROZEN, O_RDONLY | O_DIRECTORY, 0, NULL);
        if (dir < 0)
                return dir;
        int r = open_variant(rootd, dir, m, &own, NULL);
        if (r == 0 && own.thaw)
                *s = own;
        else
                source_close(&own);
        return r;
}

static int open_restore(const struct rootd *rootd, int template, const struct ipc_place *m, struct source *s, struct error *err) {
        char path[VARIANT_NAME_MAX + 16], name[VARIANT_NAME_MAX + 1];
        variant_name(m->engine, m->memory_mb, m->cpus, name);
        (void) snprintf(path, sizeof path, "variants/%s", name);
        _cleanup_fd_ int dir = fd_open_beneath(template, path, O_RDONLY | O_DIRECTORY, 0, err);
        if (dir < 0)
                return dir == -ENOENT ? error_set(err, -ENOENT, "template %.12s has no variant \"%s\" yet",
                                                  m->digest, name)
                                      : dir;
        if (rootd->process_host[0] && !m->snapshot && open_frozen(rootd, dir, m, s) == 0)
                return 0;
        int r = open_variant(rootd, dir, m, s, err);
        if (r < 0)
                return error_wrap(err, "variant \"%s\"", name);
        return 0;
}

int source_open(const struct rootd *r, const struct ipc_place *m, struct source *ret, struct error *err) {
        struct source s = SOURCE_NONE;
        _cleanup_fd_ int template =
                fd_open_beneath(r->dirs.templates, m->digest, O_RDONLY | O_DIRECTORY, 0, err);
        if (template <0)
                return template == -ENOENT ? error_set(err, -ENOENT, "there is no template %.12s", m->digest)
                                           : template;
        int res = m->image[0]               ? open_image(r, template, m, &s, err)
                  : str_eq(m->mode, "boot") ? open_boot(template, &s, err)
                                            : open_restore(r, template, m, &s, err);
        if (res < 0) {
                source_close(&s);
                return res;
        }
        *ret = s;
        return 0;
}

void source_close(struct source *s) {
        int *all[] = { &s->disk, &s->mem, &s->state, &s->kernel, &s->initrd, &s->base, &s->delta };
        for (size_t i = 0; i < ARRAY_SIZE(all); i++)
                *all[i] = fd_close(*all[i]);
}
