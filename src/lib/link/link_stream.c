/* SPDX-License-Identifier: Apache-2.0 */
#include "link/link_internal.h"

/*
 * One stream of the link, as a `struct stream`.
 *
 * Received bytes wait in rx until the owner reads; the peer's window opens again only as the owner
 * takes them (nghttp2_session_consume), which is what holds the peer back. Written bytes wait in
 * tx until nghttp2 pulls them.
 *
 * How an end looks on the wire and to the owner:
 *
 *   shutdown             END_STREAM after the queue               on_eof
 *   close, both ended    nothing more                             -
 *   close, peer has not  END_STREAM, then RST_STREAM(NO_ERROR)    on_eof; writes give -EPIPE, and
 *                                                                 on_error(-EPIPE) after on_eof
 *   abort, or a fault    RST_STREAM(CANCEL)                       on_error(-ECONNRESET) at once
 *
 * Only an END_STREAM is an end of file: a session that breaks is on_error for every stream.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"

#define LINK_DELIVER_PIECE 65536 /* most bytes in one on_data */
#define LINK_KEEP_CAP 16384      /* an empty queue with more memory than this gives it back */

static const struct stream_ops link_stream_ops;

struct link_stream *link_stream_new(struct link *l) {
        struct link_stream *s = calloc(1, sizeof(*s));
        if (!s)
                return NULL;
        s->base.ops = &link_stream_ops;
        s->link = l;
        s->state = LS_PENDING;
        s->window = LINK_WINDOW_FIRST;
        s->tx = BUF_INIT(STREAM_QUEUE_MAX);
        LIST_INSERT_HEAD(&l->streams, s, all);
        l->n_streams++;
        return s;
}

/* Leaves the link: its lists, its memory budget, what it holds of the session's window. */
static void leave(struct link_stream *s) {
        struct link *l = STEAL(s->link);
        if (!l)
                return;
        LIST_REMOVE(s, all);
        if (s->dirty_round)
                TAILQ_REMOVE(&l->dirty, s, dirty);
        s->dirty_round = 0;
        l->n_streams--;
        l->windows -= (size_t) (s->window - LINK_WINDOW_FIRST);
        if (s->rx.len > 0 && l->phase <= LINK_FRAMES)
                nghttp2_session_consume_connection(l->session, s->rx.len);
        s->id = 0;
}

void link_stream_free(struct link_stream *s) {
        if (!s)
                return;
        if (s->gone)
                *s->gone = true;
        leave(s);
        buf_done(&s->rx);
        buf_done(&s->tx);
        free(s->authority);
        free(s);
}

void link_stream_mark(struct link_stream *s) {
        if (!s->link || s->dirty_round)
                return;
        s->dirty_round = s->link->round;
        TAILQ_INSERT_TAIL(&s->link->dirty, s, dirty);
        link_schedule(s->link);
}

/* Ends the HTTP/2 stream with a reset; nghttp2 knows the memory no longer. */
static void reset(struct link_stream *s, uint32_t code) {
        if (!s->link || s->id <= 0)
                return;
        nghttp2_session_set_stream_user_data(s->link->session, s->id, NULL);
        nghttp2_submit_rst_stream(s->link->session, NGHTTP2_FLAG_NONE, s->id, code);
        link_schedule(s->link);
        s->id = 0;
}

static void resume_sending(struct link_stream *s) {
        if (!s->link || s->id <= 0)
                return;
        nghttp2_session_resume_data(s->link->session, s->id);
        link_schedule(s->link);
}

static void consume(struct link_stream *s, size_t n) {
        struct link *l = s->link;
        if (!l || n == 0 || l->phase > LINK_FRAMES)
                return;
        if (s->id > 0)
                nghttp2_session_consume(l->session, s->id, n);
        else
                nghttp2_session_consume_connection(l->session, n);
        link_schedule(l);
}

static void drop_received(struct link_stream *s) {
        consume(s, s->rx.len);
        buf_done(&s->rx);
}

/* ---- what nghttp2 tells -------------------------------------------------------------------- */

static int refusal(int status) {
        switch (status) {
        case 502:
                return -ECONNREFUSED;
        case 503:
                return -EAGAIN;
        default:
                return -EHOSTUNREACH;
        }
}

/* A head has come to the host. */
void link_stream_answered(struct link_stream *s) {
        if (s->status < 200) {
                s->status = 0; /* interim answers mean nothing here */
        } else if (s->early) {
                s->early = false;
                if (s->status != 200 && !s->fault)
                        s->fault = refusal(s->status);
        }
}

void link_stream_received(struct link_stream *s, const uint8_t *data, size_t n) {
        if (s->state == LS_CLOSING)
                return consume(s, n);
        if (buf_append(&s->rx, data, n) < 0) {
                consume(s, n);
                drop_received(s);
                reset(s, NGHTTP2_INTERNAL_ERROR);
                s->fault = -ENOMEM;
        }
        link_stream_mark(s);
}

void link_stream_ended(struct link_stream *s, uint32_t error_code) {
        s->id = 0;
        bool answered = s->state == LS_OPEN || s->status == 200;
        if (s->early && error_code == NGHTTP2_REFUSED_STREAM)
                s->fault = -EAGAIN;
        if (s->state == LS_CLOSING || (s->state == LS_PENDING && s->link->role == LINK_GUEST))
                return link_stream_free(s);
        if (!answered) {
                if (!s->fault && s->status == 0)
                        s->fault = error_code == NGHTTP2_REFUSED_STREAM ? -EAGAIN : -ECONNRESET;
        } else if (error_code == NGHTTP2_NO_ERROR && s->eof_in) {
                s->flow_off = !s->fin_sent;
                s->drained = s->tx.len > 0; /* whoever waits for room shall find out */
                buf_done(&s->tx);
        } else if (!s->fault) {
                s->fault = -ECONNRESET;
                buf_done(&s->tx);
                drop_received(s);
        }
        link_stream_mark(s);
}

void link_stream_fin_sent(struct link_stream *s) {
        s->fin_sent = true;
        if (s->state == LS_CLOSING && !s->eof_in)
                nghttp2_submit_rst_stream(s->link->session, NGHTTP2_FLAG_NONE, s->id, NGHTTP2_NO_ERROR);
}

ssize_t link_stream_pull(struct link_stream *s, uint8_t *out, size_t cap, uint32_t *flags) {
        size_t before = s->tx.len, n = before < cap ? before : cap;
        if (n == 0 && !s->shut)
                return NGHTTP2_ERR_DEFERRED;
        if (n > 0) {
                memcpy(out, buf_data(&s->tx), n);
                buf_consume(&s->tx, n);
        }
        if (s->tx.len == 0) {
                if (s->shut)
                        *flags |= NGHTTP2_DATA_FLAG_EOF;
                if (s->tx.cap > LINK_KEEP_CAP)
                        buf_done(&s->tx);
        }
        bool low = before > STREAM_LOW_WATER && s->tx.len <= STREAM_LOW_WATER;
        if (low || (before > 0 && s->tx.len == 0)) {
                s->drained = true;
                link_stream_mark(s);
        }
        return (ssize_t) n;
}

/* ---- calling the owner --------------------------------------------------------------------- */

/* The host's link_open() is answered. */
static void answer(struct link_stream *s) {
        link_open_cb cb = s->open_cb;
        void *arg = s->open_arg;
        s->deadline_ms = 0;
        if (s->status == 200) {
                s->state = LS_OPEN;
                link_stream_mark(s);
                return cb(arg, 0, &s->base);
        }
        int err = s->fault && s->status == 0 ? s->fault : refusal(s->status);
        reset(s, NGHTTP2_CANCEL);
        link_stream_free(s);
        cb(arg, err, NULL);
}

/* A reader that keeps up gets a larger window, while the session's budget lasts. */
static void grow_window(struct link_stream *s) {
        struct link *l = s->link;
        if (!l || s->id <= 0 || s->eof_in || s->window >= LINK_WINDOW || s->taken < (uint64_t) s->window)
                return;
        int to = s->window * 2 < LINK_WINDOW ? s->window * 2 : LINK_WINDOW;
        size_t by = (size_t) (to - s->window);
        if (l->windows + by > LINK_WINDOW_SESSION - (size_t) LIMIT_LINK_STREAMS * LINK_WINDOW_FIRST)
                return;
        if (nghttp2_session_set_local_window_size(l->session, NGHTTP2_FLAG_NONE, s->id, to))
                return;
        l->windows += by;
        s->window = to;
        s->taken = 0;
}

/* Hands rx over piece by piece while the owner reads. False: the stream is gone. */
static bool deliver(struct link_stream *s, const bool *gone) {
        struct buf now = s->rx;
        s->rx = BUF_INIT(0);
        while (now.len > 0 && s->reading && !s->fault) {
                size_t n = now.len < LINK_DELIVER_PIECE ? now.len : LINK_DELIVER_PIECE;
                consume(s, n);
                s->taken += n;
                s->base.handler->on_data(s->base.arg, buf_data(&now), n);
                if (*gone) {
                        buf_done(&now);
                        return false;
                }
                buf_consume(&now, n);
        }
        if (now.len > 0 && !s->fault)
                s->rx = now;
        else
                buf_done(&now);
        if (s->rx.len == 0)
                grow_window(s);
        return true;
}

static void tell_owner(struct link_stream *s, const bool *gone) {
        if (s->drained && !s->fault) {
                s->drained = false;
                if (s->base.handler->on_drain)
                        s->base.handler->on_drain(s->base.arg);
                if (*gone)
                        return;
        }
        if (s->reading && s->rx.len > 0 && !s->fault && !deliver(s, gone))
                return;
        if (s->reading && s->rx.len == 0 && s->eof_in && !s->eof_told && !s->fault) {
                s->eof_told = true;
                s->base.handler->on_eof(s->base.arg);
                if (*gone)
                        return;
        }
        if (s->flow_off && s->eof_told && !s->fault)
                s->fault = -EPIPE;
        if (s->fault && !s->fault_told) {
                s->fault_told = s->fault;
                s->base.handler->on_error(s->base.arg, s->fault);
        }
}

void link_stream_dispatch(struct link_stream *s) {
        struct link *l = s->link;
        if (s->announce) {
                s->announce = false;
                l->handler->on_open(l->arg, l, s->id, s->authority ? s->authority : "");
        } else if (s->state == LS_PENDING) {
                if (s->open_cb && (s->status || s->fault))
                        answer(s);
        } else if (s->state == LS_OPEN && s->base.handler) {
                bool gone = false, *outer = s->gone;
                s->gone = &gone;
                tell_owner(s, &gone);
                if (!gone)
                        s->gone = outer;
                else if (outer)
                        *outer = true;
        }
}

void link_stream_lose(struct link_stream *s, int err) {
        leave(s);
        if (s->state == LS_OPEN) {
                buf_done(&s->rx);
                buf_done(&s->tx);
                s->fault = s->fault ? s->fault : err;
                if (s->base.handler && !s->fault_told) {
                        s->fault_told = s->fault;
                        s->base.handler->on_error(s->base.arg, s->fault);
                }
                return;
        }
        link_open_cb cb = s->open_cb;
        void *arg = s->open_arg;
        bool asked = s->state == LS_PENDING && cb;
        link_stream_free(s);
        if (asked)
                cb(arg, err, NULL);
}

void link_stream_expire(struct link_stream *s) {
        s->deadline_ms = 0;
        if (s->state == LS_CLOSING) {
                reset(s, NGHTTP2_CANCEL);
                link_stream_free(s);
        } else if (s->state == LS_PENDING && !s->status) {
                s->fault = -ETIMEDOUT;
                link_stream_mark(s);
        }
}

/* ---- the stream interface ------------------------------------------------------------------ */

static struct link_stream *of(struct stream *s) {
        return (struct link_stream *) s;
}

static void op_read_start(struct stream *base) {
        struct link_stream *s = of(base);
        s->reading = true;
        link_stream_mark(s);
}

static void op_read_stop(struct stream *base) {
        of(base)->reading = false;
}

static bool writable(const struct link_stream *s) {
        return s->link && !s->fault && !s->shut && !s->flow_off;
}

static int op_write(struct stream *base, const void *data, size_t n) {
        struct link_stream *s = of(base);
        if (!writable(s))
                return -EPIPE;
        int r = buf_append(&s->tx, data, n);
        if (r < 0)
                return r;
        resume_sending(s);
        return 0;
}

static size_t op_queued(const struct stream *base) {
        return ((const struct link_stream *) base)->tx.len;
}

static int op_shutdown(struct stream *base) {
        struct link_stream *s = of(base);
        if (!writable(s))
                return -EPIPE;
        s->shut = true;
        resume_sending(s);
        return 0;
}

static void op_close(struct stream *base, bool abort) {
        struct link_stream *s = of(base);
        if (s->gone)
                *s->gone = true;
        s->gone = NULL;
        if (s->id <= 0)
                return link_stream_free(s);
        if (abort || s->fault) {
                reset(s, NGHTTP2_CANCEL);
                return link_stream_free(s);
        }
        s->state = LS_CLOSING;
        s->base.handler = NULL;
        s->shut = true;
        drop_received(s);
        link_stream_set_deadline(s, LINK_LINGER_MS);
        if (s->fin_sent)
                link_stream_fin_sent(s);
        else
                resume_sending(s);
        link_schedule(s->link);
}

static const struct stream_ops link_stream_ops = {
        .read_start = op_read_start,
        .read_stop = op_read_stop,
        .write = op_write,
        .queued = op_queued,
        .shutdown = op_shutdown,
        .close = op_close,
};
