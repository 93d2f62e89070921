/* SPDX-License-Identifier: Apache-2.0 */

#include "attach_client.h"

#include <errno.h>
#include <stdlib.h>

#include "app.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "io/stream.h"
#include "io/websocket.h"

#define KEEPALIVE_MS 30000

struct attach_client {
        struct stream *s;     /* ATTACH_RAW */
        struct websocket *ws; /* ATTACH_WEBSOCKET */
        struct attach_reader reader;
        const struct attach_client_handler *handler; /* NULL: the owner has gone, the close is awaited */
        void *arg;
        bool paused, in_frames, freed;
};

enum attach_protocol attach_client_protocol(const struct http1_head *h) {
        if (!h->upgrade)
                return ATTACH_NONE;
        if (http1_has_token(h, "Upgrade", ATTACH_UPGRADE))
                return ATTACH_RAW;
        if (http1_has_token(h, "Upgrade", "websocket"))
                return ATTACH_WEBSOCKET;
        return ATTACH_NONE;
}

static void really_free(struct attach_client *c) {
        buf_done(&c->reader.in);
        free(c);
}

/* ---- frames one after the other ------------------------------------------------------------ */

/* Frames in the buffer, as long as the owner takes them. */
static void deliver(struct attach_client *c) {
        uint8_t type;
        const uint8_t *data;
        size_t n;
        int r = 0;
        if (c->in_frames)
                return;
        c->in_frames = true;
        while (!c->freed && !c->paused && (r = attach_reader_peek(&c->reader, &type, &data, &n)) > 0) {
                c->handler->on_frame(c->arg, type, data, n);
                if (!c->freed)
                        attach_reader_next(&c->reader);
        }
        c->in_frames = false;
        if (c->freed)
                really_free(c);
        else if (r < 0)
                c->handler->on_frame(c->arg, 0, NULL, 0); /* not a legal type: the owner ends it */
}

static void on_data(void *arg, const uint8_t *data, size_t n) {
        struct attach_client *c = arg;
        if (buf_append(&c->reader.in, data, n) < 0)
                c->handler->on_end(c->arg);
        else
                deliver(c);
}

static void on_eof(void *arg) {
        struct attach_client *c = arg;
        c->handler->on_end(c->arg);
}

static void on_error(void *arg, int err) {
        (void) err;
        on_eof(arg);
}

static void on_drain(void *arg) {
        struct attach_client *c = arg;
        c->handler->on_drain(c->arg);
}

static const struct stream_handler stream_handler = {
        .on_data = on_data, .on_eof = on_eof, .on_drain = on_drain, .on_error = on_error };

static int accept_raw(struct api_req *r, struct attach_client *c, struct error *err) {
        static const struct http_header headers[] = { { "Upgrade", ATTACH_UPGRADE } };
        int rc = api_upgrade(r, headers, ARRAY_SIZE(headers), &c->s);
        if (rc < 0)
                return error_errno(err, rc, "the connection cannot be upgraded");
        stream_set_handler(c->s, &stream_handler, c);
        return 0;
}

/* ---- WebSocket ----------------------------------------------------------------------------- */

static void on_message(void *arg, enum websocket_type type, const uint8_t *data, size_t n) {
        struct attach_client *c = arg;
        if (!c->handler)
                return;
        if (type != WEBSOCKET_BINARY || n == 0)
                c->handler->on_frame(c->arg, 0, NULL, 0);
        else
                c->handler->on_frame(c->arg, data[0], data + 1, n - 1);
}

static void on_ws_drain(void *arg) {
        struct attach_client *c = arg;
        if (c->handler)
                c->handler->on_drain(c->arg);
}

static void on_ws_close(void *arg, int code, const char *reason) {
        struct attach_client *c = arg;
        (void) code;
        (void) reason;
        if (c->handler)
                c->handler->on_end(c->arg);
        else
                attach_client_free(c);
}

static const struct websocket_handler ws_handler = {
        .on_message = on_message, .on_drain = on_ws_drain, .on_close = on_ws_close };

static int accept_websocket(struct api_req *r, struct attach_client *c, struct error *err) {
        const char *reason = "";
        if (!r->x)
                return error_set(err, -EPIPE, "the client has gone");
        int status = websocket_check_request(http_x_head(r->x), &reason);
        if (status != 0)
                return error_set(err, -EINVAL, "not a WebSocket handshake: %s", reason);
        (void) api_req_ref(r);
        int rc = websocket_accept(r->app->loop, r->x, NULL, ATTACH_PAYLOAD_MAX + 1, &ws_handler, c, &c->ws, err);
        api_req_unref(r);
        if (rc < 0)
                return rc;
        websocket_read_pause(c->ws);
        websocket_keepalive(c->ws, KEEPALIVE_MS);
        return 0;
}

/* ---- either -------------------------------------------------------------------------------- */

int attach_client_accept(struct api_req *r, enum attach_protocol p, const struct attach_client_handler *h, void *arg,
                         struct attach_client **ret, struct error *err) {
        struct attach_client *c = calloc(1, sizeof *c);
        if (!c)
                return error_set(err, -ENOMEM, "out of memory");
        c->handler = h;
        c->arg = arg;
        c->paused = true;
        r->on_gone = NULL;
        int rc = p == ATTACH_WEBSOCKET ? accept_websocket(r, c, err) : accept_raw(r, c, err);
        if (rc < 0) {
                free(c);
                return rc;
        }
        *ret = c;
        return 0;
}

int attach_client_send(struct attach_client *c, uint8_t type, const uint8_t *data, size_t n) {
        if (c->ws)
                return websocket_send(c->ws, WEBSOCKET_BINARY, &type, 1, data, n);
        uint8_t head[ATTACH_HEAD] = { type, (uint8_t) (n >> 24), (uint8_t) (n >> 16), (uint8_t) (n >> 8), (uint8_t) n };
        struct iovec v[2] = { { .iov_base = head, .iov_len = sizeof head },
                              { .iov_base = (void *) (uintptr_t) data, .iov_len = n } };
        return stream_writev(c->s, v, n > 0 ? 2 : 1);
}

size_t attach_client_queued(const struct attach_client *c) {
        return c->ws ? websocket_queued(c->ws) : stream_queued(c->s);
}

void attach_client_pause(struct attach_client *c) {
        c->paused = true;
        if (c->ws)
                websocket_read_pause(c->ws);
        else
                stream_read_stop(c->s);
}

void attach_client_resume(struct attach_client *c) {
        c->paused = false;
        if (c->ws) {
                websocket_read_resume(c->ws);
                return;
        }
        stream_read_start(c->s);
        deliver(c);
}

void attach_client_end(struct attach_client *c, enum attach_end why) {
        static const struct {
                int code;
                const char *reason;
        } ends[] = {
                [ATTACH_END_NORMAL] = { WEBSOCKET_NORMAL, "the command has ended" },
                [ATTACH_END_LOST] = { WEBSOCKET_INTERNAL, "the stream to the sandbox was lost" },
                [ATTACH_END_PROTOCOL] = { WEBSOCKET_PROTOCOL_ERROR, "not a legal attach frame" },
        };
        if (!c || !c->ws) {
                attach_client_free(c); /* the frames before have said it */
                return;
        }
        c->handler = NULL; /* on_close frees */
        if (c->paused)
                websocket_read_resume(c->ws);
        websocket_close(c->ws, ends[why].code, ends[why].reason);
}

void attach_client_free(struct attach_client *c) {
        if (!c || c->freed)
                return;
        stream_close(c->s);
        websocket_free(c->ws);
        c->s = NULL;
        c->ws = NULL;
        c->freed = true;
        if (!c->in_frames)
                really_free(c);
}
