/* SPDX-License-Identifier: Apache-2.0 */
#include "download.h"

#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "work.h"

#define NOW_MAX 8 /* chunks read in one turn of the loop; then others get theirs */

struct download {
        struct agent *a;
        struct http_x *x; /* NULL: the client is gone */
        struct user as;
        bool switch_user, busy;
        const struct download_ops *ops;
        void *ctx;
        ssize_t n;
        struct error err;
        uint8_t data[];
};

static void download_free(struct download *d) {
        d->ops->release(d->ctx);
        free(d);
}

static void on_done(void *arg);

static void on_thread(void *arg) {
        struct download *d = arg;
        d->n = d->ops->read(d->ctx, d->data, DOWNLOAD_CHUNK, &d->err);
}

static void abort_answer(struct download *d) {
        http_x_abort(d->x); /* on_gone() follows */
}

/* False when there is nothing more to do now. */
static bool put(struct download *d, ssize_t n) {
        if (n < 0 || (n > 0 && http_x_write(d->x, d->data, (size_t) n) < 0)) {
                if (n < 0)
                        log_debug("download: %s", d->err.msg);
                abort_answer(d);
                return false;
        }
        if (n == 0) {
                (void) http_x_end(d->x);
                return false;
        }
        return http_x_queued(d->x) <= STREAM_HIGH_WATER;
}

static void pump(struct download *d) {
        if (d->busy || !d->x)
                return;
        for (int i = 0; d->ops->read_now && i < NOW_MAX; i++) {
                ssize_t n = d->ops->read_now(d->ctx, d->data, DOWNLOAD_CHUNK);
                if (n == -EAGAIN)
                        break;
                if (!put(d, n))
                        return;
        }
        d->busy = true;
        if (work_start(d->a->loop, d->switch_user ? &d->as : NULL, on_thread, on_done, d) < 0) {
                d->busy = false;
                abort_answer(d);
        }
}

static void on_done(void *arg) {
        struct download *d = arg;
        d->busy = false;
        if (!d->x)
                download_free(d);
        else if (put(d, d->n))
                pump(d);
}

static void on_drain(void *arg) {
        pump(arg);
}

static void on_gone(void *arg) {
        struct download *d = arg;
        d->x = NULL;
        if (!d->busy)
                download_free(d);
}

void download_start(struct agent *a, struct http_x *x, const struct user *as, const struct download_ops *ops,
                    void *ctx) {
        static const struct http_x_ops x_ops = { .on_drain = on_drain, .on_abort = on_gone, .on_done = on_gone };
        struct download *d = calloc(1, sizeof *d + DOWNLOAD_CHUNK);
        if (!d) {
                ops->release(ctx);
                http_x_abort(x);
                return;
        }
        d->a = a;
        d->x = x;
        d->ops = ops;
        d->ctx = ctx;
        if (as) {
                d->as = *as;
                d->switch_user = true;
        }
        http_x_set_ops(x, &x_ops, d);
        pump(d);
}
