/* SPDX-License-Identifier: Apache-2.0 */
#include "usage.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"

#define MINUTE_MS 60000

struct counters {
        struct policy_limits limits;
        uint64_t connections, bytes_out, bytes_in, requests;
        uint64_t minute_start_ms, in_minute;
        char name[POLICY_NAME_MAX + 1];
};

struct usage {
        uv_loop_t *loop;
        struct counters total;
        struct counters *rules;
        size_t n;
};

struct usage *usage_new(uv_loop_t *loop) {
        struct usage *u = calloc(1, sizeof *u);
        if (u)
                u->loop = loop;
        return u;
}

void usage_free(struct usage *u) {
        if (!u)
                return;
        free(u->rules);
        free(u);
}

int usage_set_policy(struct usage *u, const struct policy *p) {
        size_t n = policy_n_rules(p);
        struct counters *rules = n > 0 ? calloc(n, sizeof *rules) : NULL;
        if (n > 0 && !rules)
                return -ENOMEM;
        for (size_t i = 0; i < n; i++) {
                const char *name = policy_rule_name(p, (int) i);
                for (size_t old = 0; old < u->n; old++)
                        if (str_eq(u->rules[old].name, name))
                                rules[i] = u->rules[old];
                (void) str_copy(rules[i].name, sizeof rules[i].name, name);
                rules[i].limits = policy_rule_limits(p, (int) i);
                rules[i].connections = 0;
        }
        free(u->rules);
        u->rules = rules;
        u->n = n;
        u->total.limits = policy_total_limits(p);
        u->total.connections = 0;
        return 0;
}

static struct counters *of_rule(struct usage *u, int rule) {
        return rule >= 0 && (size_t) rule < u->n ? &u->rules[rule] : NULL;
}

static bool below(uint64_t used, uint64_t limit) {
        return limit == 0 || used < limit;
}

static bool may_open(const struct counters *c) {
        return below(c->connections, c->limits.connections) && below(c->bytes_out, c->limits.bytes_out) &&
               below(c->bytes_in, c->limits.bytes_in);
}

bool usage_open(struct usage *u, int rule) {
        struct counters *r = of_rule(u, rule);
        if (!may_open(&u->total) || (r && !may_open(r)))
                return false;
        u->total.connections++;
        if (r)
                r->connections++;
        return true;
}

void usage_close(struct usage *u, int rule) {
        struct counters *r = of_rule(u, rule);
        if (u->total.connections > 0)
                u->total.connections--;
        if (r && r->connections > 0)
                r->connections--;
}

static bool may_request(struct counters *c, uint64_t now_ms) {
        if (now_ms - c->minute_start_ms >= MINUTE_MS) {
                c->minute_start_ms = now_ms;
                c->in_minute = 0;
        }
        return below(c->in_minute, c->limits.requests_per_minute);
}

bool usage_request(struct usage *u, int rule) {
        struct counters *r = of_rule(u, rule);
        uint64_t now_ms = uv_now(u->loop);
        if (!may_request(&u->total, now_ms) || (r && !may_request(r, now_ms)))
                return false;
        u->total.in_minute++;
        u->total.requests++;
        if (r) {
                r->in_minute++;
                r->requests++;
        }
        return true;
}

static bool add_bytes(struct counters *c, uint64_t out, uint64_t in) {
        c->bytes_out += out;
        c->bytes_in += in;
        return (c->limits.bytes_out == 0 || c->bytes_out <= c->limits.bytes_out) &&
               (c->limits.bytes_in == 0 || c->bytes_in <= c->limits.bytes_in);
}

bool usage_bytes(struct usage *u, int rule, uint64_t out, uint64_t in) {
        struct counters *r = of_rule(u, rule);
        bool ok = add_bytes(&u->total, out, in);
        if (r && !add_bytes(r, out, in))
                ok = false;
        return ok;
}

struct usage_total usage_total(const struct usage *u) {
        return (struct usage_total){ u->total.connections, u->total.requests, u->total.bytes_out, u->total.bytes_in };
}
