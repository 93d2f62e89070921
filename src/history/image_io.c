/* SPDX-License-Identifier: Apache-2.0 */

/*
 * An io_manager of libext2fs over an image. The library opens by name; here the name means nothing, and the image
 * is the one that image_ext2fs_open() has set for the duration of the call. Nothing can be written.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "image.h"
#include "bounds.h"

static struct image *opening;

static errcode_t io_open(const char *name, int flags, io_channel *ret);

static errcode_t io_close(io_channel ch) {
        if (--ch->refcount > 0)
                return 0;
        free(ch->name);
        free(ch);
        return 0;
}

static errcode_t io_set_blksize(io_channel ch, int size) {
        if (size < (int) HISTORY_BLOCK_MIN || size > (int) HISTORY_BLOCK_MAX)
                return EXT2_ET_INVALID_ARGUMENT;
        ch->block_size = size;
        return 0;
}

/* A negative count is a number of bytes. */
static errcode_t io_read64(io_channel ch, unsigned long long block, int count, void *data) {
        struct image *img = ch->private_data;
        uint64_t size = (uint64_t) ch->block_size;
        size_t n = count < 0 ? (size_t) -(int64_t) count : (size_t) count * (size_t) size;

        if (block > img->source.size / size || image_read(img, block * size, data, n) < 0)
                return EXT2_ET_SHORT_READ;
        return 0;
}

static errcode_t io_read(io_channel ch, unsigned long block, int count, void *data) {
        return io_read64(ch, block, count, data);
}

static errcode_t io_write64(io_channel ch, unsigned long long block, int count, const void *data) {
        (void) ch, (void) block, (void) count, (void) data;
        return EXT2_ET_RO_FILSYS;
}

static errcode_t io_write(io_channel ch, unsigned long block, int count, const void *data) {
        return io_write64(ch, block, count, data);
}

static errcode_t io_flush(io_channel ch) {
        (void) ch;
        return 0;
}

static errcode_t io_readahead(io_channel ch, unsigned long long block, unsigned long long count) {
        (void) ch, (void) block, (void) count;
        return 0;
}

static struct struct_io_manager manager = {
        .magic = EXT2_ET_MAGIC_IO_MANAGER,
        .name = "cspace image",
        .open = io_open,
        .close = io_close,
        .set_blksize = io_set_blksize,
        .read_blk = io_read,
        .write_blk = io_write,
        .flush = io_flush,
        .read_blk64 = io_read64,
        .write_blk64 = io_write64,
        .cache_readahead = io_readahead,
};

static errcode_t io_open(const char *name, int flags, io_channel *ret) {
        if (!opening || (flags & IO_FLAG_RW))
                return EXT2_ET_BAD_DEVICE_NAME;
        io_channel ch = calloc(1, sizeof *ch);
        char *copy = strdup(name);
        if (!ch || !copy) {
                free(ch);
                free(copy);
                return EXT2_ET_NO_MEMORY;
        }
        ch->magic = EXT2_ET_MAGIC_IO_CHANNEL;
        ch->manager = &manager;
        ch->name = copy;
        ch->block_size = (int) HISTORY_BLOCK_MIN;
        ch->refcount = 1;
        ch->private_data = opening;
        *ret = ch;
        return 0;
}

errcode_t image_ext2fs_open(struct image *img, int flags, ext2_filsys *ret) {
        opening = img;
        errcode_t e = ext2fs_open("image", flags & ~EXT2_FLAG_RW, 0, 0, &manager, ret);
        opening = NULL;
        return e;
}
