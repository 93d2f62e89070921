/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Policies as cspaced keeps them: checked with the policy library when they are set, stored as the caller wrote
 * them, and only compiled by the gateways. Here are the forms in which one may be given, the presets that a
 * template has, and the policies that templates have for sandboxes that name none.
 */

#include <stdbool.h>
#include <jansson.h>

#include "base/error.h"
#include "policy/policy.h"
#include "template/template.h"

struct app;
struct api_req;
struct db_batch;
struct policies;

#define POLICIES_PRESETS_MAX 32
#define POLICIES_ALLOW_MAX 256 /* entries of "allow" */
#define POLICIES_PATTERN_MAX 512

/* "allow": hosts ("name", "*.suffix", "name:port", "@preset"), addresses and ranges. Ports other than those of the web may
 * carry any protocol. *ret is a policy. */
int policy_from_allow(const json_t *list, json_t **ret, struct error *err);
/* "policy" and "allow" of a request, at most one of them; "none" and "@preset" for short. *ret: the policy as an object,
 * NULL if neither is there. */
/* Whether a rule has "internal": who may write it decides what of the host's surroundings is reached, which is its
 * administrator's to say. */
bool policy_wants_internal(const json_t *policy);
int policy_from_request(const json_t *body, json_t **ret, struct error *err);
/* One given for short becomes an object. */
int policy_to_object(const json_t *policy, json_t **ret, struct error *err);

/* {"@name": ["host", ...]} of a template, as its builder learned them; never NULL but without memory. */
json_t *policy_presets(const struct tmpl *t /* may be NULL */);
/* Compiles with a template's presets. policy NULL: the one that denies all, *ret is NULL then. */
int policy_check(const struct tmpl *t, const json_t *policy, struct policy **ret, struct error *err);

int policies_load(struct app *app, struct policies **ret, struct error *err);
void policies_free(struct policies *p);
/* Of "name:tag" if it has one, else of the digest, else NULL; borrowed. */
const json_t *policy_of_template(struct app *app, const char *ref, const char *digest);
/* key: "name:tag" or digest; policy NULL: none any more. Into b, and in memory. */
int policy_set_template(struct app *app, const char *key, const json_t *policy, struct db_batch *b);

struct api_req;
/* False when the policy is not this client's to give: 403 has been sent then. */
bool api_policy_permitted(struct api_req *r, const json_t *policy);
