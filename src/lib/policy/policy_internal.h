/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A compiled policy. Made by policy_parse.c, read by policy_eval.c. */

#include "policy/policy.h"

#define POLICY_ALL_PROTOCOLS (POLICY_HTTP | POLICY_TLS | POLICY_TCP)

struct host_pattern {
        char *name;    /* "a.b"; the suffix for below; NULL for any */
        bool below;    /* "*.a.b" */
        uint16_t port; /* 0: the rule's */
};

struct port_range {
        uint16_t first, last;
};

struct rule {
        char *name;      /* or NULL */
        char place[16];  /* "rules[3]" */
        bool allow;
        struct host_pattern *hosts;
        size_t n_hosts;
        struct cidr *cidrs;
        size_t n_cidrs;
        struct port_range *ports;
        size_t n_ports;
        bool all_ports, default_ports; /* "ports" was not given */
        unsigned protocols;
        char **methods;
        size_t n_methods;
        char **paths;
        size_t n_paths;
        bool inspect, internal;
        struct policy_limits limits;
};

struct policy {
        unsigned refs;
        uint64_t serial;
        struct rule *rules;
        size_t n_rules;
        struct policy_limits limits;
};

/* Decided by more than destination and protocol. */
static inline bool rule_conditional(const struct rule *r) {
        return r->n_methods > 0 || r->n_paths > 0;
}

/* Whether a range that an "internal" rule lists means the addresses of this class in it: one that covers half the
 * internet does not name the machine itself. */
bool cidr_means(const struct cidr *c, enum address_class class);

/* A host of a rule: "name", "*.suffix", "*", each with ":port" if need be. Shared with bindings. */
enum host_pattern_suffix {
        HOST_PATTERN_OWN_SUFFIX,    /* "*.suffix" below which nobody else registers names */
        HOST_PATTERN_SHARED_SUFFIX, /* others may */
        HOST_PATTERN_ANY_SUFFIX,    /* top-level domains, too: where nothing is allowed by it */
};
int host_pattern_parse(const char *text, const struct policy_context *ctx, enum host_pattern_suffix suffix,
                       struct host_pattern *ret, struct error *err);
void host_pattern_done(struct host_pattern *p);
bool host_pattern_match(const struct host_pattern *p, const char *name);

int policy_only_keys(const json_t *j, const char *const *keys, struct error *err);
/* Array of method names into a list that the caller frees. Shared with bindings. */
int policy_methods_parse(const json_t *obj, char ***ret, size_t *ret_n, struct error *err);
int policy_paths_parse(const json_t *obj, char ***ret, size_t *ret_n, struct error *err);
void policy_strings_free(char **list, size_t n);
bool policy_method_plain(const char *method); /* a token without lower case */
