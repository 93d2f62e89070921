/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What a sandbox may reach, and its gateway. The policy, the seed of the sandbox's certificate authority and the table of
 * names lie in a row beside the sandbox's. cspace-rootd starts a gateway when the first packet of a placed sandbox arrives, and says
 * so; from then on there is a connection to it, by which it is given all of that, and again whenever the connection was
 * lost. A gateway lets nothing through before, so nothing waits for it but the answer to a change of the policy, and that
 * only where there is one.
 *
 *              who moves it on, and where to
 * OFF          no placement. IDLE by egress_start(), or CONNECTING if there is a gateway already; any state comes back here by egress_stop()
 * IDLE         no gateway, for there was no packet. CONNECTING by egress_gateway_started()
 * CONNECTING   configuration on its way. ACTIVE, REFUSED, AWAY
 * ACTIVE       the gateway works by `sent`; AWAY when the connection is lost, IDLE by egress_gateway_ended()
 * REFUSED      the gateway refused what it was given and goes on with what it had, if anything. CONNECTING by a change, IDLE
 * AWAY         not reachable, tried again; or it ended before it was configured, and the next packet starts another. CONNECTING,
 *              IDLE
 */

#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>

#include "base/error.h"
#include "ipc/messages.h"
#include "sandbox/sandbox.h"

enum egress_state { EGRESS_OFF, EGRESS_IDLE, EGRESS_CONNECTING, EGRESS_ACTIVE, EGRESS_REFUSED, EGRESS_AWAY, N_EGRESS_STATES };

struct app;
struct db_batch;
struct egress;

#define EGRESS_NAMES_MAX (4u * 1024 * 1024) /* a table of names as the gateway sends it */
#define EGRESS_OWN_MAX 256              /* addresses of this host */
#define EGRESS_CONFIG_MS 10000          /* until a configuration is acknowledged */
#define EGRESS_CHANGE_MS 20000          /* until a request to change the policy is answered */
#define EGRESS_RETRY_MIN_MS 100
#define EGRESS_RETRY_MAX_MS 3000
#define EGRESS_REFUSED_MS 60000         /* until what was refused is tried again */

/* For a new sandbox whose template is set. policy (borrowed): an object; NULL: its template's default. bindings (borrowed): an
 * array; NULL: none. A message says what is wrong with them. */
int egress_new(struct app *app, struct sandbox *s, const json_t *policy, const json_t *bindings, struct error *err);
/* For a fork of `of`, in whose guest programs know its authority and addresses: these go on. The policy is that of `of`, or with `own`
 * the one that is given (NULL: nothing may be reached). */
int egress_fork(struct app *app, struct sandbox *s, const struct sandbox *of, bool own, const json_t *policy, bool bindings,
                struct error *err);
/* What names `of` has got since. */
void egress_fork_names(struct sandbox *s, const struct sandbox *of);
void egress_free(struct egress *e); /* stopped before; NULL is fine */

/* Rows; beside those of the sandbox. */
void egress_row_insert(const struct sandbox *s, struct db_batch *b);
void egress_row_delete(const struct sandbox *s, struct db_batch *b);
int egress_load(struct app *app, struct error *err); /* after the sandboxes */

/* It has a placement, or not any more. Both may be called again. */
void egress_start(struct app *app, struct sandbox *s);
void egress_stop(struct sandbox *s);
/* cspace-rootd says that its gateway is being started or runs, or that it ended or there is none. */
void egress_gateway_started(struct app *app, const char *id);
void egress_gateway_ended(struct sandbox *s);

/* Borrowed array, with placeholders; NULL: none. */
const json_t *egress_bindings(const struct sandbox *s);
/* Borrowed; NULL: nothing may be reached. */
const json_t *egress_policy(const struct sandbox *s);
/* policy: an object. cb when it is stored and the gateway, if there is one, works by it. -EINVAL, -EFBIG: not a
 * policy. In cb: -EBADMSG: the gateway refused it, the one before stays; -ETIMEDOUT: stored, but the gateway is away. */
typedef void (*egress_cb)(void *arg, int err, const struct error *e);
int egress_set_policy(struct app *app, struct sandbox *s, const json_t *policy, egress_cb cb, void *arg, struct error *err);

/* The same with bindings (bindings.h). */
int egress_set_bindings(struct app *app, struct sandbox *s, const json_t *list, egress_cb cb, void *arg, struct error *err);
/* The secret of a credential is another one: cb as above, when the gateway has it. -ENOENT: the sandbox has no binding for it. */
int egress_renew(struct app *app, struct sandbox *s, const char *credential, egress_cb cb, void *arg, struct error *err);
/* It has a placement, so that a gateway may want it at any time, and a binding for the credential. */
bool egress_needs(const struct sandbox *s, const char *credential);
/* Its gateway gets the credential as it is now: a new token, or that there is none. One that is away gets it with
 * its configuration. */
void egress_give_secret(struct sandbox *s, const char *credential);
/* Audit records say that a binding was used so often. */
void egress_count_use(struct app *app, const char *id, const char *binding, uint64_t n);

enum egress_state egress_state(const struct sandbox *s); /* OFF without one */
const char *egress_state_name(enum egress_state e);
/* {"state","rules",...} for people and clients; no secrets. */
json_t *egress_to_json(const struct sandbox *s);
/* The certificate that the guest has to trust, PEM; NULL: there is none (POOLED, no memory). */
const char *egress_ca(const struct sandbox *s);
/* Asks the gateway; m NULL when it does not answer. -ENOTCONN: there is none now. */
typedef void (*egress_state_cb)(void *arg, const struct ipc_gw_state *m);
int egress_query(struct sandbox *s, egress_state_cb cb, void *arg);
/* The guest stands still: what names it was given until now are known here soon, whatever the gateway's own pace. */
void egress_hurry_names(struct sandbox *s);

/* cspace-rootd tells of packets that never came to a gateway: into the audit log. */
void egress_packets(struct app *app, const struct ipc_packets *m);
