/* SPDX-License-Identifier: Apache-2.0 */

/* What a request is for, from its head alone: names and fields as clients send them, and as one
 * sends them who wants to reach another sandbox, the API under a sandbox's name, or the agent's
 * internal services. */

#include "test.h"

#include <string.h>

#include "proxy/router.h"

#define ID "abcdefghijklmnopqrstuvwx23"
#define ID2 "zyxwvutsrqponmlkjihgfedc54"
#define DOMAIN "sb.example.com"

struct input {
        const char *host, *id, *port, *target, *id_again;
};

static struct route decide(const char *domain, const struct input *in) {
        struct http1_field f[4];
        struct http1_head h = { .is_request = true, .method = "GET", .target = in->target ? in->target : "/",
                                .fields = f };
        struct route r;

        if (in->host)
                f[h.n_fields++] = (struct http1_field){ "Host", in->host };
        if (in->id)
                f[h.n_fields++] = (struct http1_field){ "E2b-Sandbox-Id", in->id };
        if (in->port)
                f[h.n_fields++] = (struct http1_field){ "e2b-sandbox-port", in->port };
        if (in->id_again)
                f[h.n_fields++] = (struct http1_field){ "E2B-SANDBOX-ID", in->id_again };
        router_decide(&h, domain, &r);
        return r;
}

#define EXPECT(kind_, ...)                                         \
        do {                                                       \
                struct input in_ = { __VA_ARGS__ };                \
                struct route r_ = decide(DOMAIN, &in_);            \
                assert_int_equal(r_.kind, kind_);                  \
                if (r_.kind == ROUTE_REFUSED) {                    \
                        assert_int_equal(r_.status, 400);          \
                        assert_non_null(r_.message);               \
                }                                                  \
        } while (0)

#define EXPECT_SANDBOX(id_, port_, ...)                            \
        do {                                                       \
                struct input in_ = { __VA_ARGS__ };                \
                struct route r_ = decide(DOMAIN, &in_);            \
                assert_int_equal(r_.kind, ROUTE_SANDBOX);          \
                assert_string_equal(r_.id, id_);                   \
                assert_int_equal(r_.port, port_);                  \
        } while (0)

static void test_host(void **state) {
        (void) state;
        EXPECT_SANDBOX(ID, 3000, .host = "3000-" ID ".sb.example.com");
        EXPECT_SANDBOX(ID, 3000, .host = "3000-" ID ".sb.example.com:8443");
        EXPECT_SANDBOX(ID, 3000, .host = "3000-" ID ".sb.example.com.");
        EXPECT_SANDBOX(ID, 3000, .host = "3000-ABCDEFGHIJKLMNOPQRSTUVWX23.SB.Example.COM");
        EXPECT_SANDBOX(ID, 49983, .host = "49983-" ID "-cafe01.sb.example.com");
        EXPECT_SANDBOX("abc123", 80, .host = "80-abc123.sb.example.com");
        EXPECT_SANDBOX(ID, 65535, .host = "65535-" ID ".sb.example.com");
}

static void test_host_is_api(void **state) {
        (void) state;
        EXPECT(ROUTE_API, .host = NULL);
        EXPECT(ROUTE_API, .host = "");
        EXPECT(ROUTE_API, .host = "127.0.0.1:7070");
        EXPECT(ROUTE_API, .host = "[::1]:7070");
        EXPECT(ROUTE_API, .host = "localhost");
        EXPECT(ROUTE_API, .host = "sb.example.com");
        EXPECT(ROUTE_API, .host = ".sb.example.com");
        EXPECT(ROUTE_API, .host = "api.sb.example.com");
        EXPECT(ROUTE_API, .host = "my-api.sb.example.com");
        /* Another domain, also one that merely ends or begins like ours. */
        EXPECT(ROUTE_API, .host = "3000-" ID ".evilsb.example.com");
        EXPECT(ROUTE_API, .host = "3000-" ID ".sb.example.com.evil.org");
        EXPECT(ROUTE_API, .host = "3000-" ID);
}

static void test_host_hostile(void **state) {
        (void) state;
        EXPECT(ROUTE_REFUSED, .host = ID "-3000.sb.example.com");
        EXPECT(ROUTE_REFUSED, .host = ID ".sb.example.com");
        EXPECT(ROUTE_REFUSED, .host = "0-" ID ".sb.example.com");
        EXPECT(ROUTE_REFUSED, .host = "03000-" ID ".sb.example.com");
        EXPECT(ROUTE_REFUSED, .host = "65536-" ID ".sb.example.com");
        EXPECT(ROUTE_REFUSED, .host = "99999999999999999999-" ID ".sb.example.com");
        EXPECT(ROUTE_REFUSED, .host = "+3000-" ID ".sb.example.com");
        EXPECT(ROUTE_REFUSED, .host = "-" ID ".sb.example.com");
        EXPECT(ROUTE_REFUSED, .host = "3000--" ID ".sb.example.com");
        EXPECT(ROUTE_REFUSED, .host = "3000-" ID "-.sb.example.com");
        EXPECT(ROUTE_REFUSED, .host = "3000-4000-" ID ".sb.example.com");
        EXPECT(ROUTE_REFUSED, .host = "x-3000-" ID ".sb.example.com");
        EXPECT(ROUTE_REFUSED, .host = "3000-" ID "/.sb.example.com");
        EXPECT(ROUTE_REFUSED, .host = "3000-" ID "%00.sb.example.com");
        EXPECT(ROUTE_REFUSED, .host = "3000-a_b.sb.example.com");
        EXPECT(ROUTE_REFUSED, .host = "3000-.sb.example.com");
        EXPECT(ROUTE_REFUSED, .host = "3000-" ID ".x.sb.example.com");
        EXPECT(ROUTE_REFUSED, .host = "3000-" ID "." ID2 ".sb.example.com");
        EXPECT(ROUTE_API, .host = "x.3000-" ID ".sb.example.com");

        /* Longer than any name can be. */
        char name[400];
        memset(name, 'a', sizeof(name));
        memcpy(name, "3000-", 5);
        strcpy(name + 300, ".sb.example.com");
        EXPECT(ROUTE_API, .host = name);
}

static void test_domain_off(void **state) {
        struct input in = { .host = "3000-" ID ".sb.example.com" };

        (void) state;
        assert_int_equal(decide(NULL, &in).kind, ROUTE_API);
        assert_int_equal(decide("", &in).kind, ROUTE_API);
        in.host = "3000-" ID ".localhost:7070";
        assert_int_equal(decide("localhost:7070", &in).kind, ROUTE_SANDBOX);
}

static void test_fields(void **state) {
        (void) state;
        EXPECT_SANDBOX(ID, 49983, .host = "127.0.0.1:7070", .id = ID, .port = "49983");
        EXPECT_SANDBOX(ID, 3000, .host = "sandbox.sb.example.com", .id = ID, .port = "3000");
        EXPECT_SANDBOX(ID, 3000, .id = ID "-0a1b2c3d", .port = "3000");
        EXPECT_SANDBOX("nosuchsandbox", 3000, .id = "nosuchsandbox", .port = "3000");
        EXPECT(ROUTE_REFUSED, .id = ID);
        EXPECT(ROUTE_REFUSED, .port = "3000");
        EXPECT(ROUTE_REFUSED, .id = ID, .port = "3000", .id_again = ID2);
        EXPECT(ROUTE_REFUSED, .id = "", .port = "3000");
        EXPECT(ROUTE_REFUSED, .id = "ABC", .port = "3000");
        EXPECT(ROUTE_REFUSED, .id = "../" ID, .port = "3000");
        EXPECT(ROUTE_REFUSED, .id = ID, .port = "");
        EXPECT(ROUTE_REFUSED, .id = ID, .port = "0");
        EXPECT(ROUTE_REFUSED, .id = ID, .port = "70000");
        EXPECT(ROUTE_REFUSED, .id = ID, .port = "3000 ");
        EXPECT(ROUTE_REFUSED, .id = ID, .port = "0x50");
}

/* A page of one sandbox cannot get at another by adding fields. */
static void test_host_before_fields(void **state) {
        (void) state;
        EXPECT_SANDBOX(ID, 3000, .host = "3000-" ID ".sb.example.com", .id = ID2, .port = "49983");
        EXPECT(ROUTE_REFUSED, .host = ID "-3000.sb.example.com", .id = ID2, .port = "49983");
}

static void test_target(void **state) {
        (void) state;
        EXPECT(ROUTE_REFUSED, .id = ID, .port = "80", .target = "http://other/");
        EXPECT(ROUTE_REFUSED, .id = ID, .port = "80", .target = "other:80");
        EXPECT_SANDBOX(ID, 80, .id = ID, .port = "80", .target = "*");
        EXPECT(ROUTE_API, .target = "http://other/");
}

static void test_agent_paths(void **state) {
        static const char *const open[] = {
                "/health", "/health?x=1", "/files?path=/etc/passwd&username=root", "/files", "/files/compose",
                "/metrics", "/envs", "/process.Process/Start", "/filesystem.Filesystem/WatchDir",
        };
        static const char *const closed[] = {
                "/", "", "/init", "/control/init", "/control/stop", "/cspace/v1/processes", "/cspace",
                "//cspace/v1/files", "/files/../cspace/v1/files", "/files/", "/%63space/v1/files", "/health/../init",
                "/process.Process/../../cspace/v1/processes", "/process.Process/", "/process.Process",
                "/process.Process/Start/x", "/process.Process/%2e%2e", "/freeze", "/upgrade", "/Health",
                "http://x/health", "/cspace/v1/processes?/health", "/;/health",
        };

        (void) state;
        for (size_t i = 0; i < sizeof(open) / sizeof(open[0]); i++)
                assert_true(router_agent_path_public(open[i]));
        for (size_t i = 0; i < sizeof(closed) / sizeof(closed[0]); i++)
                assert_false(router_agent_path_public(closed[i]));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_host),       cmocka_unit_test(test_host_is_api),
                cmocka_unit_test(test_host_hostile), cmocka_unit_test(test_domain_off),
                cmocka_unit_test(test_fields),     cmocka_unit_test(test_host_before_fields),
                cmocka_unit_test(test_target),     cmocka_unit_test(test_agent_paths),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
