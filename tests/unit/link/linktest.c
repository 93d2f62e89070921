/* SPDX-License-Identifier: Apache-2.0 */
#include "linktest.h"

static void end_data(void *arg, const uint8_t *data, size_t n) {
        struct lt_end *e = arg;
        e->received += n;
        if (e->keep)
                assert_int_equal(buf_append(&e->in, data, n), 0);
        if (e->echo && stream_write(e->s, data, n) == 0 && stream_queued(e->s) > STREAM_HIGH_WATER)
                stream_read_stop(e->s);
}

static void end_eof(void *arg) {
        struct lt_end *e = arg;
        assert_false(e->eof);
        e->eof = true;
        if (e->echo)
                stream_shutdown(e->s);
        if (e->close_on_eof) {
                stream_close(e->s);
                e->s = NULL;
        }
}

static void end_drain(void *arg) {
        struct lt_end *e = arg;
        e->drained = true;
        if (e->echo)
                stream_read_start(e->s);
}

static void end_error(void *arg, int err) {
        struct lt_end *e = arg;
        assert_int_equal(e->error, 0);
        e->error = err;
        stream_close(e->s);
        e->s = NULL;
}

const struct stream_handler lt_end_handler = {
        .on_data = end_data,
        .on_eof = end_eof,
        .on_drain = end_drain,
        .on_error = end_error,
};

static void side_ready(void *arg) {
        ((struct lt_side *) arg)->ready = true;
}

static void side_close(void *arg, int err, const char *why) {
        struct lt_side *side = arg;
        assert_false(side->closed);
        side->closed = true;
        side->err = err;
        snprintf(side->why, sizeof(side->why), "%s", why);
}

static void side_parted(void *arg, struct stream *transport) {
        struct lt_side *side = arg;
        assert_null(side->parted);
        side->parted = transport;
}

static void guest_open(void *arg, struct link *l, int32_t id, const char *authority) {
        struct lt_side *g = arg;
        snprintf(g->authority, sizeof(g->authority), "%s", authority);
        if (g->hold) {
                g->held_id = id;
                return;
        }
        if (g->refuse) {
                link_refuse(l, id, g->refuse);
                return;
        }
        assert_true(g->n_accepted < g->max_accepted);
        struct lt_end *e = &g->accept_into[g->n_accepted++];
        e->echo = g->echo;
        assert_int_equal(link_accept(l, id, &e->s), 0);
        stream_set_handler(e->s, &lt_end_handler, e);
        stream_read_start(e->s);
}

static const struct link_handler side_handler = {
        .on_ready = side_ready,
        .on_open = guest_open,
        .on_close = side_close,
        .on_parted = side_parted,
};

static void tick(uv_timer_t *timer) {
        (void) timer;
}

void lt_init(struct lt *t) {
        memset(t, 0, sizeof(*t));
        assert_int_equal(uv_loop_init(&t->loop), 0);
        uv_timer_init(&t->loop, &t->timer);
        uv_timer_start(&t->timer, tick, 100, 100); /* so that LT_UNTIL looks at the clock */
}

static struct link *link_on(struct lt *t, enum link_role role, int fd, struct lt_side *side) {
        struct stream *s;
        assert_int_equal(stream_from_fd(&t->loop, fd, &s, NULL), 0);
        struct link *l;
        assert_int_equal(link_new(&t->loop, role, s, &side_handler, side, &l, NULL), 0);
        return l;
}

void lt_host_on(struct lt *t, int fd) {
        t->host.ready = t->host.closed = false;
        t->host.l = link_on(t, LINK_HOST, fd, &t->host);
}

void lt_guest_on(struct lt *t, int fd) {
        t->guest.ready = t->guest.closed = false;
        t->guest.l = link_on(t, LINK_GUEST, fd, &t->guest);
}

void lt_pair(struct lt *t) {
        int fds[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        lt_host_on(t, fds[0]);
        lt_guest_on(t, fds[1]);
        LT_UNTIL(t, t->host.ready && t->guest.ready);
}

void lt_done(struct lt *t) {
        link_free(t->host.l);
        link_free(t->guest.l);
        stream_close(t->guest.parted);
        uv_close((uv_handle_t *) &t->timer, NULL);
        uv_run(&t->loop, UV_RUN_DEFAULT);
        assert_int_equal(uv_loop_close(&t->loop), 0);
}

void lt_turn(struct lt *t, int n) {
        while (n-- > 0)
                uv_run(&t->loop, UV_RUN_NOWAIT);
}

static void opened(void *arg, int err, struct stream *s) {
        struct lt_end *e = arg;
        assert_false(e->answered);
        e->answered = true;
        e->open_err = err;
        e->s = s;
        assert_int_equal(s == NULL, err != 0);
        if (s) {
                stream_set_handler(s, &lt_end_handler, e);
                stream_read_start(s);
        }
}

void lt_open(struct lt *t, const char *authority, struct lt_end *e) {
        assert_int_equal(link_open(t->host.l, authority, opened, e), 0);
}

void lt_end_done(struct lt_end *e) {
        stream_close(e->s);
        e->s = NULL;
        buf_done(&e->in);
}
