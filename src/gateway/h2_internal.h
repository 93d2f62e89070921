/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* One connection of h2.c (the whole, and the guest's session) and h2_up.c (upstream's session). */

#include <nghttp2/nghttp2.h>
#include <sys/queue.h>

#include "exchange.h"
#include "h2.h"
#include "h2_head.h"
#include "upstream.h"

/* Bytes on their way from one session to the other. */
struct h2_flow {
        struct buf data;
        size_t uncredited;  /* taken out of data, and not yet given back to the sender's window */
        size_t owed;        /* received and not yet given back */
        bool end;           /* no more comes */
        bool has_trailers;
        struct h2_head trailers;
        bool waiting;       /* the sending session was told that there is nothing */
};

struct h2_pair {
        TAILQ_ENTRY(h2_pair) entry;
        struct h2 *h;
        struct exchange x;
        int32_t guest_id, up_id;  /* up_id 0: not opened */
        bool guest_open, up_open; /* the sessions still have the stream */
        bool refused;             /* answered here */
        bool answer_began;
        bool finished;            /* the record is written */
        unsigned interim;
        struct h2_head in;        /* arriving: of the request, then of its trailers */
        struct h2_head out;       /* the request as it goes out, until it is sent */
        struct h2_head up_in;     /* arriving from upstream */
        struct h2_flow to_up, to_guest;
};

struct h2 {
        struct gateway *gw;
        struct http_peer peer;
        struct stream *guest;
        nghttp2_session *session; /* the guest's */
        struct upstream_opening *opening;
        struct upstream *up;
        nghttp2_session *up_session;
        struct policy_verdict verdict; /* that upstream is opened by */
        char rule[POLICY_NAME_MAX + 1];
        TAILQ_HEAD(, h2_pair) pairs;
        size_t n_pairs;
        uv_timer_t timer;
        uint64_t deadline_ms;
        bool closed, flushing, in_recv, ending, up_lost;
        uint64_t bytes_out, bytes_in;
        void (*on_end)(void *arg);
        void *arg;
};

/* h2.c */
void h2_end(struct h2 *h, bool reset);
void h2_flush(struct h2 *h);
bool h2_count(struct h2_pair *p, uint64_t out, uint64_t in); /* false: over a limit, p was reset */
void h2_refuse(struct h2_pair *p, enum policy_reason reason, const struct policy_verdict *v, const char *detail);
void h2_reset(struct h2_pair *p, uint32_t code);
void h2_finish(struct h2_pair *p, bool allowed, enum policy_reason reason, const char *detail);
void h2_release(struct h2_pair *p); /* when neither session has the stream any more */
/* What a data source of either session does: bytes, the end, and trailers behind it. */
ssize_t h2_read(nghttp2_session *s, int32_t id, struct h2_flow *f, uint8_t *out, size_t n, uint32_t *flags);
ssize_t h2_read_for_guest(nghttp2_session *s, int32_t id, uint8_t *out, size_t n, uint32_t *flags, nghttp2_data_source *source,
                          void *user); /* the source is the pair */
void h2_credit(struct h2_pair *p); /* gives back what was taken out */
int h2_new_session(struct h2 *h, bool server, nghttp2_session **ret);

/* h2_up.c */
void h2_send_request(struct h2_pair *p);   /* opens upstream if need be */
void h2_resume_up(struct h2_pair *p);      /* there is more in to_up */
void h2_drop_up(struct h2 *h, enum policy_reason reason, const char *detail);
int h2_up_callbacks(nghttp2_session_callbacks *cb);
