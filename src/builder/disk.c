/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The image has a journal. A sandbox's disk is copied while it runs (checkpoints) and its VM may be
 * killed at any moment; with a journal such a copy mounts at once and is consistent, without one it
 * would need a check first. The price is that metadata is written twice, into the host's page cache.
 *
 * All of it is zero where nothing was written, and mke2fs is told so: no table is written out here, and
 * the guest's kernel does not zero them in the background later (which would make every sandbox's disk grow).
 */
#include "disk.h"

#include <errno.h>
#include <ext2fs/ext2fs.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "child.h"

#define DISK_MIN (64ULL << 20)
#define DISK_BLOCK 4096u
#define JOURNAL_SMALL_BELOW (1ULL << 30)
/* The same in all templates: a sandbox has one disk, and nothing tells disks apart by these. */
#define DISK_UUID "63737061-6365-4000-8000-000000000001"
#define DISK_HASH_SEED "63737061-6365-4000-8000-000000000002"

/* Said here in full, so that the host's mke2fs.conf has no part in it. */
static const char features[] = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,"
                               "large_file,huge_file,dir_nlink,extra_isize,metadata_csum";

static int make_file(struct build *b, struct error *err) {
        _cleanup_fd_ int fd = openat(b->outfd, "disk.img", O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0644);

        if (fd < 0)
                return error_errno(err, errno, "cannot make disk.img");
        if (ftruncate(fd, (off_t) b->disk_bytes) < 0)
                return error_errno(err, errno, "cannot make a disk of %llu bytes", (unsigned long long) b->disk_bytes);
        return 0;
}

static int run_mke2fs(struct build *b, const char *image, struct error *err) {
        char time[64], epoch[64], journal[32];
        const char *const argv[] = { "mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-m", "0",
                                     "-J", journal, "-O", features, "-U", DISK_UUID, "-E",
                                     "hash_seed=" DISK_HASH_SEED
                                     ",root_owner=0:0,lazy_itable_init=1,lazy_journal_init=1,assume_storage_prezeroed=1,nodiscard",
                                     "-d", b->rootfs, image, NULL };
        const char *const env[] = { time, epoch, "MKE2FS_CONFIG=/dev/null", "MKE2FS_SYNC=0", NULL };
        struct child c = CHILD_INIT;

        (void) snprintf(time, sizeof time, "E2FSPROGS_FAKE_TIME=%llu", (unsigned long long) b->epoch);
        (void) snprintf(epoch, sizeof epoch, "SOURCE_DATE_EPOCH=%llu", (unsigned long long) b->epoch);
        (void) snprintf(journal, sizeof journal, "size=%u", b->disk_bytes < JOURNAL_SMALL_BELOW ? 4u : 32u); /* MiB */
        c.argv = argv;
        c.env = env;
        c.no_network = true;
        int r = child_run(b, &c, err);
        if (r == -EIO && memmem(b->tail, b->tail_n, "Could not allocate", 18))
                r = build_error(b, "disk_too_small", err, -ENOSPC,
                                "the root filesystem does not fit into a disk of %llu MiB: ask for a larger disk",
                                (unsigned long long) (b->disk_bytes >> 20));
        return r;
}

static int ext_error(struct error *err, errcode_t code, const char *what) {
        initialize_ext2_error_table();
        return error_set(err, -EIO, "%s: %s", what, error_message(code));
}

static uint32_t clamp(uint32_t t, uint64_t epoch) {
        return t > epoch ? (uint32_t) epoch : t;
}

static errcode_t set_times(ext2_filsys fs, uint64_t epoch) {
        ext2_inode_scan scan = NULL;
        struct ext2_inode_large inode;
        struct ext2_inode *small = (struct ext2_inode *) (void *) &inode;
        ext2_ino_t ino = 0;

        errcode_t e = ext2fs_open_inode_scan(fs, 0, &scan);
        while (!e) {
                memset(&inode, 0, sizeof inode);
                e = ext2fs_get_next_inode_full(scan, &ino, small, sizeof inode);
                if (e || ino == 0)
                        break;
                if (!ext2fs_test_inode_bitmap2(fs->inode_map, ino) || inode.i_links_count == 0)
                        continue;
                uint32_t t = clamp(inode.i_mtime, epoch);
                inode.i_mtime = t;
                inode.i_atime = t;
                inode.i_ctime = t;
                inode.i_crtime = t;
                inode.i_mtime_extra = inode.i_atime_extra = inode.i_ctime_extra = inode.i_crtime_extra = 0;
                inode.i_extra_isize = sizeof inode - EXT2_GOOD_OLD_INODE_SIZE;
                e = ext2fs_write_inode_full(fs, ino, small, sizeof inode);
        }
        if (scan)
                ext2fs_close_inode_scan(scan);
        return e;
}

int disk_set_times(const char *image, uint64_t epoch, struct error *err) {
        ext2_filsys fs = NULL;

        errcode_t e = ext2fs_open(image, EXT2_FLAG_RW | EXT2_FLAG_64BITS, 0, 0, unix_io_manager, &fs);
        if (e)
                return ext_error(err, e, "cannot open disk.img");
        fs->now = (time_t) epoch; /* the time that goes into the superblock */
        e = ext2fs_read_inode_bitmap(fs);
        if (!e)
                e = set_times(fs, epoch);
        if (e) {
                ext2fs_free(fs);
                return ext_error(err, e, "cannot set the times in disk.img");
        }
        ext2fs_mark_super_dirty(fs);
        e = ext2fs_close(fs);
        return e ? ext_error(err, e, "cannot write disk.img") : 0;
}

int disk_make(struct build *b, struct error *err) {
        char image[BUILD_PATH_MAX + 32];

        build_step(b, STEP_DISK, "writing the disk image");
        (void) snprintf(image, sizeof image, "%s/out/disk.img", b->dir);
        if (b->disk_bytes < DISK_MIN || b->disk_bytes % DISK_BLOCK)
                return build_error(b, "bad_argument", err, -EINVAL, "the disk must have at least 64 MiB, in steps of 4 KiB");
        int r = make_file(b, err);
        if (r == 0)
                r = run_mke2fs(b, image, err);
        if (r < 0)
                return r;
        build_progress(b, 80, "setting the times in the disk image");
        r = disk_set_times(image, b->epoch, err);
        if (r == 0)
                build_progress(b, 100, "the disk image is done");
        return r;
}
