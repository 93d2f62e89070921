/* SPDX-License-Identifier: Apache-2.0 */
#include "linktest.h"

#include <fcntl.h>

/* Starts of sessions over what earlier ones left behind, and a guest that breaks the rules: its end
 * is a raw descriptor here. */

static void pair(int fds[2]) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
}

static void put(int fd, const void *data, size_t n) {
        assert_int_equal(write(fd, data, n), n);
}

static void hello(uint8_t out[LINK_HELLO_SIZE], unsigned version, unsigned kind, uint8_t nonce) {
        memcpy(out, LINK_MAGIC, 16);
        out[16] = (uint8_t) (version >> 8);
        out[17] = (uint8_t) version;
        out[18] = (uint8_t) (kind >> 8);
        out[19] = (uint8_t) kind;
        memset(out + 20, nonce, 12);
}

static void frame(int fd, unsigned type, unsigned flags, uint32_t id, const void *data, size_t n) {
        uint8_t head[9] = { (uint8_t) (n >> 16), (uint8_t) (n >> 8), (uint8_t) n, (uint8_t) type, (uint8_t) flags,
                            (uint8_t) (id >> 24), (uint8_t) (id >> 16), (uint8_t) (id >> 8), (uint8_t) id };
        put(fd, head, sizeof(head));
        if (n > 0)
                put(fd, data, n);
}

/* Takes the host through the handshake; returns the guest's descriptor. */
static int raw_guest(struct lt *t) {
        int fds[2];
        uint8_t h[LINK_HELLO_SIZE];
        pair(fds);
        lt_host_on(t, fds[0]);
        hello(h, LINK_VERSION, LINK_KIND_GUEST, 0x77);
        put(fds[1], h, sizeof(h));
        frame(fds[1], 4, 0, 0, NULL, 0);
        LT_UNTIL(t, t->host.ready);
        return fds[1];
}

/* Opens a stream to a raw guest, which says 200 (indexed field 8 of the static table). */
static void raw_open(struct lt *t, int fd, struct lt_end *h, uint32_t id) {
        lt_open(t, "127.0.0.1:1", h);
        frame(fd, 1, 4, id, "\x88", 1);
        LT_UNTIL(t, h->answered);
        assert_int_equal(h->open_err, 0);
}

static void junk_before_the_hello(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        int fds[2];
        pair(fds);
        static uint8_t junk[100000];
        for (size_t i = 0; i < sizeof(junk); i++)
                junk[i] = (uint8_t) (i % 7 ? i : 0);
        memcpy(junk + 5000, LINK_MAGIC, 13);                        /* begins like one */
        hello(junk + 60000, LINK_VERSION, LINK_KIND_ANSWER, 0x01); /* a host's: not for a host */
        memcpy(junk + sizeof(junk) - 9, LINK_MAGIC, 9);            /* cut at the seam */
        put(fds[1], junk, sizeof(junk));
        lt_host_on(&t, fds[0]);
        lt_turn(&t, 10);
        lt_guest_on(&t, fds[1]);
        LT_UNTIL(&t, t.host.ready && t.guest.ready);
        lt_done(&t);
}

/* A hello cut short by the end of an earlier session stands directly before the real one. */
static void cut_hello_before_the_hello(void **state) {
        (void) state;
        for (size_t cut = 1; cut <= LINK_HELLO_SIZE; cut++) {
                struct lt t;
                lt_init(&t);
                int fds[2];
                uint8_t old[LINK_HELLO_SIZE];
                pair(fds);
                hello(old, LINK_VERSION, LINK_KIND_GUEST, 0x01);
                put(fds[1], old, cut);
                lt_host_on(&t, fds[0]);
                lt_guest_on(&t, fds[1]);
                LT_UNTIL(&t, t.host.ready && t.guest.ready);
                lt_done(&t);
        }
}

/* The host comes and goes; the guest's earlier hello was never read, the host's answers to it neither. */
static void stale_hello_and_answer(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        int fds[2];
        uint8_t h[LINK_HELLO_SIZE];
        static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        pair(fds);
        hello(h, LINK_VERSION, LINK_KIND_GUEST, 0x01);
        put(fds[1], h, sizeof(h));
        hello(h, LINK_VERSION, LINK_KIND_ANSWER, 0x02);
        put(fds[0], h, sizeof(h));
        put(fds[0], preface, sizeof(preface) - 1);
        lt_host_on(&t, fds[0]);
        lt_turn(&t, 10);
        lt_guest_on(&t, fds[1]);
        LT_UNTIL(&t, t.host.ready && t.guest.ready);
        assert_false(t.host.closed || t.guest.closed);
        lt_done(&t);
}

/* The first hello was a stale one, and the host has opened a stream before it could know. */
static void stale_hello_with_a_stream(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        struct lt_end h = { 0 };
        int fds[2];
        uint8_t b[LINK_HELLO_SIZE];
        pair(fds);
        hello(b, LINK_VERSION, LINK_KIND_GUEST, 0x01);
        put(fds[1], b, sizeof(b));
        lt_host_on(&t, fds[0]);
        LT_UNTIL(&t, t.host.ready);
        lt_open(&t, "control", &h);
        hello(b, LINK_VERSION, LINK_KIND_GUEST, 0x02);
        put(fds[1], b, sizeof(b));
        LT_UNTIL(&t, t.host.closed);
        assert_int_equal(h.open_err, -ECONNRESET);
        close(fds[1]);
        lt_done(&t);
}

static void host_restarts(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        struct lt_end a[3] = { 0 }, h[3] = { 0 };
        t.guest.accept_into = a;
        t.guest.max_accepted = 3;
        t.guest.echo = true;
        for (int i = 0; i < 3; i++) {
                lt_pair(&t);
                lt_open(&t, "127.0.0.1:1", &h[i]);
                LT_UNTIL(&t, h[i].answered);
                assert_int_equal(h[i].open_err, 0);
                stream_write(h[i].s, "again", 5);
                LT_UNTIL(&t, h[i].received == 5);
                link_free(t.host.l);
                assert_int_equal(h[i].error, -ECONNRESET);
                LT_UNTIL(&t, t.guest.closed);
                assert_int_equal(a[i].error, -ECONNRESET);
                link_free(t.guest.l);
                t.host.l = t.guest.l = NULL;
        }
        lt_done(&t);
}

static void endless_junk(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        int fds[2];
        pair(fds);
        lt_host_on(&t, fds[0]);
        static const uint8_t junk[65536];
        while (!t.host.closed) {
                (void) !write(fds[1], junk, sizeof(junk));
                lt_turn(&t, 1);
        }
        assert_int_equal(t.host.err, -EPROTO);
        uint64_t in, out;
        link_counters(t.host.l, &in, &out);
        assert_in_range(in, LINK_SKIP_MAX, LINK_SKIP_MAX + 1024 * 1024);
        close(fds[1]);
        lt_done(&t);
}

static void other_version(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        int fds[2];
        uint8_t h[LINK_HELLO_SIZE];
        pair(fds);
        lt_host_on(&t, fds[0]);
        hello(h, LINK_VERSION + 1, LINK_KIND_GUEST, 1);
        put(fds[1], h, sizeof(h));
        LT_UNTIL(&t, t.host.closed);
        assert_int_equal(t.host.err, -EPROTONOSUPPORT);
        close(fds[1]);
        lt_done(&t);
}

static void garbage_instead_of_frames(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        struct lt_end h = { 0 };
        int fd = raw_guest(&t);
        raw_open(&t, fd, &h, 1);
        static const char junk[] = "HTTP/1.1 200 OK\r\nThis is no frame at all, and long enough to be sure of it.\r\n";
        put(fd, junk, sizeof(junk));
        LT_UNTIL(&t, t.host.closed);
        assert_int_equal(h.error, -ECONNRESET);
        assert_false(h.eof);
        close(fd);
        lt_done(&t);
}

/* Asks for answers and never reads them. */
static void ping_flood(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        int fd = raw_guest(&t);
        for (long n = 0; !t.host.closed; n++) {
                assert_true(n < 3000000);
                uint8_t ping[17] = { 0, 0, 8, 6 };
                (void) !write(fd, ping, sizeof(ping));
                if (n % 512 == 0)
                        lt_turn(&t, 1);
        }
        close(fd);
        lt_done(&t);
}

static void settings_flood(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        int fd = raw_guest(&t);
        uint8_t many[6 * 100];
        for (size_t i = 0; i < 100; i++)
                memcpy(many + 6 * i, "\0\x4\0\0\xff\xff", 6);
        frame(fd, 4, 0, 0, many, sizeof(many));
        LT_UNTIL(&t, t.host.closed);
        close(fd);
        lt_done(&t);
}

static void data_beyond_the_window(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        struct lt_end h = { 0 };
        int fd = raw_guest(&t);
        raw_open(&t, fd, &h, 1);
        stream_read_stop(h.s);
        static uint8_t block[16384];
        for (int i = 0; i < 5 && !h.error && !t.host.closed; i++) {
                frame(fd, 0, 0, 1, block, sizeof(block));
                lt_turn(&t, 3);
        }
        LT_UNTIL(&t, h.error);
        assert_int_equal(h.error, -ECONNRESET);
        close(fd);
        lt_done(&t);
}

static void push_and_foreign_streams(void **state) {
        (void) state;
        for (int variant = 0; variant < 3; variant++) {
                struct lt t;
                lt_init(&t);
                struct lt_end h = { 0 };
                int fd = raw_guest(&t);
                raw_open(&t, fd, &h, 1);
                if (variant == 0)
                        frame(fd, 5, 4, 1, "\0\0\0\x2\x82", 5); /* PUSH_PROMISE */
                else if (variant == 1)
                        frame(fd, 1, 4, 2, "\x82", 1); /* HEADERS on a stream of its own */
                else
                        frame(fd, 0, 0, 99, "x", 1); /* DATA on an idle stream */
                LT_UNTIL(&t, t.host.closed);
                assert_int_equal(h.error, -ECONNRESET);
                close(fd);
                lt_done(&t);
        }
}

static void strange_answers(void **state) {
        (void) state;
        static const struct {
                const char *block;
                size_t n;
                int err;
        } cases[] = {
                { "\x08\x03" "502", 5, -ECONNREFUSED },
                { "\x08\x03" "999", 5, -EHOSTUNREACH },
                { "\x8d", 1, -EHOSTUNREACH }, /* 404 */
        };
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct lt t;
                lt_init(&t);
                struct lt_end h = { 0 };
                int fd = raw_guest(&t);
                lt_open(&t, "127.0.0.1:1", &h);
                frame(fd, 1, 4, 1, cases[i].block, cases[i].n);
                LT_UNTIL(&t, h.answered);
                assert_int_equal(h.open_err, cases[i].err);
                assert_int_equal(link_streams(t.host.l), 0);
                close(fd);
                lt_done(&t);
        }
}

/* Data, end and reset of a stream arrive before the host has told its owner of the answer. */
static void all_at_once(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        struct lt_end h = { .keep = true };
        int fd = raw_guest(&t);
        lt_open(&t, "127.0.0.1:1", &h);
        frame(fd, 1, 4, 1, "\x88", 1);
        frame(fd, 0, 1, 1, "done", 4);
        frame(fd, 3, 0, 1, "\0\0\0\0", 4); /* RST_STREAM(NO_ERROR): a peer that has closed */
        LT_UNTIL(&t, h.error);
        assert_int_equal(h.open_err, 0);
        assert_int_equal(h.received, 4);
        assert_true(h.eof);
        assert_int_equal(h.error, -EPIPE);
        lt_end_done(&h);
        close(fd);
        lt_done(&t);
}

static void goaway(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        struct lt_end h = { 0 };
        int fd = raw_guest(&t);
        lt_open(&t, "127.0.0.1:1", &h);
        frame(fd, 7, 0, 0, "\0\0\0\0\0\0\0\0", 8);
        LT_UNTIL(&t, h.answered && t.host.closed);
        assert_true(h.open_err < 0);
        close(fd);
        lt_done(&t);
}

/* Never reads: what the host writes is queued up to the limit, then refused, never more. */
static void guest_that_takes_nothing(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        struct lt_end h = { 0 };
        int fd = raw_guest(&t);
        raw_open(&t, fd, &h, 1);
        static uint8_t block[1 << 20];
        int r = 0;
        size_t n = 0;
        for (; n < 200 && r == 0; n++) {
                r = stream_write(h.s, block, sizeof(block));
                lt_turn(&t, 2);
        }
        assert_int_equal(r, -ENOBUFS);
        assert_in_range(n, 64, 66);
        stream_abort(h.s);
        assert_int_equal(link_streams(t.host.l), 0);
        close(fd);
        lt_done(&t);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(junk_before_the_hello),
                cmocka_unit_test(cut_hello_before_the_hello),
                cmocka_unit_test(stale_hello_and_answer),
                cmocka_unit_test(stale_hello_with_a_stream),
                cmocka_unit_test(host_restarts),
                cmocka_unit_test(endless_junk),
                cmocka_unit_test(other_version),
                cmocka_unit_test(garbage_instead_of_frames),
                cmocka_unit_test(ping_flood),
                cmocka_unit_test(settings_flood),
                cmocka_unit_test(data_beyond_the_window),
                cmocka_unit_test(push_and_foreign_streams),
                cmocka_unit_test(strange_answers),
                cmocka_unit_test(all_at_once),
                cmocka_unit_test(goaway),
                cmocka_unit_test(guest_that_takes_nothing),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
