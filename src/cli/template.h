/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What commands say of templates, as /v1/templates has them. */

#include <jansson.h>

/* Its first name, or its digest; not made safe for a terminal. */
const char *template_shown(const json_t *tmpl);
/* What to type for a template with the installed agent, made safe, malloc'd; NULL: it has that, or nobody knows. */
char *template_renew(const json_t *tmpl);
