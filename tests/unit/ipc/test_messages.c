/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "ipc/ipc.h"
#include "ipc/messages.h"

#define ID "abcdefghijklmnopqrstuvwxyz"
#define DIGEST "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static struct ipc_place sample(void) {
        return (struct ipc_place){ .id = ID,
                                   .mode = "restore",
                                   .digest = DIGEST,
                                   .engine = "qemu-tcg",
                                   .memory_mb = 512,
                                   .cpus = 1,
                                   .disk_bytes = 1ULL << 33 };
}

static void round_trip(void **state) {
        (void) state;
        struct ipc_place in = sample(), out;
        uint8_t body[512];
        size_t n = 0;
        assert_int_equal(ipc_place_encode(&in, body, sizeof body, &n), 0);
        assert_int_equal(n, 4 + 26 + 4 + 7 + 4 + 64 + 4 + 8 + 4 + 4 + 8 + 4 + 4);
        assert_int_equal(ipc_place_decode(body, n, &out), 0);
        assert_string_equal(out.id, ID);
        assert_string_equal(out.mode, "restore");
        assert_string_equal(out.digest, DIGEST);
        assert_string_equal(out.engine, "qemu-tcg");
        assert_int_equal(out.memory_mb, 512);
        assert_int_equal(out.cpus, 1);
        assert_true(out.disk_bytes == 1ULL << 33);
}

static void byte_layout(void **state) {
        (void) state;
        struct ipc_exited m = { .id = "ab", .what = "vm" };
        uint8_t body[64];
        size_t n;
        assert_int_equal(ipc_exited_encode(&m, body, sizeof body, &n), 0);
        static const uint8_t want[] = { 2, 0, 0, 0, 'a', 'b', 2, 0, 0, 0, 'v', 'm' };
        assert_int_equal(n, sizeof want);
        assert_memory_equal(body, want, n);
        struct ipc_stop s = { .timeout_ms = 0x10203 };
        assert_int_equal(ipc_stop_encode(&s, body, sizeof body, &n), 0);
        static const uint8_t want32[] = { 3, 2, 1, 0 };
        assert_int_equal(n, 4);
        assert_memory_equal(body, want32, n);
}

static void every_truncation_is_refused(void **state) {
        (void) state;
        struct ipc_place in = sample();
        uint8_t body[512];
        size_t n;
        assert_int_equal(ipc_place_encode(&in, body, sizeof body, &n), 0);
        for (size_t cut = 0; cut < n; cut++) {
                /* A copy of exactly that size lets ASan see a read beyond it. */
                _cleanup_free_ uint8_t *part = malloc(cut + 1);
                assert_non_null(part);
                memcpy(part, body, cut);
                struct ipc_place out;
                memset(&out, 0x5a, sizeof out);
                assert_int_equal(ipc_place_decode(part, cut, &out), -EPROTO);
                for (size_t i = 0; i < sizeof out; i++)
                        assert_int_equal(((uint8_t *) &out)[i], 0x5a); /* untouched on failure */
        }
        body[n] = 0;
        struct ipc_place out;
        assert_int_equal(ipc_place_decode(body, n + 1, &out), -EPROTO);
}

static void lengths_beyond_the_packet(void **state) {
        (void) state;
        struct ipc_remove out;
        static const uint8_t huge[] = { 0xff, 0xff, 0xff, 0xff, 'a' };
        assert_int_equal(ipc_remove_decode(huge, sizeof huge, &out), -EPROTO);
        static const uint8_t one_more[] = { 2, 0, 0, 0, 'a' };
        assert_int_equal(ipc_remove_decode(one_more, sizeof one_more, &out), -EPROTO);
        uint8_t long_id[4 + ID_LEN + 1] = { ID_LEN + 1 };
        memset(long_id + 4, 'a', ID_LEN + 1);
        assert_int_equal(ipc_remove_decode(long_id, sizeof long_id, &out), -EPROTO);
        long_id[0] = ID_LEN;
        assert_int_equal(ipc_remove_decode(long_id, sizeof long_id - 1, &out), 0);
        assert_int_equal(strlen(out.id), ID_LEN);
}

static void a_nul_in_a_string(void **state) {
        (void) state;
        static const uint8_t body[] = { 3, 0, 0, 0, 'a', 0, 'b' };
        struct ipc_remove out;
        assert_int_equal(ipc_remove_decode(body, sizeof body, &out), -EPROTO);
}

static void values_above_their_limit(void **state) {
        (void) state;
        uint8_t body[512];
        size_t n = 99;
        struct ipc_place m = sample();
        m.cpus = LIMIT_CPUS_MAX + 1;
        assert_int_equal(ipc_place_encode(&m, body, sizeof body, &n), -EINVAL);
        m = sample();
        m.disk_bytes = (1ULL << 44) + 1;
        assert_int_equal(ipc_place_encode(&m, body, sizeof body, &n), -EINVAL);
        m = sample();
        memset(m.mode, 'x', sizeof m.mode); /* no end */
        assert_int_equal(ipc_place_encode(&m, body, sizeof body, &n), -EINVAL);
        assert_int_equal(n, 99);

        static const uint8_t cpus[] = { 0xc1, 0x27, 9, 0 }; /* 600001 */
        struct ipc_stop stop;
        assert_int_equal(ipc_stop_decode(cpus, sizeof cpus, &stop), -EPROTO);
}

static void no_room(void **state) {
        (void) state;
        struct ipc_place m = sample();
        uint8_t body[512];
        size_t n, none = 7;
        assert_int_equal(ipc_place_encode(&m, body, sizeof body, &n), 0);
        for (size_t cap = 0; cap < n; cap++)
                assert_int_equal(ipc_place_encode(&m, body, cap, &none), -ENOBUFS);
        assert_int_equal(none, 7);
        assert_int_equal(ipc_place_encode(&m, body, n, &none), 0);
}

static void blobs(void **state) {
        (void) state;
        _cleanup_free_ uint8_t *body = malloc(IPC_PACKET_MAX);
        _cleanup_free_ char *json = calloc(1, LIMIT_IDENTITY_JSON + 1);
        assert_non_null(body);
        assert_non_null(json);
        memset(json, 'j', LIMIT_IDENTITY_JSON);
        struct ipc_identify m = { .json = json, .json_n = LIMIT_IDENTITY_JSON }, out;
        size_t n;
        /* The largest message fits into a packet with its header. */
        assert_int_equal(ipc_identify_encode(&m, body, IPC_PACKET_MAX - 8, &n), 0);
        assert_int_equal(ipc_identify_decode(body, n, &out), 0);
        assert_int_equal(out.json_n, LIMIT_IDENTITY_JSON);
        assert_memory_equal(out.json, json, out.json_n);
        m.json_n++;
        assert_int_equal(ipc_identify_encode(&m, body, IPC_PACKET_MAX, &n), -EINVAL);
        m = (struct ipc_identify){ .json = NULL, .json_n = 0 };
        assert_int_equal(ipc_identify_encode(&m, body, IPC_PACKET_MAX, &n), 0);
        assert_int_equal(n, 4);
        assert_int_equal(ipc_identify_decode(body, n, &out), 0);
        assert_int_equal(out.json_n, 0);
}

static void empty_messages(void **state) {
        (void) state;
        struct ipc_ok m, out;
        memset(&m, 0, sizeof m);
        size_t n = 5;
        assert_int_equal(ipc_ok_encode(&m, NULL, 0, &n), 0);
        assert_int_equal(n, 0);
        assert_int_equal(ipc_ok_decode(NULL, 0, &out), 0);
        assert_int_equal(ipc_ok_decode("x", 1, &out), -EPROTO);
}

static void type_names(void **state) {
        (void) state;
        assert_string_equal(ipc_type_name(IPC_PLACE), "place");
        assert_string_equal(ipc_type_name(IPC_WARDEN_EVENT), "warden_event");
        assert_string_equal(ipc_type_name(IPC_NONE), "?");
        assert_string_equal(ipc_type_name(65535), "?");
}

/* What is here is on the wire of wardens and gateways that run: rows are added, and none is changed. Of messages between cspaced
 * and rootd the number alone counts, their fields have PROTOCOL_VERSION. */
static const struct {
        uint16_t number;
        const char *name, *fields;
} on_the_wire[] = {
        { 1, "error", "U32 code, STR message, " },
        { 2, "ok", "" },
        { 3, "hello", NULL },
        { 4, "host_info", NULL },
        { 5, "build", NULL },
        { 6, "build_remove", NULL },
        { 7, "template_commit", NULL },
        { 8, "template_remove", NULL },
        { 9, "place", NULL },
        { 10, "placed", NULL },
        { 11, "remove", NULL },
        { 12, "variant_commit", NULL },
        { 13, "variant_remove", NULL },
        { 14, "image_begin", NULL },
        { 15, "image_commit", NULL },
        { 16, "image_info", NULL },
        { 17, "image_remove", NULL },
        { 18, "image_usage", NULL },
        { 19, "images", NULL },
        { 20, "list", NULL },
        { 21, "placement_list", NULL },
        { 22, "usage", NULL },
        { 23, "usage_info", NULL },
        { 24, "exited", NULL },
        { 25, "identify", "BLOB json, " },
        { 26, "ready", "U64 spawn_us, U64 load_us, U64 link_us, U64 identify_us, " },
        { 27, "query", "" },
        { 28, "warden_state", "STR state, STR reason, U32 identified, U32 link_up, U64 bytes_in, U64 bytes_out, " },
        { 29, "snapshot", "" },
        { 30, "stop", "U32 timeout_ms, " },
        { 31, "pause", "" },
        { 32, "resume", "" },
        { 33, "save", "" },
        { 34, "fsfreeze", "U32 on, " },
        { 35, "warden_event", "STR state, STR reason, " },
        { 36, "gw_config", "U64 generation, " },
        { 37, "gw_configured", "STR ca_pem, U32 rules, " },
        { 38, "gw_secret", "STR credential, BLOB secret, U64 expires_ms, " },
        { 39, "gw_query", "" },
        { 40, "gw_state", "U32 configured, U64 generation, U64 connections, U64 requests, "
                "U64 bytes_out, U64 bytes_in, U64 names, U64 records_dropped, " },
        { 41, "gw_audit", "U64 dropped, BLOB lines, " },
        { 42, "gw_names", "U64 version, " },
        { 43, "history", NULL },
        { 44, "publish", NULL },
        { 45, "published", NULL },
        { 46, "token", NULL },
        { 47, "park", "U32 keep, " },
        { 48, "variant_freeze", NULL },
        { 49, "held", "U64 vm_us, U32 synced, " },
        { 50, "packets", NULL },
        { 51, "gateway", NULL },
};

static void numbers_and_fields_stay(void **state) {
        (void) state;
        static const struct {
                const char *name, *fields;
        } now[] = {
#define FIELD(kind, name, limit) #kind " " #name ", "
#define M(number, UPPER, lower) [number] = { #lower, "" IPC_##UPPER##_FIELDS(FIELD) },
                IPC_MESSAGES(M)
#undef M
        };
        size_t n = 0;
        for (size_t i = 1; i < ARRAY_SIZE(now); i++)
                n += now[i].name != NULL;
        assert_int_equal(n, ARRAY_SIZE(on_the_wire)); /* a new message has a row here */
        for (size_t i = 0; i < ARRAY_SIZE(on_the_wire); i++) {
                assert_true(on_the_wire[i].number < ARRAY_SIZE(now));
                assert_non_null(now[on_the_wire[i].number].name);
                assert_string_equal(now[on_the_wire[i].number].name, on_the_wire[i].name);
                assert_string_equal(ipc_type_name(on_the_wire[i].number), on_the_wire[i].name);
                if (on_the_wire[i].fields)
                        assert_string_equal(now[on_the_wire[i].number].fields, on_the_wire[i].fields);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(round_trip),
                cmocka_unit_test(byte_layout),
                cmocka_unit_test(every_truncation_is_refused),
                cmocka_unit_test(lengths_beyond_the_packet),
                cmocka_unit_test(a_nul_in_a_string),
                cmocka_unit_test(values_above_their_limit),
                cmocka_unit_test(no_room),
                cmocka_unit_test(blobs),
                cmocka_unit_test(empty_messages),
                cmocka_unit_test(type_names),
                cmocka_unit_test(numbers_and_fields_stay),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
