/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Shared by the e2b_*.c files. */

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/api.h"
#include "app.h"
#include "sandbox/sandbox.h"

/* Gates features in the clients: 0.5.7 is octet-stream upload, 0.6.4 the newest they ask for. */
#define E2B_ENVD_VERSION "0.6.13"
#define E2B_CLIENT_ID "cspace" /* deprecated member that old clients still require */
#define E2B_PAGE_MAX 100

struct e2b {
        struct e2b_metrics *metrics;
};

/* Of one that runs, is paused or on the way between; NULL when there is none (then the 404 has been sent). */
struct sandbox *e2b_sandbox(struct api_req *r);
void e2b_no_sandbox(struct api_req *r, const char *id);

/* --- e2b_sandbox.c: a call that waits, first for its rows to be durable, then for its operation --- */

struct e2b_wait {
        struct api_req *r;
        struct sandbox *s; /* a reference, or NULL */
        struct op *op;     /* set by who begins it */
        struct op_wait *op_wait;
        uint64_t timeout_ms;
        void (*done)(struct e2b_wait *w, struct op *o); /* answers */
};
/* NULL: no memory, which has been answered. */
struct e2b_wait *e2b_wait_new(struct api_req *r, uint64_t timeout_ms, void (*done)(struct e2b_wait *w, struct op *o));
void e2b_wait_free(struct e2b_wait *w);
void e2b_wait_durable(void *w, int err, const struct error *e);
/* "timeout" of the body, in seconds. < 0: answered. */
int e2b_read_timeout(struct api_req *r, uint64_t by_default, uint64_t *ret);

/* --- e2b_snapshot.c -------------------------------------------------------------------------- */

struct sandbox *e2b_snapshot(struct app *app, const char *id_or_name); /* NULL */
/* Both answer. */
void e2b_snapshot_delete(struct api_req *r, struct sandbox *snapshot);
void e2b_snapshot_create(struct api_req *r, struct sandbox *snapshot, const struct sandbox_params *p);

/* --- e2b_json.c: what clients see ---------------------------------------------------------- */

json_t *e2b_sandbox_json(struct app *app, const struct sandbox *s);        /* answer to create, connect */
json_t *e2b_sandbox_listed_json(struct app *app, const struct sandbox *s);
json_t *e2b_sandbox_detail_json(struct app *app, const struct sandbox *s);
/* "name" for "name:latest", else "name:tag"; false: it has none. */
bool e2b_alias(const char *ref, char ret[TEMPLATE_REF_SIZE]);
json_t *e2b_time(int64_t unix_ms);

/* --- e2b_network.c: members of create that are kept in ext ----------------------------------- */

/* Checks the members of a create body that are not the sandbox's own, and makes ext of them. An
 * error has been sent when it returns < 0. */
int e2b_read_rules(struct api_req *r, struct sandbox_rules *rules);
int e2b_read_ext(struct api_req *r, json_t **ret_ext);
/* The egress lists of "network", checked for form; those that are there are put into `to`. As above. */
int e2b_read_lists(struct api_req *r, const json_t *from, json_t *to);
/* The policy that ext asks for (e2b_egress.c); *ret stays as it was when that is the template's default. -ENOMEM. */
int e2b_policy(const json_t *ext, json_t **ret);
/* The token that traffic to s must carry, or NULL: none needed. */
const char *e2b_traffic_token(const struct sandbox *s);

/* --- route tables --------------------------------------------------------------------------- */

extern const struct api_route e2b_sandbox_routes[], e2b_info_routes[], e2b_template_routes[], e2b_egress_routes[],
        e2b_snapshot_routes[], e2b_unsupported_routes[];
extern const size_t e2b_sandbox_routes_n, e2b_info_routes_n, e2b_template_routes_n, e2b_egress_routes_n, e2b_snapshot_routes_n, e2b_unsupported_routes_n;

/* --- e2b_metrics.c --------------------------------------------------------------------------- */

struct e2b_metrics;
int e2b_metrics_new(struct app *app, struct e2b_metrics **ret, struct error *err);
void e2b_metrics_free(struct e2b_metrics *m);
void e2b_get_metrics(struct api_req *r);     /* GET /sandboxes/{id}/metrics */
void e2b_get_all_metrics(struct api_req *r); /* GET /sandboxes/metrics */
