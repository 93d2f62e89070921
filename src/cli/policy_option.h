/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* --allow and --policy, of several commands. */

#include <jansson.h>

#include "client.h"
#include "opts.h"

#define POLICY_FILE_MAX (1024u * 1024)

/* Puts "allow" or "policy" into body, or nothing. policy: a file, "-" for stdin, or the name of a preset. */
int policy_option(json_t *body, const struct opt_list *allow, const char *policy, struct api_error *e);
/* Tells the "warnings" in what the API answered, if there are any; nothing with --json, which has them. */
void policy_tell_warnings(const json_t *of);
