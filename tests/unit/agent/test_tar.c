/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "fsop.h"
#include "tar_pack.h"
#include "tar_unpack.h"
#include "wire/tar.h"

static char top[] = "/tmp/cspace-tar-XXXXXX";

static const char *at(const char *rel) {
        static char out[8][4096];
        static unsigned i;
        char *p = out[i++ % 8];
        (void) snprintf(p, sizeof out[0], "%s/%s", top, rel);
        return p;
}

static void put(const char *path, const char *text, mode_t mode) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        (void) fputs(text, f);
        (void) fclose(f);
        assert_int_equal(chmod(path, mode), 0);
}

static int set_up(void **state) {
        (void) state;
        umask(022);
        return mkdtemp(top) ? 0 : -1;
}

static int tear_down(void **state) {
        (void) state;
        return fsop_remove(top, NULL);
}

/* Packs in odd pieces, unpacks in odd pieces. */
static void copy_tree(const char *from, const char *to) {
        struct tar_pack *p = NULL;
        struct tar_unpack *u = NULL;
        struct tar_unpack_result r;
        struct error e = ERROR_INIT;
        uint8_t piece[1531];
        assert_int_equal(tar_pack_open(from, &p, &e), 0);
        assert_int_equal(tar_unpack_open(to, &(struct tar_unpack_how){ .set_id = true }, &u, &e), 0);
        for (ssize_t n; (n = tar_pack_read(p, piece, sizeof piece, &e)) != 0;) {
                assert_true(n > 0);
                assert_int_equal(tar_unpack_write(u, piece, (size_t) n, &e), 0);
        }
        assert_int_equal(tar_unpack_finish(u, &r, &e), 0);
        tar_unpack_free(u);
        tar_pack_free(p);
}

static void round_trip(void **state) {
        (void) state;
        char deep[600] = "src";
        assert_int_equal(mkdir(at("src"), 0755), 0);
        for (int i = 0; i < 12; i++) {
                (void) strcat(deep, "/a-folder-with-a-name-of-forty-characters");
                assert_int_equal(mkdir(at(deep), 0750), 0);
        }
        (void) strcat(deep, "/empty");
        put(at(deep), "", 0600);
        put(at("src/\xff\n odd"), "bytes", 0755);
        put(at("src/setuid"), "x", 04755);
        assert_int_equal(symlink("../outside", at("src/link")), 0);
        assert_int_equal(symlink("/absolute", at("src/abs")), 0);
        assert_int_equal(link(at("src/setuid"), at("src/second-name")), 0);
        assert_int_equal(mkfifo(at("src/fifo"), 0600), 0);
        assert_int_equal(mkdir(at("src/ro"), 0755), 0);
        put(at("src/ro/inside"), "i", 0444);
        assert_int_equal(chmod(at("src/ro"), 0555), 0);
        struct timespec t[2] = { { 5, 0 }, { 1234567890, 0 } };
        assert_int_equal(utimensat(AT_FDCWD, at("src/ro/inside"), t, 0), 0);
        assert_int_equal(utimensat(AT_FDCWD, at("src/ro"), t, 0), 0);
        FILE *f = fopen(at("src/big"), "w");
        for (int i = 0; i < 100000; i++)
                (void) fprintf(f, "%d\n", i);
        (void) fclose(f);

        assert_int_equal(mkdir(at("dst"), 0755), 0);
        copy_tree(at("src"), at("dst"));
        char cmd[300];
        /* the pipe is left out, everything else is as it was */
        assert_int_equal(unlink(at("src/fifo")), 0);
        (void) snprintf(cmd, sizeof cmd,
                        "cd %s && for d in src dst; do (cd $d && find . -mindepth 1 -printf '%%p %%y %%m %%l %%n\\n' "
                        "| LC_ALL=C sort) > $d.list; done && diff src.list dst.list && diff -r --no-dereference src dst", top);
        assert_int_equal(system(cmd), 0);
        struct stat a, b;
        assert_int_equal(stat(at("dst/setuid"), &a), 0);
        assert_int_equal(stat(at("dst/second-name"), &b), 0);
        assert_int_equal(a.st_ino, b.st_ino);
        assert_int_equal(stat(at("dst/ro"), &a), 0);
        assert_int_equal(a.st_mtim.tv_sec, 1234567890);
        assert_int_equal(stat(at("dst/ro/inside"), &a), 0);
        assert_int_equal(a.st_mtim.tv_sec, 1234567890);
        /* once more over what is there */
        copy_tree(at("src"), at("dst"));
}

static void one_file(void **state) {
        (void) state;
        put(at("single"), "one", 0644);
        assert_int_equal(mkdir(at("one"), 0755), 0);
        copy_tree(at("single"), at("one"));
        assert_int_equal(access(at("one/single"), F_OK), 0);
        struct tar_pack *p = NULL;
        assert_int_equal(tar_pack_open(at("none"), &p, NULL), -ENOENT);
        assert_int_equal(tar_pack_open("/dev/null", &p, NULL), -EINVAL);
}

struct member {
        enum tar_type type;
        const char *name, *link, *data;
};

/* The error of unpacking these members into dst, 0 if there is none. */
static int unpack(const char *dst, const struct member *m, size_t n, bool end) {
        struct buf b = BUF_INIT(0);
        for (size_t i = 0; i < n; i++) {
                const char *data = m[i].data ? m[i].data : "";
                struct tar_entry e = { .type = m[i].type, .name = m[i].name, .link = m[i].link ? m[i].link : "", .mode = 0644,
                                       .size = strlen(data) };
                assert_int_equal(tar_write_entry(&b, &e), 0);
                assert_int_equal(buf_append(&b, data, strlen(data)), 0);
                assert_int_equal(tar_write_padding(&b, strlen(data)), 0);
        }
        if (end)
                assert_int_equal(tar_write_end(&b), 0);
        struct tar_unpack *u = NULL;
        struct tar_unpack_result res;
        struct error e = ERROR_INIT;
        assert_int_equal(tar_unpack_open(dst, &(struct tar_unpack_how){ .set_id = false }, &u, &e), 0);
        int r = tar_unpack_write(u, buf_data(&b), b.len, &e);
        if (r == 0)
                r = tar_unpack_finish(u, &res, &e);
        tar_unpack_free(u);
        buf_done(&b);
        return r;
}
#define UNPACK(dst, ...)                                                                \
        unpack(dst, (const struct member[]){ __VA_ARGS__ },                             \
               sizeof((const struct member[]){ __VA_ARGS__ }) / sizeof(struct member), true)

static void hostile(void **state) {
        (void) state;
        assert_int_equal(mkdir(at("outside"), 0755), 0);
        assert_int_equal(mkdir(at("h"), 0755), 0);
        const char *h = at("h");
        assert_int_equal(UNPACK(h, { TAR_FILE, "/abs", NULL, "x" }), -EINVAL);
        assert_int_equal(UNPACK(h, { TAR_FILE, "../outside/x", NULL, "x" }), -EINVAL);
        assert_int_equal(UNPACK(h, { TAR_FILE, "a/../../outside/x", NULL, "x" }), -EINVAL);
        assert_int_equal(UNPACK(h, { TAR_SYMLINK, "l", "../outside", NULL }, { TAR_FILE, "l/x", NULL, "x" }), -ELOOP);
        assert_int_equal(UNPACK(h, { TAR_SYMLINK, "l2", "../outside", NULL }, { TAR_DIR, "l2", NULL, NULL }), -ELOOP);
        assert_int_equal(UNPACK(h, { TAR_SYMLINK, "l3", "../outside/f", NULL }, { TAR_FILE, "l3", NULL, "x" }), 0);
        struct stat st;
        assert_int_equal(lstat(at("h/l3"), &st), 0);
        assert_true(S_ISREG(st.st_mode));
        assert_int_equal(UNPACK(h, { TAR_HARDLINK, "hl", "../outside/f", NULL }), -EINVAL);
        assert_int_equal(UNPACK(h, { TAR_HARDLINK, "hl", "/etc/passwd", NULL }), -EINVAL);
        assert_int_equal(UNPACK(h, { TAR_SYMLINK, "s", "../outside", NULL }, { TAR_HARDLINK, "hl", "s/f", NULL }), -ELOOP);
        assert_int_equal(UNPACK(h, { TAR_SYMLINK, "t", "/etc/passwd", NULL }, { TAR_HARDLINK, "u", "t", NULL },
                                { TAR_FILE, "u", NULL, "x" }), 0);
        assert_int_equal(UNPACK(h, { TAR_SYMLINK, "v", "../outside", NULL }, { TAR_HARDLINK, "w", "v", NULL },
                                { TAR_FILE, "w/x", NULL, "x" }), -ELOOP);
        assert_int_equal(UNPACK(h, { TAR_CHARDEV, "dev", NULL, NULL }), 0);
        assert_int_equal(access(at("h/dev"), F_OK), -1);
        assert_int_equal(rmdir(at("outside")), 0); /* still empty */
}

static void merging(void **state) {
        (void) state;
        assert_int_equal(mkdir(at("m"), 0755), 0);
        assert_int_equal(mkdir(at("m/real"), 0700), 0);
        assert_int_equal(symlink("real", at("m/bin")), 0);
        put(at("m/real/keep"), "kept", 0644);
        /* a link that was there leads on, and stays */
        assert_int_equal(UNPACK(at("m"), { TAR_DIR, "bin/", NULL, NULL }, { TAR_FILE, "bin/new", NULL, "x" }), 0);
        assert_int_equal(access(at("m/real/new"), F_OK), 0);
        assert_int_equal(access(at("m/real/keep"), F_OK), 0);
        struct stat st;
        assert_int_equal(stat(at("m/real"), &st), 0);
        assert_int_equal(st.st_mode & 0777, 0700);
        /* a file does not replace a folder, nor a folder a file */
        assert_int_equal(UNPACK(at("m"), { TAR_FILE, "real", NULL, "x" }), -EISDIR);
        assert_int_equal(UNPACK(at("m"), { TAR_DIR, "real/keep", NULL, NULL }), -ENOTDIR);
        /* a hard link that was there is not written through */
        assert_int_equal(link(at("m/real/keep"), at("m/other")), 0);
        assert_int_equal(UNPACK(at("m"), { TAR_FILE, "other", NULL, "changed" }), 0);
        assert_int_equal(stat(at("m/real/keep"), &st), 0);
        assert_int_equal(st.st_size, 4);
}

static void cut_short(void **state) {
        (void) state;
        assert_int_equal(mkdir(at("c"), 0755), 0);
        const struct member m[] = { { TAR_FILE, "f", NULL, "x" } };
        assert_int_equal(unpack(at("c"), m, 1, false), -EPROTO);
        struct tar_unpack *u = NULL;
        uint8_t junk[512];
        memset(junk, 'j', sizeof junk);
        assert_int_equal(tar_unpack_open(at("c"), &(struct tar_unpack_how){ .set_id = false }, &u, NULL), 0);
        assert_int_equal(tar_unpack_write(u, junk, sizeof junk, NULL), -EPROTO);
        tar_unpack_free(u);
        /* a file of which only a part came is not left there */
        struct buf b = BUF_INIT(0);
        struct tar_entry e = { .type = TAR_FILE, .name = "part", .link = "", .mode = 0644, .size = 100000 };
        assert_int_equal(tar_write_entry(&b, &e), 0);
        assert_int_equal(buf_append(&b, junk, sizeof junk), 0);
        assert_int_equal(tar_unpack_open(at("c"), &(struct tar_unpack_how){ .set_id = false }, &u, NULL), 0);
        assert_int_equal(tar_unpack_write(u, buf_data(&b), b.len, NULL), 0);
        assert_int_equal(access(at("c/part"), F_OK), 0);
        tar_unpack_free(u);
        assert_int_equal(access(at("c/part"), F_OK), -1);
        buf_done(&b);
}

/* As it was: owners too, what is there becomes what the archive says, and no link leads anywhere. */
static void owners(void **state) {
        (void) state;
        if (geteuid() != 0)
                skip();
        const struct tar_entry all[] = {
                { .type = TAR_DIR, .name = "./", .link = "", .mode = 0711, .uid = 11, .gid = 12, .mtime_s = 1000 },
                { .type = TAR_DIR, .name = "./old/", .link = "", .mode = 0700, .uid = 13, .gid = 14, .mtime_s = 2000 },
                { .type = TAR_DIR, .name = "./way/", .link = "", .mode = 0755, .uid = 15, .gid = 16, .mtime_s = 3000 },
                { .type = TAR_FILE, .name = "./way/f", .link = "", .mode = 04755, .uid = 17, .gid = 18, .mtime_s = 4000 },
                { .type = TAR_SYMLINK, .name = "./l", .link = "nowhere", .mode = 0777, .uid = 19, .gid = 20, .mtime_s = 5000 },
        };
        struct buf b = BUF_INIT(0);
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
                assert_int_equal(tar_write_entry(&b, &all[i]), 0);
        assert_int_equal(tar_write_end(&b), 0);
        assert_int_equal(mkdir(at("o"), 0755), 0);
        assert_int_equal(mkdir(at("o/old"), 0755), 0);
        assert_int_equal(mkdir(at("elsewhere"), 0755), 0);
        assert_int_equal(symlink("../elsewhere", at("o/way")), 0);
        struct tar_unpack *u = NULL;
        struct tar_unpack_result res;
        struct error e = ERROR_INIT;
        assert_int_equal(tar_unpack_open(at("o"), &(struct tar_unpack_how){ .set_id = true, .owner = true }, &u, &e), 0);
        assert_int_equal(tar_unpack_write(u, buf_data(&b), b.len, &e), 0);
        assert_int_equal(tar_unpack_finish(u, &res, &e), 0);
        tar_unpack_free(u);
        const struct {
                const char *path;
                unsigned mode, uid, gid;
                time_t mtime;
        } want[] = { { "o", S_IFDIR | 0711, 11, 12, 1000 },      { "o/old", S_IFDIR | 0700, 13, 14, 2000 },
                     { "o/way", S_IFDIR | 0755, 15, 16, 3000 }, { "o/way/f", S_IFREG | 04755, 17, 18, 4000 },
                     { "o/l", S_IFLNK | 0777, 19, 20, 5000 } };
        struct stat st;
        for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
                assert_int_equal(lstat(at(want[i].path), &st), 0);
                assert_int_equal(st.st_mode, want[i].mode);
                assert_int_equal(st.st_uid, want[i].uid);
                assert_int_equal(st.st_gid, want[i].gid);
                assert_int_equal(st.st_mtime, want[i].mtime);
        }
        assert_int_equal(stat(at("elsewhere"), &st), 0);
        assert_int_equal(st.st_uid, 0);
        assert_int_equal(rmdir(at("elsewhere")), 0); /* still empty */
        buf_done(&b);
        /* nobody's, and a link that is not the archive's own */
        const struct tar_entry nobody = { .type = TAR_FILE, .name = "n", .link = "", .uid = UINT32_MAX };
        assert_int_equal(tar_write_entry(&b, &nobody), 0);
        assert_int_equal(tar_unpack_open(at("o"), &(struct tar_unpack_how){ .owner = true }, &u, &e), 0);
        assert_int_equal(tar_unpack_write(u, buf_data(&b), b.len, &e), -EINVAL);
        tar_unpack_free(u);
        buf_done(&b);
        const struct tar_entry through = { .type = TAR_FILE, .name = "out/x", .link = "" };
        assert_int_equal(symlink(".", at("o/out")), 0);
        assert_int_equal(tar_write_entry(&b, &through), 0);
        assert_int_equal(tar_unpack_open(at("o"), &(struct tar_unpack_how){ .owner = true }, &u, &e), 0);
        assert_int_equal(tar_unpack_write(u, buf_data(&b), b.len, &e), -ELOOP);
        tar_unpack_free(u);
        buf_done(&b);
}

static void another_name(void **state) {
        (void) state;
        struct buf b = BUF_INIT(0);
        const struct tar_entry e = { .type = TAR_FILE, .name = "one", .link = "", .mode = 0644 };
        struct tar_unpack *u = NULL;
        struct tar_unpack_result res;
        assert_int_equal(tar_write_entry(&b, &e), 0);
        assert_int_equal(tar_write_end(&b), 0);
        assert_int_equal(mkdir(at("a"), 0755), 0);
        assert_int_equal(tar_unpack_open(at("a"), &(struct tar_unpack_how){ .as = "two" }, &u, NULL), 0);
        assert_int_equal(tar_unpack_write(u, buf_data(&b), b.len, NULL), 0);
        assert_int_equal(tar_unpack_finish(u, &res, NULL), 0);
        tar_unpack_free(u);
        buf_done(&b);
        assert_int_equal(access(at("a/two"), F_OK), 0);
        assert_int_equal(access(at("a/one"), F_OK), -1);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(owners), cmocka_unit_test(another_name), cmocka_unit_test(round_trip), cmocka_unit_test(one_file), cmocka_unit_test(hostile),
                                            cmocka_unit_test(merging), cmocka_unit_test(cut_short) };
        return cmocka_run_group_tests(tests, set_up, tear_down);
}
