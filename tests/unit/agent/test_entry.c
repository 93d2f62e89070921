/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "entry.h"

static void permissions(void **state) {
        (void) state;
        static const struct {
                mode_t mode;
                const char *want;
        } v[] = {
                { S_IFREG | 0644, "-rw-r--r--" }, { S_IFDIR | 0755, "drwxr-xr-x" }, { S_IFLNK | 0777, "Lrwxrwxrwx" },
                { S_IFDIR | 01777, "dtrwxrwxrwx" }, { S_IFREG | 04755, "urwxr-xr-x" }, { S_IFIFO | 0600, "prw-------" },
                { S_IFCHR | 0666, "Dcrw-rw-rw-" }, { S_IFSOCK | 0, "S---------" }, { S_IFREG | 07777, "ugtrwxrwxrwx" },
        };
        for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
                char out[16];
                entry_permissions(v[i].mode, out);
                assert_string_equal(out, v[i].want);
        }
}

static json_t *describe(const char *path, bool e2b) {
        struct entry *e = malloc(sizeof *e);
        struct user_names *n = user_names_load();
        struct buf b = BUF_INIT(0);
        json_t *j = NULL;
        assert_int_equal(entry_read(path, e, NULL), 0);
        assert_int_equal(e2b ? entry_json_e2b(e, n, &b) : entry_json(e, true, n, &b), 0);
        assert_int_equal(json_parse(buf_data(&b), b.len, 65536, &j, NULL), 0);
        buf_done(&b);
        user_names_free(n);
        free(e);
        return j;
}

static const char *text(const json_t *j, const char *key) {
        return json_string_value(json_object_get(j, key));
}

static void links(void **state) {
        (void) state;
        char dir[] = "/tmp/cspace-entry-XXXXXX", file[64], link[64], dangling[64], real[PATH_MAX];
        assert_non_null(mkdtemp(dir));
        (void) snprintf(file, sizeof file, "%s/f", dir);
        (void) snprintf(link, sizeof link, "%s/l", dir);
        (void) snprintf(dangling, sizeof dangling, "%s/d", dir);
        FILE *f = fopen(file, "w");
        assert_non_null(f);
        (void) fputs("12345", f);
        (void) fclose(f);
        assert_int_equal(chmod(file, 0640), 0);
        assert_int_equal(symlink("f", link), 0);
        assert_int_equal(symlink("nothing", dangling), 0);
        assert_non_null(realpath(file, real));

        json_t *j = describe(link, true);
        assert_string_equal(text(j, "type"), "FILE_TYPE_FILE");
        assert_string_equal(text(j, "symlinkTarget"), real);
        assert_string_equal(text(j, "permissions"), "Lrwxrwxrwx");
        assert_string_equal(text(j, "size"), "1");
        assert_int_equal(json_integer_value(json_object_get(j, "mode")), 0640);
        json_decref(j);
        j = describe(link, false);
        assert_string_equal(text(j, "type"), "file");
        assert_int_equal(json_integer_value(json_object_get(j, "size")), 5);
        json_decref(j);
        j = describe(dangling, true);
        assert_string_equal(text(j, "type"), "FILE_TYPE_SYMLINK");
        assert_string_equal(text(j, "symlinkTarget"), "nothing");
        json_decref(j);
        struct entry *e = malloc(sizeof *e);
        struct error err = ERROR_INIT;
        assert_int_equal(entry_read("/nonexistent/x", e, &err), -ENOENT);
        free(e);
        char cmd[100];
        (void) snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
        assert_int_equal(system(cmd), 0);
}

static void metadata_limits(void **state) {
        (void) state;
        struct metadata m = { 0 };
        char key[METADATA_KEY_MAX + 2], value[METADATA_TOTAL_MAX + 2];
        memset(key, 'K', sizeof key);
        memset(value, 'v', sizeof value);
        key[METADATA_KEY_MAX + 1] = '\0';
        value[METADATA_TOTAL_MAX + 1] = '\0';
        assert_int_equal(metadata_add(&m, key, "v", NULL), -EINVAL);
        key[METADATA_KEY_MAX] = '\0';
        assert_int_equal(metadata_add(&m, key, "v", NULL), 0);
        assert_int_equal(m.items[0].key[0], 'k');
        assert_int_equal(metadata_add(&m, "x", value, NULL), -EINVAL);
        assert_int_equal(metadata_add(&m, "", "v", NULL), -EINVAL);
        assert_int_equal(metadata_add(&m, "x", "\xc3\xa9", NULL), -EINVAL);
        assert_int_equal(metadata_add(&m, "x", "a\tb", NULL), -EINVAL);
        assert_int_equal(m.n, 1);
        metadata_done(&m);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(permissions), cmocka_unit_test(links),
                                            cmocka_unit_test(metadata_limits) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
