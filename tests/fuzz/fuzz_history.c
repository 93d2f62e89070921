/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The input damages an image: its first byte chooses one of two, and which of both is the older one; the rest is a list of
 *
 *   2 bytes  which of the blocks in use     2 bytes  where in it     1 byte  how many bytes (1 to 8)     the bytes
 *
 * What must hold: everything that can be asked of the damaged image ends, within the limits, with an answer or an error
 * of the kinds that the program tells apart. The limits are small here, so that slow is found as well. And what diff finds
 * from the damaged blocks alone is what it finds when it compares everything, unless something cannot be read.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"

#include "base/fd.h"
#include "diff.h"
#include "history_base.h"
#include "show.h"
#include "suspect.h"

#define BLOCK 1024u
#define IMAGE_BYTES (4u << 20)
#define READ_MAX (32u << 20)
#define PATCHES_MAX 256

struct patch {
        uint64_t at;
        const uint8_t *data;
        size_t n;
};

struct disk {
        const struct base_block *blocks;
        size_t blocks_n;
        struct patch patches[PATCHES_MAX];
        size_t patches_n;
};

static const struct base_block *find_block(const struct disk *d, uint64_t n) {
        size_t lo = 0, hi = d->blocks_n;

        while (lo < hi) {
                size_t mid = (lo + hi) / 2;
                if (d->blocks[mid].n < n)
                        lo = mid + 1;
                else
                        hi = mid;
        }
        return lo < d->blocks_n && d->blocks[lo].n == n ? &d->blocks[lo] : NULL;
}

static int disk_read(void *ctx, uint64_t off, void *buf, size_t n) {
        const struct disk *d = ctx;
        uint8_t *p = buf;

        REQUIRE(off + n <= IMAGE_BYTES);
        for (size_t i = 0; i < n;) {
                uint64_t at = off + i;
                size_t part = BLOCK - at % BLOCK < n - i ? BLOCK - at % BLOCK : n - i;
                const struct base_block *b = find_block(d, at / BLOCK);
                if (b)
                        memcpy(p + i, b->bytes + at % BLOCK, part);
                else
                        memset(p + i, 0, part);
                i += part;
        }
        for (size_t k = 0; k < d->patches_n; k++)
                for (size_t i = 0; i < d->patches[k].n; i++)
                        if (d->patches[k].at + i >= off && d->patches[k].at + i < off + n)
                                p[d->patches[k].at + i - off] = d->patches[k].data[i];
        return 0;
}

static void take_patches(struct disk *d, const uint8_t *data, size_t n) {
        while (n >= 6 && d->patches_n < PATCHES_MAX) {
                size_t block = (size_t) (data[0] | data[1] << 8) % d->blocks_n, at = (size_t) (data[2] | data[3] << 8) % (BLOCK - 8);
                size_t k = data[4] % 8 + 1u;
                if (k > n - 5)
                        k = n - 5;
                d->patches[d->patches_n++] = (struct patch){ .at = (uint64_t) d->blocks[block].n * BLOCK + at, .data = data + 5, .n = k };
                data += 5 + k;
                n -= 5 + k;
        }
}

static int opened(struct disk *d, struct image *img, struct hfs **ret) {
        const struct image_source source = { .read = disk_read, .ctx = d, .size = IMAGE_BYTES, .fd = -EBADF };
        struct error err = ERROR_INIT;

        image_open_source(img, &source);
        img->read_left = READ_MAX;
        int r = hfs_open(img, ret, &err);
        REQUIRE(r == 0 || err.msg[0]);
        return r;
}

static void require_known(int r) {
        REQUIRE(r == 0 || r == -EUCLEAN || r == -ERANGE || r == -EDQUOT || r == -EOPNOTSUPP || r == -ENOENT || r == -ENOTDIR ||
                r == -EISDIR || r == -ELOOP || r == -ENAMETOOLONG || r == -EINVAL);
}

/* The records of a diff, without its last line (which has numbers of blocks and inodes looked at). */
static int records(struct hfs *old, struct hfs *new, const struct suspect *s, const struct options *o, struct buf *ret) {
        _cleanup_fd_ int fd = memfd_create("records", MFD_CLOEXEC);
        _cleanup_(output_done) struct output out;
        struct error err = ERROR_INIT;
        uint8_t *p;

        REQUIRE(fd >= 0);
        output_init(&out, fd);
        old->img->read_left = new->img->read_left = READ_MAX;
        int r = s ? diff_suspects(old, new, s, o, &out, &err) : diff_run(old, new, o, &out, &err);
        require_known(r);
        REQUIRE(output_flush(&out, &err) == 0);
        off_t n = lseek(fd, 0, SEEK_END);
        REQUIRE(buf_reserve(ret, (size_t) n, &p) == 0 && pread(fd, p, (size_t) n, 0) == n);
        buf_commit(ret, (size_t) n);
        while (ret->len > 0 && r == 0 && (--ret->len == 0 || buf_data(ret)[ret->len - 1] != '\n'))
                ;
        return r;
}

static bool has_error(const struct buf *b) {
        return memmem(buf_data(b), b->len, "\"error\":", 8) || memmem(buf_data(b), b->len, "\"unreadable\"", 12);
}

static void compare_ways(struct hfs *old, struct hfs *new, const struct disk *d, const struct options *o) {
        _cleanup_buf_ struct buf all = BUF_INIT(0), some = BUF_INIT(0);
        _cleanup_(suspect_done) struct suspect s = { .changed = NULL };
        uint64_t blocks[PATCHES_MAX];
        struct error err = ERROR_INIT;

        for (size_t i = 0; i < d->patches_n; i++)
                blocks[i] = d->patches[i].at / BLOCK;
        REQUIRE(suspect_from_blocks(old, new, blocks, d->patches_n, &s, &err) == 0);
        int r = records(old, new, NULL, o, &all);
        int q = records(old, new, &s, o, &some);
        if (r == 0 && q == 0 && !has_error(&all) && !has_error(&some))
                require_same(&all, &some);
}

static void ask(struct hfs *old, struct hfs *new, bool back, const struct disk *d, struct output *out) {
        static struct options o;
        struct error err = ERROR_INIT;
        static const char *const paths[] = { "/link/../file-with-a-name-020", "/fragmented", "/a/b/1", "/slow", "/fifo" };

        o = (struct options){ .verb = VERB_DIFF, .prefix = "/", .limit = 10000, .patch = true, .max_bytes = 1u << 20 };
        if (back)
                compare_ways(new, old, d, &o);
        else
                compare_ways(old, new, d, &o);
        for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
                new->img->read_left = READ_MAX;
                o.path = paths[i];
                require_known(show_cat(new, &o, out, &err));
        }
        o.path = "/";
        new->img->read_left = READ_MAX;
        require_known(show_extract(new, &o, out, &err));
        (void) output_flush(out, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        static int null = -1;
        static struct disk whole, damaged;
        _cleanup_(image_done) struct image x = IMAGE_INIT, y = IMAGE_INIT;
        _cleanup_(hfs_freep) struct hfs *old = NULL, *new = NULL;
        _cleanup_(output_done) struct output out;

        if (null < 0)
                null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        output_init(&out, null);
        if (n < 1)
                return 0;
        whole = (struct disk){ .blocks = data[0] % 2 ? base_1 : base_0,
                               .blocks_n = data[0] % 2 ? ARRAY_SIZE(base_1) : ARRAY_SIZE(base_0) };
        damaged = whole;
        take_patches(&damaged, data + 1, n - 1);
        REQUIRE(opened(&whole, &x, &old) == 0);
        if (opened(&damaged, &y, &new) == 0)
                ask(old, new, data[0] & 2, &damaged, &out);
        return 0;
}
