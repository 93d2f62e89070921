/* SPDX-License-Identifier: Apache-2.0 */
#include "splice.h"

#include <errno.h>
#include <stdlib.h>

#include "list.h"

struct splices {
        struct list all;
};

struct splice;
struct side {
        struct splice *sp;
        struct stream *s;
        bool eof;     /* it has sent all */
        bool stopped; /* not read while the other side's queue is full */
        bool broken;  /* takes nothing more; what it had sent is still coming */
};

struct splice {
        struct list link;
        struct side side[2];
        bool *gone; /* set when it ends while splice_start() is on the stack */
};

static struct side *other(struct side *d) {
        return &d->sp->side[d == &d->sp->side[0]];
}

static void splice_end(struct splice *sp, bool abort) {
        list_remove(&sp->link);
        if (sp->gone)
                *sp->gone = true;
        for (size_t i = 0; i < 2; i++) {
                if (abort)
                        stream_abort(sp->side[i].s);
                else
                        stream_close(sp->side[i].s);
        }
        free(sp);
}

static void on_data(void *arg, const uint8_t *data, size_t n) {
        struct side *d = arg, *o = other(d);
        if (o->broken)
                return;
        if (stream_write(o->s, data, n) < 0) {
                /* Its owner may have answered and closed without reading on: the answer counts. Its
                 * end or error comes behind it. */
                o->broken = true;
                if (o->eof)
                        splice_end(d->sp, true);
                else
                        stream_read_stop(d->s);
                return;
        }
        if (stream_queued(o->s) > STREAM_HIGH_WATER) {
                d->stopped = true;
                stream_read_stop(d->s);
        }
}

static void on_eof(void *arg) {
        struct side *d = arg, *o = other(d);
        d->eof = true;
        if (o->eof || d->broken) /* nothing can move any more; what is queued is still flushed */
                splice_end(d->sp, false);
        else if (stream_shutdown(o->s) < 0)
                o->broken = true;
}

static void on_drain(void *arg) {
        struct side *o = other(arg);
        if (o->stopped && !((struct side *) arg)->broken) {
                o->stopped = false;
                stream_read_start(o->s);
        }
}

static void on_error(void *arg, int err) {
        struct side *d = arg;
        (void) err;
        /* After its end of file all it had sent is on its way to the other side, and must arrive. */
        splice_end(d->sp, !d->eof);
}

static const struct stream_handler handler = {
        .on_data = on_data, .on_eof = on_eof, .on_drain = on_drain, .on_error = on_error
};

struct splices *splices_new(void) {
        struct splices *all = calloc(1, sizeof *all);
        if (all)
                list_init(&all->all);
        return all;
}

void splices_free(struct splices *all) {
        if (!all)
                return;
        LIST_FOREACH(it, &all->all)
                splice_end(CONTAINER_OF(it, struct splice, link), true);
        free(all);
}

int splice_start(struct splices *all, struct stream *a, struct stream *b) {
        struct splice *sp = calloc(1, sizeof *sp);
        if (!sp) {
                stream_abort(a);
                stream_abort(b);
                return -ENOMEM;
        }
        sp->side[0] = (struct side){ .sp = sp, .s = a };
        sp->side[1] = (struct side){ .sp = sp, .s = b };
        list_append(&all->all, &sp->link);
        stream_set_handler(a, &handler, &sp->side[0]);
        stream_set_handler(b, &handler, &sp->side[1]);
        bool gone = false;
        sp->gone = &gone;
        stream_read_start(a); /* bytes that wait already are delivered here */
        if (!gone)
                stream_read_start(b);
        if (!gone)
                sp->gone = NULL;
        return 0;
}
