/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What link.c (session, handshake) and link_stream.c (one stream) share.
 *
 * No callback of an owner is ever made from inside an nghttp2 callback: those only put bytes and
 * flags into the stream and mark it dirty; link_work() then calls the owners, outside of nghttp2,
 * where they may close streams and free the link.
 */

#include <nghttp2/nghttp2.h>
#include <sys/queue.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "link/link.h"

#define LINK_NONCE 12

enum link_phase { /* beyond LINK_FRAMES nghttp2 is not asked for anything: streams that it knows are gone */
        LINK_HELLO,    /* host: skips to a guest's hello; guest: skips to the answer */
        LINK_SETTLING, /* host: has answered, frames or another hello may follow */
        LINK_FRAMES,   /* HTTP/2; ready once the peer's SETTINGS have come */
        LINK_PARTING,  /* host: GOAWAY is sent; skips to PARTED */
        LINK_PARTED,   /* host: waits for the transport's end */
        LINK_LEAVING,  /* guest: PARTED is on its way out */
        LINK_DEAD,     /* failed or freed: streams are gone, the owner has been told */
};

struct link_stream {
        struct stream base; /* first: the owner holds a pointer to it */
        struct link *link;  /* NULL once detached: the session or the HTTP/2 stream has ended */
        int32_t id;
        enum {
                LS_PENDING, /* asked for, not answered; no owner yet */
                LS_OPEN,    /* an owner holds it, until stream_close() */
                LS_CLOSING, /* closed by its owner, flushing; freed here */
        } state;
        LIST_ENTRY(link_stream) all;
        TAILQ_ENTRY(link_stream) dirty;
        uint64_t dirty_round; /* 0: not in the list */

        /* receiving */
        struct buf rx;
        bool reading, eof_in, eof_told;
        int window;       /* granted to the peer in total */
        uint64_t taken;   /* bytes handed to the owner */

        /* sending */
        struct buf tx;
        bool shut;        /* no more writes; END_STREAM follows the queue */
        bool fin_sent;
        bool drained;     /* on_drain to be made */
        bool flow_off;    /* the peer takes no more (RST with NO_ERROR): writes give -EPIPE */

        int fault, fault_told; /* on_error to be made, made */
        bool *gone;            /* set when the stream is freed inside a callback */

        /* until answered */
        link_open_cb open_cb;
        void *open_arg;
        int status;       /* host: 0 while no answer has come */
        bool early;       /* host: open for its owner before the answer has come */
        bool announce;    /* guest: on_open to be made */
        char *authority;
        uint64_t deadline_ms; /* LS_PENDING, LS_CLOSING */
};


struct link {
        uv_loop_t *loop;
        enum link_role role;
        struct stream *transport;
        const struct link_handler *handler;
        void *arg;

        enum link_phase phase;
        bool ready, told_ready, started;
        bool peer_parts;   /* host: the guest said LINK_SETTING_PARTS */
        bool goodbye_sent; /* host: GOAWAY */
        bool goodbye_came; /* guest: GOAWAY without an error */
        uint8_t nonce[LINK_NONCE];
        struct buf in; /* not of frames */
        size_t skipped;
        nghttp2_session *session;

        LIST_HEAD(, link_stream) streams;
        TAILQ_HEAD(, link_stream) dirty;
        uint64_t round; /* of calls to owners, from 1 */
        size_t n_streams;
        size_t windows; /* sum of all streams' windows */
        uint64_t bytes_in, bytes_out;
        uint64_t ping_ms; /* when the unanswered PING left; 0: none */

        uv_idle_t work;
        uv_timer_t sweep; /* runs while a stream has a deadline */
        unsigned handles; /* to be closed before the memory goes */
};

/* link.c */
void link_schedule(struct link *l);

/* link_stream.c */
struct link_stream *link_stream_new(struct link *l);
void link_stream_free(struct link_stream *s);
void link_stream_mark(struct link_stream *s);
/* Calls the owner for whatever has happened. */
void link_stream_dispatch(struct link_stream *s);
/* The session is lost: detaches, and tells the owner at once. */
void link_stream_lose(struct link_stream *s, int err);
/* nghttp2 tells: */
void link_stream_answered(struct link_stream *s);
void link_stream_received(struct link_stream *s, const uint8_t *data, size_t n);
void link_stream_ended(struct link_stream *s, uint32_t error_code);
void link_stream_fin_sent(struct link_stream *s);
/* nghttp2 asks for bytes to send. */
ssize_t link_stream_pull(struct link_stream *s, uint8_t *out, size_t cap, uint32_t *flags);
/* The deadline has passed. */
void link_stream_expire(struct link_stream *s);
void link_stream_set_deadline(struct link_stream *s, unsigned ms);
