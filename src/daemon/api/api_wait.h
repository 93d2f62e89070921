/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The answer to a request that made an operation: when the rows are durable, and with ?wait= when
 * the operation has ended or the time is over.
 */

#include "api.h"
#include "base/id.h"

struct op;
struct sandbox;

struct api_wait;
/* done_status: of an operation that succeeded; with_sandbox: the answer has "sandbox" too, or "sandboxes" of a fork
 * that succeeded. */
struct api_wait *api_wait_new(struct api_req *r, uint64_t wait_ms, int done_status, bool with_sandbox);
/* What a request that makes an operation begins with: ?wait=, and its Idempotency-Key. False: it is answered. */
bool api_wait_begin(struct api_req *r, int done_status, bool with_sandbox, struct api_wait **ret);
void api_wait_free(struct api_wait *w); /* when the operation could not be made; nothing is answered */
void api_wait_set(struct api_wait *w, const struct op *o);
/* As the durable callback of what made it: answers, or waits and answers; w is gone then. */
void api_wait_durable(void *w, int err, const struct error *e);
/* An earlier operation: answers or waits. */
void api_wait_existing(struct api_req *r, struct op *o, uint64_t wait_ms, int done_status, bool with_sandbox);

extern const struct api_route sandbox_routes[], op_routes[], key_routes[], template_routes[], host_routes[],
        command_routes[], file_routes[], policy_routes[], audit_routes[], credential_routes[], checkpoint_routes[],
        history_routes[], fork_routes[], publish_routes[];
extern const size_t sandbox_routes_n, op_routes_n, key_routes_n, template_routes_n, host_routes_n, command_routes_n,
        file_routes_n, policy_routes_n, audit_routes_n, credential_routes_n, checkpoint_routes_n, history_routes_n, fork_routes_n,
        publish_routes_n;
