/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "bounds.h"
#include "patch.h"

static struct patch_side side(const char *text) {
        return (struct patch_side){ .path = text ? "/f" : NULL,
                                    .data = (const uint8_t *) (text ? text : ""),
                                    .n = text ? strlen(text) : 0 };
}

static void expect(const char *old, const char *new, const char *want) {
        _cleanup_buf_ struct buf out = BUF_INIT(1 << 20);
        const struct patch_side a = side(old), b = side(new);

        assert_int_equal(patch_write(&out, &a, &b), 0);
        assert_string_equal(buf_str(&out), want);
}

static void as_diff_writes_them(void **state) {
        (void) state;
        expect("a\nb\nc\n", "a\nB\nc\n", "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n");
        expect("1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\n2\n3\n4\n5\n6\n7\n8\n9\nten\n",
               "--- a/f\n+++ b/f\n@@ -7,3 +7,4 @@\n 7\n 8\n 9\n+ten\n");
        expect("x\n", "", "--- a/f\n+++ b/f\n@@ -1 +0,0 @@\n-x\n");
        expect("same\n", "same\n", "--- a/f\n+++ b/f\n");
}

static void files_that_come_and_go(void **state) {
        (void) state;
        expect(NULL, "x\ny\n", "--- /dev/null\n+++ b/f\n@@ -0,0 +1,2 @@\n+x\n+y\n");
        expect("x\n", NULL, "--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n");
}

static void ends_without_a_line_end(void **state) {
        (void) state;
        expect("a\nb", "a\nb\n", "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n");
        expect("a", "b", "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n\\ No newline at end of file\n");
}

static void near_changes_share_a_hunk(void **state) {
        (void) state;
        /* Six equal lines between: one hunk; seven: two. */
        expect("x\n1\n2\n3\n4\n5\n6\ny\n", "X\n1\n2\n3\n4\n5\n6\nY\n",
               "--- a/f\n+++ b/f\n@@ -1,8 +1,8 @@\n-x\n+X\n 1\n 2\n 3\n 4\n 5\n 6\n-y\n+Y\n");
        expect("x\n1\n2\n3\n4\n5\n6\n7\ny\n", "X\n1\n2\n3\n4\n5\n6\n7\nY\n",
               "--- a/f\n+++ b/f\n@@ -1,4 +1,4 @@\n-x\n+X\n 1\n 2\n 3\n@@ -6,4 +6,4 @@\n 5\n 6\n 7\n-y\n+Y\n");
}

static void paths_cannot_forge_lines(void **state) {
        _cleanup_buf_ struct buf out = BUF_INIT(1 << 20);
        const struct patch_side a = { .path = "/a\n+++ b/x\x1b[0m", .data = (const uint8_t *) "1\n", .n = 2 };
        const struct patch_side b = { .path = "/a\n", .data = (const uint8_t *) "2\n", .n = 2 };

        (void) state;
        assert_int_equal(patch_write(&out, &a, &b), 0);
        assert_non_null(strstr(buf_str(&out), "--- a/a?+++ b/x?[0m\n+++ b/a?\n@@"));
}

static void has_a_limit(void **state) {
        _cleanup_buf_ struct buf out = BUF_INIT(20);
        const struct patch_side a = { .path = "/f", .data = (const uint8_t *) "1\n", .n = 2 };
        const struct patch_side b = { .path = "/f", .data = (const uint8_t *) "2\n", .n = 2 };

        (void) state;
        assert_int_equal(patch_write(&out, &a, &b), -ENOBUFS);
}

static void what_is_text(void **state) {
        uint8_t *large = calloc(1, HISTORY_PATCH_FILE_MAX + 1);

        (void) state;
        assert_non_null(large);
        assert_null(patch_unfit((const uint8_t *) "", 0));
        assert_null(patch_unfit((const uint8_t *) "gr\xc3\xbc\xc3\x9f\n", 7));
        assert_string_equal(patch_unfit((const uint8_t *) "a\0b", 3), "binary");
        assert_string_equal(patch_unfit((const uint8_t *) "\xff\n", 2), "binary");
        memset(large, 'x', HISTORY_PATCH_FILE_MAX + 1);
        assert_null(patch_unfit(large, HISTORY_PATCH_FILE_MAX));
        assert_string_equal(patch_unfit(large, HISTORY_PATCH_FILE_MAX + 1), "too_large");
        memset(large, '\n', HISTORY_PATCH_LINES_MAX);
        assert_null(patch_unfit(large, HISTORY_PATCH_LINES_MAX));
        assert_string_equal(patch_unfit(large, HISTORY_PATCH_LINES_MAX + 1), "too_large");
        free(large);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(as_diff_writes_them),     cmocka_unit_test(files_that_come_and_go),
                cmocka_unit_test(ends_without_a_line_end), cmocka_unit_test(near_changes_share_a_hunk),
                cmocka_unit_test(paths_cannot_forge_lines), cmocka_unit_test(has_a_limit),
                cmocka_unit_test(what_is_text),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
