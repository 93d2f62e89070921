/* SPDX-License-Identifier: Apache-2.0 */

/* The agent's ends of a command's pipes and pty. Polled only for what can be used: output while
 * nobody holds it, input while there is some to write. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "proc_internal.h"

#define READS_PER_WAKE 4 /* then the other descriptors get their turn */
#define CTRL_D 4

static void on_poll(uv_poll_t *poll, int status, int events);

int proc_fd_new(struct proc *p, int fd, enum proc_channel ch, bool is_out, bool is_in, struct proc_fd **ret) {
        struct proc_fd *f = calloc(1, sizeof *f);
        if (!f) {
                fd_close(fd);
                return -ENOMEM;
        }
        int r = uv_poll_init(p->t->loop, &f->poll, fd); /* also makes it non-blocking */
        if (r < 0) {
                fd_close(fd);
                free(f);
                return r;
        }
        f->poll.data = f;
        f->p = p;
        f->fd = fd;
        f->ch = ch;
        f->is_out = is_out;
        f->is_in = is_in;
        *ret = f;
        return 0;
}

static void closed(uv_handle_t *h) {
        free(h->data);
}

void proc_fd_free(struct proc_fd *f) {
        if (!f)
                return;
        f->p = NULL;
        (void) uv_poll_stop(&f->poll);
        f->fd = fd_close(f->fd);
        uv_close((uv_handle_t *) &f->poll, closed);
}

void proc_fd_update(struct proc_fd *f) {
        if (!f)
                return;
        int events = 0;
        if (f->is_out && f->p->holds == 0)
                events |= UV_READABLE;
        if (f->is_in && !list_empty(&f->p->inputs))
                events |= UV_WRITABLE;
        if (events == f->events)
                return;
        f->events = events;
        if (events)
                (void) uv_poll_start(&f->poll, events, on_poll);
        else
                (void) uv_poll_stop(&f->poll);
}

/* --- output --------------------------------------------------------------------------------- */

/* Returns false when f is gone. */
static bool read_output(struct proc_fd *f) {
        static uint8_t data[PROC_CHUNK];
        struct proc *p = f->p;
        size_t max = f->ch == PROC_PTY ? PROC_CHUNK_PTY : PROC_CHUNK;
        for (int i = 0; i < READS_PER_WAKE && p->holds == 0; i++) {
                ssize_t n = read(f->fd, data, max);
                if (n < 0 && (errno == EAGAIN || errno == EINTR))
                        return true;
                if (n <= 0) { /* EIO of a pty: the last holder of the other side is gone */
                        proc_output_eof(p, f);
                        return false;
                }
                proc_output(p, f, data, (size_t) n);
                if (f->p != p)
                        return false;
                if ((size_t) n < max)
                        return true;
        }
        return true;
}

/* --- input ---------------------------------------------------------------------------------- */

static void close_input(struct proc *p) {
        if (p->in && !p->in->is_out)
                proc_fd_free(p->in);
        p->in = NULL;
}

static void input_finish(struct proc_input *in, int err) {
        proc_input_cb cb = in->cb;
        void *arg = in->arg;
        in->p->input_bytes -= in->n;
        list_remove(&in->link);
        free(in);
        if (cb)
                cb(arg, err);
}

void proc_inputs_fail(struct proc *p, int err) {
        while (!list_empty(&p->inputs))
                input_finish(CONTAINER_OF(p->inputs.next, struct proc_input, link), err);
        if (p->in && p->in->is_out) {
                p->in->is_in = false;
                proc_fd_update(p->in);
        }
        close_input(p);
}

static void end_if_due(struct proc *p) {
        if (!p->input_end || !list_empty(&p->inputs) || !p->in)
                return;
        if (p->in->is_out) {
                uint8_t c = CTRL_D;
                (void) !write(p->in->fd, &c, 1);
                p->input_end = false;
        } else
                close_input(p);
}

static void write_input(struct proc *p) {
        while (p->in && !list_empty(&p->inputs)) {
                struct proc_input *in = CONTAINER_OF(p->inputs.next, struct proc_input, link);
                ssize_t n = write(p->in->fd, in->data + in->off, in->n - in->off);
                if (n < 0 && (errno == EAGAIN || errno == EINTR))
                        break;
                if (n < 0) {
                        proc_inputs_fail(p, -EPIPE);
                        return;
                }
                in->off += (size_t) n;
                if (in->off == in->n)
                        input_finish(in, 0);
        }
        end_if_due(p);
        proc_fd_update(p->in);
}

static void on_poll(uv_poll_t *poll, int status, int events) {
        struct proc_fd *f = poll->data;
        struct proc *p = f->p;
        if (!p)
                return;
        if (status < 0) { /* an error condition; libuv stopped polling, the calls below say which */
                events = f->events;
                f->events = 0;
        }
        if (f->is_in && (events & UV_WRITABLE)) {
                write_input(p);
                if (f->p != p)
                        return;
        }
        if (f->is_out && (events & UV_READABLE) && !read_output(f))
                return;
        proc_fd_update(f);
}

int proc_input(struct proc *p, const void *data, size_t n, proc_input_cb cb, void *arg, struct proc_input **ret) {
        if (!p->in || p->input_end)
                return -EPIPE;
        if (p->input_bytes > 0 && p->input_bytes + n > PROC_INPUT_MAX)
                return -ENOBUFS;
        struct proc_input *in = malloc(sizeof *in + n);
        if (!in)
                return -ENOMEM;
        *in = (struct proc_input){ .p = p, .cb = cb, .arg = arg, .n = n };
        memcpy(in->data, data, n);
        list_append(&p->inputs, &in->link);
        p->input_bytes += n;
        proc_fd_update(p->in);
        if (ret)
                *ret = in;
        return 0;
}

void proc_input_cancel(struct proc_input *in) {
        if (!in)
                return;
        in->cb = NULL;
        if (in->off > 0)
                return; /* what has begun is finished: half a request must not reach the command */
        struct proc *p = in->p;
        input_finish(in, -ECANCELED);
        end_if_due(p);
        proc_fd_update(p->in);
}

int proc_input_end(struct proc *p) {
        if (!p->in)
                return -EPIPE;
        p->input_end = true;
        end_if_due(p);
        return 0;
}

bool proc_input_open(const struct proc *p) {
        return p->in && !p->input_end;
}

size_t proc_input_waiting(const struct proc *p) {
        return p->input_bytes;
}
