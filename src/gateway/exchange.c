/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "audit_queue.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"
#include "http_head.h"
#include "usage.h"

/* ---- the record ---------------------------------------------------------------------------- */

void exchange_wipe(struct buf *b) {
        if (b->data)
                explicit_bzero(b->data, b->cap);
        buf_done(b);
}

void exchange_begin(struct exchange *x, const struct gateway *gw, const struct http_peer *peer) {
        exchange_done(x);
        x->active = true;
        x->start_us = clock_mono_us();
        audit_init(&x->audit, AUDIT_REQUEST, clock_real_ms(), gw->sandbox);
        audit_set_host(&x->audit, peer->host.name, strlen(peer->host.name));
        (void) str_copy(x->audit.rule, sizeof x->audit.rule, "default");
        x->audit.port = peer->port;
        x->audit.protocol = peer->protocol;
        x->verdict.rule = -1;
}

void exchange_done(struct exchange *x) {
        exchange_wipe(&x->masked);
        mask_free(x->mask);
        free(x->target);
        *x = (struct exchange){ 0 };
}

void exchange_record(struct exchange *x, struct gateway *gw, const struct address *address, bool allowed,
                     enum policy_reason reason, const char *detail) {
        struct audit *a = &x->audit;
        a->allow = allowed;
        a->reason = reason;
        a->duration_us = clock_mono_us() - x->start_us;
        if (address)
                address_text(address, a->address);
        if (detail)
                audit_set_detail(a, "%s", detail);
        audit_queue_add(gw->audit, a);
        x->active = false;
}

bool exchange_was_allowed(enum policy_reason r) {
        return r == REASON_RESOLVE_FAILED || r == REASON_CONNECT_FAILED || r == REASON_TIMEOUT || r == REASON_INTERNAL;
}

/* ---- the judgement ------------------------------------------------------------------------- */

static uint16_t default_port(enum policy_protocol p) {
        return p == POLICY_TLS ? 443 : 80;
}

static bool refuse(struct refusal *r, enum policy_reason reason, const char *detail) {
        r->reason = reason;
        r->detail = detail;
        return false;
}

/* Host and an absolute target (which the parser holds to be one) must name what the connection was opened to. */
static bool check_authority(const struct http_peer *peer, const struct http1_head *head, struct refusal *ret) {
        const char *authority = http1_get(head, "host"), *why = NULL;
        struct host host;
        uint16_t port;
        const char *scheme = peer->protocol == POLICY_TLS ? "https" : "http";
        const char *sep = head->target[0] == '/' ? NULL : strstr(head->target, "://");
        if (sep && !str_case_eq_n(head->target, (size_t) (sep - head->target), scheme))
                return refuse(ret, REASON_HOST_MISMATCH, "the request target has another scheme than the connection");
        if (sep && !authority)
                return refuse(ret, REASON_BAD_AUTHORITY, "a request target with a host, and no Host");
        if (!authority)
                return true; /* HTTP/1.0: the connection says it */
        if (host_parse_authority(authority, strlen(authority), default_port(peer->protocol), &host, &port, &why) < 0)
                return refuse(ret, REASON_BAD_AUTHORITY, why);
        if (!host_eq(&host, &peer->host) || port != peer->port)
                return refuse(ret, REASON_HOST_MISMATCH, NULL);
        return true;
}

/* The only upgrade that is let through is one whose request was judged like any other. */
static bool check_upgrade(struct exchange *x, const struct http1_head *head, struct refusal *ret) {
        if (strcmp(head->method, "CONNECT") == 0)
                return refuse(ret, REASON_UPGRADE, "CONNECT through a host");
        const char *to = http1_get(head, "upgrade");
        if (!head->upgrade)
                return true; /* without "Connection: upgrade" the field is left out */
        if (strcasecmp(to, "websocket") != 0 || x->has_body)
                return refuse(ret, REASON_UPGRADE, "only WebSocket is let through");
        x->upgrade = true;
        return true;
}

static bool check_override(const struct exchange *x, const struct http1_head *head, struct refusal *ret) {
        static const char *const names[] = { "x-http-method-override", "x-http-method", "x-method-override" };
        for (size_t i = 0; x->verdict.by_method && i < ARRAY_SIZE(names); i++)
                if (http1_get(head, names[i]))
                        return refuse(ret, REASON_METHOD_AMBIGUOUS, "a header overrides the method");
        return true;
}

/* ---- how it goes out ----------------------------------------------------------------------- */

int exchange_write_target(const struct http1_head *head, const struct binding_use *use, struct buf *out) {
        const char *origin = head_origin_form(head->target);
        _cleanup_buf_ struct buf full = BUF_INIT(LIMIT_HTTP_HEAD);
        int r = origin[0] == '/' || origin[0] == '*' ? 0 : buf_puts(&full, "/");
        if (r == 0)
                r = buf_puts(&full, origin);
        const char *text = r == 0 ? buf_str(&full) : NULL;
        if (!text)
                return -ENOMEM;
        return use->touches ? binding_write_target(use, text, out) : buf_puts(out, text);
}

/* Adds the credential, or says why not. */
static bool add_credential(struct exchange *x, struct gateway *gw, const struct http_peer *peer, const struct http1_head *head,
                 struct binding_use *use, struct refusal *ret) {
        const struct binding_request q = {
                .host = &peer->host,
                .port = peer->port,
                .protocol = peer->protocol,
                .method = head->method,
                .target = head->target,
                .fields = head->fields,
                .n_fields = head->n_fields,
        };
        *use = bindings_judge(gw->bindings, &q, uv_now(gw->loop), clock_real_ms());
        if (use->id)
                (void) str_copy(x->audit.binding, sizeof x->audit.binding, use->id);
        if (use->outcome == BINDING_DENY && use->reason == REASON_CREDENTIAL) {
                (void) str_copy(x->credential, sizeof x->credential, use->credential);
                ret->credential = x->credential;
        }
        if (use->outcome == BINDING_DENY)
                return refuse(ret, use->reason, NULL);
        if (use->outcome == BINDING_ADD && mask_new(use, &x->mask) < 0)
                return refuse(ret, REASON_INTERNAL, "out of memory");
        return true;
}

bool exchange_judge(struct exchange *x, struct gateway *gw, const struct http_peer *peer, const struct http1_head *head,
                    struct binding_use *use, struct refusal *ret) {
        audit_set_method(&x->audit, head->method);
        audit_set_path(&x->audit, head->target);
        x->target = strdup(head->target);
        if (!x->target)
                return refuse(ret, REASON_INTERNAL, "out of memory");
        if (!check_authority(peer, head, ret) || !check_upgrade(x, head, ret))
                return false;
        struct policy_verdict v = policy_request(gw->policy, &peer->host, peer->port, peer->protocol, head->method, head->target);
        (void) str_copy(x->audit.rule, sizeof x->audit.rule, v.rule_name);
        v.rule_name = x->audit.rule;
        ret->rule = x->audit.rule;
        x->verdict = v;
        if (v.outcome != POLICY_ALLOW)
                return refuse(ret, v.reason, NULL);
        if (!check_override(x, head, ret))
                return false;
        if (!usage_request(gw->usage, v.rule))
                return refuse(ret, REASON_LIMIT_REQUESTS, NULL);
        return add_credential(x, gw, peer, head, use, ret);
}

bool exchange_reconsider(struct exchange *x, const struct gateway *gw, const struct http_peer *peer) {
        struct policy_verdict v = policy_request(gw->policy, &peer->host, peer->port, peer->protocol, x->audit.method, x->target);
        if (v.outcome != POLICY_ALLOW)
                return false;
        (void) str_copy(x->audit.rule, sizeof x->audit.rule, v.rule_name);
        x->verdict = v;
        x->verdict.rule_name = x->audit.rule;
        return true;
}
