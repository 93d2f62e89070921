/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <string.h>

#include "bzimage.h"

enum { SIZE = 16384, SECTORS = 7, OFFSET = 0x2c4, LENGTH = 6000, AT = (SECTORS + 1) * 512 + OFFSET };

static void put32(uint8_t *p, uint32_t v) {
        for (unsigned i = 0; i < 4; i++)
                p[i] = (uint8_t) (v >> (8 * i));
}

static void make(uint8_t image[SIZE], const char *magic, size_t n) {
        memset(image, 0, SIZE);
        image[0x1f1] = SECTORS;
        memcpy(image + 0x202, "HdrS", 4);
        image[0x206] = 0x0f;
        image[0x207] = 0x02;
        put32(image + 0x248, OFFSET);
        put32(image + 0x24c, LENGTH);
        memcpy(image + AT, magic, n);
}

static void finds_every_method(void **state) {
        static const struct {
                const char *magic;
                size_t n;
                const char *unpacker;
                size_t length;
        } rows[] = {
                { "\x1f\x8b\x08", 3, "gzip", LENGTH },          { "\xfd" "7zXZ\0", 6, "xz", LENGTH - 4 },
                { "\x28\xb5\x2f\xfd", 4, "zstd", LENGTH - 4 },  { "\x02\x21\x4c\x18", 4, "lz4", LENGTH - 4 },
                { "BZh", 3, "bzip2", LENGTH - 4 },              { "\x7f" "ELF", 4, NULL, LENGTH },
        };

        (void) state;
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                uint8_t image[SIZE];
                struct bzimage_payload p;
                struct error e = ERROR_INIT;
                make(image, rows[i].magic, rows[i].n);
                assert_int_equal(bzimage_find(image, SIZE, &p, &e), 0);
                assert_int_equal(p.offset, AT);
                assert_int_equal(p.length, rows[i].length);
                if (rows[i].unpacker)
                        assert_string_equal(p.unpacker, rows[i].unpacker);
                else
                        assert_null(p.unpacker);
        }
}

static void no_sectors_means_four(void **state) {
        uint8_t image[SIZE];
        struct bzimage_payload p;

        (void) state;
        make(image, "", 0);
        image[0x1f1] = 0;
        memcpy(image + 5 * 512 + OFFSET, "BZh", 3);
        assert_int_equal(bzimage_find(image, SIZE, &p, NULL), 0);
        assert_int_equal(p.offset, 5 * 512 + OFFSET);
}

static void refuses_what_is_none(void **state) {
        uint8_t image[SIZE];
        struct bzimage_payload p;
        struct error e = ERROR_INIT;

        (void) state;
        make(image, "BZh", 3);
        assert_int_equal(bzimage_find(image, 0x24f, &p, &e), -EBADMSG);
        assert_int_equal(bzimage_find(image, AT + LENGTH - 1, &p, &e), -EBADMSG);
        assert_int_equal(bzimage_find(image, AT + LENGTH, &p, &e), 0);

        make(image, "BZh", 3);
        image[0x202] = 'h';
        assert_int_equal(bzimage_find(image, SIZE, &p, &e), -EBADMSG);

        make(image, "BZh", 3);
        image[0x206] = 0x07; /* protocol 2.07 has no payload fields */
        assert_int_equal(bzimage_find(image, SIZE, &p, &e), -EBADMSG);
        assert_non_null(strstr(e.msg, "2.07"));

        make(image, "abcd", 4);
        assert_int_equal(bzimage_find(image, SIZE, &p, &e), -EBADMSG);
        assert_non_null(strstr(e.msg, "61 62 63 64"));

        /* Offsets and lengths that only fit when they wrap. */
        make(image, "BZh", 3);
        put32(image + 0x248, UINT32_MAX);
        assert_int_equal(bzimage_find(image, SIZE, &p, &e), -EBADMSG);
        make(image, "BZh", 3);
        put32(image + 0x24c, UINT32_MAX);
        assert_int_equal(bzimage_find(image, SIZE, &p, &e), -EBADMSG);
        make(image, "BZh", 3);
        put32(image + 0x24c, 3);
        assert_int_equal(bzimage_find(image, SIZE, &p, &e), -EBADMSG);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(finds_every_method),
                cmocka_unit_test(no_sectors_means_four),
                cmocka_unit_test(refuses_what_is_none),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
