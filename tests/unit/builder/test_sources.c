/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "sources.h"

#define KEY "/k.gpg"

static char text[8192];

static int choose(const struct sources *s, const char *host, const char *suite) {
        _cleanup_buf_ struct buf out = BUF_INIT(sizeof text - 1);
        struct error e = ERROR_INIT;

        int r = sources_select(s, host, suite, KEY, &out, &e);
        memcpy(text, buf_data(&out), out.len);
        text[out.len] = '\0';
        return r;
}

static void one_line_form(void **state) {
        struct sources s = { 0 };

        (void) state;
        sources_parse_list(&s, "# deb http://no.test/debian bookworm main\n"
                               "deb http://mirror.test/debian bookworm main contrib # remark\n"
                               "deb-src http://mirror.test/debian bookworm main\n"
                               "deb [arch=amd64] http://mirror.test/debian bookworm-updates main\r\n"
                               "deb [ signed-by=/usr/share/keyrings/other.gpg ] http://third.test/apt bookworm main\n"
                               "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://sec.test bookworm-security main\n"
                               "deb\n"
                               "deb http://short.test\n");
        assert_int_equal(s.n, 4);
        assert_int_equal(choose(&s, "bookworm", "bookworm"), 0);
        assert_string_equal(text, "Types: deb\nURIs: http://mirror.test/debian\nSuites: bookworm\nComponents: main\nSigned-By: " KEY "\n"
                                  "\n"
                                  "Types: deb\nURIs: http://mirror.test/debian\nSuites: bookworm-updates\nComponents: main\nSigned-By: " KEY "\n"
                                  "\n"
                                  "Types: deb\nURIs: http://sec.test\nSuites: bookworm-security\nComponents: main\nSigned-By: " KEY "\n");
}

static void deb822_form(void **state) {
        struct sources s = { 0 };

        (void) state;
        sources_parse_deb822(&s, "# the archive\n"
                                 "Types: deb deb-src\n"
                                 "URIs: http://a.test/debian\n"
                                 "# not this\n"
                                 "Suites: bookworm\n"
                                 " bookworm-updates\n"
                                 "Components: main\n"
                                 "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
                                 "\n"
                                 "Types: deb\nURIs: http://off.test\nSuites: bookworm\nComponents: main\nEnabled: no\n"
                                 "\n"
                                 "types: deb\nuris: http://b.test\nsuites: nodistro\ncomponents: main\n"
                                 "\n"
                                 "Types: deb\nURIs: http://key.test\nSuites: bookworm\nComponents: main\nSigned-By:\n"
                                 " -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n -----END PGP PUBLIC KEY BLOCK-----");
        assert_int_equal(choose(&s, "bookworm", "bookworm"), 0);
        assert_non_null(strstr(text, "Suites: bookworm\n"));
        assert_non_null(strstr(text, "Suites: bookworm-updates\n"));
        assert_null(strstr(text, "off.test"));
        assert_null(strstr(text, "b.test"));
        assert_null(strstr(text, "key.test"));
}

static void third_parties_stay_out(void **state) {
        struct sources s = { 0 };

        (void) state;
        sources_parse_list(&s, "deb http://pg.test bookworm-pgdg main\n"
                               "deb http://docker.test bookworm stable\n"
                               "deb http://cloud.test cloud-sdk-bookworm main\n"
                               "deb http://jammy.test jammy main\n"
                               "deb http://back.test bookworm-backports main\n");
        assert_int_equal(choose(&s, "bookworm", "bookworm"), -ENOENT);
}

static void aliases_and_other_suites(void **state) {
        struct sources s = { 0 };

        (void) state;
        sources_parse_list(&s, "deb http://m.test/debian stable main\n"
                               "deb http://m.test/debian-security stable-security main\n");
        assert_int_equal(choose(&s, "bookworm", "bookworm"), 0);
        assert_non_null(strstr(text, "Suites: bookworm\n"));
        assert_int_equal(choose(&s, "bookworm", "trixie"), 0);
        assert_non_null(strstr(text, "Suites: trixie-security\n"));
        assert_int_equal(choose(&s, "bookworm", "sid"), 0);
        assert_non_null(strstr(text, "Suites: sid\n"));
        assert_null(strstr(text, "security"));
}

static void doubles_and_limits(void **state) {
        static char many[32768];
        struct sources s = { 0 };
        size_t n = 0;

        (void) state;
        for (unsigned i = 0; i < 200; i++)
                n += (size_t) snprintf(many + n, sizeof many - n, "deb http://m%u.test bookworm main\n", i % 100);
        sources_parse_list(&s, many);
        assert_int_equal(s.n, SOURCES_MAX);
        memset(many, 'a', 3000);
        strcpy(many + 3000, "\ndeb http://m.test bookworm main");
        memset(&s, 0, sizeof s);
        sources_parse_list(&s, many);
        assert_int_equal(s.n, 1);
}

static void codename(void **state) {
        char out[16];

        (void) state;
        sources_codename("ID=debian\nVERSION_CODENAME=bookworm\n", out, sizeof out);
        assert_string_equal(out, "bookworm");
        sources_codename("VERSION_CODENAME=\"trixie\"", out, sizeof out);
        assert_string_equal(out, "trixie");
        sources_codename("PRETTY_NAME=\"x\"\n", out, sizeof out);
        assert_string_equal(out, "");
        sources_codename("VERSION_CODENAME=averyveryverylongname\n", out, sizeof out);
        assert_string_equal(out, "");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(one_line_form),      cmocka_unit_test(deb822_form),
                cmocka_unit_test(third_parties_stay_out), cmocka_unit_test(aliases_and_other_suites),
                cmocka_unit_test(doubles_and_limits), cmocka_unit_test(codename),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
