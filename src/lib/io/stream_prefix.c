/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A stream with bytes put in front of it. What was read beyond the end of an HTTP head belongs to
 * the protocol that the connection was upgraded to; the wrapper hands it out first and then only
 * passes everything through.
 */

#include "io/stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

struct prefix_stream {
        struct stream base;
        struct stream *inner;
        uint8_t *data; /* not yet delivered; NULL once it is */
        size_t n;
        bool eof_pending; /* inner's end was seen before the wrapper existed */
        bool reading;
        bool closed;
        unsigned busy;    /* callbacks of the owner on the stack */
};

static struct prefix_stream *of(struct stream *s) {
        return CONTAINER_OF(s, struct prefix_stream, base);
}

static void enter(struct prefix_stream *p) {
        p->busy++;
}

static bool leave(struct prefix_stream *p) {
        p->busy--;
        if (!p->closed)
                return true;
        if (p->busy == 0)
                free(p);
        return false;
}

static void in_data(void *arg, const uint8_t *data, size_t n) {
        struct prefix_stream *p = arg;
        enter(p);
        p->base.handler->on_data(p->base.arg, data, n);
        (void) leave(p);
}

static void in_eof(void *arg) {
        struct prefix_stream *p = arg;
        enter(p);
        p->base.handler->on_eof(p->base.arg);
        (void) leave(p);
}

static void in_drain(void *arg) {
        struct prefix_stream *p = arg;
        if (!p->base.handler || !p->base.handler->on_drain)
                return;
        enter(p);
        p->base.handler->on_drain(p->base.arg);
        (void) leave(p);
}

static void in_error(void *arg, int err) {
        struct prefix_stream *p = arg;
        if (!p->base.handler)
                return;
        enter(p);
        p->base.handler->on_error(p->base.arg, err);
        (void) leave(p);
}

static const struct stream_handler inner_handler = {
        .on_data = in_data,
        .on_eof = in_eof,
        .on_drain = in_drain,
        .on_error = in_error,
};

static void op_read_start(struct stream *s) {
        struct prefix_stream *p = of(s);
        p->reading = true;
        if (p->data) {
                _cleanup_free_ uint8_t *data = STEAL(p->data);
                enter(p);
                p->base.handler->on_data(p->base.arg, data, p->n);
                if (!leave(p) || !p->reading)
                        return;
        }
        if (p->eof_pending) {
                p->eof_pending = false;
                enter(p);
                p->base.handler->on_eof(p->base.arg);
                if (!leave(p) || !p->reading)
                        return;
        }
        stream_read_start(p->inner);
}

static void op_read_stop(struct stream *s) {
        struct prefix_stream *p = of(s);
        p->reading = false;
        stream_read_stop(p->inner);
}

static int op_write(struct stream *s, const void *data, size_t n) {
        return stream_write(of(s)->inner, data, n);
}

static int op_writev(struct stream *s, const struct iovec *v, int n) {
        return stream_writev(of(s)->inner, v, n);
}

static size_t op_queued(const struct stream *s) {
        return stream_queued(((const struct prefix_stream *) (const void *) s)->inner);
}

static int op_shutdown(struct stream *s) {
        return stream_shutdown(of(s)->inner);
}

static void op_close(struct stream *s, bool abort) {
        struct prefix_stream *p = of(s);
        if (p->closed)
                return;
        p->closed = true;
        if (abort)
                stream_abort(p->inner);
        else
                stream_close(p->inner);
        free(STEAL(p->data));
        if (p->busy == 0)
                free(p);
}

static const struct stream_ops prefix_ops = {
        .read_start = op_read_start,
        .read_stop = op_read_stop,
        .write = op_write,
        .queued = op_queued,
        .shutdown = op_shutdown,
        .close = op_close,
        .writev = op_writev,
};

int stream_prefix(struct stream *inner, const void *data, size_t n, bool eof, struct stream **ret) {
        stream_read_stop(inner);
        if (n == 0 && !eof) {
                *ret = inner;
                return 0;
        }
        struct prefix_stream *p = calloc(1, sizeof *p);
        uint8_t *copy = malloc(n ? n : 1);
        if (!p || !copy) {
                free(p);
                free(copy);
                stream_abort(inner);
                return -ENOMEM;
        }
        if (n)
                memcpy(copy, data, n);
        p->base.ops = &prefix_ops;
        p->inner = inner;
        p->n = n;
        p->data = n ? copy : NULL;
        if (!n)
                free(copy);
        p->eof_pending = eof;
        stream_set_handler(inner, &inner_handler, p);
        *ret = &p->base;
        return 0;
}
