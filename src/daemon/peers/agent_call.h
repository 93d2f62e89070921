/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A JSON request to a sandbox's agent on behalf of an API request, and the agent's errors as ours. */

#include <jansson.h>

#include "api/api.h"

struct app;
struct sandbox;

/* The sandbox named by the first path parameter, running; NULL: answered. */
/* To be called first of all: it may be called again for the same request, when the sandbox has been woken. */
struct sandbox *agent_sandbox(struct api_req *r);
/* cb comes once, with the agent's parsed answer (NULL if empty, borrowed), when its status is below
 * 400. Every failure is answered here, and cb is not called. body: borrowed, may be NULL. */
typedef void (*agent_reply_cb)(struct api_req *r, void *arg, int status, json_t *answer);
void agent_request(struct api_req *r, struct sandbox *s, const char *method, const char *target, const json_t *body,
                   agent_reply_cb cb, void (*free_arg)(void *), void *arg);
/* Answers r with what the agent said (status >= 400). */
void agent_refused(struct api_req *r, int status, const char *body, size_t n);

/* The right to attach to one command: "<session id>.<HMAC>", by the sandbox's access token. */
#define SESSION_TOKEN_SIZE (26 + 1 + 64 + 1)
void session_token(const struct sandbox *s, const char *process_id, const char *session_id, char out[SESSION_TOKEN_SIZE]);
bool session_token_valid(const struct sandbox *s, const char *process_id, const char *token);

/* GET .../attach (attach.c). */
void attach_handler(struct api_req *r);
void attach_drop_all(struct app *app); /* at the end: clients are told to come again */
