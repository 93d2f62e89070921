/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "cpio.h"

static void header_is_as_specified(void **state) {
        _cleanup_buf_ struct buf out = BUF_INIT(4096);
        struct cpio c = { .out = &out };

        (void) state;
        assert_int_equal(cpio_file(&c, "init", 0755, "hello", 5, NULL), 0);
        /* ino mode uid gid nlink mtime size devmajor devminor rdevmajor rdevminor namesize check */
        static const char want[] = "07070100000001000081ED000000000000000000000001000000000000000500000000000000000000000000000000"
                                   "0000000500000000";
        assert_int_equal(sizeof want - 1, 110);
        assert_memory_equal(buf_data(&out), want, 110);
        assert_memory_equal(buf_data(&out) + 110, "init\0\0", 6); /* padded to 116 */
        assert_memory_equal(buf_data(&out) + 116, "hello\0\0\0", 8);
        assert_int_equal(out.len, 124);
}

static void devices_and_folders(void **state) {
        _cleanup_buf_ struct buf out = BUF_INIT(4096);
        struct cpio c = { .out = &out };
        char field[9] = "";

        (void) state;
        assert_int_equal(cpio_dir(&c, "dev", 0755, NULL), 0);
        size_t second = out.len;
        assert_int_equal(second % 4, 0);
        assert_int_equal(cpio_char_device(&c, "dev/console", 0600, 5, 1, NULL), 0);
        const char *head = (const char *) buf_data(&out) + second;
        memcpy(field, head + 6, 8);
        assert_string_equal(field, "00000002");
        memcpy(field, head + 14, 8);
        assert_string_equal(field, "00002180"); /* S_IFCHR | 0600 */
        memcpy(field, head + 6 + 8 * 9, 8);
        assert_string_equal(field, "00000005");
        memcpy(field, head + 6 + 8 * 10, 8);
        assert_string_equal(field, "00000001");
}

static void ends_on_a_block(void **state) {
        _cleanup_buf_ struct buf out = BUF_INIT(4096);
        struct cpio c = { .out = &out };

        (void) state;
        assert_int_equal(cpio_file(&c, "a", 0644, "", 0, NULL), 0);
        assert_int_equal(cpio_end(&c, NULL), 0);
        assert_int_equal(out.len % 512, 0);
        assert_non_null(memmem(buf_data(&out), out.len, "TRAILER!!!", 11));
}

static void limits(void **state) {
        _cleanup_buf_ struct buf out = BUF_INIT(256);
        struct cpio c = { .out = &out };
        struct error e = ERROR_INIT;
        char big[512] = "";

        (void) state;
        assert_int_equal(cpio_file(&c, "/init", 0755, "", 0, &e), -EINVAL);
        assert_true(cpio_file(&c, "init", 0755, big, sizeof big, &e) < 0);
        assert_non_null(strstr(e.msg, "init"));
}

/* What the format's own program makes of it. */
static void cpio_reads_it(void **state) {
        _cleanup_buf_ struct buf out = BUF_INIT(65536);
        struct cpio c = { .out = &out };
        char path[] = "/tmp/cspace-cpio-XXXXXX", command[128], line[128];

        (void) state;
        if (system("command -v cpio >/dev/null 2>&1") != 0)
                skip();
        assert_int_equal(cpio_dir(&c, "lib", 0755, NULL), 0);
        assert_int_equal(cpio_file(&c, "lib/odd", 0600, "xyz", 3, NULL), 0);
        assert_int_equal(cpio_file(&c, "empty", 0644, NULL, 0, NULL), 0);
        assert_int_equal(cpio_end(&c, NULL), 0);
        int fd = mkstemp(path);
        assert_true(fd >= 0);
        FILE *f = fdopen(fd, "w");
        assert_non_null(f);
        assert_int_equal(fwrite(buf_data(&out), 1, out.len, f), out.len);
        assert_int_equal(fclose(f), 0);
        (void) snprintf(command, sizeof command, "cpio -it --quiet < %s", path);
        FILE *p = popen(command, "r");
        assert_non_null(p);
        static const char *const want[] = { "lib\n", "lib/odd\n", "empty\n" };
        for (size_t i = 0; i < 3; i++) {
                assert_non_null(fgets(line, sizeof line, p));
                assert_string_equal(line, want[i]);
        }
        assert_null(fgets(line, sizeof line, p));
        assert_int_equal(pclose(p), 0);
        remove(path);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(header_is_as_specified), cmocka_unit_test(devices_and_folders),
                cmocka_unit_test(ends_on_a_block),        cmocka_unit_test(limits),
                cmocka_unit_test(cpio_reads_it),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
