/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy_head.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/str.h"

/* Connection-bound or made anew by our own client and server code. */
static const char *const hop_by_hop[] = {
        "connection",       "keep-alive",         "proxy-connection", "proxy-authenticate",
        "proxy-authorization", "te",              "trailer",          "transfer-encoding",
        "upgrade",          "content-length",     "expect",
};

/* For this server alone. */
static const char *const never_inward[] = {
        "x-api-key", "e2b-traffic-access-token",
};

static bool in_list(const char *name, const char *const *list, size_t n) {
        for (size_t i = 0; i < n; i++)
                if (strcasecmp(name, list[i]) == 0)
                        return true;
        return false;
}

static void put(struct proxy_head *p, const char *name, const char *value) {
        if (p->n < ARRAY_SIZE(p->h))
                p->h[p->n++] = (struct http_header){ .name = name, .value = value };
}

static bool stays_behind(const struct http1_head *head, const char *name) {
        return in_list(name, hop_by_hop, ARRAY_SIZE(hop_by_hop)) || http1_has_token(head, "Connection", name);
}

/* A key of ours in an Authorization field, whether or not the route that was taken looked at it. */
static bool is_our_key(const char *name, const char *value) {
        return strcasecmp(name, "authorization") == 0 && strncasecmp(value, "bearer ", 7) == 0 &&
               strstr(value, "e2b_") != NULL;
}

static bool goes_inward(const struct http1_head *head, const struct proxy_target *t, const struct http1_field *f) {
        if (stays_behind(head, f->name) || in_list(f->name, never_inward, ARRAY_SIZE(never_inward)))
                return false;
        if (t->access_token && strcasecmp(f->name, "x-access-token") == 0)
                return false;
        if (strcasecmp(f->name, "authorization") == 0 && (t->strip_auth || is_our_key(f->name, f->value)))
                return false;
        return strcasecmp(f->name, "x-forwarded-for") != 0;
}

static void put_forwarded(const struct http1_head *head, const struct proxy_target *t, struct proxy_head *p) {
        const char *before = http1_get(head, "X-Forwarded-For");

        if (t->peer) {
                int n = snprintf(p->forwarded_for, sizeof(p->forwarded_for), "%s%s%s", before ? before : "",
                                 before ? ", " : "", t->peer);
                /* A chain too long to carry is replaced by what we know ourselves. */
                if (n < 0 || (size_t) n >= sizeof(p->forwarded_for))
                        (void) snprintf(p->forwarded_for, sizeof(p->forwarded_for), "%s", t->peer);
                put(p, "X-Forwarded-For", p->forwarded_for);
        } else if (before)
                put(p, "X-Forwarded-For", before);
        if (!http1_get(head, "X-Forwarded-Host") && http1_get(head, "Host"))
                put(p, "X-Forwarded-Host", http1_get(head, "Host"));
        if (!http1_get(head, "X-Forwarded-Proto"))
                put(p, "X-Forwarded-Proto", "http");
}

static void put_upgrade(const struct http1_head *head, struct proxy_head *p) {
        const char *protocol = http1_get(head, "Upgrade");

        if (!protocol)
                return;
        put(p, "Connection", "Upgrade");
        put(p, "Upgrade", protocol);
}

void proxy_head_request(const struct http1_head *head, const struct proxy_target *t, bool upgrade,
                        struct proxy_head *ret) {
        ret->n = 0;
        for (size_t i = 0; i < head->n_fields; i++)
                if (goes_inward(head, t, &head->fields[i]))
                        put(ret, head->fields[i].name, head->fields[i].value);
        if (t->access_token)
                put(ret, "X-Access-Token", t->access_token);
        put_forwarded(head, t, ret);
        if (upgrade)
                put_upgrade(head, ret);
}

static void native_response(const struct http1_head *head, struct proxy_head *ret) {
        static const char *const content[] = {
                "content-type", "content-encoding", "content-range",       "content-disposition", "accept-ranges",
                "etag",         "last-modified",    "x-content-type-options", "vary",
        };

        for (size_t i = 0; i < head->n_fields; i++)
                if (in_list(head->fields[i].name, content, ARRAY_SIZE(content)))
                        put(ret, head->fields[i].name, head->fields[i].value);
        if (!http1_get(head, "X-Content-Type-Options"))
                put(ret, "X-Content-Type-Options", "nosniff");
        put(ret, "Content-Security-Policy", "sandbox; default-src 'none'");
}

void proxy_head_response(const struct http1_head *head, const struct proxy_target *t, bool upgrade,
                         struct proxy_head *ret) {
        ret->n = 0;
        if (t->errors == PROXY_ERRORS_NATIVE)
                return native_response(head, ret);
        for (size_t i = 0; i < head->n_fields; i++)
                if (!stays_behind(head, head->fields[i].name))
                        put(ret, head->fields[i].name, head->fields[i].value);
        if (upgrade)
                put_upgrade(head, ret);
}
