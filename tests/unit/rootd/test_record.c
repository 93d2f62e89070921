/* SPDX-License-Identifier: Apache-2.0 */
#include "../test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "rootd/record.h"

static struct record sample(void) {
        return (struct record){ .state = RECORD_LIVE,
                                .id = "abcdefghijklmnopqrstuvwxyz",
                                .mode = "restore",
                                .digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
                                .engine = "qemu-tcg",
                                .memory_mb = 512,
                                .cpus = 2,
                                .disk_bytes = 1ULL << 33,
                                .slot = 4095,
                                .warden_uid = 2000008190,
                                .vm_uid = 2000008191,
                                .gateway_uid = 2000008192,
                                .warden_pid = 4194304,
                                .vm_pid = 17,
                                .gateway_pid = 18,
                                .warden_start = UINT64_MAX,
                                .vm_start = 1,
                                .gateway_start = 1ULL << 40 };
}

static int dir_fd;
static char dir[] = "/tmp/cspace-record-XXXXXX";

static int setup(void **state) {
        (void) state;
        assert_non_null(mkdtemp(dir));
        dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return dir_fd < 0;
}

static int teardown(void **state) {
        (void) state;
        (void) fd_remove_tree_at(AT_FDCWD, dir, NULL);
        fd_close(dir_fd);
        return 0;
}

static void round_trip(void **state) {
        (void) state;
        struct record in = sample(), out;
        struct error e = ERROR_INIT;
        struct stat st;
        assert_int_equal(record_read(dir_fd, &out, &e), -ENOENT);
        assert_int_equal(record_write(dir_fd, &in, &e), 0);
        assert_int_equal(record_read(dir_fd, &out, &e), 0);
        assert_int_equal(out.state, in.state);
        assert_string_equal(out.id, in.id);
        assert_string_equal(out.mode, in.mode);
        assert_string_equal(out.digest, in.digest);
        assert_string_equal(out.engine, in.engine);
        assert_true(out.memory_mb == in.memory_mb && out.cpus == in.cpus && out.disk_bytes == in.disk_bytes);
        assert_true(out.slot == in.slot && out.warden_uid == in.warden_uid && out.vm_uid == in.vm_uid);
        assert_true(out.gateway_uid == in.gateway_uid && out.gateway_pid == in.gateway_pid &&
                    out.gateway_start == in.gateway_start);
        assert_true(out.warden_pid == in.warden_pid && out.vm_pid == in.vm_pid);
        assert_true(out.warden_start == in.warden_start && out.vm_start == in.vm_start);
        in.state = RECORD_REMOVING;
        assert_int_equal(record_write(dir_fd, &in, &e), 0);
        assert_int_equal(record_read(dir_fd, &out, &e), 0);
        assert_int_equal(out.state, RECORD_REMOVING);
        assert_int_equal(fstatat(dir_fd, RECORD_NAME, &st, 0), 0);
        assert_int_equal(st.st_mode & 07777, 0600);
        assert_int_equal(fstatat(dir_fd, RECORD_NAME ".new", &st, 0), -1);
}

static char text[RECORD_SIZE_MAX];

static void load(void) {
        struct record r = sample();
        struct error e = ERROR_INIT;
        assert_int_equal(record_write(dir_fd, &r, &e), 0);
        int fd = openat(dir_fd, RECORD_NAME, O_RDONLY | O_CLOEXEC);
        ssize_t n = read(fd, text, sizeof text - 1);
        assert_true(n > 0);
        text[n] = 0;
        fd_close(fd);
}

static void every_missing_line_is_seen(void **state) {
        (void) state;
        load();
        struct record out;
        struct error e = ERROR_INIT;
        assert_int_equal(record_parse(text, &out, &e), 0);
        unsigned lines = 0;
        for (char *line = text; *line; line = strchr(line, '\n') + 1, lines++) {
                char without[RECORD_SIZE_MAX], key[32];
                const char *after = strchr(line, '\n') + 1;
                (void) snprintf(without, sizeof without, "%.*s%s", (int) (line - text), text, after);
                (void) snprintf(key, sizeof key, "%.*s", (int) strcspn(line, "="), line);
                assert_int_equal(record_parse(without, &out, &e), -EBADMSG);
                assert_non_null(strstr(e.msg, key));
                /* And twice is as wrong as not at all. */
                (void) snprintf(without, sizeof without, "%s%.*s", text, (int) (after - line), line);
                assert_int_equal(record_parse(without, &out, &e), -EBADMSG);
        }
        assert_int_equal(lines, 18);
}

static void wrong_values(void **state) {
        (void) state;
        static const char *const wrong[][2] = {
                { "state=live", "state=alive" },
                { "slot=4095", "slot=-1" },
                { "slot=4095", "slot=4294967296" },
                { "cpus=2", "cpus=" },
                { "cpus=2", "cpus=2x" },
                { "mode=restore", "mode=0123456789abcdef" },
                { "id=abc", "id=../" },
                { "vm_pid=17", "vm_pid 17" },
                { "vm_pid=17", "other=17" },
        };
        load();
        for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
                char changed[RECORD_SIZE_MAX + 64];
                struct record out;
                struct error e = ERROR_INIT;
                const char *at = strstr(text, wrong[i][0]);
                assert_non_null(at);
                (void) snprintf(changed, sizeof changed, "%.*s%s%s", (int) (at - text), text, wrong[i][1],
                                at + strlen(wrong[i][0]));
                memset(&out, 0x5a, sizeof out);
                assert_int_equal(record_parse(changed, &out, &e), -EBADMSG);
                assert_int_equal(((uint8_t *) &out)[0], 0x5a);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(round_trip),
                cmocka_unit_test(every_missing_line_is_seen),
                cmocka_unit_test(wrong_values),
        };
        return cmocka_run_group_tests(tests, setup, teardown);
}
