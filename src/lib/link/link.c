/* SPDX-License-Identifier: Apache-2.0 */
#include "link/link.h"

/*
 * The session: handshake, nghttp2, and the order of things on the loop. The protocol is told in
 * link.h, the division between this file and link_stream.c in link_internal.h.
 *
 * Bytes come in by on_transport_data(), pass through the handshake or nghttp2, and leave marks on
 * streams; link_work() calls owners for each marked stream, then lets nghttp2 write as long as the
 * transport's queue is short. Work that arises from an owner's call (a write, a close) only marks
 * and starts the idle handle, so that a burst of small writes leaves in one piece.
 *
 * The peer in the guest is hostile. What it controls is bounded by: the windows (link.h), no
 * push, header tables of size 0 and only two header values kept, LIMIT_LINK_STREAMS, and nghttp2's
 * own limits on settings, acknowledgements, continuations and resets, tightened in new_session().
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "base/clock.h"
#include "base/id.h"
#include "base/limits.h"
#include "base/str.h"
#include "link/link_internal.h"

#define LINK_SWEEP_MS 1000
#define LINK_MAX_ACKS 64       /* PINGs and SETTINGS that may wait for an acknowledgement */
#define LINK_MAX_QUEUE 8192    /* frames that may wait to be sent, bytes of streams apart */
#define LINK_MAX_SETTINGS 16   /* entries of one SETTINGS frame */
#define LINK_RESETS 1000000    /* resets that a guest takes in a second */
#define LINK_SEND_PIECE 65536  /* what goes to the transport in one write */

_Static_assert((long long) LIMIT_LINK_STREAMS * LINK_WINDOW_FIRST <= LINK_WINDOW_SESSION,
               "every stream has a first window of its own");
_Static_assert(sizeof(LINK_MAGIC) - 1 == 16, "magic");

#define LINK_GOAWAY_SIZE 17    /* of a GOAWAY that says nothing else */

static void link_fail(struct link *l, int err, const char *why);
static void shut_down(struct link *l);
static void link_work(struct link *l);

/* ---- nghttp2's callbacks ------------------------------------------------------------------- */

static struct link_stream *stream_of(struct link *l, int32_t id) {
        return nghttp2_session_get_stream_user_data(l->session, id);
}

/* Frames that neither end has a use for end the session. Left to nghttp2, a PUSH_PROMISE is refused
 * by a reset of its own as long as the peer has not acknowledged that there is no push. */
static int on_begin_frame(nghttp2_session *session, const nghttp2_frame_hd *hd, void *arg) {
        (void) session;
        (void) arg;
        switch (hd->type) {
        case NGHTTP2_DATA:
        case NGHTTP2_HEADERS:
        case NGHTTP2_CONTINUATION:
        case NGHTTP2_RST_STREAM:
        case NGHTTP2_SETTINGS:
        case NGHTTP2_PING:
        case NGHTTP2_GOAWAY:
        case NGHTTP2_WINDOW_UPDATE:
                return 0;
        default:
                return NGHTTP2_ERR_CALLBACK_FAILURE;
        }
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *f, void *arg) {
        struct link *l = arg;
        if (f->hd.type != NGHTTP2_HEADERS || f->headers.cat != NGHTTP2_HCAT_REQUEST)
                return 0;
        if (l->n_streams >= LIMIT_LINK_STREAMS)
                return nghttp2_submit_rst_stream(session, 0, f->hd.stream_id, NGHTTP2_REFUSED_STREAM);
        struct link_stream *s = link_stream_new(l);
        if (!s)
                return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
        s->id = f->hd.stream_id;
        nghttp2_session_set_stream_user_data(session, s->id, s);
        return 0;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *f, const uint8_t *name, size_t nn,
                     const uint8_t *value, size_t vn, uint8_t flags, void *arg) {
        (void) session;
        (void) flags;
        struct link *l = arg;
        if (f->hd.type != NGHTTP2_HEADERS)
                return 0;
        struct link_stream *s = stream_of(l, f->hd.stream_id);
        if (!s || (s->state != LS_PENDING && !s->early))
                return 0;
        if (l->role == LINK_HOST && nn == 7 && memcmp(name, ":status", 7) == 0 && vn == 3) {
                s->status = (value[0] - '0') * 100 + (value[1] - '0') * 10 + (value[2] - '0');
        } else if (l->role == LINK_GUEST && nn == 10 && memcmp(name, ":authority", 10) == 0 && !s->authority) {
                if (vn > LINK_AUTHORITY_MAX)
                        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
                s->authority = strndup((const char *) value, vn);
                if (!s->authority)
                        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
        } else if (l->role == LINK_GUEST && nn == 7 && memcmp(name, ":method", 7) == 0 &&
                   !(vn == 7 && memcmp(value, "CONNECT", 7) == 0)) {
                return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
        }
        return 0;
}

static void headers_received(struct link *l, const nghttp2_frame *f) {
        struct link_stream *s = stream_of(l, f->hd.stream_id);
        if (!s)
                return;
        if (s->state == LS_PENDING && l->role == LINK_GUEST)
                s->announce = true;
        if (l->role == LINK_HOST)
                link_stream_answered(s);
        if (f->hd.flags & NGHTTP2_FLAG_END_STREAM)
                s->eof_in = true;
        link_stream_mark(s);
}

static int on_frame_recv(nghttp2_session *session, const nghttp2_frame *f, void *arg) {
        (void) session;
        struct link *l = arg;
        struct link_stream *s;
        if (f->hd.type == NGHTTP2_HEADERS) {
                headers_received(l, f);
        } else if (f->hd.type == NGHTTP2_DATA) {
                if ((f->hd.flags & NGHTTP2_FLAG_END_STREAM) && (s = stream_of(l, f->hd.stream_id))) {
                        s->eof_in = true;
                        link_stream_mark(s);
                }
        } else if (f->hd.type == NGHTTP2_SETTINGS) {
                if (!(f->hd.flags & NGHTTP2_FLAG_ACK) && l->role == LINK_GUEST)
                        l->ready = true;
                for (size_t i = 0; i < f->settings.niv; i++)
                        if (f->settings.iv[i].settings_id == LINK_SETTING_PARTS)
                                l->peer_parts = f->settings.iv[i].value == 1;
        } else if (f->hd.type == NGHTTP2_PING) {
                if (f->hd.flags & NGHTTP2_FLAG_ACK)
                        l->ping_ms = 0;
        } else if (f->hd.type == NGHTTP2_GOAWAY) {
                if (l->role == LINK_GUEST && f->goaway.error_code == NGHTTP2_NO_ERROR)
                        l->goodbye_came = true;
        }
        return 0;
}

static int on_data_chunk(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data, size_t n,
                         void *arg) {
        (void) flags;
        struct link *l = arg;
        struct link_stream *s = stream_of(l, id);
        if (s && !s->fault)
                link_stream_received(s, data, n);
        else
                nghttp2_session_consume(session, id, n);
        return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t error_code, void *arg) {
        (void) session;
        struct link_stream *s = stream_of(arg, id);
        if (s)
                link_stream_ended(s, error_code);
        return 0;
}

static int on_frame_send(nghttp2_session *session, const nghttp2_frame *f, void *arg) {
        (void) session;
        struct link *l = arg;
        struct link_stream *s;
        if (f->hd.type == NGHTTP2_DATA && (f->hd.flags & NGHTTP2_FLAG_END_STREAM) &&
            (s = stream_of(l, f->hd.stream_id)))
                link_stream_fin_sent(s);
        else if (f->hd.type == NGHTTP2_GOAWAY)
                l->goodbye_sent = true;
        return 0;
}

/* A request that could not leave any more (GOAWAY came): nghttp2 made no stream of it, so that it
 * is found in the list only. */
static int on_frame_not_send(nghttp2_session *session, const nghttp2_frame *f, int error, void *arg) {
        (void) session;
        (void) error;
        struct link *l = arg;
        struct link_stream *s;
        if (f->hd.type != NGHTTP2_HEADERS || l->role != LINK_HOST)
                return 0;
        LIST_FOREACH(s, &l->streams, all) {
                if (s->id == f->hd.stream_id) {
                        link_stream_ended(s, NGHTTP2_REFUSED_STREAM);
                        break;
                }
        }
        return 0;
}

/* The source is found by id, never by pointer: an aborted stream's memory is gone while nghttp2 may
 * still have its DATA item in a queue. */
static ssize_t read_source(nghttp2_session *session, int32_t id, uint8_t *buf, size_t cap, uint32_t *flags,
                           nghttp2_data_source *source, void *arg) {
        (void) session;
        (void) source;
        struct link_stream *s = stream_of(arg, id);
        if (!s)
                return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
        return link_stream_pull(s, buf, cap, flags);
}

static const nghttp2_data_provider provider = { .source = { .ptr = NULL }, .read_callback = read_source };

/* ---- session ------------------------------------------------------------------------------- */

static int session_create(struct link *l, nghttp2_session_callbacks *cb, nghttp2_option *opt) {
        nghttp2_session_callbacks_set_on_begin_frame_callback(cb, on_begin_frame);
        nghttp2_session_callbacks_set_on_begin_headers_callback(cb, on_begin_headers);
        nghttp2_session_callbacks_set_on_header_callback(cb, on_header);
        nghttp2_session_callbacks_set_on_frame_recv_callback(cb, on_frame_recv);
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, on_data_chunk);
        nghttp2_session_callbacks_set_on_stream_close_callback(cb, on_stream_close);
        nghttp2_session_callbacks_set_on_frame_send_callback(cb, on_frame_send);
        nghttp2_session_callbacks_set_on_frame_not_send_callback(cb, on_frame_not_send);

        nghttp2_option_set_no_auto_window_update(opt, 1);
        nghttp2_option_set_peer_max_concurrent_streams(opt, LIMIT_LINK_STREAMS);
        nghttp2_option_set_max_reserved_remote_streams(opt, 0);
        nghttp2_option_set_max_deflate_dynamic_table_size(opt, 0);
        nghttp2_option_set_no_closed_streams(opt, 1);
        nghttp2_option_set_max_outbound_ack(opt, LINK_MAX_ACKS);
        nghttp2_option_set_max_settings(opt, LINK_MAX_SETTINGS);
        /* The default takes 33 resets a second; the host, whom the guest has to trust, sends one for
         * every stream whose client goes away first. */
        nghttp2_option_set_stream_reset_rate_limit(opt, LINK_RESETS, LINK_RESETS);
        return l->role == LINK_HOST ? nghttp2_session_client_new2(&l->session, cb, l, opt)
                                    : nghttp2_session_server_new2(&l->session, cb, l, opt);
}

static int submit_settings(struct link *l) {
        const nghttp2_settings_entry host[] = {
                { NGHTTP2_SETTINGS_ENABLE_PUSH, 0 },
                { NGHTTP2_SETTINGS_HEADER_TABLE_SIZE, 0 },
                { NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1 },
        };
        const nghttp2_settings_entry guest[] = {
                { NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, LIMIT_LINK_STREAMS },
                { NGHTTP2_SETTINGS_HEADER_TABLE_SIZE, 0 },
                { NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1 },
                { LINK_SETTING_PARTS, 1 },
        };
        int r = l->role == LINK_HOST
                        ? nghttp2_submit_settings(l->session, 0, host, ARRAY_SIZE(host))
                        : nghttp2_submit_settings(l->session, 0, guest, ARRAY_SIZE(guest));
        return r ? r : nghttp2_session_set_local_window_size(l->session, 0, 0, LINK_WINDOW_SESSION);
}

static int new_session(struct link *l) {
        nghttp2_session_callbacks *cb = NULL;
        nghttp2_option *opt = NULL;
        int r = nghttp2_session_callbacks_new(&cb);
        if (!r)
                r = nghttp2_option_new(&opt);
        if (!r)
                r = session_create(l, cb, opt);
        nghttp2_session_callbacks_del(cb);
        nghttp2_option_del(opt);
        if (!r)
                r = submit_settings(l);
        return r ? -ENOMEM : 0;
}

static int send_hello(struct link *l, uint16_t kind) {
        uint8_t out[LINK_HELLO_SIZE];
        memcpy(out, LINK_MAGIC, 16);
        out[16] = LINK_VERSION >> 8;
        out[17] = LINK_VERSION & 0xff;
        out[18] = (uint8_t) (kind >> 8);
        out[19] = (uint8_t) kind;
        memcpy(out + 20, l->nonce, LINK_NONCE);
        l->bytes_out += sizeof(out);
        return stream_write(l->transport, out, sizeof(out));
}

/* ---- handshake ----------------------------------------------------------------------------- */

/* Drops n bytes that are nobody's; false when that is too many. */
static bool skip(struct link *l, size_t n) {
        buf_consume(&l->in, n);
        l->skipped += n;
        return l->skipped <= (l->phase == LINK_PARTING ? LINK_PART_SKIP_MAX : LINK_SKIP_MAX);
}

/* A magic stands at the front of l->in, with enough behind it for a whole hello. 1: it was one, and is taken. */
static int take_hello(struct link *l) {
        const uint8_t *p = buf_data(&l->in), *nonce = p + 20;
        unsigned version = (unsigned) p[16] << 8 | p[17], kind = (unsigned) p[18] << 8 | p[19];
        bool mine = l->role == LINK_HOST
                            ? kind == LINK_KIND_GUEST && !memchr(nonce, 0, LINK_NONCE)
                            : kind == LINK_KIND_ANSWER && memcmp(nonce, l->nonce, LINK_NONCE) == 0;
        if (!mine) {
                /* Not all of it: the one that counts may begin inside. */
                return skip(l, 1) ? 0 : -EPROTO;
        }
        if (version != LINK_VERSION)
                return -EPROTONOSUPPORT;
        memcpy(l->nonce, nonce, LINK_NONCE);
        buf_consume(&l->in, LINK_HELLO_SIZE);
        nghttp2_session_del(l->session);
        l->session = NULL;
        l->peer_parts = false;
        int r = l->role == LINK_HOST ? send_hello(l, LINK_KIND_ANSWER) : 0;
        if (r >= 0)
                r = new_session(l);
        if (r < 0)
                return r;
        l->phase = l->role == LINK_HOST ? LINK_SETTLING : LINK_FRAMES;
        l->ready = l->role == LINK_HOST;
        return 1;
}

/* The same of the guest's last bytes. Of another session's, or a guess of somebody in the guest, is none. */
static int take_parted(struct link *l) {
        const uint8_t *p = buf_data(&l->in);
        unsigned kind = (unsigned) p[18] << 8 | p[19];
        if (kind != LINK_KIND_PARTED || memcmp(p + 20, l->nonce, LINK_NONCE) != 0)
                return skip(l, 1) ? 0 : -EPROTO;
        l->phase = LINK_PARTED;
        return 1;
}

/* Looks in l->in for what `take` takes: 1 found and taken, 0 needs more bytes. */
static int seek(struct link *l, int (*take)(struct link *l)) {
        for (;;) {
                const uint8_t *p = buf_data(&l->in), *at = memmem(p, l->in.len, LINK_MAGIC, 16);
                if (!at) {
                        size_t keep = l->in.len < 15 ? l->in.len : 15;
                        return skip(l, l->in.len - keep) ? 0 : -EPROTO;
                }
                if (!skip(l, (size_t) (at - p)))
                        return -EPROTO;
                if (l->in.len < LINK_HELLO_SIZE)
                        return 0;
                int r = take(l);
                if (r != 0)
                        return r;
        }
}

/* Eats the handshake's part of the input. 1: frames may begin with what is left in l->in. */
static int handshake(struct link *l) {
        int r = 1;
        if (l->phase == LINK_HELLO)
                r = seek(l, take_hello);
        if (r == 1 && l->phase == LINK_SETTLING) {
                if (l->in.len < 2)
                        return 0;
                const uint8_t *p = buf_data(&l->in);
                if (p[0] == 0x00 && p[1] == 0xff) { /* no SETTINGS frame is that long */
                        if (!LIST_EMPTY(&l->streams))
                                return -ESTALE;
                        l->phase = LINK_HELLO;
                        return handshake(l);
                }
                l->phase = LINK_FRAMES;
        }
        return r;
}

static const char *handshake_why(int r) {
        switch (r) {
        case -EPROTO:
                return "no hello found";
        case -ESTALE:
                return "the guest began anew";
        case -EPROTONOSUPPORT:
                return "the peer speaks another version of the link protocol";
        default:
                return "out of memory";
        }
}

/* ---- parting ------------------------------------------------------------------------------- */

static void lose_streams(struct link *l) {
        struct link_stream *s;
        while ((s = LIST_FIRST(&l->streams)))
                link_stream_lose(s, -ECONNRESET);
}

/* The host's last frame, and nothing of what nghttp2 would have after it. */
static int say_goodbye(struct link *l) {
        _cleanup_buf_ struct buf out = BUF_INIT(0);
        if (nghttp2_session_terminate_session(l->session, NGHTTP2_NO_ERROR))
                return -ENOMEM;
        while (!l->goodbye_sent) {
                const uint8_t *p;
                ssize_t n = nghttp2_session_mem_send(l->session, &p); /* with a frame's end it says that it is sent */
                if (n <= 0)
                        return n == NGHTTP2_ERR_NOMEM ? -ENOMEM : -EPROTO;
                if (buf_append(&out, p, (size_t) n) < 0)
                        return -ENOMEM;
        }
        l->bytes_out += out.len;
        return stream_write(l->transport, buf_data(&out), out.len);
}

int link_part(struct link *l) {
        if (l->role != LINK_HOST || l->phase != LINK_FRAMES || !l->peer_parts)
                return -ENOTSUP;
        int r = say_goodbye(l);
        if (r < 0)
                return r;
        l->phase = LINK_PARTING;
        l->ready = false;
        l->skipped = 0;
        lose_streams(l);
        return 0;
}

/* Host: looks for the guest's last bytes. What comes after them is nobody's. */
static void parting_in(struct link *l, const uint8_t *data, size_t n) {
        if (l->phase != LINK_PARTING)
                return;
        int r = buf_append(&l->in, data, n);
        if (r >= 0)
                r = seek(l, take_parted);
        if (r < 0)
                return link_fail(l, r, r == -EPROTO ? "the guest does not part" : "out of memory");
        if (r == 1) {
                buf_done(&l->in);
                (void) stream_shutdown(l->transport);
        }
}

/* Guest: all is sent, the transport goes back to the owner. */
static void left(struct link *l) {
        struct stream *transport = STEAL(l->transport);
        shut_down(l);
        if (!l->handler->on_parted) {
                stream_close(transport);
                l->handler->on_close(l->arg, -ECONNRESET, "the host parted");
        } else
                l->handler->on_parted(l->arg, transport);
}

/* Whether the host's goodbye is the last that came. When both it and another host's first bytes were waiting, the port was
 * closed and opened in between, and there is nobody left to part from. */
static bool ends_with_goodbye(const uint8_t *data, size_t n) {
        static const uint8_t head[] = { 0, 0, 8, NGHTTP2_GOAWAY, 0, 0, 0, 0, 0 };
        return n < LINK_GOAWAY_SIZE || memcmp(data + n - LINK_GOAWAY_SIZE, head, sizeof(head)) == 0;
}

/* Guest: the host has said goodbye. */
static void leave(struct link *l, const uint8_t *data, size_t n) {
        if (!ends_with_goodbye(data, n))
                return link_fail(l, -ECONNRESET, "another host has come");
        l->phase = LINK_LEAVING;
        l->ready = false;
        stream_read_stop(l->transport); /* what comes from here on is for the owner to find */
        lose_streams(l);
        if (l->phase != LINK_LEAVING)
                return; /* one of their owners has freed the link */
        int r = send_hello(l, LINK_KIND_PARTED);
        if (r < 0)
                link_fail(l, r, "sending failed");
        else if (stream_queued(l->transport) == 0)
                left(l);
}

/* ---- moving bytes -------------------------------------------------------------------------- */

static void frames_in(struct link *l, const uint8_t *data, size_t n) {
        ssize_t r = nghttp2_session_mem_recv(l->session, data, n);
        if (r < 0)
                link_fail(l, -EPROTO, nghttp2_strerror((int) r));
        else if ((size_t) r < n)
                link_fail(l, -EPROTO, "session ended by the peer");
        else if (nghttp2_session_get_outbound_queue_size(l->session) > LINK_MAX_QUEUE)
                link_fail(l, -EPROTO, "the peer asks for answers and does not take them");
}

static void on_transport_data(void *arg, const uint8_t *data, size_t n) {
        struct link *l = arg;
        l->bytes_in += n;
        if (l->phase > LINK_FRAMES)
                return parting_in(l, data, n);
        if (l->phase == LINK_FRAMES) {
                frames_in(l, data, n);
        } else {
                int r = buf_append(&l->in, data, n);
                if (r >= 0)
                        r = handshake(l);
                if (r < 0)
                        return link_fail(l, r, handshake_why(r));
                if (r == 1) {
                        struct buf in = l->in;
                        l->in = BUF_INIT(0);
                        frames_in(l, buf_data(&in), in.len);
                        buf_done(&in);
                }
        }
        if (l->phase == LINK_FRAMES && l->goodbye_came)
                leave(l, data, n);
        else if (l->phase != LINK_DEAD)
                link_work(l);
}

static void on_transport_eof(void *arg) {
        struct link *l = arg;
        if (l->phase == LINK_PARTED)
                link_fail(l, 0, "parted");
        else
                link_fail(l, -ECONNRESET, "the other end closed");
}

static void on_transport_error(void *arg, int err) {
        struct link *l = arg;
        if (l->phase == LINK_PARTED)
                link_fail(l, 0, "parted");
        else
                link_fail(l, err, "transport lost");
}

static void on_transport_drain(void *arg) {
        struct link *l = arg;
        if (l->phase != LINK_LEAVING)
                link_work(l);
        else if (stream_queued(l->transport) == 0)
                left(l);
}

static const struct stream_handler transport_handler = {
        .on_data = on_transport_data,
        .on_eof = on_transport_eof,
        .on_drain = on_transport_drain,
        .on_error = on_transport_error,
};

/* Gives the transport what nghttp2 wants to send, while its queue is short. */
static int flush(struct link *l) {
        _cleanup_buf_ struct buf out = BUF_INIT(0);
        while (stream_queued(l->transport) + out.len < STREAM_HIGH_WATER) {
                const uint8_t *p;
                ssize_t n = nghttp2_session_mem_send(l->session, &p);
                if (n < 0)
                        return n == NGHTTP2_ERR_NOMEM ? -ENOMEM : -EPROTO;
                if (n > 0 && buf_append(&out, p, (size_t) n) < 0)
                        return -ENOMEM;
                if (n == 0 || out.len >= LINK_SEND_PIECE) {
                        if (out.len == 0)
                                return 0;
                        l->bytes_out += out.len;
                        int r = stream_write(l->transport, buf_data(&out), out.len);
                        if (r < 0)
                                return r;
                        buf_clear(&out);
                        if (n == 0)
                                return 0;
                }
        }
        if (out.len == 0)
                return 0;
        l->bytes_out += out.len;
        return stream_write(l->transport, buf_data(&out), out.len);
}

static void dispatch_dirty(struct link *l) {
        /* What owners' calls mark anew waits for the next round, so that two of them cannot keep
         * each other busy here for ever. */
        uint64_t round = l->round++;
        struct link_stream *s;
        while ((s = TAILQ_FIRST(&l->dirty)) && s->dirty_round <= round) {
                TAILQ_REMOVE(&l->dirty, s, dirty);
                s->dirty_round = 0;
                link_stream_dispatch(s);
        }
}

static void link_work(struct link *l) {
        if (!l->session || l->phase > LINK_FRAMES)
                return;
        if (l->ready && !l->told_ready) {
                l->told_ready = true;
                if (l->handler->on_ready)
                        l->handler->on_ready(l->arg);
        }
        if (l->phase <= LINK_FRAMES)
                dispatch_dirty(l);
        if (l->phase > LINK_FRAMES)
                return; /* an owner has ended it */
        int r = flush(l);
        if (r < 0)
                return link_fail(l, r, "sending failed");
        if (!nghttp2_session_want_read(l->session) && !nghttp2_session_want_write(l->session))
                return link_fail(l, -ECONNRESET, "session ended");
        if (!TAILQ_EMPTY(&l->dirty))
                link_schedule(l);
}

static void on_work(uv_idle_t *h) {
        struct link *l = h->data;
        uv_idle_stop(h);
        if (!l->started) {
                l->started = true;
                stream_read_start(l->transport);
        }
        if (l->phase != LINK_DEAD)
                link_work(l);
}

void link_schedule(struct link *l) {
        if (l->phase != LINK_DEAD)
                uv_idle_start(&l->work, on_work);
}

static void on_sweep(uv_timer_t *h) {
        struct link *l = h->data;
        uint64_t now = uv_now(l->loop);
        bool more = false;
        struct link_stream *s = LIST_FIRST(&l->streams), *next;
        for (; s; s = next) {
                next = LIST_NEXT(s, all);
                if (s->deadline_ms && s->deadline_ms <= now)
                        link_stream_expire(s);
                else if (s->deadline_ms)
                        more = true;
        }
        if (!more)
                uv_timer_stop(h);
        link_schedule(l);
}

void link_stream_set_deadline(struct link_stream *s, unsigned ms) {
        struct link *l = s->link;
        s->deadline_ms = uv_now(l->loop) + ms;
        if (!uv_is_active((uv_handle_t *) &l->sweep))
                uv_timer_start(&l->sweep, on_sweep, LINK_SWEEP_MS, LINK_SWEEP_MS);
}

/* ---- life ---------------------------------------------------------------------------------- */

static void on_handle_closed(uv_handle_t *h) {
        struct link *l = h->data;
        if (--l->handles == 0) {
                nghttp2_session_del(l->session);
                free(l);
        }
}

/* Ends everything but the memory. */
static void shut_down(struct link *l) {
        l->phase = LINK_DEAD;
        uv_idle_stop(&l->work);
        uv_timer_stop(&l->sweep);
        stream_abort(STEAL(l->transport));
        buf_done(&l->in);
        lose_streams(l);
}

static void link_fail(struct link *l, int err, const char *why) {
        if (l->phase == LINK_DEAD)
                return;
        shut_down(l);
        /* An owner told of a lost stream may have freed the link; then on_close has no one to go to. */
        if (!uv_is_closing((uv_handle_t *) &l->work))
                l->handler->on_close(l->arg, err, why);
}

int link_new(uv_loop_t *loop, enum link_role role, struct stream *transport, const struct link_handler *h,
             void *arg, struct link **ret, struct error *err) {
        struct link *l = calloc(1, sizeof(*l));
        if (!l) {
                stream_abort(transport);
                return error_errno(err, ENOMEM, "link");
        }
        *l = (struct link){ .loop = loop, .role = role, .transport = transport, .handler = h, .arg = arg };
        LIST_INIT(&l->streams);
        TAILQ_INIT(&l->dirty);
        l->round = 1;
        stream_set_handler(transport, &transport_handler, l);
        int r = random_bytes(l->nonce, sizeof(l->nonce));
        for (size_t i = 0; i < LINK_NONCE; i++)
                l->nonce[i] = l->nonce[i] ? l->nonce[i] : 0x55;
        if (r >= 0)
                r = send_hello(l, role == LINK_GUEST ? LINK_KIND_GUEST : LINK_KIND_KNOCK);
        if (r < 0) {
                stream_abort(transport);
                free(l);
                return error_errno(err, r, "cannot start the guest link");
        }
        uv_idle_init(loop, &l->work);
        uv_timer_init(loop, &l->sweep);
        l->work.data = l->sweep.data = l;
        l->handles = 2;
        link_schedule(l);
        *ret = l;
        return 0;
}

void link_free(struct link *l) {
        if (!l || uv_is_closing((uv_handle_t *) &l->work))
                return;
        uv_close((uv_handle_t *) &l->work, on_handle_closed);
        uv_close((uv_handle_t *) &l->sweep, on_handle_closed);
        if (l->phase != LINK_DEAD)
                shut_down(l);
}

bool link_ready(const struct link *l) {
        return l && l->ready && (l->phase == LINK_FRAMES || l->phase == LINK_SETTLING);
}

void link_counters(const struct link *l, uint64_t *ret_in, uint64_t *ret_out) {
        *ret_in = l->bytes_in;
        *ret_out = l->bytes_out;
}

size_t link_streams(const struct link *l) {
        return l->n_streams;
}

int link_ping(struct link *l) {
        if (!link_ready(l))
                return -ENOTCONN;
        if (l->ping_ms)
                return 0;
        if (nghttp2_submit_ping(l->session, NGHTTP2_FLAG_NONE, NULL))
                return -ENOMEM;
        l->ping_ms = clock_mono_ms();
        link_schedule(l);
        return 0;
}

uint64_t link_ping_age_ms(const struct link *l) {
        return l->ping_ms ? clock_mono_ms() - l->ping_ms : 0;
}

/* ---- opening ------------------------------------------------------------------------------- */

static nghttp2_nv header(const char *name, const char *value) {
        return (nghttp2_nv){ (uint8_t *) (uintptr_t) name, (uint8_t *) (uintptr_t) value, strlen(name),
                             strlen(value), NGHTTP2_NV_FLAG_NO_INDEX };
}

static int request(struct link *l, const char *authority, struct link_stream **ret) {
        if (!link_ready(l))
                return -ENOTCONN;
        if (strlen(authority) > LINK_AUTHORITY_MAX)
                return -ENAMETOOLONG;
        if (l->n_streams >= LIMIT_LINK_STREAMS)
                return -EAGAIN;
        struct link_stream *s = link_stream_new(l);
        if (!s)
                return -ENOMEM;
        nghttp2_nv nv[] = { header(":method", "CONNECT"), header(":authority", authority) };
        s->id = nghttp2_submit_request(l->session, NULL, nv, ARRAY_SIZE(nv), &provider, s);
        if (s->id < 0) {
                int id = s->id;
                link_stream_free(s);
                return id == NGHTTP2_ERR_STREAM_ID_NOT_AVAILABLE ? -ENOTCONN : -ENOMEM;
        }
        link_schedule(l);
        *ret = s;
        return 0;
}

int link_open(struct link *l, const char *authority, link_open_cb cb, void *arg) {
        struct link_stream *s;
        int r = request(l, authority, &s);
        if (r < 0)
                return r;
        s->open_cb = cb;
        s->open_arg = arg;
        link_stream_set_deadline(s, LINK_OPEN_TIMEOUT_MS);
        return 0;
}

int link_open_early(struct link *l, const char *authority, struct stream **ret) {
        struct link_stream *s;
        int r = request(l, authority, &s);
        if (r < 0)
                return r;
        s->state = LS_OPEN;
        s->early = true;
        *ret = &s->base;
        return 0;
}

static struct link_stream *pending_of(struct link *l, int32_t id) {
        if (l->phase > LINK_FRAMES || id <= 0)
                return NULL;
        struct link_stream *s = stream_of(l, id);
        return s && s->state == LS_PENDING && !s->announce ? s : NULL;
}

int link_accept(struct link *l, int32_t id, struct stream **ret) {
        struct link_stream *s = pending_of(l, id);
        if (!s)
                return -ECONNRESET;
        nghttp2_nv nv[] = { header(":status", "200") };
        if (nghttp2_submit_response(l->session, id, nv, ARRAY_SIZE(nv), &provider))
                return -ENOMEM;
        s->state = LS_OPEN;
        free(STEAL(s->authority));
        link_stream_mark(s);
        *ret = &s->base;
        return 0;
}

void link_refuse(struct link *l, int32_t id, int status) {
        struct link_stream *s = pending_of(l, id);
        if (!s)
                return;
        char text[4] = { (char) ('0' + status / 100 % 10), (char) ('0' + status / 10 % 10),
                         (char) ('0' + status % 10), '\0' };
        nghttp2_nv nv[] = { header(":status", text) };
        if (nghttp2_submit_response(l->session, id, nv, ARRAY_SIZE(nv), NULL))
                nghttp2_submit_rst_stream(l->session, 0, id, NGHTTP2_INTERNAL_ERROR);
        nghttp2_session_set_stream_user_data(l->session, id, NULL);
        link_stream_free(s);
        link_schedule(l);
}
