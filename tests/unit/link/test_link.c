/* SPDX-License-Identifier: Apache-2.0 */
#include "linktest.h"

static void pattern(uint8_t *out, size_t n, unsigned seed) {
        for (size_t i = 0; i < n; i++)
                out[i] = (uint8_t) ((i * 31 + (i >> 8) * 7 + seed) & 0xff);
}

static void opens_and_echoes(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        struct lt_end a[1] = { { .keep = true } }, h = { .keep = true };
        t.guest.accept_into = a;
        t.guest.max_accepted = 1;
        lt_pair(&t);

        lt_open(&t, "127.0.0.1:8080", &h);
        LT_UNTIL(&t, h.answered);
        assert_int_equal(h.open_err, 0);
        assert_string_equal(t.guest.authority, "127.0.0.1:8080");
        assert_int_equal(stream_write(h.s, "to guest", 8), 0);
        assert_int_equal(stream_write(a[0].s, "to host", 7), 0);
        LT_UNTIL(&t, h.received == 7 && a[0].received == 8);
        assert_memory_equal(buf_data(&h.in), "to host", 7);
        assert_memory_equal(buf_data(&a[0].in), "to guest", 8);
        lt_end_done(&h);
        lt_end_done(&a[0]);
        lt_done(&t);
}

static void half_close_each_way(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        struct lt_end a[1] = { { .keep = true } }, h = { .keep = true };
        t.guest.accept_into = a;
        t.guest.max_accepted = 1;
        lt_pair(&t);
        lt_open(&t, "127.0.0.1:1", &h);
        LT_UNTIL(&t, h.answered);

        stream_write(h.s, "request", 7);
        assert_int_equal(stream_shutdown(h.s), 0);
        assert_int_equal(stream_write(h.s, "x", 1), -EPIPE);
        LT_UNTIL(&t, a[0].eof);
        assert_int_equal(a[0].received, 7);
        assert_false(h.eof);
        stream_write(a[0].s, "answer", 6);
        stream_close(a[0].s); /* flushes first */
        a[0].s = NULL;
        LT_UNTIL(&t, h.eof);
        assert_int_equal(h.received, 6);
        lt_turn(&t, 5);
        assert_int_equal(h.error, 0);
        assert_int_equal(link_streams(t.guest.l), 0);
        lt_end_done(&h);
        assert_int_equal(link_streams(t.host.l), 0);
        buf_done(&a[0].in);
        lt_done(&t);
}

static void refusals(void **state) {
        (void) state;
        static const struct {
                int status, err;
        } cases[] = { { 502, -ECONNREFUSED }, { 403, -EHOSTUNREACH }, { 404, -EHOSTUNREACH }, { 503, -EAGAIN } };
        struct lt t;
        lt_init(&t);
        lt_pair(&t);
        for (size_t i = 0; i < 4; i++) {
                struct lt_end h = { .keep = true };
                t.guest.refuse = cases[i].status;
                lt_open(&t, "127.0.0.1:9", &h);
                LT_UNTIL(&t, h.answered);
                assert_int_equal(h.open_err, cases[i].err);
        }
        lt_turn(&t, 5);
        assert_int_equal(link_streams(t.host.l), 0);
        assert_int_equal(link_streams(t.guest.l), 0);
        lt_done(&t);
}

static void abort_is_an_error_for_the_peer(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        struct lt_end a[2] = { 0 }, h[2] = { 0 };
        t.guest.accept_into = a;
        t.guest.max_accepted = 2;
        lt_pair(&t);
        for (int i = 0; i < 2; i++) {
                lt_open(&t, "127.0.0.1:1", &h[i]);
                LT_UNTIL(&t, h[i].answered);
        }
        stream_abort(h[0].s);
        stream_abort(a[1].s);
        LT_UNTIL(&t, a[0].error && h[1].error);
        assert_int_equal(a[0].error, -ECONNRESET);
        assert_int_equal(h[1].error, -ECONNRESET);
        assert_false(a[0].eof);
        assert_false(h[1].eof);
        assert_int_equal(link_streams(t.host.l), 0);
        assert_int_equal(link_streams(t.guest.l), 0);
        lt_done(&t);
}

/* A close without having read the peer's end: the peer gets all data and the end, its own writing
 * breaks. */
static void close_while_peer_writes(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        struct lt_end a[1] = { { .keep = true } }, h = { 0 };
        t.guest.accept_into = a;
        t.guest.max_accepted = 1;
        lt_pair(&t);
        lt_open(&t, "127.0.0.1:1", &h);
        LT_UNTIL(&t, h.answered);
        stream_read_stop(a[0].s);
        stream_write(h.s, "last words", 10);
        stream_close(h.s);
        h.s = NULL;
        lt_turn(&t, 20);
        assert_int_equal(a[0].error, 0); /* it has not read yet: nothing is lost */
        assert_int_equal(stream_write(a[0].s, "x", 1), -EPIPE);
        stream_read_start(a[0].s);
        LT_UNTIL(&t, a[0].error);
        assert_int_equal(a[0].received, 10);
        assert_true(a[0].eof);
        assert_int_equal(a[0].error, -EPIPE);
        assert_int_equal(link_streams(t.host.l), 0);
        buf_done(&a[0].in);
        lt_done(&t);
}

static void bulk_both_ways_is_intact(void **state) {
        (void) state;
        const size_t total = 24u * 1024 * 1024, piece = 128 * 1024;
        struct lt t;
        lt_init(&t);
        struct lt_end a[1] = { 0 }, h = { .keep = true };
        t.guest.accept_into = a;
        t.guest.max_accepted = 1;
        t.guest.echo = true;
        lt_pair(&t);
        lt_open(&t, "127.0.0.1:1", &h);
        LT_UNTIL(&t, h.answered);
        uint8_t *data = malloc(total);
        assert_non_null(data);
        pattern(data, total, 3);
        for (size_t off = 0; off < total; off += piece) {
                LT_UNTIL(&t, stream_queued(h.s) < STREAM_HIGH_WATER);
                assert_int_equal(stream_write(h.s, data + off, piece), 0);
        }
        stream_shutdown(h.s);
        LT_UNTIL(&t, h.eof);
        assert_int_equal(h.received, total);
        assert_memory_equal(buf_data(&h.in), data, total);
        assert_true(h.drained);
        free(data);
        lt_end_done(&h);
        lt_end_done(&a[0]);
        lt_done(&t);
}

/* A reader that stops holds the writer back at about one window, and does not disturb others. */
static void backpressure(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        struct lt_end a[2] = { 0 }, h[2] = { { 0 }, { 0 } };
        t.guest.accept_into = a;
        t.guest.max_accepted = 2;
        lt_pair(&t);
        for (int i = 0; i < 2; i++) {
                lt_open(&t, "127.0.0.1:1", &h[i]);
                LT_UNTIL(&t, h[i].answered);
        }
        static uint8_t block[1 << 20];
        stream_read_stop(h[0].s);
        for (int i = 0; i < 8; i++)
                assert_int_equal(stream_write(a[0].s, block, sizeof(block)), 0);
        lt_turn(&t, 200);
        uint64_t in, out;
        link_counters(t.host.l, &in, &out);
        assert_true(in < LINK_WINDOW_FIRST + 4096);
        assert_true(stream_queued(a[0].s) >= 8 * sizeof(block) - LINK_WINDOW_FIRST);
        assert_int_equal(h[0].received, 0);

        stream_write(a[1].s, "unhindered", 10);
        LT_UNTIL(&t, h[1].received == 10);

        stream_read_start(h[0].s);
        LT_UNTIL(&t, h[0].received == 8 * sizeof(block));

        /* By now the window has grown, and no further than it may. */
        stream_read_stop(h[0].s);
        link_counters(t.host.l, &in, &out);
        uint64_t before = in;
        for (int i = 0; i < 8; i++)
                assert_int_equal(stream_write(a[0].s, block, sizeof(block)), 0);
        lt_turn(&t, 400);
        link_counters(t.host.l, &in, &out);
        assert_in_range(in - before, LINK_WINDOW / 2, LINK_WINDOW + LINK_WINDOW / 4);

        stream_abort(a[0].s); /* with bytes that nobody read: the session's window gets them back */
        LT_UNTIL(&t, h[0].error);
        for (int i = 0; i < 2; i++) {
                lt_end_done(&h[i]);
                if (i)
                        lt_end_done(&a[i]);
        }
        lt_done(&t);
}

/* More than the session's window through streams that are dropped unread: it must not leak away. */
static void dropped_bytes_give_the_window_back(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        enum { N = 2 * LINK_WINDOW_SESSION / LINK_WINDOW_FIRST };
        struct lt_end *a = calloc(N, sizeof(*a));
        assert_non_null(a);
        t.guest.accept_into = a;
        t.guest.max_accepted = N;
        lt_pair(&t);
        static uint8_t block[LINK_WINDOW_FIRST];
        for (int i = 0; i < N; i++) {
                struct lt_end h = { 0 };
                uint64_t in, out, start;
                lt_open(&t, "127.0.0.1:1", &h);
                LT_UNTIL(&t, h.answered);
                stream_read_stop(h.s);
                link_counters(t.host.l, &start, &out);
                assert_int_equal(stream_write(a[i].s, block, sizeof(block)), 0);
                LT_UNTIL(&t, (link_counters(t.host.l, &in, &out), in - start >= sizeof(block)));
                if (i % 2)
                        stream_abort(h.s);
                else
                        stream_close(h.s);
                LT_UNTIL(&t, i % 2 ? a[i].error : a[i].eof);
                if (a[i].s)
                        stream_close(a[i].s);
        }
        free(a);
        lt_done(&t);
}

static void thousand_streams(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        const size_t n = LIMIT_LINK_STREAMS;
        struct lt_end *a = calloc(n, sizeof(*a)), *h = calloc(n, sizeof(*h)), extra = { 0 };
        assert_non_null(a);
        assert_non_null(h);
        t.guest.accept_into = a;
        t.guest.max_accepted = n;
        t.guest.echo = true;
        lt_pair(&t);
        for (size_t i = 0; i < n; i++) {
                h[i].keep = true;
                lt_open(&t, "127.0.0.1:1", &h[i]);
        }
        assert_int_equal(link_open(t.host.l, "127.0.0.1:1", NULL, &extra), -EAGAIN);
        uint8_t data[3000];
        for (size_t i = 0; i < n; i++) {
                LT_UNTIL(&t, h[i].answered);
                assert_int_equal(h[i].open_err, 0);
                pattern(data, sizeof(data), (unsigned) i);
                stream_write(h[i].s, data, sizeof(data));
                stream_shutdown(h[i].s);
        }
        for (size_t i = 0; i < n; i++) {
                LT_UNTIL(&t, h[i].eof);
                pattern(data, sizeof(data), (unsigned) i);
                assert_int_equal(h[i].received, sizeof(data));
                assert_memory_equal(buf_data(&h[i].in), data, sizeof(data));
                lt_end_done(&h[i]);
                lt_end_done(&a[i]);
        }
        assert_int_equal(link_streams(t.host.l), 0);
        assert_int_equal(link_streams(t.guest.l), 0);
        free(a);
        free(h);
        lt_done(&t);
}

static void transport_loss(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        struct lt_end a[2] = { 0 }, h[2] = { 0 }, never = { 0 };
        t.guest.accept_into = a;
        t.guest.max_accepted = 2;
        lt_pair(&t);
        for (int i = 0; i < 2; i++) {
                lt_open(&t, "127.0.0.1:1", &h[i]);
                LT_UNTIL(&t, h[i].answered);
        }
        t.guest.hold = true;
        lt_open(&t, "127.0.0.1:2", &never);
        LT_UNTIL(&t, t.guest.held_id);
        link_free(t.guest.l);
        t.guest.l = NULL;
        for (int i = 0; i < 2; i++)
                assert_int_equal(a[i].error, -ECONNRESET); /* told inside link_free() */
        LT_UNTIL(&t, t.host.closed);
        for (int i = 0; i < 2; i++)
                assert_int_equal(h[i].error, -ECONNRESET);
        assert_true(never.answered);
        assert_int_equal(never.open_err, -ECONNRESET);
        assert_int_equal(link_open(t.host.l, "control", NULL, NULL), -ENOTCONN);
        lt_done(&t);
}

/* The owner frees the link from inside a stream's callback. */
static struct link *to_free;
static void free_link_on_data(void *arg, const uint8_t *data, size_t n) {
        (void) data;
        ((struct lt_end *) arg)->received += n;
        link_free(to_free);
}
static void free_link(void **state) {
        (void) state;
        static const struct stream_handler h_free = { .on_data = free_link_on_data, .on_eof = NULL, .on_error = NULL };
        struct lt t;
        lt_init(&t);
        struct lt_end a[2] = { 0 }, h[2] = { 0 };
        t.guest.accept_into = a;
        t.guest.max_accepted = 2;
        lt_pair(&t);
        for (int i = 0; i < 2; i++) {
                lt_open(&t, "127.0.0.1:1", &h[i]);
                LT_UNTIL(&t, h[i].answered);
        }
        struct stream_handler with_error = h_free;
        with_error.on_error = lt_end_handler.on_error;
        with_error.on_eof = lt_end_handler.on_eof;
        stream_set_handler(h[0].s, &with_error, &h[0]);
        to_free = t.host.l;
        stream_write(a[0].s, "bye", 3);
        LT_UNTIL(&t, h[0].error);
        t.host.l = NULL;
        assert_int_equal(h[0].error, -ECONNRESET);
        assert_int_equal(h[1].error, -ECONNRESET);
        assert_false(t.host.closed); /* freed by the owner: no one is told */
        LT_UNTIL(&t, t.guest.closed);
        lt_done(&t);
}

static void given_up_before_the_answer(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        struct lt_end h = { 0 };
        t.guest.hold = true;
        lt_pair(&t);
        lt_open(&t, "control", &h);
        LT_UNTIL(&t, t.guest.held_id);
        link_free(t.host.l);
        t.host.l = NULL;
        assert_int_equal(h.open_err, -ECONNRESET);
        LT_UNTIL(&t, t.guest.closed);
        struct stream *s = NULL;
        assert_int_equal(link_accept(t.guest.l, t.guest.held_id, &s), -ECONNRESET);
        link_refuse(t.guest.l, t.guest.held_id, 502);
        lt_done(&t);
}

static void own(struct lt_end *e, struct stream *s) {
        e->s = s;
        stream_set_handler(s, &lt_end_handler, e);
        stream_read_start(s);
}

static void early_open(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        struct lt_end a[1] = { { .keep = true } }, h = { .keep = true };
        struct stream *s;
        t.guest.accept_into = a;
        t.guest.max_accepted = 1;
        lt_pair(&t);
        t.guest.echo = true;
        assert_int_equal(link_open_early(t.host.l, "control", &s), 0);
        own(&h, s);
        assert_int_equal(stream_write(s, "at once", 7), 0);
        assert_int_equal(stream_shutdown(s), 0);
        LT_UNTIL(&t, h.eof);
        assert_int_equal(h.received, 7);
        assert_string_equal(t.guest.authority, "control");
        lt_end_done(&h);
        lt_end_done(&a[0]);
        lt_done(&t);
}

static void early_open_refused(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        struct lt_end h[3] = { 0 };
        struct stream *s;
        lt_pair(&t);
        t.guest.refuse = 502;
        assert_int_equal(link_open_early(t.host.l, "127.0.0.1:1", &s), 0);
        own(&h[0], s);
        assert_int_equal(stream_write(s, "for nobody", 10), 0);
        LT_UNTIL(&t, h[0].error);
        assert_int_equal(h[0].error, -ECONNREFUSED);
        assert_int_equal(h[0].received, 0);
        /* Closed by its owner before the answer, in both ways. */
        for (int i = 1; i < 3; i++) {
                assert_int_equal(link_open_early(t.host.l, "127.0.0.1:1", &s), 0);
                own(&h[i], s);
                stream_write(s, "x", 1);
                if (i == 1)
                        stream_close(s);
                else
                        stream_abort(s);
        }
        LT_UNTIL(&t, link_streams(t.host.l) == 0);
        lt_turn(&t, 10);
        assert_int_equal(link_streams(t.guest.l), 0);
        assert_false(t.host.closed || t.guest.closed);
        lt_done(&t);
}

static void pings(void **state) {
        (void) state;
        struct lt t;
        lt_init(&t);
        lt_pair(&t);
        assert_int_equal(link_ping(t.host.l), 0);
        assert_int_equal(link_ping(t.host.l), 0);
        LT_UNTIL(&t, link_ping_age_ms(t.host.l) == 0);
        lt_done(&t);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(opens_and_echoes),
                cmocka_unit_test(half_close_each_way),
                cmocka_unit_test(refusals),
                cmocka_unit_test(abort_is_an_error_for_the_peer),
                cmocka_unit_test(close_while_peer_writes),
                cmocka_unit_test(bulk_both_ways_is_intact),
                cmocka_unit_test(backpressure),
                cmocka_unit_test(dropped_bytes_give_the_window_back),
                cmocka_unit_test(thousand_streams),
                cmocka_unit_test(transport_loss),
                cmocka_unit_test(free_link),
                cmocka_unit_test(given_up_before_the_answer),
                cmocka_unit_test(early_open),
                cmocka_unit_test(early_open_refused),
                cmocka_unit_test(pings),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
