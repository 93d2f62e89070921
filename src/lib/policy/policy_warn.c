/* SPDX-License-Identifier: Apache-2.0 */

/* What is understood, and yet does less than its writer may think: ranges in which not every address is reached. */

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "policy/policy_internal.h"

#define NAMED_MAX 4 /* special ranges that one warning names */

static bool within(const struct cidr *inner, const struct cidr *outer) {
        return inner->mask >= outer->mask && (inner->net & outer->mask) == outer->net;
}

/* Appends the special ranges in c that it does not reach; how many there are. */
static size_t list_unreached(const struct cidr *c, bool internal, struct buf *out) {
        struct cidr special;
        enum address_class class;
        char text[INET_ADDRSTRLEN + 3];
        size_t n = 0;
        for (size_t pos = 0; address_special_next(&pos, &special, &class);) {
                if ((!within(&special, c) && !within(c, &special)) || (internal && cidr_means(c, class)))
                        continue;
                cidr_text(&special, text);
                if (n++ < NAMED_MAX)
                        (void) buf_printf(out, "%s%s (%s)", n > 1 ? ", " : "", text, address_class_name(class));
        }
        if (n > NAMED_MAX)
                (void) buf_printf(out, " and %zu more", n - NAMED_MAX);
        return n;
}

static json_t *of_range(size_t rule, size_t item, const char *text, bool internal) {
        _cleanup_buf_ struct buf list = BUF_INIT(4096);
        struct cidr c;
        if (!text || cidr_parse(text, &c) < 0 || list_unreached(&c, internal, &list) == 0)
                return NULL;
        const char *ranges = buf_str(&list);
        return ranges ? json_sprintf("rules[%zu].cidr[%zu]: \"%s\" does not reach what is not public in it: %s; %s", rule, item, text, ranges,
                                     internal ? "\"internal\" opens such a range only where a narrower one is listed"
                                              : "to reach such a range, list it in a rule with \"internal\": true")
                      : NULL;
}

json_t *policy_warnings(const json_t *policy) {
        json_t *out = NULL, *rule, *item;
        size_t i, k;
        json_array_foreach(json_object_get(policy, "rules"), i, rule) {
                const char *action = json_string_value(json_object_get(rule, "action"));
                bool internal = json_is_true(json_object_get(rule, "internal"));
                if (!action || strcmp(action, "allow") != 0)
                        continue;
                json_array_foreach(json_object_get(rule, "cidr"), k, item) {
                        json_t *said = json_array_size(out) < POLICY_WARNINGS_MAX ? of_range(i, k, json_string_value(item), internal) : NULL;
                        if (said && !out)
                                out = json_array();
                        if (said)
                                (void) json_array_append_new(out, said);
                }
        }
        return out;
}
