/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Internal to the HTTP server: one connection and its exchange, shared by http_server.c (what
 * comes in) and http_x.c (what goes out). */

#include "base/buf.h"
#include "io/http_server.h"

enum conn_state {
        CONN_OPEN,   /* between requests or with one exchange */
        CONN_LINGER, /* the last answer is out or on its way; input is dropped until it ends */
        CONN_DEAD,   /* handles are closing; no callback of anyone any more */
};

struct http_conn {
        struct http_server *server; /* NULL once the server is freed */
        struct http_conn *prev, *next;
        struct http_conn *newer, *older; /* among strangers */
        bool stranger;
        struct stream *stream;      /* NULL once closed or taken out */
        void *tag;
        struct http1_parser *parser;
        struct http_x *x;           /* the exchange under way, or NULL */
        enum conn_state state;
        bool running;               /* conn_run() is on the stack */
        bool eof;                   /* the peer sends no more */
        bool reading;

        struct buf in;              /* received and not parsed yet, before `cur` */
        const uint8_t *cur;         /* the piece on_data is delivering, as far as not parsed */
        size_t cur_n;

        uv_idle_t kick;             /* runs the connection from the loop */
        uv_timer_t timer;
        unsigned n_open;            /* uv handles not yet closed */
        bool second_look;           /* overdue, but input may be waiting */
        uint64_t timer_at;          /* when the timer fires, 0: not armed */
        uint64_t rx_ms;             /* last input, or begin of the state that waits for input */
        uint64_t head_ms;           /* first byte of the head under way; 0: none */
        uint64_t tx_ms;             /* last time the queue was seen to shrink; 0: not queued */
        size_t tx_queued;
};

struct http_x {
        struct http_conn *conn;
        const struct http_x_ops *ops;
        void *arg;
        const struct http1_head *head;
        bool req_done;      /* the request is parsed to its end */
        bool paused;        /* the handler holds the body back */
        bool want_continue; /* the client waits for 100 Continue */
        bool started;       /* head of the answer is out */
        bool ended;         /* answer is complete */
        bool aborted;
        bool no_body;       /* of the answer */
        bool chunked;
        bool close;         /* the connection ends after this exchange */
        int64_t left;       /* bytes of a sized answer still to come; -1 not sized */
        uint64_t discarded; /* bytes of the request dropped after the answer */
        uint64_t ended_ms;
};

/* Runs the connection from the loop, soon. */
void http_conn_kick(struct http_conn *c);
/* Takes it off the list of strangers. */
void http_conn_admit(struct http_conn *c);
/* Gives the stream up to the caller with what was received beyond the request; c dies. */
int http_conn_take(struct http_conn *c, struct stream **ret);
/* Writes a whole answer that no handler makes: an error of the connection itself. */
int http_conn_answer_error(struct http_conn *c, int status, const char *reason);
