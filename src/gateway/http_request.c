/* SPDX-License-Identifier: Apache-2.0 */

/* A request's head: which host it is for, what the rules say about it, and how it goes on. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"
#include "http_head.h"
#include "http_internal.h"
#include "usage.h"

static uint16_t default_port(enum policy_protocol p) {
        return p == POLICY_TLS ? 443 : 80;
}

static bool refuse(struct refusal *r, enum policy_reason reason, const char *detail) {
        r->reason = reason;
        r->detail = detail;
        return false;
}

/* Host and an absolute target (which the parser holds to be one) must name what the connection was opened to. */
static bool check_authority(const struct http *h, const struct http1_head *head, struct refusal *ret) {
        const char *authority = http1_get(head, "host"), *why = NULL;
        struct host host;
        uint16_t port;
        const char *scheme = h->peer.protocol == POLICY_TLS ? "https" : "http";
        const char *sep = head->target[0] == '/' ? NULL : strstr(head->target, "://");
        if (sep && !str_case_eq_n(head->target, (size_t) (sep - head->target), scheme))
                return refuse(ret, REASON_HOST_MISMATCH, "the request target has another scheme than the connection");
        if (sep && !authority)
                return refuse(ret, REASON_BAD_AUTHORITY, "a request target with a host, and no Host");
        if (!authority)
                return true; /* HTTP/1.0: the connection says it */
        if (host_parse_authority(authority, strlen(authority), default_port(h->peer.protocol), &host, &port, &why) < 0)
                return refuse(ret, REASON_BAD_AUTHORITY, why);
        if (!host_eq(&host, &h->peer.host) || port != h->peer.port)
                return refuse(ret, REASON_HOST_MISMATCH, NULL);
        return true;
}

/* The only upgrade that is let through is one whose request was judged like any other. */
static bool check_upgrade(struct http *h, const struct http1_head *head, struct refusal *ret) {
        if (strcmp(head->method, "CONNECT") == 0)
                return refuse(ret, REASON_UPGRADE, "CONNECT through a host");
        const char *to = http1_get(head, "upgrade");
        if (!head->upgrade)
                return true; /* without "Connection: upgrade" the field is left out */
        if (strcasecmp(to, "websocket") != 0 || h->x.has_body)
                return refuse(ret, REASON_UPGRADE, "only WebSocket is let through");
        h->x.upgrade = true;
        return true;
}

static bool check_override(const struct http *h, const struct http1_head *head, struct refusal *ret) {
        static const char *const names[] = { "x-http-method-override", "x-http-method", "x-method-override" };
        for (size_t i = 0; h->x.verdict.by_method && i < ARRAY_SIZE(names); i++)
                if (http1_get(head, names[i]))
                        return refuse(ret, REASON_METHOD_AMBIGUOUS, "a header overrides the method");
        return true;
}

static bool leave_out(void *arg, const struct http1_field *f) {
        return binding_leaves_out(arg, f->name);
}

static int write_target(const struct http1_head *head, const struct binding_use *use, struct buf *out) {
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

static int write_head(struct http *h, const struct http1_head *head, struct binding_use *use) {
        struct buf *out = &h->x.head;
        _cleanup_buf_ struct buf target = BUF_INIT(2 * LIMIT_HTTP_HEAD);
        int r = write_target(head, use, &target);
        const char *text = r == 0 ? buf_str(&target) : NULL;
        if (r == 0)
                r = text ? http1_write_request(out, head->method, text) : -ENOMEM;
        if (target.data)
                explicit_bzero(target.data, target.cap);
        if (r == 0)
                r = head_write_host(out, &h->peer.host, h->peer.port, default_port(h->peer.protocol));
        if (r == 0)
                r = head_forward_fields(out, head, use->touches ? leave_out : NULL, use);
        if (r == 0 && use->outcome == BINDING_ADD)
                r = binding_write_fields(use, out);
        if (r == 0)
                r = head_write_framing(out, head);
        if (r == 0 && h->x.upgrade)
                r = buf_puts(out, "Connection: Upgrade\r\nUpgrade: websocket\r\n");
        return r == 0 ? http1_write_end_of_head(out) : r;
}

/* Adds the credential, or says why not. Nothing else happens to the bindings in between. */
static bool bind_and_write(struct http *h, const struct http1_head *head, struct refusal *ret) {
        const struct binding_request q = {
                .host = &h->peer.host,
                .port = h->peer.port,
                .protocol = h->peer.protocol,
                .method = head->method,
                .target = head->target,
                .fields = head->fields,
                .n_fields = head->n_fields,
        };
        struct binding_use use = bindings_judge(h->gw->bindings, &q, uv_now(h->gw->loop), clock_real_ms());
        if (use.id)
                (void) str_copy(h->x.audit.binding, sizeof h->x.audit.binding, use.id);
        if (use.outcome == BINDING_DENY)
                return refuse(ret, use.reason, NULL);
        if (use.outcome == BINDING_ADD && mask_new(&use, &h->x.mask) < 0)
                return refuse(ret, REASON_INTERNAL, "out of memory");
        if (write_head(h, head, &use) < 0)
                return refuse(ret, REASON_INTERNAL, "the request's head cannot be passed on");
        return true;
}

bool http_judge(struct http *h, const struct http1_head *head, struct refusal *ret) {
        h->x.target = strdup(head->target);
        if (!h->x.target)
                return refuse(ret, REASON_INTERNAL, "out of memory");
        if (!check_authority(h, head, ret) || !check_upgrade(h, head, ret))
                return false;
        struct policy_verdict v = policy_request(h->gw->policy, &h->peer.host, h->peer.port, h->peer.protocol, head->method,
                                                 head->target);
        (void) str_copy(h->x.audit.rule, sizeof h->x.audit.rule, v.rule_name);
        v.rule_name = h->x.audit.rule;
        ret->rule = h->x.audit.rule;
        h->x.verdict = v;
        if (v.outcome != POLICY_ALLOW)
                return refuse(ret, v.reason, NULL);
        if (!check_override(h, head, ret))
                return false;
        if (!usage_request(h->gw->usage, v.rule))
                return refuse(ret, REASON_LIMIT_REQUESTS, NULL);
        return bind_and_write(h, head, ret);
}
