/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Client of the native API. Calls look synchronous: each runs the loop until its answer is there.
 * Signal handlers and timers of the caller live on the same loop and go on meanwhile; one that
 * wants the call under way to end calls client_interrupt().
 */

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "base/error.h"
#include "base/json.h"
#include "io/stream.h"

/* Why a call failed. status 0: there was no (whole) answer, and code is one of "unreachable",
 * "connection_lost", "interrupted", "timeout", "protocol". */
struct api_error {
        int status;
        char code[64];
        char message[ERROR_MSG_MAX];
};
bool api_error_is(const struct api_error *e, const char *code);
int api_error_set(struct api_error *e, const char *code, const char *fmt, ...)
        __attribute__((format(printf, 3, 4)));
/* Prints it with what to do about it; returns CLI_FAILURE, or CLI_USAGE for the code "usage". */
int api_error_print(const struct api_error *e);
const char *api_error_hint(const char *code); /* with SANDBOX for one; NULL: none */

struct client;
/* From the global options, the environment and the configuration. */
int client_new(struct client **ret, struct error *err);
void client_free(struct client *c);
/* A command that needs a connection: fn's exit code, or that of the connection's failure, which is printed. */
int client_with(int (*fn)(struct client *c, int argc, char **argv), int argc, char **argv);
/* Deletes folder/NAME for each name and prints those that are gone: the exit code. */
int client_delete_each(struct client *c, const char *folder, int n, char **names);
uv_loop_t *client_loop(struct client *c);
/* Ends the call under way, and every later one, with "interrupted"; client_resume() allows calls
 * again (to clean up). */
void client_interrupt(struct client *c);
void client_resume(struct client *c);
/* Lets the loop run for so long, or until interrupted. */
void client_pause(struct client *c, uint64_t ms);

#define CLIENT_TIMEOUT_MS 30000

/*
 * One JSON call. 0 with the body (NULL when empty; owned by the caller) for a 2xx answer, else -1.
 * timeout_ms 0: CLIENT_TIMEOUT_MS. A lost connection is tried again for a while where that is safe:
 * GET and DELETE, and POST, which gets an Idempotency-Key. So is a change that was refused as "unavailable". ret may be NULL.
 */
int client_call(struct client *c, const char *method, const char *target, const json_t *body,
                uint64_t timeout_ms, json_t **ret, struct api_error *e);

/* One page after the other of a list: fn for each item. `key` is the array's name. */
int client_list(struct client *c, const char *target, const char *key, int (*fn)(void *arg, json_t *item),
                void *arg, struct api_error *e);

/* --- requests whose bodies are streamed --------------------------------------------------------- */

struct xfer;
/* length: of the request body, < 0 unknown, 0 none. */
int xfer_open(struct client *c, const char *method, const char *target, const char *content_type,
              int64_t length, struct xfer **ret, struct api_error *e);
void xfer_set_timeout(struct xfer *x, uint64_t ms); /* without any progress; 0: none; default CLIENT_TIMEOUT_MS */
/* Waits while too much is on its way. Fails early when the server has answered with an error. */
int xfer_write(struct xfer *x, const void *data, size_t n, struct api_error *e);
/* Ends the request body and waits for the head of the answer; fails unless it is 2xx. */
int xfer_finish(struct xfer *x, struct api_error *e);
/* The value of a field of the answer, or NULL. */
const char *xfer_header(const struct xfer *x, const char *name);
/* Body of the answer: the next piece, borrowed until the next call; 0 at its end, -1. */
ssize_t xfer_read(struct xfer *x, const uint8_t **ret, struct api_error *e);
int xfer_read_json(struct xfer *x, json_t **ret, struct api_error *e);
void xfer_free(struct xfer *x);

/* --- a connection taken out of HTTP ---------------------------------------------------------------- */

struct upgrade;
/* err NULL: the stream, owned by the callee. */
typedef void (*upgrade_cb)(void *arg, const struct api_error *e, struct stream *s);
/* GET target with Upgrade: protocol; cb comes once, from the loop. */
struct upgrade *upgrade_start(struct client *c, const char *target, const char *protocol, upgrade_cb cb,
                              void *arg);
/* A request that does its work beside the others: cb without a stream; e NULL after a 2xx. method
 * is a literal. */
struct upgrade *upgrade_send(struct client *c, const char *method, const char *target, const char *json,
                             upgrade_cb cb, void *arg);
void upgrade_cancel(struct upgrade *u); /* before cb; NULL is fine */

/* Percent-encodes all but unreserved characters; for one path segment or query value. malloc'd. */
char *client_escape(const char *s) __attribute__((malloc, returns_nonnull));
