/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Theory of operation
 *
 * A request is sandbox traffic when its Host says so ("<port>-<id>.<domain>"), or else when it has
 * the pair of fields E2b-Sandbox-Id and E2b-Sandbox-Port, which clients send when one address
 * serves all sandboxes. Host goes first: it is what a browser cannot be made to lie about, so a page
 * of one sandbox cannot reach another one by adding fields to a request to its own origin.
 *
 * A host name is cut in one way only. What looks like an attempt at a sandbox's name but is none
 * ("<id>-3000.<domain>", a port of 0 or 65536, upper-case tricks left aside since names have no
 * case) is refused, never handed to the API under that name.
 */
#include "router.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/id.h"

#define HOST_MAX 255
#define PORT_DIGITS_MAX 5

static void refuse(struct route *r, const char *message) {
        *r = (struct route){ .kind = ROUTE_REFUSED, .status = 400, .message = message };
}

/* Decimal without leading zeros, 1 to 65535. */
static int parse_port(const char *s, size_t n, uint16_t *ret) {
        uint32_t v = 0;

        if (n == 0 || n > PORT_DIGITS_MAX || s[0] == '0')
                return -EINVAL;
        for (size_t i = 0; i < n; i++) {
                if (s[i] < '0' || s[i] > '9')
                        return -EINVAL;
                v = v * 10 + (uint32_t) (s[i] - '0');
        }
        if (v > UINT16_MAX)
                return -EINVAL;
        *ret = (uint16_t) v;
        return 0;
}

static int parse_id(const char *s, size_t n, char ret[ROUTE_ID_SIZE]) {
        if (n == 0 || n >= ROUTE_ID_SIZE)
                return -EINVAL;
        for (size_t i = 0; i < n; i++)
                if (!((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= '0' && s[i] <= '9')))
                        return -EINVAL;
        memcpy(ret, s, n);
        ret[n] = '\0';
        return 0;
}

static bool is_our_id(const char *s, size_t n) {
        char id[ROUTE_ID_SIZE];

        return parse_id(s, n, id) == 0 && id_valid(id);
}

int router_parse_label(const char *s, size_t n, char ret_id[ROUTE_ID_SIZE], uint16_t *ret_port) {
        const char *dash = memchr(s, '-', n);
        uint16_t port;

        if (!dash || parse_port(s, (size_t) (dash - s), &port) < 0)
                return -EINVAL;

        const char *id = dash + 1;
        size_t left = n - (size_t) (id - s);
        const char *more = memchr(id, '-', left);
        /* Only our own ids ever had something appended. */
        if (more && ((size_t) (more - id) + 1 == left || !is_our_id(id, (size_t) (more - id))))
                return -EINVAL;
        if (parse_id(id, more ? (size_t) (more - id) : left, ret_id) < 0)
                return -EINVAL;
        *ret_port = port;
        return 0;
}

/* Whether the label was meant for a sandbox, rightly or not: it begins like a port, or one of its
 * dash-separated pieces is an id. */
static bool looks_like_sandbox(const char *s, size_t n) {
        const char *dash = memchr(s, '-', n);
        size_t digits = 0;

        while (digits < n && s[digits] >= '0' && s[digits] <= '9')
                digits++;
        if (dash && digits > 0 && s + digits == dash)
                return true;
        for (const char *at = s; at < s + n;) {
                const char *end = memchr(at, '-', n - (size_t) (at - s));
                size_t len = end ? (size_t) (end - at) : n - (size_t) (at - s);
                if (is_our_id(at, len))
                        return true;
                at += len + 1;
        }
        return false;
}

/* Copies the name of a Host value in lower case, without port and final dot; its length, 0 for
 * what is no name (an IPv6 literal, too long, empty). */
static size_t host_name(const char *host, char out[HOST_MAX + 1]) {
        size_t n = strcspn(host, ":");

        if (host[0] == '[' || n == 0 || n > HOST_MAX)
                return 0;
        for (size_t i = 0; i < n; i++)
                out[i] = host[i] >= 'A' && host[i] <= 'Z' ? (char) (host[i] + 32) : host[i];
        if (out[n - 1] == '.')
                n--;
        out[n] = '\0';
        return n;
}

/* Domains are configured as clients have them, so possibly with a port. */
static bool under_domain(const char *name, size_t n, const char *domain, size_t *ret_label) {
        size_t d = strcspn(domain, ":");

        if (d == 0 || n <= d + 1 || name[n - d - 1] != '.' || strncasecmp(name + n - d, domain, d) != 0)
                return false;
        *ret_label = n - d - 1;
        return true;
}

/* True: decided. */
static bool decide_by_host(const struct http1_head *h, const char *domain, struct route *r) {
        const char *host = http1_get(h, "Host");
        char name[HOST_MAX + 1];
        size_t n = host ? host_name(host, name) : 0, label;

        if (!domain || n == 0 || !under_domain(name, n, domain, &label))
                return false;
        if (memchr(name, '.', label)) {
                /* One label only: "3000-<id>.evil.<domain>" is nobody's name. */
                size_t first = strcspn(name, ".");
                if (!looks_like_sandbox(name, first))
                        return false;
                refuse(r, "invalid host: a sandbox's name is <port>-<id> directly before the domain");
                return true;
        }
        if (router_parse_label(name, label, r->id, &r->port) == 0) {
                r->kind = ROUTE_SANDBOX;
                return true;
        }
        if (!looks_like_sandbox(name, label))
                return false;
        refuse(r, "invalid host: a sandbox's name is <port>-<id> before the domain");
        return true;
}

static unsigned count_fields(const struct http1_head *h, const char *name) {
        unsigned n = 0;

        for (size_t i = 0; i < h->n_fields; i++)
                n += strcasecmp(h->fields[i].name, name) == 0;
        return n;
}

static bool decide_by_fields(const struct http1_head *h, struct route *r) {
        unsigned ids = count_fields(h, "E2b-Sandbox-Id"), ports = count_fields(h, "E2b-Sandbox-Port");

        if (ids == 0 && ports == 0)
                return false;
        if (ids == 0)
                refuse(r, "missing header: E2b-Sandbox-Id");
        else if (ports == 0)
                refuse(r, "missing header: E2b-Sandbox-Port");
        else if (ids > 1 || ports > 1)
                refuse(r, "invalid header: E2b-Sandbox-Id or E2b-Sandbox-Port is there twice");
        else {
                const char *id = http1_get(h, "E2b-Sandbox-Id"), *port = http1_get(h, "E2b-Sandbox-Port");
                /* Old clients append "-<client id>". */
                if (parse_id(id, strcspn(id, "-"), r->id) < 0)
                        refuse(r, "invalid header: E2b-Sandbox-Id is not a sandbox id");
                else if (parse_port(port, strlen(port), &r->port) < 0)
                        refuse(r, "invalid header: E2b-Sandbox-Port is not a port");
                else
                        r->kind = ROUTE_SANDBOX;
        }
        return true;
}

void router_decide(const struct http1_head *h, const char *domain, struct route *ret) {
        *ret = (struct route){ .kind = ROUTE_API };
        if (!decide_by_host(h, domain, ret) && !decide_by_fields(h, ret))
                return;
        /* Absolute form names a second authority; CONNECT names nothing else. */
        if (ret->kind == ROUTE_SANDBOX && h->target[0] != '/' && strcmp(h->target, "*") != 0)
                refuse(ret, "invalid request target: it must be a path");
}

bool router_agent_path_public(const char *target) {
        static const char *const exact[] = { "/health", "/files", "/files/compose", "/metrics", "/envs" };
        static const char *const services[] = { "/process.Process/", "/filesystem.Filesystem/" };
        size_t n = strcspn(target, "?");

        for (size_t i = 0; i < ARRAY_SIZE(exact); i++)
                if (strlen(exact[i]) == n && memcmp(target, exact[i], n) == 0)
                        return true;
        /* A method name is one plain word, so that no dot segment or escape can lead out again. */
        for (size_t i = 0; i < ARRAY_SIZE(services); i++) {
                size_t p = strlen(services[i]);
                if (n <= p || memcmp(target, services[i], p) != 0)
                        continue;
                return strspn(target + p, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") == n - p;
        }
        return false;
}
