/* SPDX-License-Identifier: Apache-2.0 */
#include "linktest.h"

#include <fcntl.h>

#include "base/cleanup.h"

/* The end of a session in agreement: both ends, then each of them against a raw descriptor. */

static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
static const uint8_t settings[] = { 0, 0, 0, 4, 0, 0, 0, 0, 0 };
static const uint8_t parts[] = { 0, 0, 6, 4, 0, 0, 0, 0, 0, 0xf0, 0xc5, 0, 0, 0, 1 };
static const uint8_t goodbye[] = { 0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };

static void pair(int fds[2]) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
}

static void put(int fd, const void *data, size_t n) {
        assert_int_equal(write(fd, data, n), n);
}

static void put_hello(int fd, unsigned kind, const uint8_t nonce[12], size_t n) {
        uint8_t b[LINK_HELLO_SIZE];
        memcpy(b, LINK_MAGIC, 16);
        b[16] = LINK_VERSION >> 8;
        b[17] = LINK_VERSION & 0xff;
        b[18] = (uint8_t) (kind >> 8);
        b[19] = (uint8_t) kind;
        memcpy(b + 20, nonce, 12);
        put(fd, b, n);
}

static void take(struct lt *t, int fd, uint8_t *out, size_t n) {
        for (size_t have = 0; have < n;) {
                ssize_t r = read(fd, out + have, n - have);
                assert_true(r > 0 || (r < 0 && errno == EAGAIN));
                if (r > 0)
                        have += (size_t) r;
                else
                        lt_turn(t, 1);
        }
}

/* To the end of file; whether the host said goodbye right before it. */
static bool ends_with_goodbye(struct lt *t, int fd) {
        uint8_t last[sizeof(goodbye)] = { 0 }, b;
        uint64_t end = clock_mono_ms() + LT_TIMEOUT_MS;
        for (;;) {
                assert_true(clock_mono_ms() < end);
                ssize_t r = read(fd, &b, 1);
                if (r == 0)
                        return memcmp(last, goodbye, 9) == 0 && last[16] == 0;
                assert_true(r == 1 || errno == EAGAIN);
                if (r < 0) {
                        lt_turn(t, 1);
                        continue;
                }
                memmove(last, last + 1, sizeof(last) - 1);
                last[sizeof(last) - 1] = b;
        }
}

static const uint8_t nonce[12] = "0123456789ab", other_nonce[12] = "0123456789aB";

/* A raw guest with a host that has come as far as frames. */
static int raw_guest(struct lt *t, const void *first, size_t n) {
        int fds[2];
        uint8_t b[LINK_HELLO_SIZE];
        pair(fds);
        lt_host_on(t, fds[0]);
        take(t, fds[1], b, sizeof(b));
        assert_memory_equal(b, LINK_MAGIC, 16);
        assert_int_equal(b[18] << 8 | b[19], LINK_KIND_KNOCK);
        put_hello(fds[1], LINK_KIND_GUEST, nonce, LINK_HELLO_SIZE);
        put(fds[1], first, n);
        LT_UNTIL(t, t->host.ready);
        lt_turn(t, 3);
        return fds[1];
}

static int parting_guest(struct lt *t) {
        int fd = raw_guest(t, parts, sizeof(parts));
        assert_int_equal(link_part(t->host.l), 0);
        return fd;
}

/* A raw host with a guest that is ready. */
static int raw_host(struct lt *t) {
        int fds[2];
        uint8_t b[LINK_HELLO_SIZE];
        pair(fds);
        lt_guest_on(t, fds[1]);
        take(t, fds[0], b, sizeof(b));
        assert_int_equal(b[18] << 8 | b[19], LINK_KIND_GUEST);
        put_hello(fds[0], LINK_KIND_KNOCK, other_nonce, LINK_HELLO_SIZE);
        put_hello(fds[0], LINK_KIND_ANSWER, b + 20, LINK_HELLO_SIZE);
        put(fds[0], preface, sizeof(preface) - 1);
        put(fds[0], settings, sizeof(settings));
        LT_UNTIL(t, t->guest.ready);
        return fds[0];
}

/* ---- both ends ----------------------------------------------------------------------------- */

static void in_agreement(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        struct lt_end a[2] = { 0 }, h[2] = { 0 };
        t.guest.accept_into = a;
        t.guest.max_accepted = 2;
        t.guest.echo = true;
        lt_pair(&t);
        for (int i = 0; i < 2; i++) {
                lt_open(&t, "127.0.0.1:1", &h[i]);
                LT_UNTIL(&t, h[i].answered);
                stream_write(h[i].s, "more", 4); /* on its way when it ends */
        }
        assert_int_equal(link_part(t.host.l), 0);
        assert_int_equal(h[0].error, -ECONNRESET);
        assert_int_equal(h[1].error, -ECONNRESET);
        assert_false(link_ready(t.host.l));
        assert_int_equal(link_part(t.host.l), -ENOTSUP);
        LT_UNTIL(&t, t.guest.parted);
        assert_int_equal(a[0].error, -ECONNRESET);
        assert_int_equal(a[1].error, -ECONNRESET);
        assert_false(t.guest.closed);

        /* Nothing of the session is left for another host's guest to find. */
        int fd = stream_fd_release(t.guest.parted);
        t.guest.parted = NULL;
        uint8_t b;
        ssize_t r;
        do
                lt_turn(&t, 1);
        while ((r = read(fd, &b, 1)) < 0 && errno == EAGAIN);
        assert_int_equal(r, 0);
        assert_false(t.host.closed); /* the machine has not closed */
        close(fd);
        LT_UNTIL(&t, t.host.closed);
        assert_int_equal(t.host.err, 0);
        lt_done(&t);
}

/* The guest has more to send than the transport takes, in the middle of frames; and the host has as well. */
static void while_both_are_busy(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        static uint8_t block[1 << 20];
        struct lt_end a[1] = { 0 }, h = { 0 };
        t.guest.accept_into = a;
        t.guest.max_accepted = 1;
        lt_pair(&t);
        lt_open(&t, "127.0.0.1:1", &h);
        LT_UNTIL(&t, h.answered);
        for (int i = 0; i < 4; i++) {
                stream_write(a[0].s, block, sizeof(block));
                stream_write(h.s, block, sizeof(block));
        }
        LT_UNTIL(&t, h.received > 100000);
        assert_int_equal(link_part(t.host.l), 0);
        LT_UNTIL(&t, t.guest.parted);
        stream_close(STEAL(t.guest.parted));
        LT_UNTIL(&t, t.host.closed);
        assert_int_equal(t.host.err, 0);
        lt_end_done(&a[0]);
        lt_end_done(&h);
        lt_done(&t);
}

/* ---- the host's end ------------------------------------------------------------------------ */

static void of_an_earlier_template(void **state) {
        (void) state;
        static const uint8_t zero[] = { 0, 0, 6, 4, 0, 0, 0, 0, 0, 0xf0, 0xc5, 0, 0, 0, 0 };
        const struct {
                const void *first;
                size_t n;
        } cases[] = { { NULL, 0 }, { settings, sizeof(settings) }, { zero, sizeof(zero) } };
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct lt t;
                lt_init(&t);
                int fd = raw_guest(&t, cases[i].first, cases[i].n);
                assert_int_equal(link_part(t.host.l), -ENOTSUP);
                assert_true(link_ready(t.host.l)); /* and the session goes on */
                lt_turn(&t, 3);
                assert_false(t.host.closed);
                close(fd);
                lt_done(&t);
        }
}

/* What a session has cut off, others' and halves of the word before the word. */
static void skips_to_the_word(void **state) {
        (void) state;
        for (size_t cut = 0; cut < LINK_HELLO_SIZE; cut++) {
                struct lt t;
                lt_init(&t);
                int fd = parting_guest(&t);
                put(fd, settings, 5);
                put_hello(fd, LINK_KIND_PARTED, other_nonce, LINK_HELLO_SIZE);
                put_hello(fd, LINK_KIND_GUEST, nonce, LINK_HELLO_SIZE);
                put_hello(fd, LINK_KIND_PARTED, nonce, cut);
                lt_turn(&t, 5);
                uint8_t b[512];
                ssize_t r;
                while ((r = read(fd, b, sizeof(b))) > 0)
                        lt_turn(&t, 1);
                assert_true(r < 0 && errno == EAGAIN); /* it waits on */
                put_hello(fd, LINK_KIND_PARTED, nonce, LINK_HELLO_SIZE);
                put(fd, "late", 4);
                LT_UNTIL(&t, read(fd, b, 1) == 0);
                assert_false(t.host.closed);
                close(fd);
                LT_UNTIL(&t, t.host.closed);
                assert_int_equal(t.host.err, 0);
                lt_done(&t);
        }
}

static void goodbye_is_the_last_word(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        int fd = parting_guest(&t);
        put_hello(fd, LINK_KIND_PARTED, nonce, LINK_HELLO_SIZE);
        assert_true(ends_with_goodbye(&t, fd));
        close(fd);
        lt_done(&t);
}

static void endless_junk(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        int fd = parting_guest(&t);
        static const uint8_t junk[65536];
        while (!t.host.closed) {
                (void) !write(fd, junk, sizeof(junk));
                lt_turn(&t, 1);
        }
        assert_int_equal(t.host.err, -EPROTO);
        uint64_t in, out;
        link_counters(t.host.l, &in, &out);
        assert_in_range(in, LINK_PART_SKIP_MAX, LINK_PART_SKIP_MAX + 1024 * 1024);
        close(fd);
        lt_done(&t);
}

static void gone_before_the_word(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        int fd = parting_guest(&t);
        close(fd);
        LT_UNTIL(&t, t.host.closed);
        assert_true(t.host.err < 0);
        lt_done(&t);
}

/* The word without having been asked is a frame like any other, and no good one. */
static void the_word_unasked(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        int fd = raw_guest(&t, parts, sizeof(parts));
        put_hello(fd, LINK_KIND_PARTED, nonce, LINK_HELLO_SIZE);
        LT_UNTIL(&t, t.host.closed);
        assert_true(t.host.err < 0);
        close(fd);
        lt_done(&t);
}

static void freed_while_parting(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        int fd = parting_guest(&t);
        link_free(t.host.l);
        t.host.l = NULL;
        assert_true(ends_with_goodbye(&t, fd));
        close(fd);
        lt_done(&t);
}

/* ---- the guest's end ----------------------------------------------------------------------- */

static void asked_by_the_host(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        int fd = raw_host(&t);
        put(fd, goodbye, 4); /* in two pieces */
        lt_turn(&t, 3);
        put(fd, goodbye + 4, sizeof(goodbye) - 4);
        LT_UNTIL(&t, t.guest.parted);
        close(fd);
        lt_done(&t);
}

/* It has more to send than the transport takes when it is asked, and another host comes before that is out: its first bytes
 * are there for whoever has the transport next. */
static void another_host_comes_while_it_leaves(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        static uint8_t block[1 << 20], b[65536];
        struct lt_end a[1] = { 0 };
        t.guest.accept_into = a;
        t.guest.max_accepted = 1;
        int fd = raw_host(&t);
        static const uint8_t window[] = { 0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0x7f, 0, 0 },
                             wide[] = { 0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0x7f, 0, 0 },
                             open[] = { 0, 0, 17, 1, 4, 0, 0, 0, 1, 0x02, 7, 'C', 'O', 'N', 'N', 'E', 'C', 'T', 0x01, 6, 'a', 'n', 'y', 'o', 'n', 'e' };
        put(fd, window, sizeof(window));
        put(fd, wide, sizeof(wide));
        put(fd, open, sizeof(open));
        LT_UNTIL(&t, t.guest.n_accepted == 1);
        for (int i = 0; i < 2; i++)
                stream_write(a[0].s, block, sizeof(block));
        lt_turn(&t, 20);
        put(fd, goodbye, sizeof(goodbye));
        lt_turn(&t, 20);
        assert_null(t.guest.parted);
        assert_int_equal(a[0].error, -ECONNRESET);
        put_hello(fd, LINK_KIND_KNOCK, nonce, LINK_HELLO_SIZE);
        lt_turn(&t, 20);
        assert_null(t.guest.parted);
        while (!t.guest.parted) {
                (void) !read(fd, b, sizeof(b));
                lt_turn(&t, 1);
        }
        int port = stream_fd_release(STEAL(t.guest.parted));
        assert_int_equal(read(port, b, sizeof(b)), LINK_HELLO_SIZE);
        assert_memory_equal(b, LINK_MAGIC, 16);
        close(port);
        close(fd);
        lt_done(&t);
}

/* The guest was stopped before it came to read, and goes on with another host. */
static void another_host_came_meanwhile(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        int fd = raw_host(&t);
        put(fd, goodbye, sizeof(goodbye));
        put_hello(fd, LINK_KIND_KNOCK, nonce, LINK_HELLO_SIZE);
        LT_UNTIL(&t, t.guest.closed);
        assert_null(t.guest.parted);
        assert_true(t.guest.err < 0);
        close(fd);
        lt_done(&t);
}

static void goodbye_with_an_error(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        int fd = raw_host(&t);
        uint8_t b[sizeof(goodbye)];
        memcpy(b, goodbye, sizeof(b));
        b[16] = 1; /* PROTOCOL_ERROR */
        put(fd, b, sizeof(b));
        LT_UNTIL(&t, t.guest.closed);
        assert_null(t.guest.parted);
        close(fd);
        lt_done(&t);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(in_agreement),
                cmocka_unit_test(while_both_are_busy),
                cmocka_unit_test(of_an_earlier_template),
                cmocka_unit_test(skips_to_the_word),
                cmocka_unit_test(goodbye_is_the_last_word),
                cmocka_unit_test(endless_junk),
                cmocka_unit_test(gone_before_the_word),
                cmocka_unit_test(the_word_unasked),
                cmocka_unit_test(freed_while_parting),
                cmocka_unit_test(asked_by_the_host),
                cmocka_unit_test(another_host_comes_while_it_leaves),
                cmocka_unit_test(another_host_came_meanwhile),
                cmocka_unit_test(goodbye_with_an_error),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
