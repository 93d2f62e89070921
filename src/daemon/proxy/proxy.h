/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * HTTP from clients into sandboxes. proxy_serve() takes an exchange of the API server and answers
 * it with what a port of a sandbox says; proxy_call() is for the daemon's own short requests to
 * the agent. Both keep connections to the agent's port open between requests (opening a guest
 * stream costs milliseconds where the VM is emulated).
 */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/error.h"
#include "dial.h"
#include "io/http_server.h"

/* How long an agent may be silent. Clients wait 30 s: they must be told that it is the guest that does not answer. */
#define AGENT_TIMEOUT_MS 20000
#define AGENT_SILENT_TEXT "the guest does not answer: its agent has been silent for %d s"

struct proxy;

/* run_dir: sandboxes are reached at <run_dir>/sandboxes/<id>/data.sock. */
int proxy_new(uv_loop_t *loop, const char *run_dir, struct proxy **ret, struct error *err);
void proxy_free(struct proxy *p); /* breaks everything off; NULL is fine */

/* The sandbox ends or must not be reached any more: answers under way are broken off without a
 * proper end, exchanges without an answer get 502, connections are closed, calls fail. To be called
 * before the sandbox is taken down, so that a client never sees a clean end of a lost answer. */
void proxy_drop(struct proxy *p, const char *id);

/* Whether exchanges with the sandbox are open, those of the daemon itself left out; and the end of one. */
bool proxy_busy(struct proxy *p, const char *id);
void proxy_on_end(struct proxy *p, void (*fn)(void *arg, const char *id), void *arg);

enum proxy_errors {
        PROXY_ERRORS_E2B,    /* {"sandboxId","message","code":502} */
        PROXY_ERRORS_NATIVE, /* {"error":{"code","message"}} */
};

struct proxy_target {
        const char *id;           /* of a sandbox that exists and runs: the caller has looked */
        uint16_t port;
        const char *target;       /* request target to send instead of the client's; NULL: as it came */
        const char *access_token; /* X-Access-Token in place of the client's; NULL: the client's own */
        bool strip_auth;          /* the Authorization field held an API key: not for the guest */
        const char *peer;         /* client's address for X-Forwarded-For; may be NULL */
        enum proxy_errors errors;
        unsigned stall_ms;        /* given up when the guest lets so long pass without any progress; 0: never */
};

/* Answers x, in full or by breaking it off; the caller has not set ops and forgets x. Strings of t
 * are copied. Bodies are streamed both ways in constant memory, upgrades are passed through. */
void proxy_serve(struct proxy *p, struct http_x *x, const struct proxy_target *t);

/* Sandbox traffic as a client outside may send it: for port AGENT_PORT only the paths of the envd
 * protocol are served (404 for all else: the agent's internal services stay internal). */
void proxy_serve_traffic(struct proxy *p, struct http_x *x, const struct proxy_target *t);

/* The error answers of sandbox traffic, for those who decide before it comes to proxying. */
void proxy_refuse_not_found(struct http_x *x, const char *id);

/* --- the daemon's own requests to the agent ------------------------------------------------ */

struct proxy_request {
        const char *id;
        const char *method, *target;
        const char *access_token; /* may be NULL */
        const char *content_type; /* of body; NULL: application/json */
        const void *body;
        size_t body_n;
        size_t max_answer;    /* a longer body fails the call with -EMSGSIZE */
        unsigned timeout_ms;  /* for everything together; 0: AGENT_TIMEOUT_MS */
};

/* Called once, later. err 0: the answer whatever its status is; body is NUL-terminated (not
 * counted) and borrowed. Else e has the text. */
typedef void (*proxy_call_cb)(void *arg, int err, const struct error *e, int status, const char *body, size_t n);

struct proxy_call;
int proxy_call(struct proxy *p, const struct proxy_request *r, proxy_call_cb cb, void *arg, struct proxy_call **ret,
               struct error *err);
void proxy_call_cancel(struct proxy_call *c); /* before cb was called; NULL is fine */

/* A raw stream to a port, e.g. to upgrade it to attach frames. See dial.h. */
int proxy_dial(struct proxy *p, const char *id, uint16_t port, dial_cb cb, void *arg, struct dial **ret,
               struct error *err);
