/* SPDX-License-Identifier: Apache-2.0 */

/* Synthetic addresses: stable, bounded, never handed to a stranger soon, and restored as saved. */

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "dns/dns_names.h"
#include "test.h"

#define _cleanup_names_ _cleanup_(dns_names_freep)

static struct dns_names *table(size_t max) {
        struct dns_names *n = NULL;
        assert_int_equal(dns_names_new(42, max, &n), 0);
        return n;
}

static const char *text(struct in_addr a) {
        static char t[INET_ADDRSTRLEN];
        return inet_ntop(AF_INET, &a, t, sizeof t);
}

static struct in_addr get(struct dns_names *n, const char *name) {
        struct in_addr a = { 0 };
        assert_int_equal(dns_names_get(n, name, &a, NULL), 0);
        return a;
}

static void test_stable(void **state) {
        (void) state;
        _cleanup_names_ struct dns_names *n = table(DNS_NAMES_MAX);
        struct in_addr a = get(n, "a.test"), b = get(n, "b.test"), c = { 0 };
        bool is_new;
        assert_string_equal(text(a), "198.18.1.0");
        assert_string_equal(text(b), "198.18.1.1");
        uint64_t version = dns_names_version(n);
        assert_int_equal(dns_names_get(n, "a.test", &c, &is_new), 0);
        assert_false(is_new);
        assert_int_equal(a.s_addr, c.s_addr);
        assert_int_equal(dns_names_version(n), version);
        assert_string_equal(dns_names_lookup(n, a), "a.test");
        assert_string_equal(dns_names_lookup(n, b), "b.test");
        assert_true(dns_names_find(n, "b.test", &c));
        assert_false(dns_names_find(n, "c.test", &c));
        assert_int_equal(dns_names_count(n), 2);
        static const char *const none[] = { "198.18.1.2", "198.18.0.1", "198.20.1.0", "198.17.1.0", "10.0.0.1", "198.19.255.255" };
        for (size_t i = 0; i < ARRAY_SIZE(none); i++) {
                inet_pton(AF_INET, none[i], &c);
                assert_null(dns_names_lookup(n, c));
                assert_int_equal(dns_names_in_range(c), i < 2 || i == 5);
                assert_false(dns_names_hold(n, c));
                dns_names_release(n, c);
        }
}

static void test_full(void **state) {
        (void) state;
        _cleanup_names_ struct dns_names *n = table(3);
        struct in_addr a = get(n, "a.test"), b = get(n, "b.test"), c = get(n, "c.test"), d;
        assert_true(dns_names_hold(n, a));
        assert_true(dns_names_hold(n, a));
        assert_string_equal(dns_names_lookup(n, b), "b.test"); /* now c is the longest unused */
        d = get(n, "d.test");
        assert_null(dns_names_lookup(n, c));
        assert_string_equal(dns_names_lookup(n, a), "a.test");
        assert_string_equal(dns_names_lookup(n, b), "b.test");
        assert_int_not_equal(d.s_addr, c.s_addr);
        assert_int_equal(dns_names_count(n), 3);
        /* c comes back under a new address, and b goes: d was looked up last. */
        assert_string_equal(dns_names_lookup(n, d), "d.test");
        struct in_addr c2 = get(n, "c.test");
        assert_int_not_equal(c2.s_addr, c.s_addr);
        assert_string_equal(dns_names_lookup(n, d), "d.test");
        assert_null(dns_names_lookup(n, b));
        /* All in use. */
        assert_true(dns_names_hold(n, c2));
        assert_true(dns_names_hold(n, d));
        assert_int_equal(dns_names_get(n, "e.test", &b, NULL), -ENOSPC);
        assert_int_equal(dns_names_count(n), 3);
        /* One of two users is gone, then both. */
        dns_names_release(n, a);
        assert_int_equal(dns_names_get(n, "e.test", &b, NULL), -ENOSPC);
        dns_names_release(n, a);
        dns_names_release(n, a);
        assert_int_equal(dns_names_get(n, "e.test", &b, NULL), 0);
        assert_null(dns_names_lookup(n, a));
}

/* An address is not given again before all others were. */
static void test_round(void **state) {
        (void) state;
        _cleanup_names_ struct dns_names *n = table(4);
        struct in_addr keep = get(n, "keep.test"), first = get(n, "n0.test"), a;
        char name[32];
        assert_true(dns_names_hold(n, keep));
        for (unsigned i = 1; i < DNS_NET_SIZE - DNS_NET_FIRST - 1; i++) {
                snprintf(name, sizeof name, "n%u.test", i);
                a = get(n, name);
                if (a.s_addr == first.s_addr || a.s_addr == keep.s_addr)
                        fail_msg("again after %u", i);
        }
        assert_string_equal(text(a), "198.19.255.255");
        a = get(n, "again.test");
        assert_int_equal(a.s_addr, first.s_addr); /* one beyond what is still held */
        assert_string_equal(dns_names_lookup(n, keep), "keep.test");
}

/* Against a plain model: many names, uses and releases. */
static void test_model(void **state) {
        enum { NAMES = 200, MAX = 50 };
        struct in_addr addr[NAMES] = { 0 };
        unsigned held[NAMES] = { 0 }, total = 0;
        (void) state;
        _cleanup_names_ struct dns_names *n = table(MAX);
        uint32_t x = 12345;
        for (unsigned step = 0; step < 100000; step++) {
                char name[32];
                x = x * 1664525 + 1013904223;
                unsigned i = (x >> 8) % NAMES;
                snprintf(name, sizeof name, "n%u.test", i);
                switch (x >> 28 & 3) {
                case 0:
                case 1: {
                        struct in_addr a;
                        int r = dns_names_get(n, name, &a, NULL);
                        assert_true(r == 0 || (r == -ENOSPC && total == MAX));
                        if (r == 0) {
                                assert_string_equal(dns_names_lookup(n, a), name);
                                if (held[i])
                                        assert_int_equal(a.s_addr, addr[i].s_addr);
                                addr[i] = a;
                        }
                        break;
                }
                case 2: {
                        const char *is = dns_names_lookup(n, addr[i]);
                        if (str_eq(is, name) && total < MAX - 1) {
                                assert_true(dns_names_hold(n, addr[i]));
                                total += held[i]++ == 0;
                        }
                        break;
                }
                default:
                        if (held[i]) {
                                assert_string_equal(dns_names_lookup(n, addr[i]), name);
                                dns_names_release(n, addr[i]);
                                total -= --held[i] == 0;
                        }
                }
                assert_true(dns_names_count(n) <= MAX);
        }
}

static bool join(void *arg, const char *name) {
        strcat(arg, name);
        strcat(arg, " ");
        return true;
}

static void test_save(void **state) {
        (void) state;
        _cleanup_names_ struct dns_names *n = table(100), *m = table(100);
        _cleanup_json_ json_t *j = NULL, *k = NULL;
        struct in_addr b = get(n, "b.test"), a = get(n, "a.test"), c = { 0 };
        assert_string_equal(dns_names_lookup(n, b), "b.test");
        get(n, "c.test");
        assert_true(dns_names_hold(n, a));
        assert_int_equal(dns_names_save(n, &j, NULL), 0);
        _cleanup_free_ char *s = json_to_str(j);
        assert_string_equal(s, "{\"version\":1,\"next\":259,\"names\":[[\"b.test\",\"198.18.1.0\"],[\"c.test\",\"198.18.1.2\"],"
                               "[\"a.test\",\"198.18.1.1\"]]}");
        assert_int_equal(dns_names_restore(m, j, NULL), 0);
        assert_int_equal(dns_names_count(m), 3);
        assert_true(dns_names_find(m, "a.test", &c));
        assert_int_equal(c.s_addr, a.s_addr);
        char order[100] = "";
        dns_names_each(m, join, order);
        assert_string_equal(order, "b.test c.test a.test ");
        assert_int_equal(dns_names_save(m, &k, NULL), 0);
        assert_true(json_equal(j, k));
        c = get(m, "d.test");
        assert_string_equal(text(c), "198.18.1.3");
        assert_int_equal(dns_names_restore(m, j, NULL), -EBUSY);
}

static void test_restore_bad(void **state) {
        static const char *const bad[] = {
                "[]",
                "{}",
                "{\"version\":2,\"next\":256,\"names\":[]}",
                "{\"version\":1,\"next\":255,\"names\":[]}",
                "{\"version\":1,\"next\":131072,\"names\":[]}",
                "{\"version\":1,\"next\":256,\"names\":{}}",
                "{\"version\":1,\"next\":256,\"names\":[],\"x\":1}",
                "{\"version\":1,\"next\":256,\"names\":[1]}",
                "{\"version\":1,\"next\":256,\"names\":[[\"a.test\"]]}",
                "{\"version\":1,\"next\":256,\"names\":[[\"a.test\",\"198.18.1.0\",1]]}",
                "{\"version\":1,\"next\":256,\"names\":[[\"A.test\",\"198.18.1.0\"]]}",
                "{\"version\":1,\"next\":256,\"names\":[[\"a.test.\",\"198.18.1.0\"]]}",
                "{\"version\":1,\"next\":256,\"names\":[[\"a b\",\"198.18.1.0\"]]}",
                "{\"version\":1,\"next\":256,\"names\":[[\"a.test\",\"198.18.0.1\"]]}",
                "{\"version\":1,\"next\":256,\"names\":[[\"a.test\",\"10.0.0.1\"]]}",
                "{\"version\":1,\"next\":256,\"names\":[[\"a.test\",\"x\"]]}",
                "{\"version\":1,\"next\":256,\"names\":[[\"a.test\",\"198.18.1.0\"],[\"a.test\",\"198.18.1.1\"]]}",
                "{\"version\":1,\"next\":256,\"names\":[[\"a.test\",\"198.18.1.0\"],[\"b.test\",\"198.18.1.0\"]]}",
                "{\"version\":1,\"next\":256,\"names\":[[\"a.test\",\"198.18.1.0\"],[\"b.test\",\"198.18.1.1\"],[\"c.test\",\"198.18.1.2\"]]}",
        };
        (void) state;
        _cleanup_names_ struct dns_names *n = table(2);
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                _cleanup_json_ json_t *j = NULL;
                struct error err = ERROR_INIT;
                assert_int_equal(json_parse(bad[i], strlen(bad[i]), 4096, &j, NULL), 0);
                if (dns_names_restore(n, j, &err) != -EINVAL)
                        fail_msg("accepted: %s", bad[i]);
                assert_true(err.msg[0] != '\0');
                assert_int_equal(dns_names_restore(n, j, NULL), -EINVAL);
                assert_int_equal(dns_names_count(n), 0);
        }
        /* Still usable. */
        struct in_addr a = get(n, "a.test");
        assert_string_equal(text(a), "198.18.1.0");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_stable), cmocka_unit_test(test_full), cmocka_unit_test(test_round),
                cmocka_unit_test(test_model),  cmocka_unit_test(test_save), cmocka_unit_test(test_restore_bad),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
