/* SPDX-License-Identifier: Apache-2.0 */
#include "cpio.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define CPIO_NAME_MAX 4096
#define CPIO_BLOCK 512

struct entry {
        const char *path;
        uint32_t mode, nlink, major, minor;
        const void *data;
        size_t n;
};

static int pad(struct cpio *c, size_t to) {
        static const char zeros[CPIO_BLOCK];
        size_t over = c->out->len % to;

        return over ? buf_append(c->out, zeros, to - over) : 0;
}

static int put(struct cpio *c, const struct entry *e, struct error *err) {
        size_t name = strlen(e->path) + 1;

        if (name > CPIO_NAME_MAX || e->n > UINT32_MAX || e->path[0] == '/')
                return error_set(err, -EINVAL, "\"%.200s\" cannot be put into an initramfs", e->path);
        uint32_t ino = strcmp(e->path, "TRAILER!!!") == 0 ? 0 : ++c->ino;
        /* magic ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check */
        int r = buf_printf(c->out, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X", ino, e->mode, 0u, 0u, e->nlink,
                           0u, (uint32_t) e->n, 0u, 0u, e->major, e->minor, (uint32_t) name, 0u);
        if (r == 0)
                r = buf_append(c->out, e->path, name);
        if (r == 0)
                r = pad(c, 4);
        if (r == 0 && e->n > 0)
                r = buf_append(c->out, e->data, e->n);
        if (r == 0)
                r = pad(c, 4);
        return r < 0 ? error_errno(err, r, "the initramfs is too large at \"%s\"", e->path) : 0;
}

int cpio_dir(struct cpio *c, const char *path, mode_t mode, struct error *err) {
        const struct entry e = { .path = path, .mode = S_IFDIR | mode, .nlink = 2 };

        return put(c, &e, err);
}

int cpio_file(struct cpio *c, const char *path, mode_t mode, const void *data, size_t n, struct error *err) {
        const struct entry e = { .path = path, .mode = S_IFREG | mode, .nlink = 1, .data = data, .n = n };

        return put(c, &e, err);
}

int cpio_char_device(struct cpio *c, const char *path, mode_t mode, unsigned major, unsigned minor,
                     struct error *err) {
        const struct entry e = { .path = path, .mode = S_IFCHR | mode, .nlink = 1, .major = major, .minor = minor };

        return put(c, &e, err);
}

int cpio_end(struct cpio *c, struct error *err) {
        const struct entry e = { .path = "TRAILER!!!", .nlink = 1 };

        int r = put(c, &e, err);
        if (r == 0 && pad(c, CPIO_BLOCK) < 0)
                r = error_set(err, -ENOMEM, "the initramfs is too large");
        return r;
}
