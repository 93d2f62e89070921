/* SPDX-License-Identifier: Apache-2.0 */
#include "dial.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/fd.h"

/* One connect() under way. */
struct attempt {
        uv_poll_t poll;
        struct dial *d;
        int fd;
};

struct dial {
        struct dial_request req;
        struct resolve_query *query;
        struct attempt *attempt;
        uv_timer_t timer; /* the first turn, then the deadline of what is under way */
        bool started;
        struct in_addr addrs[RESOLVE_ADDRESSES_MAX];
        int n, next;
        uint64_t until_ms;
        struct dial_result result;
        dial_cb cb;
        void *arg;
};

static void on_timer_closed(uv_handle_t *h) {
        struct dial *d = h->data;
        policy_unref(d->req.policy);
        free(d);
}

static void on_attempt_closed(uv_handle_t *h) {
        free(h->data);
}

/* Returns the descriptor, which is the caller's now. */
static int end_attempt(struct dial *d) {
        struct attempt *a = STEAL(d->attempt);
        if (!a)
                return -EBADF;
        int fd = a->fd;
        uv_poll_stop(&a->poll);
        uv_close((uv_handle_t *) &a->poll, on_attempt_closed);
        return fd;
}

static void release(struct dial *d) {
        resolver_cancel(STEAL(d->query));
        (void) fd_close(end_attempt(d));
        uv_close((uv_handle_t *) &d->timer, on_timer_closed);
}

static void finish(struct dial *d, int fd) {
        d->result.fd = fd;
        struct dial_result r = d->result;
        dial_cb cb = d->cb;
        void *arg = d->arg;
        release(d);
        cb(arg, &r);
}

static void fail(struct dial *d, enum policy_reason reason) {
        d->result.reason = reason;
        finish(d, -EBADF);
}

static void try_next(struct dial *d);

static void on_connected(uv_poll_t *h, int status, int events) {
        struct attempt *a = h->data;
        struct dial *d = a->d;
        int e = 0;
        socklen_t len = sizeof e;
        (void) status;
        (void) events;
        if (getsockopt(a->fd, SOL_SOCKET, SO_ERROR, &e, &len) < 0)
                e = errno;
        int fd = end_attempt(d);
        if (e == 0) {
                finish(d, fd);
                return;
        }
        (void) fd_close(fd);
        d->result.error = -e;
        try_next(d);
}

static void on_timer(uv_timer_t *t);

static void arm(struct dial *d, uint64_t ms) {
        uint64_t now = uv_now(d->req.loop), left = d->until_ms > now ? d->until_ms - now : 0;
        (void) uv_timer_start(&d->timer, on_timer, ms < left ? ms : left, 0);
}

const char *dial_detail(const struct dial_result *r) {
        if (r->reason == REASON_RESOLVE_FAILED && r->error == -ENOENT)
                return "there is no such name, or it has no IPv4 address";
        if (r->reason == REASON_RESOLVE_FAILED && r->error == -EIO)
                return "the name servers gave no answer that could be used";
        return r->error ? strerror(-r->error) : "";
}

static int begin(struct dial *d, struct in_addr addr) {
        struct sockaddr_in sa = { .sin_family = AF_INET, .sin_port = htons(d->req.port), .sin_addr = addr };
        _cleanup_fd_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return -errno;
        if (connect(fd, (const struct sockaddr *) &sa, sizeof sa) < 0 && errno != EINPROGRESS)
                return -errno;
        struct attempt *a = calloc(1, sizeof *a);
        if (!a)
                return -ENOMEM;
        int r = uv_poll_init(d->req.loop, &a->poll, fd);
        if (r < 0) {
                free(a);
                return r;
        }
        a->poll.data = a;
        a->d = d;
        a->fd = fd_steal(&fd);
        d->attempt = a;
        (void) uv_poll_start(&a->poll, UV_WRITABLE, on_connected);
        arm(d, DIAL_CONNECT_MS);
        return 0;
}

/* The next address that may be dialled. One that may not ends it all: a name that resolves into forbidden
 * ranges is an attack or a mistake, and which of its addresses was used must not depend on chance. */
static void try_next(struct dial *d) {
        while (d->next < d->n) {
                struct in_addr addr = d->addrs[d->next++];
                int r = begin(d, addr);
                if (r == 0) {
                        d->result.address = address_of_v4(addr);
                        return;
                }
                d->result.error = r;
        }
        fail(d, d->result.error == -ETIMEDOUT ? REASON_TIMEOUT : REASON_CONNECT_FAILED);
}

static void judge_and_try(struct dial *d) {
        for (int i = 0; i < d->n; i++) {
                struct address a = address_of_v4(d->addrs[i]);
                d->result.verdict = policy_address(d->req.policy, &d->req.allowed, &a, d->req.port, d->req.protocol,
                                                   d->req.own, &d->result.class);
                d->result.address = a;
                d->result.has_address = true;
                if (d->result.verdict.outcome != POLICY_ALLOW) {
                        fail(d, d->result.verdict.reason);
                        return;
                }
        }
        try_next(d);
}

static void on_resolved(void *arg, int n, const struct in_addr *addrs) {
        struct dial *d = arg;
        d->query = NULL;
        if (n <= 0) {
                d->result.error = n;
                fail(d, n == -ETIMEDOUT ? REASON_TIMEOUT : REASON_RESOLVE_FAILED);
                return;
        }
        d->n = n;
        memcpy(d->addrs, addrs, (size_t) n * sizeof *addrs);
        judge_and_try(d);
}

static void start(struct dial *d) {
        d->started = true;
        if (d->req.host.kind == HOST_IPV4) {
                d->addrs[0] = d->req.host.addr;
                d->n = 1;
                judge_and_try(d);
                return;
        }
        arm(d, DIAL_TOTAL_MS);
        struct resolve_query *q;
        resolver_ask(d->req.resolver, d->req.host.name, on_resolved, d, &q);
        if (q)
                d->query = q;
}

static void on_timer(uv_timer_t *t) {
        struct dial *d = t->data;
        if (!d->started) {
                start(d);
                return;
        }
        d->result.error = -ETIMEDOUT;
        if (d->query || uv_now(d->req.loop) >= d->until_ms) {
                fail(d, REASON_TIMEOUT);
                return;
        }
        (void) fd_close(end_attempt(d));
        try_next(d);
}

int dial(const struct dial_request *req, dial_cb cb, void *arg, struct dial **ret) {
        struct dial *d = calloc(1, sizeof *d);
        if (!d)
                return -ENOMEM;
        d->req = *req;
        d->req.policy = req->policy ? policy_ref(req->policy) : NULL;
        d->cb = cb;
        d->arg = arg;
        d->result.fd = -EBADF;
        (void) uv_timer_init(req->loop, &d->timer);
        d->timer.data = d;
        uv_update_time(req->loop);
        d->until_ms = uv_now(req->loop) + DIAL_TOTAL_MS;
        (void) uv_timer_start(&d->timer, on_timer, 0, 0);
        *ret = d;
        return 0;
}

void dial_cancel(struct dial *d) {
        if (d)
                release(d);
}
