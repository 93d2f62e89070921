/* SPDX-License-Identifier: Apache-2.0 */
#include "upload.h"

#include <errno.h>
#include <stdlib.h>
#include <zlib.h>

#include "api.h"
#include "work.h"

#define PENDING_MAX (1024u * 1024) /* received while the thread is busy; then the client waits */
#define BATCH_FREE (4u * 1024 * 1024)
#define INFLATE_CHUNK (256u * 1024)
#define WINDOW_GZIP (15 + 16)

enum step { STEP_CONSUME, STEP_FINISH, STEP_DISCARD };

struct upload {
        struct agent *a;
        struct http_x *x; /* NULL: the client is gone or has been answered */
        struct user as;
        bool switch_user;
        const struct upload_ops *ops;
        void *ctx;
        struct buf pending, batch;
        bool busy, paused, complete, discarding;
        enum step step;
        int r;
        struct error err;
        z_stream z;
        bool gunzip, z_open, z_end;
        uint8_t *inflated;
};

static void upload_free(struct upload *u) {
        if (u->z_open)
                (void) inflateEnd(&u->z);
        free(u->inflated);
        buf_done(&u->pending);
        buf_done(&u->batch);
        u->ops->release(u->ctx);
        free(u);
}

/* --- on the thread -------------------------------------------------------------------------- */

static int inflate_batch(struct upload *u) {
        u->z.next_in = u->batch.data + u->batch.start;
        u->z.avail_in = (unsigned) u->batch.len;
        while (u->z.avail_in > 0) {
                if (u->z_end) { /* gzip members may follow one another */
                        if (inflateReset(&u->z) != Z_OK)
                                return error_set(&u->err, -EPROTO, "the body is not valid gzip");
                        u->z_end = false;
                }
                do {
                        u->z.next_out = u->inflated;
                        u->z.avail_out = INFLATE_CHUNK;
                        int z = inflate(&u->z, Z_NO_FLUSH);
                        if (z != Z_OK && z != Z_STREAM_END && z != Z_BUF_ERROR)
                                return error_set(&u->err, -EPROTO, "the body is not valid gzip");
                        size_t n = INFLATE_CHUNK - u->z.avail_out;
                        int r = n ? u->ops->consume(u->ctx, u->inflated, n, &u->err) : 0;
                        if (r < 0)
                                return r;
                        u->z_end = z == Z_STREAM_END;
                } while (!u->z_end && u->z.avail_out == 0);
        }
        return 0;
}

static int begin_inflate(struct upload *u) {
        u->inflated = malloc(INFLATE_CHUNK);
        if (!u->inflated || inflateInit2(&u->z, WINDOW_GZIP) != Z_OK)
                return error_set(&u->err, -ENOMEM, "out of memory");
        u->z_open = true;
        return 0;
}

static int run_step(struct upload *u) {
        if (u->step == STEP_DISCARD) {
                u->ops->discard(u->ctx);
                return u->r;
        }
        int r = 0;
        if (u->gunzip && !u->z_open)
                r = begin_inflate(u);
        if (r == 0 && u->batch.len > 0)
                r = u->gunzip ? inflate_batch(u)
                              : u->ops->consume(u->ctx, buf_data(&u->batch), u->batch.len, &u->err);
        if (r < 0 || u->step != STEP_FINISH)
                return r;
        if (u->gunzip && !u->z_end && u->z.total_in > 0)
                return error_set(&u->err, -EPROTO, "the gzip body was cut short");
        return u->ops->finish(u->ctx, &u->err);
}

static void on_thread(void *arg) {
        struct upload *u = arg;
        u->r = run_step(u);
}

/* --- on the loop ---------------------------------------------------------------------------- */

static void on_done(void *arg);

static void go(struct upload *u, enum step step) {
        u->step = step;
        u->busy = true;
        if (work_start(u->a->loop, u->switch_user ? &u->as : NULL, on_thread, on_done, u) < 0) {
                u->r = error_set(&u->err, -ENOMEM, "out of memory");
                on_done(u);
        }
}

static void kick(struct upload *u) {
        if (u->busy || (u->pending.len == 0 && !u->complete))
                return;
        struct buf batch = u->batch;
        u->batch = u->pending;
        u->pending = batch;
        buf_clear(&u->pending);
        if (u->pending.cap > BATCH_FREE)
                buf_done(&u->pending);
        go(u, u->complete ? STEP_FINISH : STEP_CONSUME);
        if (u->paused && u->x) {
                u->paused = false;
                http_x_read_resume(u->x);
        }
}

static const struct http_x_ops no_ops = { 0 };

static void answer(struct upload *u, int r) {
        struct http_x *x = u->x;
        if (!x)
                return;
        u->x = NULL;
        http_x_set_ops(x, &no_ops, NULL);
        if (u->paused)
                http_x_read_resume(x);
        u->ops->answer(u->ctx, x, r, &u->err);
}

static void on_done(void *arg) {
        struct upload *u = arg;
        u->busy = false;
        if (u->step == STEP_DISCARD) {
                answer(u, u->r);
                upload_free(u);
        } else if (u->r < 0 || !u->x) {
                if (u->step == STEP_FINISH && u->r == 0)
                        upload_free(u); /* it is written; only nobody hears of it */
                else
                        go(u, STEP_DISCARD);
        } else if (u->step == STEP_FINISH) {
                answer(u, 0);
                upload_free(u);
        } else
                kick(u);
}

static void on_body(void *arg, const uint8_t *data, size_t n) {
        struct upload *u = arg;
        if (buf_append(&u->pending, data, n) < 0) {
                http_x_abort(u->x);
                return;
        }
        if (u->busy && u->pending.len >= PENDING_MAX && !u->paused) {
                u->paused = true;
                http_x_read_pause(u->x);
        }
        kick(u);
}

static void on_end(void *arg) {
        struct upload *u = arg;
        u->complete = true;
        kick(u);
}

static void on_gone(void *arg) {
        struct upload *u = arg;
        u->x = NULL;
        if (u->busy)
                return; /* on_done() sees it */
        u->r = -ECANCELED;
        go(u, STEP_DISCARD);
}

void upload_start(struct agent *a, struct http_x *x, const struct user *as, bool gunzip,
                  const struct upload_ops *ops, void *ctx) {
        static const struct http_x_ops x_ops = {
                .on_body = on_body, .on_end = on_end, .on_abort = on_gone, .on_done = on_gone
        };
        struct upload *u = calloc(1, sizeof *u);
        if (!u) {
                struct error e = ERROR_INIT;
                int r = error_set(&e, -ENOMEM, "out of memory");
                ops->answer(ctx, x, r, &e);
                ops->release(ctx);
                return;
        }
        u->a = a;
        u->x = x;
        u->ops = ops;
        u->ctx = ctx;
        u->gunzip = gunzip;
        if (as) {
                u->as = *as;
                u->switch_user = true;
        }
        http_x_set_ops(x, &x_ops, u);
}
