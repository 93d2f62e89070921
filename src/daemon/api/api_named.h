/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What a request names: borrowed, or NULL, and then the request is answered. And what answers a change of a sandbox. */

#include "api.h"
#include "template/template.h"

struct sandbox;
struct checkpoint;

struct sandbox *api_sandbox(struct api_req *r); /* the first path parameter, id or name, in whatever state */
struct checkpoint *api_checkpoint(struct api_req *r, const struct sandbox *s, const char *id_or_name);

/* "name" and "tag" of a template to be. */
int api_template_ref(const json_t *body, char ref[TEMPLATE_REF_SIZE], struct error *err);

/* Answers once a change of s is durable: with reply, or the error as code says. */
struct api_changed;
struct api_changed *api_changed_new(struct api_req *r, struct sandbox *s, void (*reply)(struct api_req *r, const struct sandbox *s),
                                    enum api_code (*code)(int err)); /* NULL: answered, out of memory */
void api_changed_durable(void *arg, int err, const struct error *e); /* a sandbox_durable_cb; ends it */
void api_changed_free(struct api_changed *c);                        /* without an answer */
