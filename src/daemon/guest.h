/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Reaching into a sandbox: a byte stream to a port of its guest, through data.sock. What comes
 * back from there is hostile.
 */

#include <jansson.h>

#include "io/http_client.h"
#include "io/stream.h"

struct app;
struct sandbox;

#define GUEST_OPEN_TIMEOUT_MS 10000

/*
 * cb comes once, never from inside guest_open(): err 0 and s, owned by the callee; -ECONNREFUSED:
 * nothing listens on that port; -EHOSTUNREACH: the warden refused or is gone; -ETIMEDOUT;
 * -EAGAIN: too many streams. why is the warden's text, or "".
 */
struct guest_open;
typedef void (*guest_open_cb)(void *arg, int err, const char *why, struct stream *s);
int guest_open(struct app *app, const char *sandbox_id, uint16_t port, unsigned timeout_ms, guest_open_cb cb,
               void *arg, struct guest_open **ret, struct error *err);
void guest_open_cancel(struct guest_open *g); /* before cb only */

/*
 * One small JSON call to the agent (port AGENT_PORT) with the sandbox's token. cb comes once:
 * err < 0 and e when no whole answer came; else the status and the parsed body (NULL when empty),
 * borrowed. Bodies over max or not JSON are an error.
 */
struct agent_call;
typedef void (*agent_call_cb)(void *arg, int err, const struct error *e, int status, json_t *body);
int agent_call(struct app *app, struct sandbox *s, const char *method, const char *target,
               const json_t *body /* NULL none */, size_t max, unsigned timeout_ms, agent_call_cb cb, void *arg,
               struct agent_call **ret, struct error *err);
void agent_call_cancel(struct agent_call *c); /* before cb only; NULL is fine */
