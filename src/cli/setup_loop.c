/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A loop device by hand rather than by losetup(8): configured in one call with both flags that
 * matter. AUTOCLEAR: it detaches itself when the filesystem on it is unmounted, so that none is ever
 * left over. DIRECT_IO: pages are cached once, in the filesystem on the device, and not a second
 * time for the image below.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "setup.h"

#define LOOP_MAJOR_ 7
#define LOOP_TRIES 8 /* another program may take the free number first */

static int open_control(struct error *err) {
        static const char *const load[] = { "modprobe", "loop", NULL };
        int fd = open("/dev/loop-control", O_RDWR | O_CLOEXEC);

        if (fd < 0 && errno == ENOENT) {
                (void) setup_exec(load, NULL);
                fd = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
        }
        return fd < 0 ? error_errno(err, errno, "this host has no loop devices (/dev/loop-control)") : fd;
}

static int open_device(int number, char *device, size_t cap) {
        (void) snprintf(device, cap, "/dev/loop%d", number);
        int fd = open(device, O_RDWR | O_CLOEXEC);

        /* In a container without udev the node may not exist. */
        if (fd < 0 && errno == ENOENT && mknod(device, S_IFBLK | 0660, makedev(LOOP_MAJOR_, (unsigned) number)) == 0)
                fd = open(device, O_RDWR | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

int setup_loop_attach(const char *image, char *device, size_t cap, struct error *err) {
        _cleanup_fd_ int control = open_control(err);

        if (control < 0)
                return control;
        _cleanup_fd_ int file = open(image, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (file < 0)
                return error_errno(err, errno, "cannot open %s", image);
        for (unsigned i = 0; i < LOOP_TRIES; i++) {
                int number = ioctl(control, LOOP_CTL_GET_FREE);
                if (number < 0)
                        return error_errno(err, errno, "no free loop device");
                _cleanup_fd_ int fd = open_device(number, device, cap);
                if (fd < 0)
                        return error_errno(err, fd, "cannot open %s", device);
                struct loop_config c = { .fd = (uint32_t) file,
                                         .info = { .lo_flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO } };
                (void) str_copy((char *) c.info.lo_file_name, LO_NAME_SIZE, image);
                if (ioctl(fd, LOOP_CONFIGURE, &c) == 0)
                        return fd_steal(&fd);
                if (errno != EBUSY)
                        return error_errno(err, errno, "cannot attach %s to %s", image, device);
        }
        return error_set(err, -EBUSY, "no loop device stayed free");
}

bool setup_loop_is(dev_t device, const char *image) {
        _cleanup_free_ char *backing = NULL;
        char path[96];

        if (major(device) != LOOP_MAJOR_)
                return false;
        (void) snprintf(path, sizeof path, "/sys/dev/block/%u:%u/loop/backing_file", major(device), minor(device));
        if (fd_read_file_at(AT_FDCWD, path, 4096, &backing, NULL, NULL) < 0)
                return false;
        backing[strcspn(backing, "\n")] = '\0';
        return str_eq(backing, image);
}
