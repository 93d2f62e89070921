/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What commands say of templates, as /v1/templates has them. */

#include <jansson.h>

struct client;

/* Its first name, or its digest; not made safe for a terminal. */
const char *template_shown(const json_t *tmpl);
/* What to type for a template with the installed agent, made safe, malloc'd; NULL: it has that, or nobody knows. */
char *template_renew(const json_t *tmpl);
/* What ref (NAME[:TAG] or a digest) stands for now, malloc'd; NULL: nothing, or nobody knows. */
char *template_digest(struct client *c, const char *ref);
/* Who gives a name away is told what had it (before, may be NULL), and what becomes of that. */
void template_tell_moved(const char *ref, const char *before, const char *now);
