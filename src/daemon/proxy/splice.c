/* SPDX-License-Identifier: Apache-2.0 */
#include "splice.h"

#include <errno.h>
#include <stdlib.h>

struct side {
        struct splice *splice;
        struct stream *stream;
        struct side *other;
        bool eof; /* has sent all it will */
};

struct splice {
        struct side side[2];
        void (*on_end)(void *arg);
        void *arg;
        bool starting; /* in splice_new(): the end is told by its return value */
        bool failed;
};

static void splice_close(struct splice *s, bool clean) {
        for (int i = 0; i < 2; i++) {
                if (clean)
                        stream_close(s->side[i].stream);
                else
                        stream_abort(s->side[i].stream);
        }
}

static void splice_end(struct splice *s, bool clean) {
        void (*on_end)(void *arg) = s->on_end;
        void *arg = s->arg;

        if (s->starting) {
                s->failed = true;
                return;
        }
        splice_close(s, clean);
        free(s);
        on_end(arg);
}

static void on_data(void *arg, const uint8_t *data, size_t n) {
        struct side *from = arg;
        struct stream *to = from->other->stream;

        if (stream_write(to, data, n) < 0)
                return splice_end(from->splice, false);
        if (stream_queued(to) > STREAM_HIGH_WATER)
                stream_read_stop(from->stream);
}

static void on_drain(void *arg) {
        struct side *to = arg;

        if (!to->other->eof)
                stream_read_start(to->other->stream);
}

static void on_eof(void *arg) {
        struct side *from = arg;

        from->eof = true;
        if (from->other->eof)
                return splice_end(from->splice, true);
        if (stream_shutdown(from->other->stream) < 0)
                splice_end(from->splice, false);
}

static void on_error(void *arg, int err) {
        struct side *from = arg;

        (void) err;
        splice_end(from->splice, false);
}

static const struct stream_handler handler = {
        .on_data = on_data,
        .on_eof = on_eof,
        .on_drain = on_drain,
        .on_error = on_error,
};

int splice_new(struct stream *a, struct stream *b, void (*on_end)(void *arg), void *arg, struct splice **ret) {
        struct splice *s = calloc(1, sizeof(*s));

        if (!s) {
                stream_abort(a);
                stream_abort(b);
                return -ENOMEM;
        }
        s->on_end = on_end;
        s->arg = arg;
        s->side[0] = (struct side){ .splice = s, .stream = a, .other = &s->side[1] };
        s->side[1] = (struct side){ .splice = s, .stream = b, .other = &s->side[0] };
        stream_set_handler(a, &handler, &s->side[0]);
        stream_set_handler(b, &handler, &s->side[1]);

        /* Bytes already buffered are delivered from inside these calls. */
        s->starting = true;
        stream_read_start(a);
        if (!s->failed)
                stream_read_start(b);
        s->starting = false;
        if (s->failed) {
                splice_break(s);
                return -EPIPE;
        }
        *ret = s;
        return 0;
}

void splice_break(struct splice *s) {
        if (!s)
                return;
        splice_close(s, false);
        free(s);
}
