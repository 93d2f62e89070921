/* SPDX-License-Identifier: Apache-2.0 */

/* Journals written here, block by block, in an image in memory: [0, 40) are the filesystem's blocks, the journal lies behind. */
#include "test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "jbd2.h"
#include "journal.h"

#define BS 1024u
#define FS_BLOCKS 40u
#define LOG_BLOCKS 24u
#define FIRST_SEQ 0xfffffffeu /* the numbers wrap */

struct world {
        uint8_t bytes[(FS_BLOCKS + LOG_BLOCKS) * BS];
        uint64_t blocks[LOG_BLOCKS];
        struct image img;
        uint32_t features, seed, seq, at; /* at: the next block of the log */
};

static int read_world(void *ctx, uint64_t off, void *buf, size_t n) {
        memcpy(buf, ((struct world *) ctx)->bytes + off, n);
        return 0;
}

static void put32(uint8_t *p, uint32_t v) {
        p[0] = (uint8_t) (v >> 24);
        p[1] = (uint8_t) (v >> 16);
        p[2] = (uint8_t) (v >> 8);
        p[3] = (uint8_t) v;
}

static uint8_t *log_block(struct world *w, uint32_t n) {
        return w->bytes + w->blocks[n] * BS;
}

static void seal(struct world *w, uint8_t *block, size_t at) {
        if (w->features & (JBD2_INCOMPAT_CSUM_V2 | JBD2_INCOMPAT_CSUM_V3))
                put32(block + at, ext2fs_crc32c_le(w->seed, block, BS));
}

static uint8_t *begin(struct world *w, uint32_t type) {
        uint8_t *p = log_block(w, w->at);

        w->at = w->at + 1 == LOG_BLOCKS ? 1 : w->at + 1;
        memset(p, 0, BS);
        put32(p, JBD2_MAGIC);
        put32(p + 4, type);
        put32(p + 8, w->seq);
        return p;
}

static struct world *make(uint32_t features, uint32_t start) {
        struct world *w = calloc(1, sizeof *w);
        assert_non_null(w);
        for (uint32_t i = 0; i < LOG_BLOCKS; i++) /* not in one piece */
                w->blocks[i] = FS_BLOCKS + (i * 5) % LOG_BLOCKS;
        for (uint32_t i = 0; i < FS_BLOCKS; i++)
                memset(w->bytes + i * BS, 'a', BS);
        w->features = features;
        w->seq = FIRST_SEQ;
        uint8_t *sb = log_block(w, 0);
        put32(sb, JBD2_MAGIC);
        put32(sb + 4, JBD2_SUPER_V2);
        put32(sb + JBD2_SB_BLOCK_SIZE, BS);
        put32(sb + JBD2_SB_MAXLEN, LOG_BLOCKS);
        put32(sb + JBD2_SB_FIRST, 1);
        put32(sb + JBD2_SB_SEQUENCE, FIRST_SEQ);
        put32(sb + JBD2_SB_START, start);
        put32(sb + JBD2_SB_INCOMPAT, features);
        memset(sb + JBD2_SB_UUID, 7, 16);
        w->at = start;
        w->seed = ext2fs_crc32c_le(~0u, sb + JBD2_SB_UUID, 16);
        if (features & (JBD2_INCOMPAT_CSUM_V2 | JBD2_INCOMPAT_CSUM_V3)) {
                sb[JBD2_SB_CHECKSUM_TYPE] = JBD2_CHECKSUM_CRC32C;
                put32(sb + JBD2_SB_CHECKSUM, ext2fs_crc32c_le(~0u, sb, JBD2_SB_BYTES));
        }
        const struct image_source source = { .read = read_world, .ctx = w, .size = sizeof w->bytes, .fd = -EBADF };
        image_open_source(&w->img, &source);
        w->img.block_size = BS;
        return w;
}

/* A descriptor and n blocks full of `fill`. */
static void put_blocks(struct world *w, const uint32_t *numbers, size_t n, uint8_t fill, bool escaped) {
        uint8_t *d = begin(w, JBD2_DESCRIPTOR), *p = d + JBD2_HEADER_BYTES;
        const uint8_t be[4] = { (uint8_t) (w->seq >> 24), (uint8_t) (w->seq >> 16), (uint8_t) (w->seq >> 8), (uint8_t) w->seq };

        for (size_t i = 0; i < n; i++) {
                uint32_t flags = (i ? JBD2_TAG_SAME_UUID : 0) | (i + 1 == n ? JBD2_TAG_LAST : 0) | (escaped ? JBD2_TAG_ESCAPED : 0);
                uint8_t *data = log_block(w, w->at);
                memset(data, fill, BS);
                if (escaped)
                        memset(data, 0, 4);
                w->at = w->at + 1 == LOG_BLOCKS ? 1 : w->at + 1;
                uint32_t sum = ext2fs_crc32c_le(ext2fs_crc32c_le(w->seed, be, 4), data, BS);
                put32(p, numbers[i]);
                if (w->features & JBD2_INCOMPAT_CSUM_V3) {
                        put32(p + 4, flags);
                        put32(p + 12, sum);
                        p += 16;
                } else {
                        put32(p + 4, flags);
                        if (w->features & JBD2_INCOMPAT_CSUM_V2) {
                                p[4] = (uint8_t) (sum >> 8);
                                p[5] = (uint8_t) sum;
                        }
                        p += 8 + (w->features & JBD2_INCOMPAT_CSUM_V2 ? 2 : 0) + (w->features & JBD2_INCOMPAT_64BIT ? 4 : 0);
                }
                p += i ? 0 : 16;
        }
        seal(w, d, BS - 4);
}

static void put_revokes(struct world *w, const uint32_t *numbers, size_t n) {
        size_t width = w->features & JBD2_INCOMPAT_64BIT ? 8 : 4;
        uint8_t *p = begin(w, JBD2_REVOKE);

        put32(p + 12, (uint32_t) (16 + n * width));
        for (size_t i = 0; i < n; i++)
                put32(p + 16 + i * width + (width - 4), numbers[i]);
        seal(w, p, BS - 4);
}

static void commit(struct world *w) {
        uint8_t *p = begin(w, JBD2_COMMIT);

        seal(w, p, 16);
        w->seq++;
}

static struct journal_result load(struct world *w, int want) {
        const struct journal_map map = { .blocks = w->blocks, .n = LOG_BLOCKS, .block_size = BS, .fs_blocks = FS_BLOCKS };
        struct journal_result res = { .transactions = 99 };
        struct error err = ERROR_INIT;

        assert_int_equal(journal_load(&w->img, &map, &res, &err), want);
        return res;
}

static uint8_t byte_of(struct world *w, uint32_t block, size_t at) {
        uint8_t b = 0;

        assert_int_equal(image_read(&w->img, (uint64_t) block * BS + at, &b, 1), 0);
        return b;
}

static void done(struct world *w) {
        image_done(&w->img);
        free(w);
}

static const uint32_t kinds[] = { 0, JBD2_INCOMPAT_64BIT, JBD2_INCOMPAT_CSUM_V2, JBD2_INCOMPAT_CSUM_V2 | JBD2_INCOMPAT_64BIT,
                                  JBD2_INCOMPAT_CSUM_V3, JBD2_INCOMPAT_CSUM_V3 | JBD2_INCOMPAT_64BIT };

static void newest_copy_counts(void **state) {
        (void) state;
        for (size_t k = 0; k < 6; k++)
                for (uint32_t start = 1; start < LOG_BLOCKS; start++) { /* also over the log's end */
                        struct world *w = make(kinds[k] | JBD2_INCOMPAT_REVOKE, start);
                        put_blocks(w, (const uint32_t[]){ 3, 4, 5 }, 3, 'b', false);
                        commit(w);
                        put_blocks(w, (const uint32_t[]){ 4 }, 1, 'c', true);
                        put_revokes(w, (const uint32_t[]){ 5 }, 1);
                        commit(w);
                        put_blocks(w, (const uint32_t[]){ 3 }, 1, 'd', false); /* not committed */
                        assert_int_equal(load(w, 0).transactions, 2);
                        assert_int_equal(byte_of(w, 2, 0), 'a');
                        assert_int_equal(byte_of(w, 3, 0), 'b');
                        assert_int_equal(byte_of(w, 3, BS - 1), 'b');
                        assert_int_equal(byte_of(w, 4, 0), 0xc0);
                        assert_int_equal(byte_of(w, 4, 3), 0x98);
                        assert_int_equal(byte_of(w, 4, 4), 'c');
                        assert_int_equal(byte_of(w, 5, 0), 'a'); /* revoked */
                        done(w);
                }
}

static void used_again_after_a_revocation(void **state) {
        (void) state;
        struct world *w = make(JBD2_INCOMPAT_CSUM_V3 | JBD2_INCOMPAT_REVOKE, 1);
        put_blocks(w, (const uint32_t[]){ 5 }, 1, 'b', false);
        commit(w);
        put_revokes(w, (const uint32_t[]){ 5 }, 1);
        commit(w);
        put_blocks(w, (const uint32_t[]){ 5 }, 1, 'c', false);
        commit(w);
        assert_int_equal(load(w, 0).transactions, 3);
        assert_int_equal(byte_of(w, 5, 0), 'c');
        done(w);
}

static void a_wrong_checksum_ends_the_log(void **state) {
        (void) state;
        for (uint32_t victim = 1; victim <= 6; victim++) {
                struct world *w = make(JBD2_INCOMPAT_CSUM_V3, 1);
                put_blocks(w, (const uint32_t[]){ 5 }, 1, 'b', false); /* log blocks 1, 2 */
                commit(w);                                             /* 3 */
                put_blocks(w, (const uint32_t[]){ 6 }, 1, 'c', false); /* 4, 5 */
                commit(w);                                             /* 6 */
                log_block(w, victim)[700] ^= 1;
                struct journal_result res = load(w, 0);
                assert_int_equal(res.transactions, victim <= 3 ? 0 : 1);
                assert_int_equal(res.damaged, victim == 2 || victim == 5);
                assert_int_equal(byte_of(w, 5, 0), victim <= 3 ? 'a' : 'b');
                assert_int_equal(byte_of(w, 6, 0), 'a');
                done(w);
        }
}

static void blocks_that_cannot_be(void **state) {
        (void) state;
        struct world *w = make(0, 1);
        put_blocks(w, (const uint32_t[]){ 5 }, 1, 'b', false);
        commit(w);
        put_blocks(w, (const uint32_t[]){ FS_BLOCKS }, 1, 'c', false); /* beyond the filesystem */
        commit(w);
        assert_int_equal(load(w, 0).transactions, 1);
        done(w);
}

static void a_log_that_never_ends(void **state) {
        (void) state;
        struct world *w = make(0, 1);
        for (uint32_t i = 1; i < LOG_BLOCKS; i++) /* all commits, all of them right */
                commit(w);
        assert_int_equal(load(w, 0).transactions, LOG_BLOCKS - 1);
        assert_int_equal(w->img.overlay_n, 0);
        done(w);
}

static void superblocks_that_lie(void **state) {
        static const struct {
                size_t at;
                uint32_t v;
                int want;
        } cases[] = { { 0, 1, -EUCLEAN },
                      { JBD2_SB_BLOCK_SIZE, 2048, -EUCLEAN },
                      { JBD2_SB_MAXLEN, LOG_BLOCKS + 1, -EUCLEAN },
                      { JBD2_SB_MAXLEN, 1, -EUCLEAN },
                      { JBD2_SB_FIRST, 0, -EUCLEAN },
                      { JBD2_SB_FIRST, LOG_BLOCKS, -EUCLEAN },
                      { JBD2_SB_START, LOG_BLOCKS, -EUCLEAN },
                      { JBD2_SB_INCOMPAT, 0x40, -EOPNOTSUPP },
                      { JBD2_SB_INCOMPAT, JBD2_INCOMPAT_CSUM_V3, -EUCLEAN }, /* with a checksum of zero */
                      { JBD2_SB_INCOMPAT, JBD2_INCOMPAT_FAST_COMMIT, -EUCLEAN } }; /* 256 blocks of them */

        (void) state;
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
                struct world *w = make(0, 1);
                put32(log_block(w, 0) + cases[i].at, cases[i].v);
                (void) load(w, cases[i].want);
                done(w);
        }
}

static void overlay_at_every_offset(void **state) {
        uint8_t got[4 * BS], want[4 * BS];

        (void) state;
        struct world *w = make(0, 1);
        put_blocks(w, (const uint32_t[]){ 5, 7 }, 2, 'b', true);
        commit(w);
        assert_int_equal(load(w, 0).transactions, 1);
        assert_non_null(image_overlay_find(&w->img, 5));
        assert_null(image_overlay_find(&w->img, 6));
        for (size_t i = 0; i < sizeof want; i++) {
                size_t in = i % BS;
                want[i] = i / BS % 2 ? (uint8_t) (in < 4 ? "\xc0\x3b\x39\x98"[in] : 'b') : 'a'; /* blocks 4 to 7 */
        }
        for (size_t from = 0; from < sizeof want; from += 3)
                for (size_t n = 0; from + n <= sizeof want; n = n * 3 + 1) {
                        assert_int_equal(image_read(&w->img, 4 * BS + from, got, n), 0);
                        assert_memory_equal(got, want + from, n);
                }
        done(w);
}

static void reads_have_ends(void **state) {
        uint8_t b[8];

        (void) state;
        struct world *w = make(0, 0);
        assert_int_equal(image_read(&w->img, sizeof w->bytes - 7, b, 8), -ERANGE);
        assert_int_equal(image_read(&w->img, UINT64_MAX - 3, b, 8), -ERANGE);
        w->img.read_left = 10;
        assert_int_equal(image_read(&w->img, 0, b, 8), 0);
        assert_int_equal(image_read(&w->img, 0, b, 8), -EDQUOT);
        done(w);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(newest_copy_counts),      cmocka_unit_test(used_again_after_a_revocation),
                cmocka_unit_test(a_wrong_checksum_ends_the_log), cmocka_unit_test(blocks_that_cannot_be),
                cmocka_unit_test(a_log_that_never_ends),   cmocka_unit_test(superblocks_that_lie),
                cmocka_unit_test(overlay_at_every_offset), cmocka_unit_test(reads_have_ends),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
