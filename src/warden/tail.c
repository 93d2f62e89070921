/* SPDX-License-Identifier: Apache-2.0 */
#include "tail.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"

#define TAIL_BURST 64 /* reads per wake-up, so that a flood leaves the loop some time */

struct tail {
        uv_poll_t poll;
        int fd;
        size_t keep, n;
        char *text; /* 2 * keep + 1 bytes, made at the first use: the older half goes when full */
};

static void stop(struct tail *t) {
        if (t->fd < 0)
                return;
        uv_poll_stop(&t->poll);
        t->fd = fd_close(t->fd);
}

static void store(struct tail *t, const char *p, size_t n) {
        if (!t->text)
                t->text = malloc(2 * t->keep + 1);
        if (!t->text)
                return;
        if (n > t->keep) {
                p += n - t->keep;
                n = t->keep;
        }
        if (t->n + n > 2 * t->keep) {
                memmove(t->text, t->text + t->n - t->keep, t->keep);
                t->n = t->keep;
        }
        memcpy(t->text + t->n, p, n);
        t->n += n;
}

/* One read; false when nothing more is there. */
static bool read_some(struct tail *t) {
        char buf[4096];
        if (t->fd < 0)
                return false;
        ssize_t n = read(t->fd, buf, sizeof(buf));
        if (n > 0)
                store(t, buf, (size_t) n);
        else if (n == 0 || (errno != EAGAIN && errno != EINTR))
                stop(t);
        return n > 0;
}

void tail_drain(struct tail *t) {
        for (int i = 0; t && i < TAIL_BURST && read_some(t); i++)
                ;
}

static void on_poll(uv_poll_t *h, int status, int events) {
        (void) events;
        struct tail *t = h->data;
        if (status < 0)
                stop(t);
        tail_drain(t);
}

int tail_new(uv_loop_t *loop, int fd, size_t keep, struct tail **ret, struct error *err) {
        struct tail *t = calloc(1, sizeof(*t));
        int r = t ? uv_poll_init(loop, &t->poll, fd) : -ENOMEM; /* makes fd non-blocking */
        if (r < 0) {
                free(t);
                fd_close(fd);
                return error_errno(err, r, "cannot watch a descriptor");
        }
        t->fd = fd;
        t->keep = keep;
        t->poll.data = t;
        uv_poll_start(&t->poll, UV_READABLE, on_poll);
        *ret = t;
        return 0;
}

const char *tail_text(struct tail *t) {
        if (!t || !t->text)
                return "";
        size_t from = t->n > t->keep ? t->n - t->keep : 0;
        t->text[t->n] = '\0';
        for (size_t i = from; i < t->n; i++) {
                unsigned char c = (unsigned char) t->text[i];
                if (c == '\r')
                        t->text[i] = ' ';
                else if ((c < 0x20 && c != '\n') || c >= 0x7f)
                        t->text[i] = '?';
        }
        return t->text + from;
}

static void on_closed(uv_handle_t *h) {
        struct tail *t = h->data;
        free(t->text);
        free(t);
}

void tail_free(struct tail *t) {
        if (!t)
                return;
        stop(t);
        uv_close((uv_handle_t *) &t->poll, on_closed);
}
