/* SPDX-License-Identifier: Apache-2.0 */

/* Names: one canonical form or none (attack catalogue XD12, XE03, XE14, XE15, XF02-XF14). */

#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "policy/host.h"
#include "test.h"

#define L63 "aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffff123"
#define N253 L63 "." L63 "." L63 "." "aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffz"

struct row {
        const char *in;
        const char *want; /* NULL: refused; "#..." an address */
};

static void test_parse(void **state) {
        static const struct row rows[] = {
                { "example.com", "example.com" },
                { "EXAMPLE.Com", "example.com" },
                { "example.com.", "example.com" },
                { "localhost", "localhost" },
                { "xn--bcher-kva.example", "xn--bcher-kva.example" },
                { "_dmarc.example.com", "_dmarc.example.com" },
                { "a_b.example.com", "a_b.example.com" },
                { "r3---sn-4g5e.example.com", "r3---sn-4g5e.example.com" },
                { "1.2.3.4.example", "1.2.3.4.example" },
                { "0x7f.example", "0x7f.example" },
                { L63 ".com", L63 ".com" },
                { N253, N253 },
                { N253 ".", N253 },
                { N253 "z", NULL },
                { L63 "a.com", NULL },
                { "", NULL },
                { ".", NULL },
                { "..", NULL },
                { "a..b", NULL },
                { ".a", NULL },
                { "a.b..", NULL },
                { "-a.com", NULL },
                { "a-.com", NULL },
                { "xn--.com", NULL },
                { "xn--a_b.com", NULL },
                { "a b.com", NULL },
                { " a.com", NULL },
                { "a.com\t", NULL },
                { "a.com\r\n", NULL },
                { "a\\.com", NULL },
                { "a\\046b.com", NULL },
                { "a%2ecom", NULL },
                { "a%00.com", NULL },
                { "b\xc3\xbc" "cher.example", NULL },
                { "exam\xef\xbd\x90le.com", NULL },              /* full-width letter */
                { "example\xef\xbc\x8e" "com", NULL },           /* full-width dot */
                { "example\xe3\x80\x82" "com", NULL },           /* ideographic dot */
                { "\xe2\x91\xa0\xe2\x91\xa1\xe2\x91\xa6.0.0.1", NULL }, /* circled digits */
                { "a@b.com", NULL },
                { "a#b.com", NULL },
                { "a/b.com", NULL },
                { "a.com:443", NULL },
                { "*.a.com", NULL },
                { "1.2.3.4", "#1.2.3.4" },
                { "169.254.169.254", "#169.254.169.254" },
                { "169.254.169.254.", NULL },
                { "2852039166", NULL },
                { "0xA9FEA9FE", NULL },
                { "0251.0376.0251.0376", NULL },
                { "169.254.43518", NULL },
                { "169.254.169.0xfe", NULL },
                { "1.2.3", NULL },
                { "1.2.3.4.5", NULL },
                { "1.2.3.256", NULL },
                { "01.2.3.4", NULL },
                { "1.2.3.04", NULL },
                { "0", NULL },
                { "0x", NULL },
                { "0.0.0.0", "#0.0.0.0" },
                { "a.1", NULL },
                { "a.0x1", NULL },
                { "[::1]", NULL },
                { "::1", NULL },
                { "[::ffff:169.254.169.254]", NULL },
                { "[fe80::1%25eth0]", NULL },
        };
        (void) state;
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                struct host h = { 0 };
                const char *why = NULL;
                int r = host_parse(rows[i].in, strlen(rows[i].in), &h, &why);
                if (!rows[i].want) {
                        if (r == 0)
                                fail_msg("\"%s\" was read as \"%s\"", rows[i].in, h.name);
                        assert_non_null(why);
                        continue;
                }
                bool addr = rows[i].want[0] == '#';
                if (r != 0 || !str_eq(h.name, rows[i].want + addr) || h.kind != (addr ? HOST_IPV4 : HOST_NAME))
                        fail_msg("\"%s\": %d \"%s\" %d %s", rows[i].in, r, h.name, h.kind, why ? why : "");
        }
        struct host h;
        assert_int_equal(host_parse("a\0b.com", 7, &h, NULL), -22);
        assert_int_equal(host_parse("a.com\0", 6, &h, NULL), -22);
}

static void test_authority(void **state) {
        static const struct {
                const char *in, *host;
                unsigned port;
        } rows[] = {
                { "example.com", "example.com", 443 },
                { "Example.COM.:8443", "example.com", 8443 },
                { "1.2.3.4:80", "1.2.3.4", 80 },
                { "example.com:65535", "example.com", 65535 },
                { "example.com:", NULL, 0 },
                { "example.com:0", NULL, 0 },
                { "example.com:00443", NULL, 0 },
                { "example.com:65536", NULL, 0 },
                { "example.com:99999999", NULL, 0 },
                { "example.com:4a", NULL, 0 },
                { "example.com:+80", NULL, 0 },
                { "example.com:80:80", NULL, 0 },
                { "example.com: 80", NULL, 0 },
                { ":443", NULL, 0 },
                { "", NULL, 0 },
                { "allowed.com@evil.com", NULL, 0 },
                { "allowed.com:443@evil.com", NULL, 0 },
                { "evil.com#allowed.com", NULL, 0 },
                { "evil.com\\@allowed.com", NULL, 0 },
                { "evil.com/allowed.com", NULL, 0 },
                { "evil.com?allowed.com", NULL, 0 },
                { "a.com,b.com", NULL, 0 },
                { "a.com b.com", NULL, 0 },
                { "[::1]:443", NULL, 0 },
        };
        (void) state;
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                struct host h = { 0 };
                uint16_t port = 0;
                int r = host_parse_authority(rows[i].in, strlen(rows[i].in), 443, &h, &port, NULL);
                if ((r == 0) != (rows[i].host != NULL) || port != rows[i].port || (r == 0 && !str_eq(h.name, rows[i].host)))
                        fail_msg("\"%s\": %d \"%s\" %u", rows[i].in, r, h.name, port);
        }
        struct host h;
        uint16_t port;
        assert_int_equal(host_parse_authority("a.com", 5, 0, &h, &port, NULL), -22);
}

static void test_below(void **state) {
        (void) state;
        assert_true(host_name_below("a.allowed.com", "allowed.com"));
        assert_true(host_name_below("a.b.allowed.com", "allowed.com"));
        assert_false(host_name_below("allowed.com", "allowed.com"));
        assert_false(host_name_below("evilallowed.com", "allowed.com"));
        assert_false(host_name_below("allowed.com.evil", "allowed.com"));
        assert_false(host_name_below(".allowed.com", "allowed.com"));
        assert_false(host_name_below("com", "allowed.com"));
}

static void test_eq(void **state) {
        struct host a = { 0 }, b = { 0 };
        (void) state;
        assert_false(host_eq(&a, &b));
        assert_int_equal(host_parse("a.com", 5, &a, NULL), 0);
        assert_int_equal(host_parse("A.COM.", 6, &b, NULL), 0);
        assert_true(host_eq(&a, &b));
        host_of_addr((struct in_addr){ .s_addr = 0x04030201 }, &b);
        assert_string_equal(b.name, "1.2.3.4");
        assert_false(host_eq(&a, &b));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_parse),
                cmocka_unit_test(test_authority),
                cmocka_unit_test(test_below),
                cmocka_unit_test(test_eq),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
