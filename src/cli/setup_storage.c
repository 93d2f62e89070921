/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Every sandbox's disk and memory is a reflink of its template's, so the data folder must be on a
 * filesystem that has them. Where it is not, an image file with btrfs is mounted there. The image is sparse: it takes
 * the space that is used, and space freed in it goes back to the host (discard).
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include <dirent.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "setup.h"
#include "text.h"

#define IMAGE_DEFAULT (64ULL << 30) /* unless there is less space, or [storage] image_size */
#define IMAGE_MIN (4ULL << 30)
#define IMAGE_KEEP_FREE (2ULL << 30) /* of the filesystem that holds the image */
#define UNMOUNT_LIMIT_MS 10000

void setup_image_path(const struct setup *s, char *out, size_t cap) {
        if (s->conf.image[0])
                (void) snprintf(out, cap, "%s", s->conf.image);
        else
                (void) snprintf(out, cap, "%s.btrfs", s->conf.data);
}

int setup_has_reflinks(const char *path, struct error *err) {
        char block[4096] = { 1 };

        _cleanup_fd_ int a = open(path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        _cleanup_fd_ int b = open(path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if ((a < 0 || b < 0) && (errno == EOPNOTSUPP || errno == EISDIR))
                return 0; /* a filesystem without O_TMPFILE has no reflinks either */
        if (a < 0 || b < 0)
                return error_errno(err, errno, "cannot make a file in %s", path);
        int r = fd_write_all(a, block, sizeof block, err);
        if (r < 0)
                return r;
        return ioctl(b, FICLONE, a) == 0;
}

static void closedirp(DIR **d) {
        if (*d)
                closedir(*d);
}

/* What lies in the folder would be hidden by the mount. */
static int check_empty(const char *path, struct error *err) {
        _cleanup_(closedirp) DIR *d = opendir(path);

        if (!d)
                return error_errno(err, errno, "cannot read %s", path);
        for (struct dirent *e; (e = readdir(d));)
                if (!str_eq(e->d_name, ".") && !str_eq(e->d_name, ".."))
                        return error_set(err, -ENOTEMPTY,
                                         "%s is on a filesystem without reflinks and not empty (\"%s\"): empty it, or set [paths] "
                                         "data to a folder on btrfs or XFS",
                                         path, e->d_name);
        return 0;
}

static int image_size(const struct setup *s, const char *image, uint64_t *ret, struct error *err) {
        char dir[CONF_STR_MAX + 16];
        struct statvfs v;

        (void) snprintf(dir, sizeof dir, "%s", image);
        char *slash = strrchr(dir, '/');
        if (slash)
                slash[slash == dir ? 1 : 0] = '\0';
        if (statvfs(dir, &v) < 0)
                return error_errno(err, errno, "cannot tell the free space of %s", dir);
        uint64_t free_bytes = (uint64_t) v.f_bavail * v.f_frsize;
        uint64_t most = free_bytes > IMAGE_KEEP_FREE ? free_bytes - IMAGE_KEEP_FREE : 0;
        uint64_t size = s->conf.image_bytes ? s->conf.image_bytes : IMAGE_DEFAULT < most ? IMAGE_DEFAULT : most;
        size &= ~((1ULL << 20) - 1);
        if (size < IMAGE_MIN || size > most)
                return error_set(err, -ENOSPC,
                                 "%s has %llu MiB free: an image for the data folder needs %llu MiB, and %llu MiB stay free; make room, "
                                 "or set [storage] image to a place with more",
                                 dir, (unsigned long long) (free_bytes >> 20),
                                 (unsigned long long) ((s->conf.image_bytes > IMAGE_MIN ? s->conf.image_bytes : IMAGE_MIN) >> 20),
                                 (unsigned long long) (IMAGE_KEEP_FREE >> 20));
        *ret = size;
        return 0;
}

/* Under another name until it is whole: a crash leaves no half-made filesystem to be mounted. */
static int make_image(const struct setup *s, const char *image, struct error *err) {
        char temp[CONF_STR_MAX + 32], size_text[TEXT_SIZE];
        const char *const mkfs[] = { "mkfs.btrfs", "-q", "-L", "cspace-data", temp, NULL };
        uint64_t size = 0;

        int r = image_size(s, image, &size, err);
        if (r < 0)
                return r;
        (void) snprintf(temp, sizeof temp, "%s.new", image);
        (void) unlink(temp);
        _cleanup_fd_ int fd = open(temp, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
                return error_errno(err, errno, "cannot make %s", temp);
        if (ftruncate(fd, (off_t) size) < 0)
                r = error_errno(err, errno, "cannot make %s", temp);
        if (r == 0)
                r = setup_exec(mkfs, err);
        if (r < 0)
                (void) error_wrap(err, "btrfs (package btrfs-progs) for the data folder");
        if (r == 0 && (fsync(fd) < 0 || rename(temp, image) < 0))
                r = error_errno(err, errno, "cannot make %s", image);
        if (r < 0) {
                (void) unlink(temp);
                return r;
        }
        text_size(size, size_text);
        setup_say("data folder image made: %s (btrfs, up to %s, sparse)", image, size_text);
        return 0;
}

/* nosuid and nodev: disks of guests are files here and nothing is run but a template's build, which needs
 * neither (and forbids noexec). */
static int mount_image(const char *image, const char *data, struct error *err) {
        static const char *const load[] = { "modprobe", "btrfs", NULL };
        char device[32];

        _cleanup_fd_ int fd = setup_loop_attach(image, device, sizeof device, err);
        if (fd < 0)
                return fd;
        int r = mount(device, data, "btrfs", MS_NOSUID | MS_NODEV | MS_NOATIME, "discard=async");
        if (r < 0 && errno == ENODEV) {
                (void) setup_exec(load, NULL);
                r = mount(device, data, "btrfs", MS_NOSUID | MS_NODEV | MS_NOATIME, "discard=async");
        }
        if (r < 0)
                return error_errno(err, errno, "cannot mount %s on %s", image, data);
        setup_say("data folder %s mounted from %s", data, image);
        return 0;
}

int setup_storage(struct setup *s, struct error *err) {
        char image[CONF_STR_MAX + 16];

        int r = fd_mkdir_p_at(AT_FDCWD, s->conf.data, 0755, err);
        if (r == 0)
                r = setup_has_reflinks(s->conf.data, err);
        if (r != 0)
                return r < 0 ? r : 0;
        setup_image_path(s, image, sizeof image);
        r = check_empty(s->conf.data, err);
        if (r == 0 && access(image, F_OK) < 0)
                r = make_image(s, image, err);
        return r < 0 ? r : mount_image(image, s->conf.data, err);
}

/* The device of a mounted btrfs is not st_dev, which is of the subvolume: mountinfo(5) names it. */
static bool is_our_mount(const struct setup *s, const char *image) {
        char line[4096], point[1024], source[512];
        FILE *f = fopen("/proc/self/mountinfo", "re");
        bool ours = false;
        struct stat st;

        while (f && fgets(line, sizeof line, f)) {
                const char *rest = strstr(line, " - ");
                if (!rest || sscanf(line, "%*d %*d %*s %*s %1023s", point) != 1 || sscanf(rest, " - %*s %511s", source) != 1)
                        continue;
                if (str_eq(point, s->conf.data))
                        ours = stat(source, &st) == 0 && S_ISBLK(st.st_mode) && setup_loop_is(st.st_rdev, image);
        }
        if (f)
                (void) fclose(f);
        return ours;
}

int setup_storage_end(struct setup *s, struct error *err) {
        char image[CONF_STR_MAX + 16];
        const struct timespec pause = { .tv_nsec = 50 * 1000 * 1000 };

        setup_image_path(s, image, sizeof image);
        if (!is_our_mount(s, image))
                return 0;
        /* Processes that were just killed may still hold it. */
        for (uint64_t end = clock_mono_ms() + UNMOUNT_LIMIT_MS; umount2(s->conf.data, UMOUNT_NOFOLLOW) < 0;) {
                if (errno != EBUSY || clock_mono_ms() > end)
                        return error_errno(err, errno, "cannot unmount %s", s->conf.data);
                (void) nanosleep(&pause, NULL);
        }
        setup_say("data folder %s unmounted", s->conf.data);
        return 0;
}
