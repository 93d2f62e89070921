/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Theory of operation
 *
 * An exchange joins one http_x (client side) and one http_call (guest side).
 *
 *   connect   the request body is held back while a connection is found: a kept one, or a new one
 *             that may be tried several times. Nothing of the body is lost to a retry.
 *   forward   body pieces go to the call, answer pieces to the client; whichever queue is long
 *             stops the reading of the other side until it has drained
 *   splice    after 101 both connections leave HTTP and are joined byte for byte
 *   over      the answer is complete or refused: what the client still sends is thrown away; the
 *             exchange waits for on_done
 *
 * An answer that the guest did not finish is broken off (http_x_abort()), never ended: the client
 * must be able to tell half an answer from a whole one. A request is sent a second time only when
 * the guest cannot have acted on it: no byte of an answer came, the connection was a kept one, and
 * the method is one that may be repeated.
 *
 * The server tells the end of an http_x (on_done, on_abort) from the loop, never from inside a
 * call, but for http_x_upgrade(), which tells it before it returns.
 */
#include "proxy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "guest.h"
#include "io/http_client.h"
#include "proxy_head.h"
#include "proxy_internal.h"
#include "router.h"
#include "splice.h"
#include "timer.h"

struct exchange {
        struct guest_user user; /* first: on_drop gets it */
        struct proxy *proxy;
        struct http_x *x; /* NULL once over or spliced */
        struct guest_dial *dial;
        struct http_call *call;
        struct splice *splice;
        struct proxy_target t; /* strings are copies */
        bool kept;             /* the call uses a kept connection */
        bool upgrade;          /* the client asked for one and may have it */
        bool request_ended;
        bool answered;  /* the head of an answer is on its way to the client */
        bool upgrading; /* inside http_x_upgrade() */
        struct timer *stall;
        uint64_t moved_ms; /* loop time at which something went through, either way */
};

int proxy_new(uv_loop_t *loop, const char *run_dir, struct proxy **ret, struct error *err) {
        struct proxy *p = calloc(1, sizeof(*p));

        if (!p)
                return error_set(err, -ENOMEM, "no memory for the proxy");
        int r = guests_new(loop, run_dir, &p->guests, err);
        if (r < 0) {
                free(p);
                return r;
        }
        *ret = p;
        return 0;
}

void proxy_free(struct proxy *p) {
        if (!p)
                return;
        guests_free(p->guests);
        free(p);
}

void proxy_drop(struct proxy *p, const char *id) {
        guests_drop(p->guests, id);
}

bool proxy_busy(struct proxy *p, const char *id) {
        return guests_busy(p->guests, id);
}

void proxy_on_end(struct proxy *p, void (*fn)(void *arg, const char *id), void *arg) {
        guests_on_end(p->guests, fn, arg);
}

int proxy_dial(struct proxy *p, const char *id, uint16_t port, dial_cb cb, void *arg, struct dial **ret,
               struct error *err) {
        char path[LIMIT_PATH];

        if (guests_sock_path(p->guests, id, path, sizeof(path)) < 0)
                return error_set(err, -ENAMETOOLONG, "the run folder's path is too long");
        return dial_open(guests_loop(p->guests), path, port, cb, arg, ret, err);
}

/* --- refusals ------------------------------------------------------------------------------ */

static json_t *refusal_json(enum proxy_errors form, const char *id, int status, const char *code,
                            const char *message, unsigned port) {
        if (form == PROXY_ERRORS_NATIVE)
                return json_pack("{s:{s:s,s:s}}", "error", "code", code, "message", message);
        json_t *j = json_pack("{s:s,s:s,s:i}", "sandboxId", id, "message", message, "code", status);
        if (j && port)
                (void) json_object_set_new(j, "port", json_integer(port));
        return j;
}

static void refuse_x(struct http_x *x, enum proxy_errors form, const char *id, int status, const char *code,
                     const char *message, unsigned port) {
        static const struct http_header type = { "Content-Type", "application/json" };
        _cleanup_json_ json_t *j = refusal_json(form, id, status, code, message, port);
        _cleanup_free_ char *text = j ? json_to_str(j) : NULL;

        if (http_x_respond(x, status, &type, 1, text, text ? strlen(text) : 0) < 0)
                http_x_abort(x);
}

void proxy_refuse_not_found(struct http_x *x, const char *id) {
        refuse_x(x, PROXY_ERRORS_E2B, id, 502, NULL, "The sandbox was not found", 0);
}

/* --- end of an exchange -------------------------------------------------------------------- */

/* Lets go of the guest side. */
static void detach(struct exchange *ex) {
        timer_cancel(ex->stall);
        ex->stall = NULL;
        guest_dial_cancel(ex->dial);
        ex->dial = NULL;
        http_call_free(ex->call);
        ex->call = NULL;
        guest_leave(&ex->user);
}

static void exchange_free(struct exchange *ex) {
        detach(ex);
        splice_break(ex->splice);
        free((void *) (uintptr_t) ex->t.id);
        free((void *) (uintptr_t) ex->t.target);
        free((void *) (uintptr_t) ex->t.access_token);
        free((void *) (uintptr_t) ex->t.peer);
        free(ex);
}

static void exchange_refuse(struct exchange *ex, int status, const char *code, const char *message, bool with_port) {
        struct http_x *x = ex->x;

        detach(ex);
        ex->answered = true;
        http_x_read_resume(x);
        refuse_x(x, ex->t.errors, ex->t.id, status, code, message, with_port ? ex->t.port : 0);
}

static void exchange_break(struct exchange *ex) {
        detach(ex);
        http_x_abort(ex->x);
}

/* The guest side failed with a negative errno before there was anything of an answer. */
static void exchange_unreachable(struct exchange *ex, int err) {
        const char *why = ex->call ? http_call_reason(ex->call) : NULL;

        /* Not the target: it may hold a signature. */
        log_debug("sandbox %s, port %u: %s without an answer over %s connection: %s", ex->t.id, ex->t.port,
                  http_x_head(ex->x)->method, ex->kept ? "a kept" : "a new", why ? why : strerror(-err));
        if (err == -ECONNREFUSED && ex->t.port != AGENT_PORT)
                exchange_refuse(ex, 502, "port_closed", "The sandbox is running but port is not open", true);
        else if (err == -ENOENT)
                exchange_refuse(ex, 502, "guest_unreachable", "The sandbox was not found", false);
        else if (err == -ENOMEM)
                exchange_refuse(ex, 503, "unavailable", "The server is out of memory", false);
        else if (err == -ETIMEDOUT)
                exchange_refuse(ex, 504, "guest_timeout", "The sandbox did not answer in time", false);
        else if (err == -EPROTO && ex->call) {
                char text[192];
                (void) snprintf(text, sizeof text, "The answer of port %u of the sandbox is not proper HTTP: %.100s",
                                ex->t.port, why ? why : "it cannot be read");
                exchange_refuse(ex, 502, "guest_protocol", text, false);
        } else
                exchange_refuse(ex, 502, "guest_unreachable", "The sandbox closed the connection without an answer",
                                false);
}

/* --- a guest that does nothing ------------------------------------------------------------- */

static void moved(struct exchange *ex) {
        ex->moved_ms = uv_now(guests_loop(ex->proxy->guests));
}

/* Nothing can move because the client does not read, or has not sent what comes next. */
static bool clients_turn(const struct exchange *ex) {
        return http_x_queued(ex->x) > 0 || (ex->call && !ex->request_ended && http_call_queued(ex->call) == 0);
}

static void on_stall(void *arg) {
        struct exchange *ex = arg;
        uv_loop_t *loop = guests_loop(ex->proxy->guests);

        ex->stall = NULL;
        if (!ex->x)
                return; /* spliced: not ours to judge */
        if (clients_turn(ex))
                moved(ex);
        uint64_t still = uv_now(loop) - ex->moved_ms;
        if (still < ex->t.stall_ms) {
                ex->stall = timer_start(loop, ex->t.stall_ms - still, on_stall, ex);
                return;
        }
        char text[128];
        (void) snprintf(text, sizeof text, AGENT_SILENT_TEXT, (int) (ex->t.stall_ms / 1000));
        if (ex->answered)
                exchange_break(ex);
        else
                exchange_refuse(ex, 504, "guest_timeout", text, false);
}

/* --- client to guest ----------------------------------------------------------------------- */

static void on_x_body(void *arg, const uint8_t *data, size_t n) {
        struct exchange *ex = arg;

        if (!ex->call)
                return;
        moved(ex);
        /* -EPIPE: the guest takes no more; what it has to say comes as an answer or an error. */
        int r = http_call_write(ex->call, data, n);
        if (r < 0 && r != -EPIPE)
                return exchange_break(ex);
        if (http_call_queued(ex->call) > STREAM_HIGH_WATER)
                http_x_read_pause(ex->x);
}

static void on_x_end(void *arg) {
        struct exchange *ex = arg;

        ex->request_ended = true;
        moved(ex);
        int r = ex->call ? http_call_end(ex->call) : 0;
        if (r < 0 && r != -EPIPE)
                exchange_break(ex);
}

static void on_x_drain(void *arg) {
        struct exchange *ex = arg;

        moved(ex);
        if (ex->call)
                http_call_read_resume(ex->call);
}

/* A client that is gone shows nothing else until something is written to it, and what a guest
 * streams may be silent for hours. One that only shut down its sending side is taken for gone, as
 * proxies commonly do. */
static void on_x_eof(void *arg) {
        exchange_break(arg);
}

static void on_x_over(void *arg) {
        struct exchange *ex = arg;

        ex->x = NULL;
        if (!ex->upgrading)
                exchange_free(ex);
}

static const struct http_x_ops x_ops = {
        .on_body = on_x_body,
        .on_end = on_x_end,
        .on_drain = on_x_drain,
        .on_eof = on_x_eof,
        .on_abort = on_x_over,
        .on_done = on_x_over,
};

/* --- guest to client ----------------------------------------------------------------------- */

static void on_splice_end(void *arg) {
        struct exchange *ex = arg;

        ex->splice = NULL;
        exchange_free(ex);
}

/* Strings of ph live in the call until it is freed. */
static void exchange_splice(struct exchange *ex, const struct proxy_head *ph) {
        struct stream *guest = http_call_upgrade(ex->call), *client = NULL;

        ex->answered = true;
        ex->upgrading = true;
        int r = guest ? http_x_upgrade(ex->x, 101, ph->h, ph->n, &client) : -EPROTO;
        ex->upgrading = false;
        http_call_free(ex->call);
        ex->call = NULL;
        if (r < 0) {
                stream_abort(guest);
                if (ex->x)
                        exchange_break(ex);
                else
                        exchange_free(ex);
                return;
        }
        if (splice_new(client, guest, on_splice_end, ex, &ex->splice) < 0)
                exchange_free(ex);
}

/* A redirect would send a client with its key elsewhere; 401 would tell it that its key is wrong. */
static bool native_may_answer(const struct exchange *ex, int status) {
        if (ex->t.errors != PROXY_ERRORS_NATIVE)
                return true;
        return status != 401 && status != 407 && (status < 300 || status == 304 || status >= 400);
}

static void on_call_head(void *arg, const struct http1_head *head) {
        struct exchange *ex = arg;
        struct proxy_head ph;

        proxy_head_response(head, &ex->t, head->status == 101, &ph);
        if (head->status == 101) {
                if (ex->upgrade)
                        exchange_splice(ex, &ph);
                else
                        exchange_unreachable(ex, -EPROTO);
                return;
        }
        if (!native_may_answer(ex, head->status))
                return exchange_refuse(ex, 502, "guest_protocol", "The agent gave an answer that makes no sense", false);
        ex->answered = true;
        if (http_x_start(ex->x, head->status, ph.h, ph.n, head->content_length) < 0)
                exchange_break(ex);
}

static void on_call_body(void *arg, const uint8_t *data, size_t n) {
        struct exchange *ex = arg;

        moved(ex);
        if (http_x_write(ex->x, data, n) < 0)
                return exchange_break(ex);
        if (http_x_queued(ex->x) > STREAM_HIGH_WATER)
                http_call_read_pause(ex->call);
}

static void on_call_end(void *arg) {
        struct exchange *ex = arg;
        struct stream *s = http_call_reuse(ex->call);

        if (s && ex->t.port == AGENT_PORT)
                guest_give(ex->user.guest, s);
        else
                stream_close(s);
        detach(ex);
        http_x_read_resume(ex->x);
        if (http_x_end(ex->x) < 0)
                http_x_abort(ex->x);
}

static void on_call_drain(void *arg) {
        struct exchange *ex = arg;

        moved(ex);
        http_x_read_resume(ex->x);
}

static bool may_repeat(const struct exchange *ex) {
        const char *m = http_x_head(ex->x)->method;

        return ex->kept && (strcmp(m, "GET") == 0 || strcmp(m, "HEAD") == 0) && ex->request_ended;
}

static void exchange_connect(struct exchange *ex);

static void on_call_error(void *arg, int err) {
        struct exchange *ex = arg;

        if (ex->answered)
                exchange_break(ex);
        else if (may_repeat(ex)) {
                http_call_free(ex->call);
                ex->call = NULL;
                exchange_connect(ex);
        } else
                exchange_unreachable(ex, err);
}

static const struct http_call_ops call_ops = {
        .on_head = on_call_head,
        .on_body = on_call_body,
        .on_end = on_call_end,
        .on_drain = on_call_drain,
        .on_error = on_call_error,
};

/* --- connecting ---------------------------------------------------------------------------- */

static void exchange_send(struct exchange *ex, struct stream *s) {
        const struct http1_head *head = http_x_head(ex->x);
        struct proxy_head ph;
        int64_t length = head->chunked ? -1 : head->content_length > 0 ? head->content_length : 0;

        proxy_head_request(head, &ex->t, ex->upgrade, &ph);
        int r = http_call_new(guests_loop(ex->proxy->guests), s, head->method,
                              ex->t.target ? ex->t.target : head->target, ph.h, ph.n, length, &call_ops, ex,
                              &ex->call, NULL);
        if (r < 0) {
                ex->call = NULL;
                return exchange_unreachable(ex, r);
        }
        if (ex->request_ended)
                (void) http_call_end(ex->call);
        http_x_read_resume(ex->x);
}

static void on_dialled(void *arg, int err, struct stream *s) {
        struct exchange *ex = arg;

        ex->dial = NULL;
        if (err < 0) {
                exchange_unreachable(ex, err);
                return;
        }
        http_x_admit(ex->x); /* whoever knows a running sandbox's id */
        exchange_send(ex, s);
}

static void exchange_connect(struct exchange *ex) {
        struct guest *g = ex->user.guest;
        struct stream *s = ex->t.port == AGENT_PORT && !ex->kept ? guest_take(g) : NULL;

        ex->kept = s != NULL;
        if (s) {
                http_x_admit(ex->x);
                return exchange_send(ex, s);
        }
        int r = guest_dial(g, ex->t.port, on_dialled, ex, &ex->dial);
        if (r < 0)
                exchange_unreachable(ex, r);
}

static void on_drop(struct guest_user *u) {
        struct exchange *ex = (struct exchange *) u;

        if (!ex->x)
                exchange_free(ex);
        else if (ex->answered)
                exchange_break(ex);
        else
                exchange_unreachable(ex, -ENOENT);
}

static int copy_str(const char *s, const char **ret) {
        if (!s)
                return 0;
        *ret = strdup(s);
        return *ret ? 0 : -ENOMEM;
}

static struct exchange *exchange_new(struct proxy *p, struct http_x *x, const struct proxy_target *t) {
        struct exchange *ex = calloc(1, sizeof(*ex));

        if (!ex)
                return NULL;
        ex->proxy = p;
        ex->x = x;
        ex->user.on_drop = on_drop;
        ex->t.port = t->port;
        ex->t.strip_auth = t->strip_auth;
        ex->t.errors = t->errors;
        ex->t.stall_ms = t->stall_ms;
        if (copy_str(t->id, &ex->t.id) < 0 || copy_str(t->target, &ex->t.target) < 0 ||
            copy_str(t->access_token, &ex->t.access_token) < 0 || copy_str(t->peer, &ex->t.peer) < 0) {
                exchange_free(ex);
                return NULL;
        }
        return ex;
}

void proxy_serve(struct proxy *p, struct http_x *x, const struct proxy_target *t) {
        const struct http1_head *head = http_x_head(x);
        struct exchange *ex = exchange_new(p, x, t);

        if (!ex)
                return refuse_x(x, t->errors, t->id, 503, "unavailable", "The server is out of memory", 0);
        http_x_set_ops(x, &x_ops, ex);
        /* The agent's own upgrade (attach) is the daemon's to ask for, with a stream of its own. */
        ex->upgrade = head->upgrade && t->port != AGENT_PORT && !head->chunked && head->content_length <= 0;

        int r = guest_join(p->guests, t->id, &ex->user);
        if (r == -EBUSY)
                return exchange_refuse(ex, 429, "too_many", "Too many connections to the sandbox", false);
        if (r < 0)
                return exchange_unreachable(ex, r);
        http_x_read_pause(x);
        moved(ex);
        if (ex->t.stall_ms)
                ex->stall = timer_start(guests_loop(p->guests), ex->t.stall_ms, on_stall, ex);
        exchange_connect(ex);
}

void proxy_serve_traffic(struct proxy *p, struct http_x *x, const struct proxy_target *t) {
        if (t->port == AGENT_PORT && !router_agent_path_public(http_x_head(x)->target))
                refuse_x(x, t->errors, t->id, 404, "not_found", "The agent has no such path", 0);
        else
                proxy_serve(p, x, t);
}
