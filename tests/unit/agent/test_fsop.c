/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "fsop.h"
#include "path.h"

static char dir[] = "/tmp/cspace-fsop-XXXXXX";

static const char *at(const char *rel) {
        static char out[4][PATH_MAX];
        static unsigned i;
        char *p = out[i++ % 4];
        (void) snprintf(p, PATH_MAX, "%s/%s", dir, rel);
        return p;
}

static void put(const char *path, const char *text) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        (void) fputs(text, f);
        (void) fclose(f);
}

static int set_up(void **state) {
        (void) state;
        return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state) {
        (void) state;
        return fsop_remove(dir, NULL);
}

static void folders(void **state) {
        (void) state;
        struct error e = ERROR_INIT;
        struct stat st;
        assert_int_equal(fsop_mkdirs(at("a/b/c"), NULL, &e), 0);
        assert_int_equal(fsop_mkdirs(at("a/b/c"), NULL, &e), 0);
        assert_int_equal(stat(at("a/b"), &st), 0);
        assert_int_equal(st.st_mode & 07777, 0755);
        put(at("file"), "x");
        assert_int_equal(fsop_mkdirs(at("file/sub"), NULL, &e), -ENOTDIR);
        assert_int_equal(fsop_mkdirs(at("file"), NULL, &e), -ENOTDIR);
        assert_int_equal(fsop_make_parents(at("p/q/r.txt"), NULL, &e), 0);
        assert_int_equal(stat(at("p/q"), &st), 0);
        assert_int_equal(stat(at("p/q/r.txt"), &st), -1);
}

static void removal(void **state) {
        (void) state;
        put(at("keep"), "kept");
        assert_int_equal(fsop_mkdirs(at("rm/x"), NULL, NULL), 0);
        assert_int_equal(symlink(at("keep"), at("rm/link")), 0);
        assert_int_equal(symlink(dir, at("rm/dirlink")), 0);
        put(at("rm/\n odd \xff"), "");
        assert_int_equal(fsop_remove(at("rm"), NULL), 0);
        assert_int_equal(access(at("rm"), F_OK), -1);
        assert_int_equal(access(at("keep"), F_OK), 0);
        assert_int_equal(fsop_remove(at("rm"), NULL), 0);
        assert_int_equal(fsop_remove("/", NULL), -EBUSY);
        assert_int_equal(symlink(at("nowhere"), at("dangling")), 0);
        assert_int_equal(fsop_remove(at("dangling"), NULL), 0);
}

/* Deeper than PATH_MAX and than the descriptors that removal keeps open. */
static void deep_removal(void **state) {
        (void) state;
        int fd = open(dir, O_RDONLY | O_DIRECTORY);
        for (int i = 0; i < 1500; i++) {
                assert_int_equal(mkdirat(fd, i ? "ddddd" : "deep", 0755), 0);
                int next = openat(fd, i ? "ddddd" : "deep", O_RDONLY | O_DIRECTORY);
                assert_true(next >= 0);
                close(fd);
                fd = next;
        }
        close(fd);
        assert_int_equal(fsop_remove(at("deep"), NULL), 0);
        assert_int_equal(access(at("deep"), F_OK), -1);
}

static void listing(void **state) {
        (void) state;
        assert_int_equal(fsop_mkdirs(at("l/b/c"), NULL, NULL), 0);
        put(at("l/a"), "1");
        put(at("l/b/x"), "2");
        put(at("l/\xc3\xa9\"\n"), "3");
        assert_int_equal(symlink("/", at("l/root")), 0);
        assert_int_equal(symlink("l", at("via")), 0);
        static const struct {
                const char *path;
                unsigned depth;
                const char *names[8];
        } v[] = {
                { "l", 1, { "l/a", "l/b", "l/root", "l/\xc3\xa9\"\n" } },
                { "l", 2, { "l/a", "l/b", "l/b/c", "l/b/x", "l/root", "l/\xc3\xa9\"\n" } },
                { "via", 1, { "via/a", "via/b", "via/root", "via/\xc3\xa9\"\n" } },
        };
        for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
                struct buf b = BUF_INIT(0);
                assert_int_equal(fsop_list(at(v[i].path), v[i].depth, true, &b, NULL), 0);
                _cleanup_json_ json_t *j = NULL;
                assert_int_equal(json_parse(buf_data(&b), b.len, 1 << 20, &j, NULL), 0);
                size_t n = 0;
                for (; v[i].names[n]; n++)
                        assert_string_equal(json_string_value(json_object_get(json_array_get(j, n), "path")), at(v[i].names[n]));
                assert_int_equal(json_array_size(j), n);
                buf_done(&b);
        }
        struct buf b = BUF_INIT(0);
        assert_int_equal(fsop_list(at("l/a"), 1, true, &b, NULL), -ENOTDIR);
        assert_int_equal(fsop_list(at("none"), 1, true, &b, NULL), -ENOENT);
        buf_done(&b);
        struct buf small = BUF_INIT(100);
        assert_true(fsop_list(at("l"), 1, true, &small, NULL) < 0);
        buf_done(&small);
}

static void moving(void **state) {
        (void) state;
        struct stat st;
        put(at("m1"), "moved");
        assert_int_equal(fsop_move(at("m1"), at("m2"), NULL), 0);
        assert_int_equal(access(at("m1"), F_OK), -1);
        assert_int_equal(fsop_mkdirs(at("tree/sub"), NULL, NULL), 0);
        assert_int_equal(fsop_move(at("tree"), at("tree/sub/x"), NULL), -EINVAL);
        assert_int_equal(fsop_move(at("none"), at("m3"), NULL), -ENOENT);
        /* to another filesystem, with everything kept */
        put(at("tree/sub/f"), "content");
        assert_int_equal(chmod(at("tree/sub/f"), 0640), 0);
        assert_int_equal(symlink("f", at("tree/sub/l")), 0);
        struct timespec t[2] = { { 1000, 5 }, { 2000, 6 } };
        assert_int_equal(utimensat(AT_FDCWD, at("tree/sub/f"), t, 0), 0);
        char to[] = "/dev/shm/cspace-fsop-XXXXXX", path[PATH_MAX], link[16];
        if (!mkdtemp(to))
                skip();
        assert_int_equal(rmdir(to), 0);
        assert_int_equal(fsop_move(at("tree"), to, NULL), 0);
        assert_int_equal(access(at("tree"), F_OK), -1);
        (void) snprintf(path, sizeof path, "%s/sub/f", to);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0640);
        assert_int_equal(st.st_mtim.tv_sec, 2000);
        assert_int_equal(st.st_size, 7);
        (void) snprintf(path, sizeof path, "%s/sub/l", to);
        assert_int_equal(readlink(path, link, sizeof link), 1);
        assert_int_equal(fsop_remove(to, NULL), 0);
}

static void opening(void **state) {
        (void) state;
        int fd;
        bool created;
        struct stat st;
        assert_int_equal(mkfifo(at("fifo"), 0644), 0);
        assert_int_equal(fsop_open_read(at("fifo"), &fd, &st, NULL), -EINVAL);
        assert_int_equal(fsop_open_write(at("fifo"), 0644, NULL, &fd, &created, NULL), -EINVAL);
        assert_int_equal(fsop_open_read(dir, &fd, &st, NULL), -EISDIR);
        assert_int_equal(fsop_open_write(dir, 0644, NULL, &fd, &created, NULL), -EISDIR);
        assert_int_equal(fsop_open_read("/dev/zero", &fd, &st, NULL), -EINVAL);
        assert_int_equal(fsop_open_write("/dev/null", 0644, NULL, &fd, &created, NULL), -EINVAL);
        assert_int_equal(fsop_open_write(at("new"), 0600, NULL, &fd, &created, NULL), 0);
        assert_true(created);
        assert_int_equal(write(fd, "123456", 6), 6);
        close(fd);
        assert_int_equal(stat(at("new"), &st), 0);
        ino_t ino = st.st_ino;
        assert_int_equal(fsop_open_write(at("new"), 0644, NULL, &fd, &created, NULL), 0);
        assert_false(created);
        close(fd);
        assert_int_equal(stat(at("new"), &st), 0);
        assert_int_equal(st.st_size, 0);
        assert_int_equal(st.st_ino, ino);
        assert_int_equal(st.st_mode & 0777, 0600);
        assert_int_equal(symlink("target", at("tolink")), 0);
        assert_int_equal(fsop_open_write(at("tolink"), 0644, NULL, &fd, &created, NULL), 0);
        close(fd);
        assert_int_equal(access(at("target"), F_OK), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(folders), cmocka_unit_test(removal), cmocka_unit_test(deep_removal), cmocka_unit_test(listing),
                cmocka_unit_test(moving), cmocka_unit_test(opening),
        };
        return cmocka_run_group_tests(tests, set_up, tear_down);
}
