/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A seqpacket connection on the loop.
 *
 * Each call waits in a list under its seq until its reply, its deadline or the end of the
 * connection, whichever comes first, and its callback is called exactly once. A reply that nobody
 * waits for (its call timed out) is dropped. Sending never blocks: what the socket does not take
 * now waits in a bounded queue, with its own duplicates of the descriptors.
 *
 * Any callback may free the connection. Its memory stays until libuv has closed both handles, in
 * a later turn of the loop, so the code after a callback may still look at `dead`.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "ipc/ipc.h"
#include "ipc/messages.h"

#define QUEUE_MAX (4u * 1024 * 1024) /* bytes waiting for a peer that does not read */
#define READS_PER_TURN 64            /* packets taken before other handles get their turn */

struct call {
        struct call *next;
        uint32_t seq;
        uint64_t deadline; /* of uv_now(), 0 for none */
        ipc_reply_cb cb;
        void *arg;
};

struct queued {
        struct queued *next;
        struct ipc_packet p; /* body points behind the struct */
        uint8_t body[];
};

struct ipc_conn {
        uv_poll_t poll;
        uv_timer_t timer;
        int fd;
        unsigned open_handles;
        bool dead; /* no more traffic; on_close was called or will not be */
        bool freed;
        const struct ipc_conn_handler *handler;
        void *arg;
        uint32_t last_seq;
        struct call *calls;
        struct queued *head, **tail;
        size_t queued_bytes;
        uint8_t *in; /* IPC_PACKET_MAX bytes; pages are touched only as packets need them */
};

/* ---- outstanding calls --------------------------------------------------------------------- */

static struct call *take_call(struct ipc_conn *c, uint32_t seq) {
        for (struct call **at = &c->calls; *at; at = &(*at)->next)
                if ((*at)->seq == seq) {
                        struct call *call = *at;
                        *at = call->next;
                        return call;
                }
        return NULL;
}

static void fail_call(struct call *call, int code, const char *text) {
        struct error e = ERROR_INIT;
        (void) error_set(&e, code, "%s", text);
        ipc_reply_cb cb = call->cb;
        void *arg = call->arg;
        free(call);
        cb(arg, code, &e, NULL);
}

static void fail_all_calls(struct ipc_conn *c, int code, const char *text) {
        /* One at a time from the list: a callback that frees the connection empties it. */
        while (c->calls) {
                struct call *call = c->calls;
                c->calls = call->next;
                fail_call(call, code, text);
        }
}

static void arm_timer(struct ipc_conn *c);

static void on_timer(uv_timer_t *timer) {
        struct ipc_conn *c = timer->data;
        uint64_t now = uv_now(timer->loop);
        for (;;) {
                struct call *due = NULL;
                for (struct call *call = c->calls; call; call = call->next)
                        if (call->deadline && call->deadline <= now) {
                                due = call;
                                break;
                        }
                if (!due)
                        break;
                fail_call(take_call(c, due->seq), -ETIMEDOUT, "no answer in time");
        }
        arm_timer(c);
}

static void arm_timer(struct ipc_conn *c) {
        if (c->dead)
                return;
        uint64_t first = 0;
        for (struct call *call = c->calls; call; call = call->next)
                if (call->deadline && (!first || call->deadline < first))
                        first = call->deadline;
        if (!first) {
                uv_timer_stop(&c->timer);
                return;
        }
        uint64_t now = uv_now(c->timer.loop);
        (void) uv_timer_start(&c->timer, on_timer, first > now ? first - now : 0, 0);
}

/* ---- end ----------------------------------------------------------------------------------- */

/* It may have held a secret. */
static void queued_free(struct queued *q) {
        explicit_bzero(q->body, q->p.body_n);
        free(q);
}

static void drop_queue(struct ipc_conn *c) {
        while (c->head) {
                struct queued *q = c->head;
                c->head = q->next;
                ipc_packet_close_fds(&q->p);
                queued_free(q);
        }
        c->tail = &c->head;
        c->queued_bytes = 0;
}

static void silence(struct ipc_conn *c) {
        c->dead = true;
        uv_poll_stop(&c->poll);
        uv_timer_stop(&c->timer);
        drop_queue(c);
}

/* err 0: the peer closed. */
static void end(struct ipc_conn *c, int err) {
        if (c->dead)
                return;
        silence(c);
        char text[ERROR_MSG_MAX];
        const char *peer = c->handler->peer ? c->handler->peer : "the other program";
        (void) snprintf(text, sizeof text, err ? "the connection to %s broke" : "%s ended before it answered", peer);
        fail_all_calls(c, err ? err : -ECONNRESET, text);
        if (!c->freed && c->handler->on_close)
                c->handler->on_close(c->arg, c, err);
}

static void on_handle_closed(uv_handle_t *h) {
        struct ipc_conn *c = h->data;
        if (--c->open_handles > 0)
                return;
        free(c->in);
        free(c);
}

void ipc_conn_free(struct ipc_conn *c) {
        if (!c || c->freed)
                return;
        c->freed = true;
        silence(c);
        uv_close((uv_handle_t *) &c->poll, on_handle_closed);
        uv_close((uv_handle_t *) &c->timer, on_handle_closed);
        c->fd = fd_close(c->fd);
        fail_all_calls(c, -ECANCELED, "connection given up");
}

/* ---- sending ------------------------------------------------------------------------------- */

static void on_poll(uv_poll_t *poll, int status, int events);

static void watch(struct ipc_conn *c) {
        (void) uv_poll_start(&c->poll, UV_READABLE | (c->head ? UV_WRITABLE : 0), on_poll);
}

static int enqueue(struct ipc_conn *c, const struct ipc_packet *p) {
        size_t size = sizeof(struct queued) + p->body_n;
        if (size > QUEUE_MAX - c->queued_bytes)
                return -ENOBUFS;
        struct queued *q = malloc(size);
        if (!q)
                return -ENOMEM;
        *q = (struct queued){ .p = *p };
        q->p.body = q->body;
        q->p.n_fds = 0;
        if (p->body_n > 0)
                memcpy(q->body, p->body, p->body_n);
        for (size_t i = 0; i < p->n_fds; i++) {
                int copy = fcntl(p->fds[i], F_DUPFD_CLOEXEC, 0);
                if (copy < 0) {
                        int r = -errno;
                        ipc_packet_close_fds(&q->p);
                        free(q);
                        return r;
                }
                q->p.fds[q->p.n_fds++] = copy;
        }
        *c->tail = q;
        c->tail = &q->next;
        c->queued_bytes += size;
        watch(c);
        return 0;
}

static int put(struct ipc_conn *c, uint16_t type, uint16_t flags, uint32_t seq, const void *body,
               size_t body_n, const int *fds, size_t n_fds) {
        if (c->dead)
                return -ENOTCONN;
        if (n_fds > IPC_FDS_MAX || body_n > IPC_PACKET_MAX)
                return -EMSGSIZE;
        if (!c->head) {
                int r = ipc_send(c->fd, type, flags, seq, body, body_n, fds, n_fds, NULL);
                if (r == -EPIPE || r == -ECONNRESET)
                        return -ENOTCONN; /* it has gone, and on_close will say so */
                if (r != -EAGAIN)
                        return r;
        }
        struct ipc_packet p = {
                .type = type, .flags = flags, .seq = seq, .body = body, .body_n = body_n, .n_fds = n_fds
        };
        if (n_fds > 0)
                memcpy(p.fds, fds, n_fds * sizeof *fds);
        return enqueue(c, &p);
}

static int flush(struct ipc_conn *c) {
        while (c->head) {
                struct queued *q = c->head;
                int r = ipc_send(c->fd, q->p.type, q->p.flags, q->p.seq, q->p.body, q->p.body_n, q->p.fds,
                                 q->p.n_fds, NULL);
                if (r == -EAGAIN)
                        return 0;
                if (r < 0)
                        return r;
                c->head = q->next;
                if (!c->head)
                        c->tail = &c->head;
                c->queued_bytes -= sizeof *q + q->p.body_n;
                ipc_packet_close_fds(&q->p);
                queued_free(q);
        }
        watch(c);
        return 0;
}

int ipc_conn_call(struct ipc_conn *c, uint16_t type, const void *body, size_t body_n, const int *fds,
                  size_t n_fds, unsigned timeout_ms, ipc_reply_cb cb, void *arg) {
        struct call *call = malloc(sizeof *call);
        if (!call)
                return -ENOMEM;
        do
                c->last_seq++;
        while (c->last_seq == 0); /* 0 is that of events */
        *call = (struct call){ .next = c->calls, .seq = c->last_seq, .cb = cb, .arg = arg };
        int r = put(c, type, 0, call->seq, body, body_n, fds, n_fds);
        if (r < 0) {
                free(call);
                return r;
        }
        if (timeout_ms > 0) {
                uv_update_time(c->timer.loop);
                call->deadline = uv_now(c->timer.loop) + timeout_ms;
        }
        c->calls = call;
        arm_timer(c);
        return 0;
}

int ipc_conn_reply(struct ipc_conn *c, const struct ipc_packet *request, const void *body, size_t body_n,
                   const int *fds, size_t n_fds) {
        return put(c, request->type, IPC_FLAG_REPLY, request->seq, body, body_n, fds, n_fds);
}

int ipc_conn_reply_error(struct ipc_conn *c, const struct ipc_packet *request, const struct error *e) {
        struct ipc_error m = { .code = e->code < 0 ? (uint32_t) - (int64_t) e->code : EIO };
        if (m.code > 4095)
                m.code = EIO;
        memcpy(m.message, e->msg, sizeof m.message);
        m.message[sizeof m.message - 1] = 0;
        uint8_t body[sizeof m + 16];
        size_t n;
        int r = ipc_error_encode(&m, body, sizeof body, &n);
        if (r < 0)
                return r;
        return put(c, request->type, IPC_FLAG_REPLY | IPC_FLAG_ERROR, request->seq, body, n, NULL, 0);
}

int ipc_conn_event(struct ipc_conn *c, uint16_t type, const void *body, size_t body_n) {
        return put(c, type, 0, 0, body, body_n, NULL, 0);
}

/* ---- receiving ----------------------------------------------------------------------------- */

static void deliver_reply(struct ipc_conn *c, struct ipc_packet *p) {
        struct call *call = take_call(c, p->seq);
        if (!call)
                return;
        arm_timer(c);
        if (p->flags & IPC_FLAG_ERROR) {
                struct ipc_error m;
                if (ipc_error_decode(p->body, p->body_n, &m) < 0 || m.code == 0)
                        fail_call(call, -EPROTO, "peer sent an unreadable error");
                else
                        fail_call(call, -(int) m.code, m.message);
                return;
        }
        ipc_reply_cb cb = call->cb;
        void *arg = call->arg;
        free(call);
        cb(arg, 0, NULL, p);
}

static void deliver(struct ipc_conn *c, struct ipc_packet *p) {
        if (p->flags & (IPC_FLAG_REPLY | IPC_FLAG_ERROR))
                deliver_reply(c, p);
        else
                c->handler->on_packet(c->arg, c, p);
        ipc_packet_close_fds(p); /* those that were not taken */
}

static void on_poll(uv_poll_t *poll, int status, int events) {
        struct ipc_conn *c = poll->data;
        /* A peer that answered and closed at once: its answer is still in the queue, so neither a
         * failed write nor libuv's EBADF for EPOLLERR is the end; what reading says is. */
        if ((events & UV_WRITABLE) && flush(c) < 0) {
                drop_queue(c);
                watch(c);
        }
        for (int i = 0; (i < READS_PER_TURN || status < 0) && !c->dead; i++) {
                struct ipc_packet p;
                int r = ipc_recv(c->fd, c->in, &p, NULL);
                if (r == -ECONNRESET) /* the peer left our packets unread; told once, then come its own */
                        r = ipc_recv(c->fd, c->in, &p, NULL);
                if (r == -EAGAIN && status == 0)
                        return;
                if (r <= 0) {
                        end(c, r == -EAGAIN ? status : r);
                        return;
                }
                deliver(c, &p);
        }
}

int ipc_conn_new(uv_loop_t *loop, int fd, const struct ipc_conn_handler *h, void *arg, struct ipc_conn **ret,
                 struct error *err) {
        _cleanup_fd_ int own = fd;
        _cleanup_free_ struct ipc_conn *c = calloc(1, sizeof *c);
        _cleanup_free_ uint8_t *in = malloc(IPC_PACKET_MAX);
        if (!c || !in)
                return error_set(err, -ENOMEM, "out of memory");
        int r = uv_poll_init(loop, &c->poll, own);
        if (r < 0)
                return error_errno(err, r, "could not watch a connection");
        (void) uv_timer_init(loop, &c->timer);
        c->poll.data = c;
        c->timer.data = c;
        c->open_handles = 2;
        c->fd = fd_steal(&own);
        c->handler = h;
        c->arg = arg;
        c->in = STEAL(in);
        c->tail = &c->head;
        watch(c);
        *ret = STEAL(c);
        return 0;
}
