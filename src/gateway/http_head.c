/* SPDX-License-Identifier: Apache-2.0 */
#include "http_head.h"

#include <string.h>
#include <strings.h>

#include "base/cleanup.h"

static bool is_of_connection(const struct http1_head *h, const char *name) {
        static const char *const names[] = {
                "connection", "keep-alive", "proxy-connection", "proxy-authorization", "te", "trailer", "upgrade",
                "http2-settings", /* framing */ "transfer-encoding", "content-length", "host",
        };
        for (size_t i = 0; i < ARRAY_SIZE(names); i++)
                if (strcasecmp(name, names[i]) == 0)
                        return true;
        return http1_has_token(h, "connection", name);
}

const char *head_origin_form(const char *target) {
        const char *sep = target[0] == '/' || target[0] == '*' ? NULL : strstr(target, "://");
        if (!sep)
                return target;
        return sep + 3 + strcspn(sep + 3, "/?");
}

int head_forward_fields(struct buf *out, const struct http1_head *h, head_skip skip, void *arg) {
        for (size_t i = 0; i < h->n_fields; i++) {
                const struct http1_field *f = &h->fields[i];
                if (is_of_connection(h, f->name) || (skip && skip(arg, f)))
                        continue;
                int r = http1_write_field(out, f->name, f->value);
                if (r < 0)
                        return r;
        }
        return 0;
}

int head_write_framing(struct buf *out, const struct http1_head *h) {
        if (h->chunked)
                return http1_write_field(out, "Transfer-Encoding", "chunked");
        if (h->content_length >= 0)
                return buf_printf(out, "Content-Length: %lld\r\n", (long long) h->content_length);
        return 0;
}

int head_write_host(struct buf *out, const struct host *host, uint16_t port, uint16_t default_port) {
        if (port == default_port)
                return buf_printf(out, "Host: %s\r\n", host->name);
        return buf_printf(out, "Host: %s:%u\r\n", host->name, port);
}
