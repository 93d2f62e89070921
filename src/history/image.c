/* SPDX-License-Identifier: Apache-2.0 */
#include "image.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "jbd2.h"
#include "bounds.h"

static int file_read(void *ctx, uint64_t off, void *buf, size_t n) {
        const struct image *img = ctx;
        uint8_t *p = buf;

        while (n > 0) {
                ssize_t got = pread(img->source.fd, p, n, (off_t) off);
                if (got < 0 && errno == EINTR)
                        continue;
                if (got <= 0)
                        return -EIO;
                p += got;
                off += (uint64_t) got;
                n -= (size_t) got;
        }
        return 0;
}

int image_open_fd(struct image *img, int fd, struct error *err) {
        struct stat st;

        if (fstat(fd, &st) < 0)
                return error_errno(err, errno, "descriptor %d is no image", fd);
        int flags = fcntl(fd, F_GETFL);
        if (flags < 0 || (flags & O_ACCMODE) != O_RDONLY)
                return error_set(err, -EINVAL, "descriptor %d is not open for reading alone", fd);
        if (!S_ISREG(st.st_mode))
                return error_set(err, -EINVAL, "descriptor %d is not a regular file", fd);
        if ((uint64_t) st.st_size > HISTORY_IMAGE_BYTES_MAX)
                return error_set(err, -EFBIG, "the image is larger than %llu GiB",
                                 (unsigned long long) (HISTORY_IMAGE_BYTES_MAX >> 30));
        *img = (struct image){ .source = { .read = file_read,
                                           .ctx = img,
                                           .size = (uint64_t) st.st_size,
                                           .fd = fd,
                                           .dev = st.st_dev },
                               .read_left = HISTORY_READ_BYTES_MAX };
        return 0;
}

void image_open_source(struct image *img, const struct image_source *source) {
        *img = (struct image){ .source = *source, .read_left = HISTORY_READ_BYTES_MAX };
}

void image_done(struct image *img) {
        free(img->overlay);
        img->overlay = NULL;
        img->overlay_n = 0;
}

int image_read_raw(struct image *img, uint64_t off, void *buf, size_t n) {
        if (off > img->source.size || n > img->source.size - off)
                return -ERANGE;
        if (n > img->read_left)
                return -EDQUOT;
        img->read_left -= n;
        return img->source.read(img->source.ctx, off, buf, n);
}

const uint8_t *image_view(struct image *img, uint64_t off, size_t n) {
        if (img->source.fd < 0 || off > img->source.size || n > img->source.size - off || n > img->read_left)
                return NULL;
        void *p = mmap(NULL, n, PROT_READ, MAP_PRIVATE | MAP_POPULATE, img->source.fd, (off_t) off);
        if (p == MAP_FAILED)
                return NULL;
        img->read_left -= n;
        return p;
}

void image_view_done(const uint8_t *view, size_t n) {
        if (view)
                (void) munmap((void *) (uintptr_t) view, n);
}

void image_expect(const struct image *img, uint64_t off, uint64_t n) {
        if (img->source.fd >= 0 && off < img->source.size)
                (void) posix_fadvise(img->source.fd, (off_t) off, (off_t) n, POSIX_FADV_WILLNEED);
}

/* Index of the first entry whose block is not below `block`. */
static size_t overlay_lower(const struct image *img, uint64_t block) {
        size_t lo = 0, hi = img->overlay_n;

        while (lo < hi) {
                size_t mid = lo + (hi - lo) / 2;
                if (img->overlay[mid].block < block)
                        lo = mid + 1;
                else
                        hi = mid;
        }
        return lo;
}

const struct overlay_entry *image_overlay_find(const struct image *img, uint64_t block) {
        size_t i = overlay_lower(img, block);

        return i < img->overlay_n && img->overlay[i].block == block ? &img->overlay[i] : NULL;
}

/* The part of one overlay block that lies in [off, off + n). */
static int patch(struct image *img, const struct overlay_entry *e, uint64_t off, uint8_t *buf, size_t n) {
        static const uint8_t magic[4] = { JBD2_MAGIC >> 24, (JBD2_MAGIC >> 16) & 0xff, (JBD2_MAGIC >> 8) & 0xff,
                                          JBD2_MAGIC & 0xff };
        uint64_t start = e->block * img->block_size, end = start + img->block_size;
        uint64_t from = start > off ? start : off, to = end < off + n ? end : off + n;

        if (from >= to)
                return 0;
        int r = image_read_raw(img, e->at + (from - start), buf + (from - off), (size_t) (to - from));
        for (uint64_t i = from; r == 0 && e->escaped && i < to && i < start + 4; i++)
                buf[i - off] = magic[i - start];
        return r;
}

int image_read(struct image *img, uint64_t off, void *buf, size_t n) {
        int r = image_read_raw(img, off, buf, n);

        if (r < 0 || img->overlay_n == 0 || n == 0)
                return r;
        for (size_t i = overlay_lower(img, off / img->block_size);
             r == 0 && i < img->overlay_n && img->overlay[i].block * img->block_size < off + n; i++)
                r = patch(img, &img->overlay[i], off, buf, n);
        return r;
}
