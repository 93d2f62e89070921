/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One command's streams: stdin from, stdout and stderr to this program's own descriptors, over the
 * frames of wire/attach.h.
 *
 * A connection that is lost is made again for ATTACH_RETRY_MS; output goes on at the first byte not
 * seen, input at the first byte that the agent has not received, so nothing is lost or doubled.
 * The only success is an EXIT frame: whatever else ends the stream is an error.
 */

#include <stdbool.h>
#include <stdint.h>

#include "client.h"

#define ATTACH_RETRY_MS 30000
#define ATTACH_PING_MS 10000
#define ATTACH_SILENCE_MS 25000 /* without even an answer to a ping the connection is lost */

enum attach_end {
        ATTACH_EXITED,    /* exit_code, signal, reason are set */
        ATTACH_DETACHED,  /* asked for; the command runs on */
        ATTACH_ABANDONED, /* a signal came while there was no connection; signal is set */
        ATTACH_FAILED,    /* err says why; no exit status is known */
};

struct attach_result {
        enum attach_end end;
        int exit_code;
        int signal;     /* number, 0: none */
        bool timed_out; /* the command's own time limit */
        struct api_error err;
};

struct attach_params {
        struct client *client;
        const char *target; /* path (and query) of the attach route */
        bool has_stdin;     /* pass descriptor 0 */
        uint64_t offset;    /* first byte of output wanted */
        /* Looks at input before it is sent and may change it in place (there is room for one more
         * byte); returns the bytes left, or -1 to detach. NULL: none. */
        ssize_t (*filter)(void *arg, uint8_t *data, size_t n);
        void *filter_arg;
        void (*on_started)(void *arg, uint32_t pid); /* first time only; may be NULL */
        /* The connection was lost / is back; may be NULL. */
        void (*on_link)(void *arg, bool up);
        void *arg;
};

struct attach;
struct attach *attach_start(const struct attach_params *p);
/* Passes a signal on. Without a connection the first of a kind that ends things waits for it, and
 * the second abandons the command; at the fourth one in a row the command is killed. */
void attach_signal(struct attach *a, int signum);
/* Leaves at once: neither the command nor the output is waited for. */
void attach_abandon(struct attach *a, int signum);
void attach_resize(struct attach *a, uint16_t cols, uint16_t rows);
/* Runs the loop until it is over and all output is written; frees a. */
void attach_finish(struct attach *a, struct attach_result *ret);
