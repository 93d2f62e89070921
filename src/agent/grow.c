/* SPDX-License-Identifier: Apache-2.0 */
#include "grow.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"

#define SECTOR 512u /* of /sys/dev/block/N:N/size, whatever the disk's own are */
#define GROW_WAIT_MS 10000
#define UEVENT_MAX 8192
#define EXT4_IOC_RESIZE_FS_ _IOW('f', 16, uint64_t) /* fs/ext4/ext4.h; in no header for programs */

static int disk_size(dev_t dev, uint64_t *ret, struct error *err) {
        _cleanup_free_ char *text = NULL;
        char path[64];
        uint64_t sectors = 0;
        (void) snprintf(path, sizeof path, "/sys/dev/block/%u:%u/size", major(dev), minor(dev));
        int r = fd_read_file_at(AT_FDCWD, path, 64, &text, NULL, err);
        if (r < 0)
                return r;
        text[strcspn(text, "\n")] = '\0';
        if (str_to_u64(text, UINT64_MAX / SECTOR, &sectors) < 0)
                return error_set(err, -EBADMSG, "%s is no number", path);
        *ret = sectors * SECTOR;
        return 0;
}

/* The disk says that it has grown by an interrupt, and the kernel then by an event of the device. */
static int uevents(struct error *err) {
        const struct sockaddr_nl all = { .nl_family = AF_NETLINK, .nl_groups = 1 };
        _cleanup_fd_ int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT);
        if (fd < 0 || bind(fd, (const struct sockaddr *) &all, sizeof all) < 0)
                return error_errno(err, errno, "cannot listen for device events");
        return fd_steal(&fd);
}

static int wait_for_size(dev_t dev, uint64_t want, uint64_t *ret, struct error *err) {
        _cleanup_fd_ int fd = uevents(err); /* before the first look: nothing is missed between */
        if (fd < 0)
                return fd;
        for (uint64_t end = clock_mono_ms() + GROW_WAIT_MS, now;;) {
                int r = disk_size(dev, ret, err);
                if (r < 0 || *ret >= want)
                        return r;
                now = clock_mono_ms();
                if (now >= end)
                        return error_set(err, -ETIMEDOUT, "the disk has %llu bytes, not the %llu it was given",
                                         (unsigned long long) *ret, (unsigned long long) want);
                struct pollfd p = { .fd = fd, .events = POLLIN };
                char event[UEVENT_MAX];
                (void) poll(&p, 1, (int) (end - now));
                while (recv(fd, event, sizeof event, 0) >= 0)
                        ;
        }
}

int grow_root(uint64_t disk_bytes, struct error *err) {
        struct stat st;
        struct statfs fs;
        uint64_t have = 0;
        _cleanup_fd_ int root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (root < 0 || fstat(root, &st) < 0 || fstatfs(root, &fs) < 0 || fs.f_bsize <= 0)
                return error_errno(err, errno, "cannot open the root folder");
        int r = wait_for_size(st.st_dev, disk_bytes, &have, err);
        if (r < 0)
                return r;
        uint64_t blocks = have / (uint64_t) fs.f_bsize;
        if (ioctl(root, EXT4_IOC_RESIZE_FS_, &blocks) < 0)
                return error_errno(err, errno, "cannot grow the root filesystem to %llu bytes",
                                   (unsigned long long) have);
        return 0;
}
