/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conf/conf.h"

static void defaults_are_complete(void **state) {
        struct conf c;

        (void) state;
        conf_defaults(&c);
        assert_string_equal(c.data, "/var/lib/cspace");
        assert_string_equal(c.run, "/run/cspace");
        assert_string_equal(c.listen, "127.0.0.1:7070");
        assert_string_equal(c.engine, "auto");
        assert_int_equal(c.memory_mb, 512);
        assert_int_equal(c.cpus, 1);
        assert_int_equal(c.ttl_s, 0);
        assert_int_equal(c.ttl_max_s, 30 * 86400);
        assert_int_equal(c.build_timeout_s, 1800);
        assert_true(c.build_disk_bytes == 8ULL << 30);
        assert_int_equal(c.n_warm, 0);
        assert_string_equal(c.log_level, "info");
}

static void reads_a_file(void **state) {
        static const char text[] = "; a comment\n"
                                   "[paths]\n"
                                   "data = /srv/cspace/   ; trailing slash goes\n"
                                   "\n"
                                   "[api]\n"
                                   "listen = [::1]:8080\n"
                                   "insecure_listen=yes\n"
                                   "[sandbox]\n"
                                   "ttl = 2h\n"
                                   "disk = 2G\n"
                                   "[pool]\n"
                                   "warm = base=2  py:v1=1\n";
        struct conf c;
        struct error e = ERROR_INIT;

        (void) state;
        assert_int_equal(conf_parse(&c, text, "t.conf", &e), 0);
        assert_string_equal(c.data, "/srv/cspace");
        assert_string_equal(c.listen, "[::1]:8080");
        assert_true(c.insecure_listen);
        assert_int_equal(c.ttl_s, 7200);
        assert_true(c.disk_bytes == 2ULL << 30);
        assert_int_equal(c.n_warm, 2);
        assert_string_equal(c.warm[0].ref, "base");
        assert_int_equal(c.warm[0].count, 2);
        assert_string_equal(c.warm[1].ref, "py:v1");
        assert_int_equal(c.warm[1].count, 1);
}

static const struct {
        const char *text;
        const char *says;
} wrong[] = {
        { "[paths]\ndatas = /x\n", "t.conf:2: unknown key \"datas\" in section [paths]" },
        { "[path]\ndata = /x\n", "t.conf:2: unknown section [path]" },
        { "data = /x\n", "t.conf:1: unknown section []" },
        { "[paths]\n\njunk\n", "t.conf:3: neither a [section] nor key = value" },
        { "[paths]\ndata = x\n", "t.conf:2: [paths] data: \"x\" is not an absolute path" },
        { "[paths]\ndata = /a/../b\n", "t.conf:2: [paths] data: path \"/a/../b\" has a \"..\" in it" },
        { "[paths]\ndata =\n", "t.conf:2: [paths] data: \"\" is not an absolute path" },
        { "[paths]\ndata = /x\ndata = /y\n", "t.conf:3: [paths] data is set a second time" },
        { "[api]\nlisten = 7070\n", "t.conf:2: [api] listen: \"7070\" is not ADDRESS:PORT" },
        { "[api]\nlisten = localhost:7070\n", "t.conf:2: [api] listen: \"localhost\" is not an IP address" },
        { "[api]\nlisten = ::1:7070\n", "t.conf:2: [api] listen: \"::1\" is not an IP address" },
        { "[api]\nlisten = 127.0.0.1:0\n", "t.conf:2: [api] listen: \"127.0.0.1:0\" is not ADDRESS:PORT" },
        { "[api]\nlisten = 127.0.0.1:70700\n", "t.conf:2: [api] listen: \"127.0.0.1:70700\" is not ADDRESS:PORT" },
        { "[api]\ninsecure_listen = maybe\n", "t.conf:2: [api] insecure_listen: \"maybe\" is neither yes nor no" },
        { "[sandbox]\nmemory_mb = 16\n", "t.conf:2: [sandbox] memory_mb: \"16\" is outside 128 to 65536" },
        { "[sandbox]\ncpus = 0\n", "t.conf:2: [sandbox] cpus: \"0\" is outside 1 to 32" },
        { "[sandbox]\ncpus = two\n", "t.conf:2: [sandbox] cpus: \"two\" is not a number" },
        { "[sandbox]\nttl = -5\n", "t.conf:2: [sandbox] ttl: \"-5\" is not a time" },
        { "[build]\ndisk = 1X\n", "t.conf:2: [build] disk: \"1X\" is not a size" },
        { "[engine]\nengine = xen\n", "t.conf:2: [engine] engine: \"xen\" is none of: auto kvm tcg fake" },
        { "[engine]\nengine = kv\n", "t.conf:2: [engine] engine: \"kv\" is none of: auto kvm tcg fake" },
        { "[engine]\nengine =\n", "t.conf:2: [engine] engine: \"\" is none of" },
        { "[pool]\nwarm = base\n", "t.conf:2: [pool] warm: \"base\" is not TEMPLATE=COUNT" },
        { "[pool]\nwarm = Base=1\n", "t.conf:2: [pool] warm: \"Base\" is not a template name" },
        { "[pool]\nwarm = base=x\n", "t.conf:2: [pool] warm: \"base=x\" is not TEMPLATE=COUNT" },
};

static void says_what_is_wrong_and_where(void **state) {
        (void) state;
        for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
                struct conf c, before;
                struct error e = ERROR_INIT;

                memset(&c, 0x5a, sizeof c);
                before = c;
                assert_int_not_equal(conf_parse(&c, wrong[i].text, "t.conf", &e), 0);
                if (strncmp(e.msg, wrong[i].says, strlen(wrong[i].says)) != 0)
                        fail_msg("%s: got \"%s\"", wrong[i].says, e.msg);
                assert_memory_equal(&c, &before, sizeof c);
        }
}

static void refuses_a_long_line(void **state) {
        char text[400] = "[paths]\ndata = /";
        struct conf c;
        struct error e = ERROR_INIT;

        (void) state;
        memset(text + strlen(text), 'a', 250);
        assert_int_equal(conf_parse(&c, text, "t.conf", &e), -EINVAL);
        assert_non_null(strstr(e.msg, "t.conf:2: line longer than"));
}

static void missing_file_is_the_default_only_when_not_named(void **state) {
        struct conf c;
        struct error e = ERROR_INIT;

        (void) state;
        assert_int_equal(conf_load(&c, "/nonexistent/cspace.conf", &e), -ENOENT);
        assert_non_null(strstr(e.msg, "/nonexistent/cspace.conf"));
}

static void lenient_keeps_what_is_right(void **state) {
        char path[] = "/tmp/cspace-conf-XXXXXX";
        static const char text[] = "[paths]\nrun = /tmp/r\n[sandbox]\ncpus = many\nmemory_mb = 1024\nnope = 1\n[log]\nlevel = debug\n";
        struct conf c;
        struct error e = ERROR_INIT;
        int fd = mkstemp(path);

        (void) state;
        assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
        close(fd);
        assert_int_equal(conf_load_lenient(&c, path, &e), -EINVAL);
        assert_non_null(strstr(e.msg, ":4: "));
        assert_string_equal(c.run, "/tmp/r");
        assert_int_equal(c.memory_mb, 1024);
        assert_int_equal(c.cpus, 1);
        assert_string_equal(c.log_level, "debug");
        unlink(path);
        assert_int_equal(conf_load_lenient(&c, path, &e), -ENOENT);
        assert_string_equal(c.run, "/run/cspace");
}

/* What is printed reads back as the same configuration. */
static void prints_what_it_reads(void **state) {
        static const char text[] = "[sandbox]\nttl = 90m\nmemory_mb = 1024\n[pool]\nwarm = base=2 x:y=3\n"
                                   "[engine]\nengine = tcg\n[api]\ninsecure_listen = on\n";
        struct conf a, b;
        struct error e = ERROR_INIT;
        char *out = NULL;
        size_t n = 0;

        (void) state;
        assert_int_equal(conf_parse(&a, text, "a", &e), 0);
        FILE *f = open_memstream(&out, &n);
        assert_non_null(f);
        assert_int_equal(conf_print(&a, f), 0);
        assert_int_equal(fclose(f), 0);
        assert_int_equal(conf_parse(&b, out, "b", &e), 0);
        assert_memory_equal(&a, &b, sizeof a);
        free(out);
}

static void options_set_one_key(void **state) {
        struct conf c;
        struct error e = ERROR_INIT;
        char path[64];

        (void) state;
        conf_defaults(&c);
        assert_int_equal(conf_set(&c, "paths", "run", "/tmp/r", &e), 0);
        assert_int_equal(conf_run_path(&c, "api.sock", path, sizeof path), 0);
        assert_string_equal(path, "/tmp/r/api.sock");
        assert_int_equal(conf_run_path(&c, "api.sock", path, 8), -ENAMETOOLONG);
        assert_true(conf_set(&c, "paths", "nope", "/tmp/r", &e) < 0);
        /* the longest run folder whose sockets still fit in sun_path */
        assert_true(conf_set(&c, "paths", "run",
                             "/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", &e) < 0);
}

static void credentials(void **state) {
        static const char text[] = "[credentials]\n"
                                   "commands = /srv/commands\n"
                                   "user = vault-agent\n"
                                   "open = 10.1.0.0/16 192.0.2.7\n"
                                   "timeout = 5s\n";
        static const char *const bad[] = { "commands = relative", "commands =", "user = a b", "user = -x", "user = ../x", "open = x", "open = 0.0.0.0/0",
                                           "timeout = 0", "timeout = 1h", "command = /x" };
        struct conf c;
        struct error e = ERROR_INIT;

        (void) state;
        conf_defaults(&c);
        assert_string_equal(c.token_commands, "/etc/cspace/credentials.d");
        assert_string_equal(c.token_user, "");
        assert_int_equal(c.token_timeout_s, 30);
        assert_int_equal(conf_parse(&c, text, "t.conf", &e), 0);
        assert_string_equal(c.token_commands, "/srv/commands");
        assert_string_equal(c.token_user, "vault-agent");
        assert_string_equal(c.token_open, "10.1.0.0/16 192.0.2.7");
        assert_int_equal(c.token_timeout_s, 5);
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
                char line[128];
                (void) snprintf(line, sizeof line, "[credentials]\n%s\n", bad[i]);
                assert_true(conf_parse(&c, line, "t.conf", &e) < 0);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(defaults_are_complete),
                cmocka_unit_test(reads_a_file),
                cmocka_unit_test(credentials),
                cmocka_unit_test(says_what_is_wrong_and_where),
                cmocka_unit_test(refuses_a_long_line),
                cmocka_unit_test(missing_file_is_the_default_only_when_not_named),
                cmocka_unit_test(lenient_keeps_what_is_right),
                cmocka_unit_test(prints_what_it_reads),
                cmocka_unit_test(options_set_one_key),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
