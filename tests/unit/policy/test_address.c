/* SPDX-License-Identifier: Apache-2.0 */

/* Which addresses are what (attack catalogue XF01-XF12; field failures N10, N30). */

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "policy/address.h"
#include "test.h"

static void freep(struct address_set **s) {
        address_set_free(*s);
}

static void test_classes(void **state) {
        static const struct {
                const char *addr, *want;
        } rows[] = {
                { "1.1.1.1", "public" },          { "9.255.255.255", "public" },    { "11.0.0.0", "public" },
                { "100.63.255.255", "public" },   { "100.128.0.0", "public" },      { "172.15.255.255", "public" },
                { "172.32.0.0", "public" },       { "192.167.255.255", "public" },  { "192.169.0.0", "public" },
                { "198.17.255.255", "public" },   { "198.20.0.0", "public" },       { "223.255.255.255", "public" },
                { "126.255.255.255", "public" },  { "128.0.0.0", "public" },        { "1.0.0.0", "public" },
                { "169.253.255.255", "public" },  { "169.255.0.0", "public" },
                { "0.0.0.0", "unspecified" },     { "0.255.255.255", "unspecified" },
                { "127.0.0.1", "loopback" },      { "127.255.255.255", "loopback" },
                { "169.254.0.1", "link_local" },  { "169.254.169.253", "link_local" },
                { "169.254.169.254", "metadata" },{ "169.254.170.2", "metadata" },  { "100.100.100.200", "metadata" },
                { "168.63.129.16", "metadata" },  { "192.0.0.192", "metadata" },
                { "10.0.0.0", "private" },        { "10.255.255.255", "private" },  { "172.16.0.1", "private" },
                { "172.31.255.255", "private" },  { "192.168.0.1", "private" },     { "100.64.0.1", "private" },
                { "100.127.255.255", "private" },
                { "192.0.0.1", "reserved" },      { "192.0.2.1", "reserved" },      { "198.18.0.1", "reserved" },
                { "198.19.255.255", "reserved" }, { "198.51.100.1", "reserved" },   { "203.0.113.1", "reserved" },
                { "240.0.0.1", "reserved" },      { "255.255.255.254", "reserved" },{ "192.88.99.1", "reserved" },
                { "224.0.0.1", "multicast" },     { "239.255.255.255", "multicast" },
                { "255.255.255.255", "broadcast" },
                { "2600:1f18::1", "public" },     { "2a00::1", "public" },          { "2003::1", "public" },
                { "::", "unspecified" },          { "::1", "loopback" },            { "fe80::1", "link_local" },
                { "febf::1", "link_local" },      { "fec0::1", "private" },         { "fc00::1", "private" },
                { "fdff::1", "private" },         { "fd00:ec2::254", "metadata" },  { "ff02::1", "multicast" },
                { "2001:db8::1", "reserved" },    { "2001::1", "reserved" },        { "2002:a9fe:a9fe::1", "reserved" },
                { "64:ff9b:1::1", "reserved" },   { "100::1", "reserved" },         { "4000::1", "reserved" },
                { "::ffff:169.254.169.254", "metadata" },  { "::ffff:a9fe:a9fe", "metadata" },
                { "::ffff:127.0.0.1", "loopback" },        { "::ffff:8.8.8.8", "public" },
                { "64:ff9b::a9fe:a9fe", "metadata" },      { "64:ff9b::10.0.0.1", "private" },
                { "64:ff9b::808:808", "public" },          { "::10.0.0.1", "private" },
                { "::ffff:0:10.0.0.1", "reserved" },
        };
        (void) state;
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                struct address a;
                assert_int_equal(address_parse(rows[i].addr, &a), 0);
                const char *got = address_class_name(address_classify(&a));
                if (!str_eq(got, rows[i].want))
                        fail_msg("%s is %s, not %s", rows[i].addr, got, rows[i].want);
        }
        struct address a;
        static const char *const bad[] = { "", "1.2.3", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "fe80::1%eth0", "1.2.3.4 " };
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
                assert_int_equal(address_parse(bad[i], &a), -22);
}

static void test_sockaddr(void **state) {
        struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0x0a000001) };
        struct sockaddr_in6 in6 = { .sin6_family = AF_INET6 };
        struct address a;
        char text[ADDRESS_TEXT_SIZE];
        (void) state;
        assert_int_equal(address_of_sockaddr((struct sockaddr *) &in, sizeof in, &a), 0);
        address_text(&a, text);
        assert_string_equal(text, "10.0.0.1");
        inet_pton(AF_INET6, "2a00::1", &in6.sin6_addr);
        assert_int_equal(address_of_sockaddr((struct sockaddr *) &in6, sizeof in6, &a), 0);
        address_text(&a, text);
        assert_string_equal(text, "2a00::1");
        assert_int_equal(address_of_sockaddr((struct sockaddr *) &in6, 4, &a), -EAFNOSUPPORT);
        in.sin_family = AF_UNIX;
        assert_int_equal(address_of_sockaddr((struct sockaddr *) &in, sizeof in, &a), -EAFNOSUPPORT);
}

static void test_cidr(void **state) {
        static const struct {
                const char *cidr, *in, *out; /* out NULL: has everything */
        } rows[] = {
                { "0.0.0.0/0", "255.255.255.255", NULL },
                { "128.0.0.0/1", "255.255.255.255", "127.255.255.255" },
                { "255.255.255.255/32", "255.255.255.255", "255.255.255.254" },
                { "10.0.0.5", "10.0.0.5", "10.0.0.4" },
                { "10.0.0.0/31", "10.0.0.1", "10.0.0.2" },
                { "172.16.0.0/12", "172.31.255.255", "172.32.0.0" },
        };
        (void) state;
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                struct cidr c;
                struct in_addr a;
                assert_int_equal(cidr_parse(rows[i].cidr, &c), 0);
                inet_pton(AF_INET, rows[i].in, &a);
                assert_true(cidr_has(&c, a));
                if (rows[i].out) {
                        inet_pton(AF_INET, rows[i].out, &a);
                        assert_false(cidr_has(&c, a));
                }
        }
        static const char *const bad[] = { "10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/-1", "10.0.0/8", "10.0.0.0/08",
                                           "::/0", "a", "", "10.0.0.0/8 ", "10.0.0.0//8", "0x0a.0.0.0/8" };
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                struct cidr c;
                if (cidr_parse(bad[i], &c) != -22)
                        fail_msg("\"%s\" was accepted", bad[i]);
        }
        struct cidr c;
        char text[INET_ADDRSTRLEN + 3];
        assert_int_equal(cidr_parse("10.1.0.0/16", &c), 0);
        cidr_text(&c, text);
        assert_string_equal(text, "10.1.0.0/16");
}

static void test_set(void **state) {
        _cleanup_(freep) struct address_set *s = NULL;
        struct address a;
        (void) state;
        assert_int_equal(address_set_new(&s), 0);
        assert_int_equal(address_set_add(s, "44.1.2.3", NULL), 0);
        assert_int_equal(address_set_add(s, "45.0.0.0/9", NULL), 0);
        assert_int_equal(address_set_add(s, "2a00:1::/33", NULL), 0);
        static const char *const in[] = { "44.1.2.3", "45.127.0.1", "2a00:1:7fff::1", "::ffff:44.1.2.3", "64:ff9b::44.1.2.3" };
        static const char *const out[] = { "44.1.2.4", "45.128.0.1", "2a00:1:8000::1", "2a00::1" };
        for (size_t i = 0; i < ARRAY_SIZE(in); i++) {
                assert_int_equal(address_parse(in[i], &a), 0);
                assert_true(address_set_has(s, &a));
                assert_false(address_set_has(NULL, &a));
        }
        for (size_t i = 0; i < ARRAY_SIZE(out); i++) {
                assert_int_equal(address_parse(out[i], &a), 0);
                assert_false(address_set_has(s, &a));
        }
        static const char *const bad[] = { "", "x", "1.2.3.4/33", "::/129", "1.2.3.4/a" };
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
                assert_int_equal(address_set_add(s, bad[i], NULL), -22);
        while (address_set_add(s, "1.1.1.1", NULL) == 0)
                ;
        assert_int_equal(address_set_add(s, "1.1.1.1", NULL), -E2BIG);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_classes),
                cmocka_unit_test(test_sockaddr),
                cmocka_unit_test(test_cidr),
                cmocka_unit_test(test_set),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
