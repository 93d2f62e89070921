/* SPDX-License-Identifier: Apache-2.0 */

#include "upload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"

#define PENDING_MAX (4u * 1024 * 1024) /* received and not yet written */
#define PENDING_HOLD (1u * 1024 * 1024) /* the client is held back above this */

struct upload {
        struct api_req *r;
        struct http_x *x; /* NULL when the client has gone */
        int fd;
        uint64_t max, total;
        struct buf pending;
        struct buf writing; /* in the hands of the thread pool */
        uv_work_t work;
        bool busy, ended, paused;
        int err; /* of the loop, which has it from write_err */
        struct error e;
        int write_err; /* of the thread while busy */
        struct error write_e;
        upload_cb cb;
};

static void pump(struct upload *u);

static void upload_free(struct upload *u) {
        (void) fd_close(u->fd);
        buf_done(&u->pending);
        buf_done(&u->writing);
        api_req_unref(u->r);
        free(u);
}

static void do_write(uv_work_t *w) {
        struct upload *u = w->data;
        u->write_err = fd_write_all(u->fd, buf_data(&u->writing), u->writing.len, &u->write_e);
}

static void on_written(uv_work_t *w, int status) {
        struct upload *u = w->data;
        (void) status;
        u->busy = false;
        buf_clear(&u->writing);
        if (!u->x) {
                upload_free(u);
                return;
        }
        if (u->err >= 0 && u->write_err < 0) {
                u->err = u->write_err;
                u->e = u->write_e;
        }
        pump(u);
}

static void finish(struct upload *u) {
        struct api_req *r = u->r;
        upload_cb cb = u->cb;
        int fd = u->err < 0 ? u->err : fd_steal(&u->fd);
        struct error e = u->e;
        api_give_back(r, u->x);
        (void) api_req_ref(r);
        upload_free(u);
        if (fd >= 0 && lseek(fd, 0, SEEK_SET) < 0) {
                int n = error_errno(&e, errno, "could not read the upload");
                (void) fd_close(fd);
                fd = n;
        }
        cb(r, fd, &e);
        api_req_unref(r);
}

static void pump(struct upload *u) {
        if (u->busy)
                return;
        if (u->err < 0 || (u->ended && u->pending.len == 0)) {
                finish(u);
                return;
        }
        if (u->pending.len > 0) {
                struct buf b = u->writing;
                u->writing = u->pending;
                u->pending = b;
                u->busy = uv_queue_work(u->r->app->loop, &u->work, do_write, on_written) >= 0;
        }
        if (u->paused && u->pending.len < PENDING_HOLD) {
                u->paused = false;
                http_x_read_resume(u->x);
        }
}

static void on_body(void *arg, const uint8_t *data, size_t n) {
        struct upload *u = arg;
        if (u->err < 0)
                return;
        u->total += n;
        if (u->total > u->max)
                u->err = error_set(&u->e, -EFBIG, "the archive is longer than %llu bytes", (unsigned long long) u->max);
        else if (buf_append(&u->pending, data, n) < 0)
                u->err = error_set(&u->e, -ENOMEM, "out of memory");
        if (u->pending.len >= PENDING_HOLD && !u->paused) {
                u->paused = true;
                http_x_read_pause(u->x);
        }
        pump(u);
}

static void on_end(void *arg) {
        struct upload *u = arg;
        u->ended = true;
        pump(u);
}

static void on_abort(void *arg) {
        struct upload *u = arg;
        u->x = NULL;
        if (!u->busy)
                upload_free(u);
}

static void on_done(void *arg) {
        (void) arg; /* the exchange has been given back before */
}

static const struct http_x_ops ops = { .on_body = on_body, .on_end = on_end, .on_abort = on_abort, .on_done = on_done };

int upload_start(struct api_req *r, uint64_t max, upload_cb cb, struct error *err) {
        struct upload *u = calloc(1, sizeof *u);
        if (!u)
                return error_set(err, -ENOMEM, "out of memory");
        u->fd = open(r->app->conf.data, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (u->fd < 0) {
                int rc = error_errno(err, errno, "could not make a temporary file in \"%s\"", r->app->conf.data);
                free(u);
                return rc;
        }
        u->max = max;
        u->pending = BUF_INIT(PENDING_MAX);
        u->writing = BUF_INIT(PENDING_MAX);
        u->work.data = u;
        u->cb = cb;
        u->r = api_req_ref(r);
        u->x = api_take(r);
        http_x_set_ops(u->x, &ops, u);
        return 0;
}
