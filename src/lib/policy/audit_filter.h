/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Which audit records someone wants to see, as keys and values that API queries and CLI options share:
 *
 *   since, until   RFC 3339, or a time back from now ("90s", "15m", "2h", "7d"); until is exclusive
 *   sandbox        id
 *   host           as in a policy's rule: "a.test", "*.a.test", with ":port" if need be; or an address
 *   verdict        "allow", "deny"
 *   kind           "dns", "connect", "request"
 *   rule, reason, binding, method    exactly
 */

#include "policy/audit.h"

struct audit_filter;

int audit_filter_new(struct audit_filter **ret);
void audit_filter_free(struct audit_filter *f);
void audit_filter_freep(struct audit_filter **f);
/* -EINVAL with a message for keys and values that are not known, or a key given twice; now_ms is Unix time. */
int audit_filter_set(struct audit_filter *f, const char *key, const char *value, int64_t now_ms, struct error *err);
/* NULL matches all. */
bool audit_filter_match(const struct audit_filter *f, const struct audit *a);
