/* SPDX-License-Identifier: Apache-2.0 */
#include "sink.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/buf.h"
#include "mem.h"

#define SINK_SEGMENT (1024u * 1024) /* bytes for one descriptor gathered into one write */
#define SINK_DEAD_MAX 2

struct segment {
        int fd;
        uint64_t offset;
        struct buf data;
        struct segment *next;
};

struct sink {
        const struct sink_ops *ops;
        void *arg;
        uv_loop_t *loop;
        uv_work_t work;
        struct segment *head, *tail; /* head is being written while busy */
        size_t queued;
        bool busy, freed;
        int result; /* of the worker */
        int dead[SINK_DEAD_MAX];
        int n_dead;
};

static bool is_dead(const struct sink *s, int fd) {
        for (int i = 0; i < s->n_dead; i++)
                if (s->dead[i] == fd)
                        return true;
        return false;
}

/* On a worker thread; touches the head's data and the result alone. */
static void do_write(uv_work_t *w) {
        struct sink *s = w->data;
        const uint8_t *p = buf_data(&s->head->data);
        size_t n = s->head->data.len;

        s->result = 0;
        while (n > 0) {
                ssize_t r = write(s->head->fd, p, n);

                if (r >= 0) {
                        p += r;
                        n -= (size_t) r;
                } else if (errno == EAGAIN) {
                        /* Somebody else made it non-blocking. */
                        struct pollfd pf = { .fd = s->head->fd, .events = POLLOUT };
                        (void) poll(&pf, 1, -1);
                } else if (errno != EINTR) {
                        s->result = -errno;
                        return;
                }
        }
}

static void segment_free(struct segment *g) {
        buf_done(&g->data);
        free(g);
}

static void next(struct sink *s);

static void on_written(uv_work_t *w, int status) {
        struct sink *s = w->data;
        struct segment *g = s->head;
        int fd = g->fd, err = s->result;
        uint64_t offset = g->offset;

        (void) status;
        s->busy = false;
        if (s->freed) {
                free(s);
                return;
        }
        s->head = g->next;
        if (!s->head)
                s->tail = NULL;
        s->queued -= g->data.len;
        segment_free(g);
        if (err < 0 && s->n_dead < SINK_DEAD_MAX)
                s->dead[s->n_dead++] = fd;
        next(s);
        if (err < 0)
                s->ops->on_error(s->arg, fd, err);
        s->ops->on_written(s->arg, offset);
}

static void next(struct sink *s) {
        if (s->busy || !s->head)
                return;
        s->busy = true;
        if (is_dead(s, s->head->fd)) { /* goes through the queue all the same, to keep the order */
                s->queued -= s->head->data.len;
                buf_clear(&s->head->data);
        }
        s->work.data = s;
        uv_queue_work(s->loop, &s->work, do_write, on_written);
}

struct sink *sink_new(uv_loop_t *loop, const struct sink_ops *ops, void *arg) {
        struct sink *s = mem_new(sizeof *s);

        s->loop = loop;
        s->ops = ops;
        s->arg = arg;
        return s;
}

void sink_put(struct sink *s, int fd, const void *data, size_t n, uint64_t offset) {
        struct segment *g = s->tail;

        if (is_dead(s, fd))
                n = 0;
        if (!g || g->fd != fd || (s->busy && g == s->head) || g->data.len + n > SINK_SEGMENT) {
                g = mem_new(sizeof *g);
                g->fd = fd;
                if (s->tail)
                        s->tail->next = g;
                else
                        s->head = g;
                s->tail = g;
        }
        if (buf_append(&g->data, data, n) < 0)
                mem_grow(NULL, SIZE_MAX, SIZE_MAX); /* ends the program */
        g->offset = offset;
        s->queued += n;
        next(s);
}

size_t sink_queued(const struct sink *s) {
        return s->queued;
}

bool sink_free(struct sink *s) {
        if (!s)
                return false;
        if (s->busy) {
                s->freed = true;
                return true;
        }
        free(s);
        return false;
}
