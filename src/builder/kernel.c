/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "bzimage.h"
#include "child.h"
#include "initrd.h"
#include "manifest/manifest.h"

#define BZIMAGE_MAX (64u << 20)

static void closedirp(DIR **d) {
        if (*d)
                closedir(*d);
}

/* The only entry of a folder with this suffix. */
static int only_entry(int dirfd_, const char *path, const char *suffix, char *out, size_t cap, struct error *err) {
        _cleanup_(closedirp) DIR *d = NULL;
        int fd = openat(dirfd_, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        unsigned n = 0;

        if (fd < 0 || !(d = fdopendir(fd))) {
                (void) fd_close(fd);
                return error_errno(err, errno, "cannot open %s", path);
        }
        for (struct dirent *e; (e = readdir(d));) {
                if (e->d_name[0] == '.' || !str_has_suffix(e->d_name, suffix))
                        continue;
                if (str_copy(out, cap, e->d_name) == 0)
                        n++;
        }
        return n == 1 ? 0 : error_set(err, -EBADMSG, "%s does not have exactly one entry", path);
}

static int unpack_package(struct build *b, struct error *err) {
        char name[256] = "", deb[BUILD_PATH_MAX + 320], root[BUILD_PATH_MAX + 32];
        const char *const extract[] = { "dpkg-deb", "-x", deb, root, NULL };
        const char *const field[] = { "dpkg-deb", "-f", deb, "Version", NULL };
        _cleanup_free_ char *version = NULL;
        struct child c = CHILD_INIT;

        int r = only_entry(b->dirfd, "work/kernel-deb", ".deb", name, sizeof name, err);
        if (r < 0)
                return r;
        (void) snprintf(deb, sizeof deb, "%s/kernel-deb/%s", b->work, name);
        (void) snprintf(root, sizeof root, "%s/kernel", b->work);
        c.no_network = true;
        c.argv = extract;
        r = child_run(b, &c, err);
        if (r < 0)
                return r;
        c.argv = field;
        r = child_output(b, &c, sizeof b->kernel_version - 1, &version, err);
        if (r < 0)
                return r;
        version[strcspn(version, "\n")] = '\0';
        (void) str_copy(b->kernel_version, sizeof b->kernel_version, version);
        return only_entry(b->dirfd, "work/kernel/lib/modules", "", b->kernel_release, sizeof b->kernel_release, err);
}

/* The compressed part goes to the unpacker in a memory file of exactly its length: some of them take
 * what follows for damage. */
static int slice_fd(const char *data, const struct bzimage_payload *p, struct error *err) {
        _cleanup_fd_ int fd = memfd_create("payload", MFD_CLOEXEC);

        if (fd < 0)
                return error_errno(err, errno, "cannot make a memory file");
        int r = fd_write_all(fd, data + p->offset, p->length, err);
        if (r < 0)
                return r;
        if (lseek(fd, 0, SEEK_SET) < 0)
                return error_errno(err, errno, "cannot rewind a memory file");
        return fd_steal(&fd);
}

static int unpack_payload(struct build *b, const char *data, const struct bzimage_payload *p, int out,
                          struct error *err) {
        const char *const argv[] = { p->unpacker, "-dc", NULL };
        struct child c = CHILD_INIT;
        int status = 0;

        if (!p->unpacker)
                return fd_write_all(out, data + p->offset, p->length, err);
        _cleanup_fd_ int in = slice_fd(data, p, err);
        if (in < 0)
                return in;
        c.argv = argv;
        c.in_fd = in;
        c.out_fd = out;
        c.no_network = true;
        int r = child_run_status(b, &c, &status, err);
        if (r == 0 && status == 127)
                r = error_set(err, -ENOENT, "the program %s is missing: install the package %s", p->unpacker, p->package);
        else if (r == 0 && status != 0)
                r = error_set(err, -EBADMSG, "%s cannot unpack the kernel", p->unpacker);
        return r;
}

static int write_vmlinux(struct build *b, struct error *err) {
        char path[256];
        _cleanup_free_ char *image = NULL;
        struct bzimage_payload payload;
        uint8_t head[4] = { 0 };
        size_t n = 0;

        (void) snprintf(path, sizeof path, "work/kernel/boot/vmlinuz-%s", b->kernel_release);
        int r = fd_read_file_at(b->dirfd, path, BZIMAGE_MAX, &image, &n, err);
        if (r == 0)
                r = bzimage_find((const uint8_t *) image, n, &payload, err);
        if (r < 0)
                return r;
        _cleanup_fd_ int out = openat(b->outfd, "kernel", O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (out < 0)
                return error_errno(err, errno, "cannot make the file kernel");
        r = unpack_payload(b, image, &payload, out, err);
        if (r < 0)
                return r;
        struct stat st;
        if (pread(out, head, sizeof head, 0) != (ssize_t) sizeof head || memcmp(head, "\x7f" "ELF", 4) != 0 ||
            fstat(out, &st) < 0 || (uint64_t) st.st_size > MANIFEST_FILE_MAX)
                return error_set(err, -EBADMSG, "the unpacked kernel is not an ELF file");
        return 0;
}

int kernel_make(struct build *b, struct error *err) {
        build_step(b, STEP_KERNEL, "unpacking the kernel");
        int r = unpack_package(b, err);
        if (r < 0)
                return error_wrap(err, "kernel package %s", b->kernel_package);
        build_progress(b, 40, "taking the kernel out of its image");
        r = write_vmlinux(b, err);
        if (r < 0)
                return error_wrap(err, "kernel package %s", b->kernel_package);
        build_progress(b, 60, "making the initramfs");
        r = initrd_make(b, err);
        if (r < 0)
                return error_wrap(err, "cannot make the initramfs");
        build_progress(b, 80, "adding kernel modules");
        r = initrd_add_modules(b, err);
        if (r < 0)
                return error_wrap(err, "cannot add the kernel's modules");
        build_progress(b, 100, "kernel and initramfs are done");
        return 0;
}
