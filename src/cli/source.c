/* SPDX-License-Identifier: Apache-2.0 */
#include "source.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/fd.h"
#include "mem.h"

#define SOURCE_BACKGROUND_MS 500 /* how often to look whether the terminal is ours again */

struct source {
        uv_loop_t *loop;
        uv_work_t work;
        source_cb cb;
        void *arg;
        int fd;
        int stop; /* eventfd: ends the worker's wait */
        bool busy, ended, freed, terminal;
        ssize_t result; /* of the worker */
        uint8_t data[SOURCE_PIECE];
};

static bool in_background(const struct source *s) {
        pid_t owner = s->terminal ? tcgetpgrp(s->fd) : -1;

        return owner > 0 && owner != getpgrp();
}

/* On a worker thread. */
static void do_read(uv_work_t *w) {
        struct source *s = w->data;

        for (;;) {
                bool background = in_background(s);
                struct pollfd p[2] = { { .fd = s->stop, .events = POLLIN },
                                       { .fd = background ? -1 : s->fd, .events = POLLIN } };

                if (poll(p, 2, background ? SOURCE_BACKGROUND_MS : -1) < 0 && errno != EINTR) {
                        s->result = -errno;
                        return;
                }
                if (p[0].revents) {
                        s->result = -ECANCELED;
                        return;
                }
                if (background || p[1].revents == 0)
                        continue;
                ssize_t n = read(s->fd, s->data, sizeof s->data);
                if (n < 0 && (errno == EINTR || errno == EAGAIN))
                        continue;
                s->result = n < 0 ? -errno : n;
                return;
        }
}

static void done(struct source *s) {
        fd_close(s->stop);
        free(s);
}

static void on_read(uv_work_t *w, int status) {
        struct source *s = w->data;

        (void) status;
        s->busy = false;
        if (s->freed) {
                done(s);
                return;
        }
        if (s->result <= 0)
                s->ended = true;
        /* A terminal that has gone away is the end of input. */
        int err = s->result < 0 && !(s->result == -EIO && s->terminal) ? (int) s->result : 0;
        s->cb(s->arg, s->data, s->result > 0 ? (size_t) s->result : 0, err);
}

struct source *source_new(uv_loop_t *loop, int fd, source_cb cb, void *arg) {
        struct source *s = mem_new(sizeof *s);

        s->loop = loop;
        s->fd = fd;
        s->cb = cb;
        s->arg = arg;
        s->terminal = isatty(fd);
        s->stop = eventfd(0, EFD_CLOEXEC);
        return s;
}

void source_next(struct source *s) {
        if (s->busy || s->ended)
                return;
        s->busy = true;
        s->work.data = s;
        uv_queue_work(s->loop, &s->work, do_read, on_read);
}

void source_free(struct source *s) {
        const uint64_t one = 1;

        if (!s)
                return;
        if (!s->busy) {
                done(s);
                return;
        }
        s->freed = true;
        if (write(s->stop, &one, sizeof one) < 0)
                return; /* the worker stays where it is; memory and thread end with the process */
}
