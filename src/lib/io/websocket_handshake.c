/* SPDX-License-Identifier: Apache-2.0 */

/* The opening handshake (RFC 6455, 4). */

#include <errno.h>
#include <openssl/evp.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/id.h"
#include "base/str.h"
#include "io/websocket.h"

#define GUID "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
#define KEY_BYTES 16
#define SHA1_BYTES 20

int websocket_accept_value(const char *key, char out[WEBSOCKET_ACCEPT_SIZE]) {
        char text[WEBSOCKET_KEY_SIZE + sizeof GUID];
        uint8_t digest[EVP_MAX_MD_SIZE];
        unsigned n = 0;
        size_t len = strlen(key);
        if (len >= WEBSOCKET_KEY_SIZE)
                return -EINVAL;
        memcpy(text, key, len);
        memcpy(text + len, GUID, sizeof GUID);
        if (EVP_Digest(text, len + sizeof GUID - 1, digest, &n, EVP_sha1(), NULL) != 1 || n != SHA1_BYTES)
                return -EIO;
        base64_encode(digest, n, out);
        return 0;
}

int websocket_new_key(char out[WEBSOCKET_KEY_SIZE]) {
        uint8_t raw[KEY_BYTES];
        int r = random_bytes(raw, sizeof raw);
        if (r < 0)
                return r;
        base64_encode(raw, sizeof raw, out);
        return 0;
}

static bool is_key(const char *key) {
        uint8_t raw[3 * WEBSOCKET_KEY_SIZE / 4 + 1];
        return key && strlen(key) == WEBSOCKET_KEY_SIZE - 1 &&
               base64_decode(key, strlen(key), raw) == KEY_BYTES;
}

static int refuse(const char **reason, int status, const char *why) {
        *reason = why;
        return status;
}

int websocket_check_request(const struct http1_head *h, const char **reason) {
        if (strcmp(h->method, "GET") != 0 || h->minor != 1)
                return refuse(reason, 400, "a WebSocket opens with GET and HTTP/1.1");
        if (h->chunked || h->content_length > 0)
                return refuse(reason, 400, "the request has a body");
        if (!h->upgrade || !http1_has_token(h, "upgrade", "websocket"))
                return refuse(reason, 426, "the request does not ask for an upgrade to websocket");
        const char *version = http1_get(h, "sec-websocket-version");
        if (!version || strcmp(version, "13") != 0)
                return refuse(reason, 426, "only version 13 of WebSocket is spoken here");
        if (!is_key(http1_get(h, "sec-websocket-key")))
                return refuse(reason, 400, "Sec-WebSocket-Key is missing or malformed");
        return 0;
}

int websocket_accept(uv_loop_t *loop, struct http_x *x, const char *protocol, size_t max_message,
                     const struct websocket_handler *h, void *arg, struct websocket **ret,
                     struct error *err) {
        const struct http1_head *head = http_x_head(x);
        const char *reason;
        if (websocket_check_request(head, &reason) != 0)
                return error_set(err, -EPROTO, "%s", reason);
        char accept[WEBSOCKET_ACCEPT_SIZE];
        int r = websocket_accept_value(http1_get(head, "sec-websocket-key"), accept);
        if (r < 0)
                return error_errno(err, r, "cannot compute Sec-WebSocket-Accept");
        struct http_header fields[] = {
                { "Upgrade", "websocket" },
                { "Sec-WebSocket-Accept", accept },
                { "Sec-WebSocket-Protocol", protocol },
        };
        struct stream *s;
        r = http_x_upgrade(x, 101, fields, protocol ? 3 : 2, &s);
        if (r < 0)
                return error_errno(err, r, "cannot upgrade the connection");
        return websocket_new(loop, WEBSOCKET_SERVER, s, max_message, h, arg, ret, err);
}

int websocket_check_answer(const struct http1_head *h, const char *key, struct error *err) {
        char want[WEBSOCKET_ACCEPT_SIZE];
        int r = websocket_accept_value(key, want);
        if (r < 0)
                return error_errno(err, r, "cannot compute Sec-WebSocket-Accept");
        const char *got = http1_get(h, "sec-websocket-accept");
        if (h->status != 101 || !h->upgrade || !http1_has_token(h, "upgrade", "websocket"))
                return error_set(err, -EPROTO, "the server answered %d instead of opening a WebSocket",
                                 h->status);
        if (!str_eq(got, want))
                return error_set(err, -EPROTO, "the server's Sec-WebSocket-Accept is wrong");
        if (http1_get(h, "sec-websocket-extensions"))
                return error_set(err, -EPROTO, "the server wants a WebSocket extension");
        return 0;
}
