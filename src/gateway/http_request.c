/* SPDX-License-Identifier: Apache-2.0 */

/* A request's head on its way out in HTTP/1.1. */

#include <errno.h>

#include "base/cleanup.h"
#include "http_head.h"
#include "http_internal.h"

static bool leave_out(void *arg, const struct http1_field *f) {
        return binding_leaves_out(arg, f->name);
}

static int write_head(struct http *h, const struct http1_head *head, struct binding_use *use) {
        struct buf *out = &h->x.head;
        _cleanup_buf_ struct buf target = BUF_INIT(2 * LIMIT_HTTP_HEAD);
        int r = exchange_write_target(head, use, &target);
        const char *text = r == 0 ? buf_str(&target) : NULL;
        if (r == 0)
                r = text ? http1_write_request(out, head->method, text) : -ENOMEM;
        exchange_wipe(&target);
        if (r == 0)
                r = head_write_host(out, &h->peer.host, h->peer.port, h->peer.protocol == POLICY_TLS ? 443 : 80);
        if (r == 0)
                r = head_forward_fields(out, head, use->touches ? leave_out : NULL, use);
        if (r == 0 && use->outcome == BINDING_ADD)
                r = binding_write_fields(use, out);
        if (r == 0)
                r = head_write_framing(out, head);
        if (r == 0 && h->x.x.upgrade)
                r = buf_puts(out, "Connection: Upgrade\r\nUpgrade: websocket\r\n");
        return r == 0 ? http1_write_end_of_head(out) : r;
}

bool http_judge(struct http *h, const struct http1_head *head, struct refusal *ret) {
        struct binding_use use;
        if (!exchange_judge(&h->x.x, h->gw, &h->peer, head, &use, ret))
                return false;
        if (write_head(h, head, &use) == 0)
                return true;
        ret->reason = REASON_INTERNAL;
        ret->detail = "the request's head cannot be passed on";
        return false;
}
