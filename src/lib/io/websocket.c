/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The connection. Input: the stream's bytes are lent to wslay through `cur`; wslay calls back for
 * each whole message. wslay reads a few KiB ahead and goes on through them also when the owner has
 * paused, so what it completes meanwhile waits in `held`, bounded by that and one message.
 *
 * Output: wslay writes header and payload in separate calls; they are collected in `out` and given
 * to the stream in one, so that a message is one segment and not two.
 *
 * A peer that sends pings and reads nothing would make us queue pongs without end: above
 * STREAM_HIGH_WATER the input waits until the queue has drained.
 *
 * ws_run() is the only place that calls the owner, and wslay's reader; see http_server.c.
 */

#include "io/websocket.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <wslay/wslay.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/id.h"
#include "base/str.h"

#define HELD_SLACK (64u * 1024) /* messages in wslay's read-ahead, with their heads */
#define FRAME_HEAD_MAX 14
#define SILENT_PINGS_MAX 2      /* counted, not timed: this process may have been held up itself */
#define FRAGMENTS_MAX 4096      /* wslay keeps each fragment in an allocation of its own */
#define IN_MAX (4u * 1024 * 1024) /* one piece of a stream is far smaller */

struct held_head {
        uint32_t type;
        uint32_t n;
};

struct websocket {
        struct stream *stream; /* NULL once closed */
        wslay_event_context_ptr ctx;
        const struct websocket_handler *handler;
        void *arg;
        enum websocket_role role;
        uv_idle_t kick;
        uv_timer_t timer;
        unsigned n_open;
        const uint8_t *cur; /* the piece on_data is delivering, as far as not taken */
        size_t cur_n;
        struct buf in;      /* received while nothing could be taken */
        struct buf out;
        struct buf held;
        unsigned silent_pings; /* since the last input */
        int code;           /* for on_close; 0: not known yet */
        char reason[WEBSOCKET_REASON_MAX + 1];
        unsigned n_fragments; /* of the message that is being joined */
        bool reading, paused, running;
        bool eof;           /* the stream has nothing more for us */
        bool lost;          /* broken on this side, or given up */
        bool violated;      /* the peer's framing was wrong; a close is in `out` */
        bool closing;       /* websocket_close() was called */
        bool done;          /* on_close was given */
        bool dead;
};

static void ws_run(struct websocket *w);

static void on_handle_closed(uv_handle_t *h) {
        struct websocket *w = h->data;
        if (--w->n_open > 0)
                return;
        wslay_event_context_free(w->ctx);
        buf_done(&w->in);
        buf_done(&w->out);
        buf_done(&w->held);
        free(w);
}

static void on_kick(uv_idle_t *h) {
        (void) uv_idle_stop(h);
        ws_run(h->data);
}

static void kick(struct websocket *w) {
        if (!w->running && !w->dead)
                (void) uv_idle_start(&w->kick, on_kick);
}

/* --- wslay's callbacks ------------------------------------------------------------------ */

static bool input_waits(const struct websocket *w) {
        return w->paused || w->held.len > 0 || (w->stream && stream_queued(w->stream) > STREAM_HIGH_WATER);
}

static ssize_t cb_recv(wslay_event_context_ptr ctx, uint8_t *to, size_t len, int flags, void *arg) {
        (void) flags;
        struct websocket *w = arg;
        size_t n = w->in.len > 0 ? w->in.len : w->cur_n;
        if (n == 0 || w->dead || input_waits(w)) {
                wslay_event_set_error(ctx, WSLAY_ERR_WOULDBLOCK);
                return -1;
        }
        n = n < len ? n : len;
        if (w->in.len > 0) {
                memcpy(to, buf_data(&w->in), n);
                buf_consume(&w->in, n);
        } else {
                memcpy(to, w->cur, n);
                w->cur += n;
                w->cur_n -= n;
        }
        return (ssize_t) n;
}

static ssize_t cb_send(wslay_event_context_ptr ctx, const uint8_t *data, size_t len, int flags, void *arg) {
        (void) flags;
        struct websocket *w = arg;
        if (buf_append(&w->out, data, len) < 0) {
                wslay_event_set_error(ctx, WSLAY_ERR_CALLBACK_FAILURE);
                return -1;
        }
        return (ssize_t) len;
}

static int cb_genmask(wslay_event_context_ptr ctx, uint8_t *to, size_t len, void *arg) {
        (void) arg;
        if (random_bytes(to, len) == 0)
                return 0;
        wslay_event_set_error(ctx, WSLAY_ERR_CALLBACK_FAILURE);
        return -1;
}

static void cb_frame_start(wslay_event_context_ptr ctx, const struct wslay_event_on_frame_recv_start_arg *f,
                           void *arg) {
        struct websocket *w = arg;
        if (wslay_is_ctrl_frame(f->opcode))
                return;
        w->n_fragments = f->opcode == WSLAY_CONTINUATION_FRAME ? w->n_fragments + 1 : 1;
        if (w->n_fragments <= FRAGMENTS_MAX)
                return;
        static const char why[] = "too many fragments";
        wslay_event_shutdown_read(ctx);
        if (wslay_event_queue_close(ctx, WEBSOCKET_TOO_BIG, (const uint8_t *) why, sizeof why - 1) < 0)
                w->lost = true;
}

static void note_close(struct websocket *w, const struct wslay_event_on_msg_recv_arg *m) {
        w->code = m->msg_length >= 2 ? m->status_code : WEBSOCKET_NO_CODE;
        size_t n = m->msg_length > 2 ? m->msg_length - 2 : 0;
        if (n > WEBSOCKET_REASON_MAX || memchr(m->msg + 2, 0, n))
                n = 0;
        if (n > 0)
                memcpy(w->reason, m->msg + 2, n);
        w->reason[n] = '\0';
}

static void cb_message(wslay_event_context_ptr ctx, const struct wslay_event_on_msg_recv_arg *m, void *arg) {
        struct websocket *w = arg;
        if (m->opcode == WSLAY_CONNECTION_CLOSE) {
                note_close(w, m);
                return;
        }
        if (w->dead || wslay_is_ctrl_frame(m->opcode))
                return;
        enum websocket_type type = m->opcode == WSLAY_TEXT_FRAME ? WEBSOCKET_TEXT : WEBSOCKET_BINARY;
        if (!w->paused && w->held.len == 0) {
                w->handler->on_message(w->arg, type, m->msg, m->msg_length);
                return;
        }
        struct held_head h = { .type = type, .n = (uint32_t) m->msg_length };
        uint8_t *room;
        if (buf_reserve(&w->held, sizeof h + m->msg_length, &room) < 0) {
                wslay_event_set_error(ctx, WSLAY_ERR_CALLBACK_FAILURE);
                w->lost = true;
                return;
        }
        (void) buf_append(&w->held, &h, sizeof h);
        (void) buf_append(&w->held, m->msg, m->msg_length);
}

static const struct wslay_event_callbacks callbacks = {
        .recv_callback = cb_recv,
        .send_callback = cb_send,
        .genmask_callback = cb_genmask,
        .on_frame_recv_start_callback = cb_frame_start,
        .on_msg_recv_callback = cb_message,
};

/* --- the machine ------------------------------------------------------------------------ */

static void flush(struct websocket *w) {
        if (w->lost || !w->stream)
                return;
        if (!w->violated && wslay_event_want_write(w->ctx) && wslay_event_send(w->ctx) < 0)
                w->lost = true;
        if (w->out.len == 0)
                return;
        /* -EPIPE is reported by the stream, after what the peer had sent. */
        int r = stream_write(w->stream, buf_data(&w->out), w->out.len);
        if (r < 0 && r != -EPIPE)
                w->lost = true;
        buf_done(&w->out);
}

/* On some errors wslay fails outright and would send a close without a code; say which it is. */
static void violation(struct websocket *w) {
        uint8_t f[8] = { 0x88, 0x02, WEBSOCKET_PROTOCOL_ERROR >> 8, WEBSOCKET_PROTOCOL_ERROR & 0xff };
        size_t n = 4;
        if (w->role == WEBSOCKET_CLIENT) {
                uint8_t mask[4] = { 0 };
                (void) random_bytes(mask, sizeof mask);
                f[1] |= 0x80;
                f[6] = f[2] ^ mask[0];
                f[7] = f[3] ^ mask[1];
                memcpy(f + 2, mask, sizeof mask);
                n = sizeof f;
        }
        w->violated = true;
        if (buf_append(&w->out, f, n) < 0)
                w->lost = true;
}

static void finish(struct websocket *w, int code) {
        w->done = true;
        if (w->code == 0)
                w->code = code;
        struct stream *s = STEAL(w->stream);
        if (w->lost)
                stream_abort(s);
        else
                stream_close(s);
        (void) uv_timer_stop(&w->timer);
        w->handler->on_close(w->arg, w->code, w->reason);
}

static void deliver_held(struct websocket *w) {
        while (!w->paused && !w->dead && w->held.len >= sizeof(struct held_head)) {
                struct held_head h;
                memcpy(&h, buf_data(&w->held), sizeof h);
                buf_consume(&w->held, sizeof h);
                /* Out of the buffer first: the callback may pause, and then more may be added. */
                _cleanup_free_ uint8_t *copy = malloc(h.n ? h.n : 1);
                if (!copy) {
                        w->lost = true;
                        return;
                }
                memcpy(copy, buf_data(&w->held), h.n);
                buf_consume(&w->held, h.n);
                w->handler->on_message(w->arg, (enum websocket_type) h.type, copy, h.n);
        }
}

/* The code with which wslay has ended the connection by itself, because of what the peer sent. */
static int own_code(const struct websocket *w) {
        int code = wslay_event_get_status_code_sent(w->ctx);
        return code == WSLAY_CODE_ABNORMAL_CLOSURE ? WEBSOCKET_PROTOCOL_ERROR : code;
}

static void check_end(struct websocket *w) {
        bool unread = w->held.len > 0 || (w->in.len > 0 && wslay_event_get_read_enabled(w->ctx));
        if (w->done || w->dead || (unread && !w->lost))
                return;
        if (w->violated && !w->lost) {
                finish(w, WEBSOCKET_PROTOCOL_ERROR);
                return;
        }
        if (w->lost || w->eof) {
                finish(w, WEBSOCKET_ABNORMAL);
                return;
        }
        bool received = wslay_event_get_close_received(w->ctx), sent = wslay_event_get_close_sent(w->ctx);
        if (received && sent) {
                /* A close that is malformed itself is answered with another code, not echoed. */
                int code = own_code(w);
                if (!w->closing && (code == WEBSOCKET_PROTOCOL_ERROR || code == WEBSOCKET_BAD_DATA))
                        w->code = code;
                finish(w, WEBSOCKET_NO_CODE);
        }
        else if (sent && !w->closing && !wslay_event_get_read_enabled(w->ctx))
                finish(w, own_code(w)); /* a violation; the peer is not waited for */
}

static void update_reading(struct websocket *w) {
        if (!w->stream)
                return;
        bool want = !w->eof && !input_waits(w) && w->in.len == 0 && wslay_event_get_read_enabled(w->ctx);
        if (want == w->reading)
                return;
        w->reading = want;
        if (want)
                stream_read_start(w->stream);
        else
                stream_read_stop(w->stream);
}

static void ws_run(struct websocket *w) {
        if (w->running || w->dead || w->done)
                return;
        w->running = true;
        deliver_held(w);
        while (!w->dead && !w->lost && !w->violated && !input_waits(w) && w->in.len + w->cur_n > 0 &&
               wslay_event_want_read(w->ctx))
                if (wslay_event_recv(w->ctx) < 0 && !w->lost)
                        violation(w);
        if (!w->dead)
                flush(w);
        w->running = false;
        if (w->dead)
                return;
        if (!wslay_event_get_read_enabled(w->ctx)) {
                buf_done(&w->in);
                w->cur_n = 0;
        }
        if (w->cur_n > 0 && buf_append(&w->in, w->cur, w->cur_n) < 0)
                w->lost = true;
        w->cur = NULL;
        w->cur_n = 0;
        if (w->in.len == 0)
                buf_done(&w->in);
        if (w->held.len == 0)
                buf_done(&w->held);
        check_end(w);
        if (!w->done && !w->dead)
                update_reading(w);
}

/* --- stream ----------------------------------------------------------------------------- */

static void s_data(void *arg, const uint8_t *data, size_t n) {
        struct websocket *w = arg;
        w->silent_pings = 0;
        w->cur = data;
        w->cur_n = n;
        ws_run(w);
}

static void s_eof(void *arg) {
        struct websocket *w = arg;
        w->eof = true;
        ws_run(w);
}

static void s_error(void *arg, int err) {
        (void) err;
        struct websocket *w = arg;
        w->eof = true;
        stream_close(STEAL(w->stream));
        ws_run(w);
}

static void s_drain(void *arg) {
        struct websocket *w = arg;
        if (!w->closing && !w->done && w->handler->on_drain) {
                w->running = true;
                w->handler->on_drain(w->arg);
                w->running = false;
        }
        ws_run(w);
}

static const struct stream_handler ws_stream_handler = {
        .on_data = s_data,
        .on_eof = s_eof,
        .on_drain = s_drain,
        .on_error = s_error,
};

/* --- interface -------------------------------------------------------------------------- */

int websocket_new(uv_loop_t *loop, enum websocket_role role, struct stream *s, size_t max_message,
                  const struct websocket_handler *h, void *arg, struct websocket **ret, struct error *err) {
        struct websocket *w = calloc(1, sizeof *w);
        int r = !w ? WSLAY_ERR_NOMEM
                   : role == WEBSOCKET_SERVER ? wslay_event_context_server_init(&w->ctx, &callbacks, w)
                                              : wslay_event_context_client_init(&w->ctx, &callbacks, w);
        if (!w || r < 0) {
                free(w);
                stream_close(s);
                return error_set(err, -ENOMEM, "out of memory");
        }
        wslay_event_config_set_max_recv_msg_length(w->ctx, max_message);
        w->stream = s;
        w->role = role;
        w->handler = h;
        w->arg = arg;
        w->in = BUF_INIT(IN_MAX);
        w->out = BUF_INIT(STREAM_QUEUE_MAX);
        w->held = BUF_INIT(max_message + HELD_SLACK);
        w->kick.data = w->timer.data = w;
        (void) uv_idle_init(loop, &w->kick);
        (void) uv_timer_init(loop, &w->timer);
        w->n_open = 2;
        stream_set_handler(s, &ws_stream_handler, w);
        kick(w);
        *ret = w;
        return 0;
}

static int queue(struct websocket *w, uint8_t opcode, const uint8_t *data, size_t n) {
        struct wslay_event_msg m = { .opcode = opcode, .msg = data, .msg_length = n };
        int r = wslay_event_queue_msg(w->ctx, &m);
        if (r < 0)
                return r == WSLAY_ERR_NOMEM ? -ENOMEM : -EPIPE;
        if (w->running)
                return 0; /* flushed when the callbacks are through */
        flush(w);
        if (w->lost)
                kick(w);
        return 0;
}

int websocket_send(struct websocket *w, enum websocket_type type, const void *a, size_t an, const void *b,
                   size_t bn) {
        if (!w->stream || w->closing || w->lost || w->done)
                return -EPIPE;
        size_t queued = websocket_queued(w), n = an + bn;
        if (n > STREAM_QUEUE_MAX - FRAME_HEAD_MAX || queued > STREAM_QUEUE_MAX - FRAME_HEAD_MAX - n)
                return -ENOBUFS;
        uint8_t opcode = type == WEBSOCKET_TEXT ? WSLAY_TEXT_FRAME : WSLAY_BINARY_FRAME;
        if (an == 0 || bn == 0)
                return queue(w, opcode, an ? a : b, n);
        _cleanup_free_ uint8_t *joined = malloc(n);
        if (!joined)
                return -ENOMEM;
        memcpy(joined, a, an);
        memcpy(joined + an, b, bn);
        return queue(w, opcode, joined, n);
}

int websocket_ping(struct websocket *w) {
        if (!w->stream || w->closing || w->lost || w->done)
                return -EPIPE;
        return queue(w, WSLAY_PING, NULL, 0);
}

size_t websocket_queued(const struct websocket *w) {
        return (w->stream ? stream_queued(w->stream) : 0) + wslay_event_get_queued_msg_length(w->ctx) +
               w->out.len;
}

void websocket_read_pause(struct websocket *w) {
        w->paused = true;
        if (!w->running)
                update_reading(w);
}

void websocket_read_resume(struct websocket *w) {
        w->paused = false;
        w->silent_pings = 0;
        kick(w);
}

static void on_timer(uv_timer_t *t) {
        struct websocket *w = t->data;
        if (w->closing) {
                w->lost = true; /* the peer has not answered the close */
                check_end(w);
                return;
        }
        if (!w->reading) /* it could not have been heard */
                w->silent_pings = 0;
        if (w->silent_pings == SILENT_PINGS_MAX) {
                w->lost = true;
                check_end(w);
                return;
        }
        w->silent_pings++;
        (void) websocket_ping(w);
}

void websocket_keepalive(struct websocket *w, unsigned ms) {
        if (w->closing || w->done)
                return;
        w->silent_pings = 0;
        if (ms)
                (void) uv_timer_start(&w->timer, on_timer, ms, ms);
        else
                (void) uv_timer_stop(&w->timer);
}

void websocket_close(struct websocket *w, int code, const char *reason) {
        if (w->closing || w->done || w->dead || !w->stream)
                return;
        size_t n = reason ? strlen(reason) : 0;
        if (n > WEBSOCKET_REASON_MAX)
                n = WEBSOCKET_REASON_MAX;
        while (n > 0 && !str_is_utf8(reason, n)) /* the cut may have split a character */
                n--;
        w->closing = true;
        if (wslay_event_queue_close(w->ctx, (uint16_t) code, (const uint8_t *) reason, n) < 0)
                w->lost = true;
        (void) uv_timer_start(&w->timer, on_timer, WEBSOCKET_CLOSE_MS, 0);
        kick(w);
}

void websocket_free(struct websocket *w) {
        if (!w || w->dead)
                return;
        if (!w->done)
                flush(w);
        w->dead = true;
        stream_close(STEAL(w->stream));
        uv_close((uv_handle_t *) &w->kick, on_handle_closed);
        uv_close((uv_handle_t *) &w->timer, on_handle_closed);
}
