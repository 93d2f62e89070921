/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* One connection of http.c (the guest's side and the whole) and http_response.c (upstream's side). */

#include "exchange.h"
#include "http.h"
#include "refusal.h"
#include "upstream.h"
#include "wire/http1.h"

enum http_state {
        HTTP_IDLE,     /* between requests, or a head is arriving */
        HTTP_OPENING,  /* a request waits for its upstream connection; nothing is read from the guest's input */
        HTTP_EXCHANGE, /* the request's body and the response pass through */
        HTTP_REFUSED,  /* answered here; the rest of the request is swallowed */
        HTTP_TUNNEL,   /* upgraded */
        HTTP_LINGER,   /* our side has ended; what the guest still sends is dropped until it ends too */
        HTTP_CLOSED,
};

/* From a request's head to the end of its response. */
struct http_exchange {
        struct exchange x;
        struct buf head;           /* as it goes out; kept until an answer begins, for a second try */
        bool is_head, chunked, expects, minor0, keep_alive, idempotent;
        bool request_done;         /* all of it is read from the guest */
        bool send_failed;          /* upstream takes no more; its answer is awaited */
        bool answer_began;         /* a final response's head went to the guest */
        bool answer_chunked;       /* written in chunks */
        bool retried;
        unsigned interim;
        size_t swallowed;
};

struct http {
        struct gateway *gw;
        struct http_peer peer;
        struct stream *guest;
        struct http1_parser *parser;
        enum http_state state;
        const uint8_t *slice; /* being delivered by the guest's stream */
        size_t slice_n;
        struct buf pending;   /* before the slice */
        bool guest_eof;
        bool running;
        bool mid_head;        /* a head has begun to arrive */
        uv_timer_t timer;
        uint64_t deadline_ms;
        struct upstream_opening *opening;
        struct upstream *up;
        bool up_keep;         /* it can serve another request after this one */
        bool up_ended;        /* of a tunnel */
        struct http_exchange x;
        uint64_t bytes_out, bytes_in;
        void (*on_end)(void *arg);
        void *arg;
};

/* http.c */
/* Closes everything and tells the owner. h itself lives until the loop's turn is over, so that callers may
 * look at its state afterwards. */
void http_end(struct http *h, bool reset);
void http_run(struct http *h);              /* goes on with the guest's input */
void http_touch(struct http *h, uint64_t ms); /* a new deadline */
bool http_count(struct http *h, uint64_t out, uint64_t in); /* false: over a limit, and h has ended */
void http_refuse(struct http *h, const struct refusal *r);
void http_exchange_done(struct http *h);    /* the response is complete */
/* Closes the exchange's record. */
void http_record(struct http *h, bool allowed, enum policy_reason reason, const char *detail);

/* http_request.c: judges and rewrites a head. False: *ret says why not. */
bool http_judge(struct http *h, const struct http1_head *head, struct refusal *ret);

/* http_response.c */
void http_attach(struct http *h, struct upstream *u); /* and sends the head */
void http_detach(struct http *h, bool keep);
int http_open(struct http *h);                        /* a new upstream connection for x */
void http_tunnel_from_guest(struct http *h, const uint8_t *data, size_t n);
