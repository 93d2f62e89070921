/* SPDX-License-Identifier: Apache-2.0 */

#include "attach_client.h"

#include <errno.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "io/stream.h"

struct attach_client {
        struct stream *s;
        struct attach_reader reader;
        const struct attach_client_handler *handler;
        void *arg;
        bool paused, in_frames, freed;
};

enum attach_protocol attach_client_protocol(const struct http1_head *h) {
        if (!h->upgrade)
                return ATTACH_NONE;
        if (http1_has_token(h, "Upgrade", ATTACH_UPGRADE))
                return ATTACH_RAW;
        return ATTACH_NONE;
}

static void really_free(struct attach_client *c) {
        buf_done(&c->reader.in);
        free(c);
}

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

int attach_client_accept(struct api_req *r, enum attach_protocol p, const struct attach_client_handler *h, void *arg,
                         struct attach_client **ret, struct error *err) {
        (void) p;
        static const struct http_header headers[] = { { "Upgrade", ATTACH_UPGRADE } };
        struct attach_client *c = calloc(1, sizeof *c);
        if (!c)
                return error_set(err, -ENOMEM, "out of memory");
        c->handler = h;
        c->arg = arg;
        c->paused = true;
        int rc = api_upgrade(r, headers, ARRAY_SIZE(headers), &c->s);
        if (rc < 0) {
                free(c);
                return error_errno(err, rc, "the connection cannot be upgraded");
        }
        stream_set_handler(c->s, &stream_handler, c);
        *ret = c;
        return 0;
}

int attach_client_send(struct attach_client *c, uint8_t type, const uint8_t *data, size_t n) {
        uint8_t head[ATTACH_HEAD] = { type, (uint8_t) (n >> 24), (uint8_t) (n >> 16), (uint8_t) (n >> 8), (uint8_t) n };
        struct iovec v[2] = { { .iov_base = head, .iov_len = sizeof head },
                              { .iov_base = (void *) (uintptr_t) data, .iov_len = n } };
        return stream_writev(c->s, v, n > 0 ? 2 : 1);
}

size_t attach_client_queued(const struct attach_client *c) {
        return stream_queued(c->s);
}

void attach_client_pause(struct attach_client *c) {
        c->paused = true;
        stream_read_stop(c->s);
}

void attach_client_resume(struct attach_client *c) {
        c->paused = false;
        stream_read_start(c->s);
        deliver(c);
}

void attach_client_end(struct attach_client *c, enum attach_end why) {
        (void) why; /* the frames before have said it */
        attach_client_free(c);
}

void attach_client_free(struct attach_client *c) {
        if (!c || c->freed)
                return;
        stream_close(c->s);
        c->s = NULL;
        c->freed = true;
        if (!c->in_frames)
                really_free(c);
}
