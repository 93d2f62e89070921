/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

#define COPY_CHUNK (64u << 20)
#define EXTENTS_PER_CALL 256
#define EXTENTS_MAX 65536 /* a disk of more pieces is reported by its allocated size */

static int copy_data(int src, int dst, off_t size, struct error *err) {
        for (off_t at = 0; at < size;) {
                off_t data = lseek(src, at, SEEK_DATA);
                if (data < 0 && errno == ENXIO)
                        break;
                off_t hole = data < 0 ? -1 : lseek(src, data, SEEK_HOLE);
                if (hole < 0)
                        return error_errno(err, errno, "cannot read the disk's layout");
                if (lseek(dst, data, SEEK_SET) < 0)
                        return error_errno(err, errno, "cannot copy the disk");
                while (data < hole) {
                        size_t n = hole - data > (off_t) COPY_CHUNK ? COPY_CHUNK : (size_t) (hole - data);
                        ssize_t r = sendfile(dst, src, &data, n);
                        if (r <= 0)
                                return error_errno(err, r < 0 ? errno : EIO, "cannot copy the disk");
                }
                at = hole;
        }
        return 0;
}

static int fill(int src, int dst, uint64_t src_bytes, uint64_t bytes, uid_t owner, struct error *err) {
        int r = fd_reflink(src, dst, NULL);
        if (r == -EOPNOTSUPP || r == -EXDEV)
                r = copy_data(src, dst, (off_t) src_bytes, err);
        else if (r < 0)
                r = error_errno(err, r, "cannot reflink");
        if (r < 0)
                return r;
        struct stat st;
        if (fstat(dst, &st) < 0)
                return error_errno(err, errno, "cannot stat the disk");
        if ((uint64_t) st.st_size != bytes && ftruncate(dst, (off_t) bytes) < 0)
                return error_errno(err, errno, "cannot grow the disk to %llu bytes",
                                   (unsigned long long) bytes);
        if (fchown(dst, owner, owner) < 0 || fchmod(dst, 0600) < 0)
                return error_errno(err, errno, "cannot give the disk to user %u", owner);
        return 0;
}

int disk_clone(int src, int dirfd, const char *name, uint64_t bytes, uid_t owner, int *ret_fd,
               uint64_t *ret_bytes, struct error *err) {
        struct stat st;
        if (fstat(src, &st) < 0)
                return error_errno(err, errno, "cannot stat the template's disk");
        uint64_t size = (uint64_t) st.st_size;
        if (bytes == 0)
                bytes = size;
        if (bytes < size)
                return error_set(err, -EINVAL, "a disk of %llu bytes is smaller than the template's %llu",
                                 (unsigned long long) bytes, (unsigned long long) size);
        _cleanup_fd_ int fd = openat(dirfd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
                return error_errno(err, errno, "cannot create \"%s\"", name);
        int r = fill(src, fd, size, bytes, owner, err);
        if (r < 0) {
                (void) unlinkat(dirfd, name, 0);
                return error_wrap(err, "disk of the sandbox");
        }
        *ret_fd = fd_steal(&fd);
        *ret_bytes = bytes;
        return 0;
}

int disk_moment(int src, int dirfd, int *ret_fd, struct error *err) {
        struct stat st;
        char path[40];
        if (fstat(src, &st) < 0)
                return error_errno(err, errno, "cannot stat the disk");
        _cleanup_fd_ int fd = openat(dirfd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (fd < 0)
                return error_errno(err, errno, "cannot make a file without a name");
        int r = fill(src, fd, (uint64_t) st.st_size, (uint64_t) st.st_size, 0, err);
        if (r < 0)
                return r;
        (void) snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        int again = open(path, O_RDONLY | O_CLOEXEC);
        if (again < 0)
                return error_errno(err, errno, "cannot open the file for reading");
        *ret_fd = again;
        return 0;
}

int disk_create(int dirfd, const char *name, uint64_t bytes, int *ret_fd, struct error *err) {
        _cleanup_fd_ int fd = openat(dirfd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
                return error_errno(err, errno, "cannot create \"%s\"", name);
        if (ftruncate(fd, (off_t) bytes) < 0) {
                int r = error_errno(err, errno, "cannot set the size of \"%s\"", name);
                (void) unlinkat(dirfd, name, 0);
                return r;
        }
        *ret_fd = fd_steal(&fd);
        return 0;
}

uint64_t disk_own_bytes(int fd) {
        struct stat st;
        if (fstat(fd, &st) < 0)
                return 0;
        uint64_t allocated = (uint64_t) st.st_blocks * 512, own = 0;
        static union {
                struct fiemap map;
                uint8_t room[sizeof(struct fiemap) + EXTENTS_PER_CALL * sizeof(struct fiemap_extent)];
        } u;
        uint64_t at = 0;
        for (unsigned seen = 0; seen < EXTENTS_MAX;) {
                memset(&u.map, 0, sizeof u.map);
                u.map.fm_start = at;
                u.map.fm_length = FIEMAP_MAX_OFFSET - at;
                u.map.fm_extent_count = EXTENTS_PER_CALL;
                if (ioctl(fd, FS_IOC_FIEMAP, &u.map) < 0)
                        return allocated;
                if (u.map.fm_mapped_extents == 0)
                        return own;
                for (uint32_t i = 0; i < u.map.fm_mapped_extents; i++) {
                        const struct fiemap_extent *e = &u.map.fm_extents[i];
                        if (!(e->fe_flags & FIEMAP_EXTENT_SHARED))
                                own += e->fe_length;
                        if (e->fe_flags & FIEMAP_EXTENT_LAST)
                                return own;
                        at = e->fe_logical + e->fe_length;
                }
                seen += u.map.fm_mapped_extents;
        }
        return allocated;
}
