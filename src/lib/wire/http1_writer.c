/* SPDX-License-Identifier: Apache-2.0 */

/* Writers. What a caller hands in may come from a peer of its own, so every part is checked: a
 * writer never makes a message that means something else to the next parser. */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "wire/http1.h"
#include "wire/http1_chars.h"

static const struct {
        int status;
        const char *reason;
} reasons[] = {
        { 100, "Continue" },
        { 101, "Switching Protocols" },
        { 200, "OK" },
        { 201, "Created" },
        { 202, "Accepted" },
        { 204, "No Content" },
        { 206, "Partial Content" },
        { 301, "Moved Permanently" },
        { 302, "Found" },
        { 303, "See Other" },
        { 304, "Not Modified" },
        { 307, "Temporary Redirect" },
        { 308, "Permanent Redirect" },
        { 400, "Bad Request" },
        { 401, "Unauthorized" },
        { 403, "Forbidden" },
        { 404, "Not Found" },
        { 405, "Method Not Allowed" },
        { 406, "Not Acceptable" },
        { 408, "Request Timeout" },
        { 409, "Conflict" },
        { 410, "Gone" },
        { 411, "Length Required" },
        { 412, "Precondition Failed" },
        { 413, "Content Too Large" },
        { 414, "URI Too Long" },
        { 415, "Unsupported Media Type" },
        { 416, "Range Not Satisfiable" },
        { 417, "Expectation Failed" },
        { 422, "Unprocessable Content" },
        { 426, "Upgrade Required" },
        { 429, "Too Many Requests" },
        { 431, "Request Header Fields Too Large" },
        { 499, "Client Closed Request" },
        { 500, "Internal Server Error" },
        { 501, "Not Implemented" },
        { 502, "Bad Gateway" },
        { 503, "Service Unavailable" },
        { 504, "Gateway Timeout" },
        { 505, "HTTP Version Not Supported" },
        { 507, "Insufficient Storage" },
};

const char *http1_reason(int status) {
        for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
                if (reasons[i].status == status)
                        return reasons[i].reason;
        return "Unknown";
}

int http1_write_request(struct buf *out, const char *method, const char *target) {
        size_t n = strlen(target);
        if (!http1_is_token(method, strlen(method)) || n == 0 || !http1_all(target, n, C_TARGET))
                return -EINVAL;
        return buf_printf(out, "%s %s HTTP/1.1\r\n", method, target);
}

int http1_write_status(struct buf *out, int status) {
        if (status < 100 || status > 599)
                return -EINVAL;
        return buf_printf(out, "HTTP/1.1 %d %s\r\n", status, http1_reason(status));
}

int http1_write_field(struct buf *out, const char *name, const char *value) {
        if (!http1_is_token(name, strlen(name)) || !http1_is_value(value, strlen(value)))
                return -EINVAL;
        return buf_printf(out, "%s: %s\r\n", name, value);
}

int http1_write_end_of_head(struct buf *out) {
        return buf_puts(out, "\r\n");
}

int http1_write_chunk(struct buf *out, const void *data, size_t n) {
        if (n == 0)
                return 0;
        uint8_t *room;
        int r = buf_reserve(out, n + 32, &room);
        if (r < 0)
                return r;
        r = buf_printf(out, "%zx\r\n", n);
        if (r == 0)
                r = buf_append(out, data, n);
        return r < 0 ? r : buf_puts(out, "\r\n");
}

int http1_write_last_chunk(struct buf *out) {
        return buf_puts(out, "0\r\n\r\n");
}
