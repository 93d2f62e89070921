/* SPDX-License-Identifier: Apache-2.0 */
#include "dialer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

#define DIALER_TIMEOUT_MS 10000 /* per address */

/* A kick (timer of 0 ms) starts each attempt, so that the callback never comes from inside
 * dialer_start(). */
struct dialer {
        uv_loop_t *loop;
        struct endpoint to;
        dialer_cb cb;
        void *arg;
        uv_timer_t timer;
        struct stream_connect *connect;
        char addresses[ENDPOINT_ADDRESSES][INET6_ADDRSTRLEN];
        int n, next;
        struct error err;
};

static void on_closed(uv_handle_t *h) {
        free(h->data);
}

static void dialer_free(struct dialer *d) {
        if (d->connect)
                stream_connect_cancel(d->connect);
        d->connect = NULL;
        uv_close((uv_handle_t *) &d->timer, on_closed);
}

static void finish(struct dialer *d, struct stream *s) {
        dialer_cb cb = d->cb;
        void *arg = d->arg;
        struct error err = d->err;

        dialer_free(d);
        cb(arg, s ? NULL : &err, s);
}

static void attempt(uv_timer_t *t);

static void on_connected(void *arg, int err, struct stream *s) {
        struct dialer *d = arg;

        d->connect = NULL;
        uv_timer_stop(&d->timer);
        if (err == 0) {
                finish(d, s);
                return;
        }
        error_errno(&d->err, err, "cannot connect to %s", d->to.text);
        if (d->next < d->n)
                uv_timer_start(&d->timer, attempt, 0, 0);
        else
                finish(d, NULL);
}

static void on_timeout(uv_timer_t *t) {
        struct dialer *d = t->data;

        stream_connect_cancel(d->connect);
        on_connected(d, -ETIMEDOUT, NULL);
}

static int connect_next(struct dialer *d) {
        if (d->to.local) {
                d->n = d->next = 1;
                return stream_connect_unix(d->loop, d->to.path, on_connected, d, &d->connect, &d->err);
        }
        if (d->n == 0) {
                d->n = endpoint_resolve(&d->to, d->addresses, &d->err);
                if (d->n < 0) {
                        d->n = 0;
                        return d->err.code;
                }
        }
        return stream_connect_tcp(d->loop, d->addresses[d->next++], d->to.port, on_connected, d, &d->connect,
                                  &d->err);
}

static void attempt(uv_timer_t *t) {
        struct dialer *d = t->data;

        uv_timer_start(&d->timer, on_timeout, DIALER_TIMEOUT_MS, 0);
        if (connect_next(d) < 0) {
                d->connect = NULL;
                uv_timer_stop(&d->timer);
                finish(d, NULL);
        }
}

struct dialer *dialer_start(uv_loop_t *loop, const struct endpoint *to, dialer_cb cb, void *arg) {
        struct dialer *d = mem_new(sizeof *d);

        d->loop = loop;
        d->to = *to;
        d->cb = cb;
        d->arg = arg;
        uv_timer_init(loop, &d->timer);
        d->timer.data = d;
        uv_timer_start(&d->timer, attempt, 0, 0);
        return d;
}

void dialer_cancel(struct dialer *d) {
        if (d)
                dialer_free(d);
}
