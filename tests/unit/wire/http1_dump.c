/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Not a test by itself: prints what the HTTP/1.1 parser makes of a list of inputs, for comparison
 * with another implementation (tests/integration/wire). Each line of stdin is one input in hex; for
 * each comes one line of JSON: {"messages":[{"method","target","headers":[[name,value]],"body":hex}],
 * "end":"ok"|"cut"|"error: ..."}. Values are in hex too, as they need not be UTF-8.
 */

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/str.h"
#include "wire/http1.h"

static json_t *hex_of(const void *data, size_t n) {
        char *text = malloc(2 * n + 1);
        if (!text)
                abort();
        str_hex(data, n, text);
        json_t *j = json_string(text);
        free(text);
        return j;
}

static json_t *headers_of(const struct http1_head *h) {
        json_t *a = json_array();
        for (size_t i = 0; i < h->n_fields; i++)
                json_array_append_new(a, json_pack("[s,o]", h->fields[i].name,
                                                   hex_of(h->fields[i].value, strlen(h->fields[i].value))));
        return a;
}

static void dump(const uint8_t *d, size_t n) {
        struct http1_parser *p = http1_parser_new(HTTP1_REQUESTS);
        _cleanup_buf_ struct buf body = BUF_INIT(0);
        _cleanup_json_ json_t *out = json_object();
        json_t *messages = json_array(), *message = NULL;
        char end[256] = "ok";
        struct http1_event ev;
        bool more = true;
        json_object_set_new(out, "messages", messages);
        while (more) {
                size_t used;
                http1_parse(p, d, n, &used, &ev);
                d += used;
                n -= used;
                switch (ev.type) {
                case HTTP1_HEAD:
                        message = json_pack("{s:s,s:s,s:o}", "method", ev.head->method, "target",
                                            ev.head->target, "headers", headers_of(ev.head));
                        buf_clear(&body);
                        /* After these the bytes are another protocol's. */
                        if (strcmp(ev.head->method, "CONNECT") == 0 || ev.head->upgrade)
                                n = 0;
                        break;
                case HTTP1_BODY:
                        buf_append(&body, ev.data, ev.n);
                        break;
                case HTTP1_END:
                        json_object_set_new(message, "body", hex_of(buf_data(&body), body.len));
                        json_array_append_new(messages, STEAL(message));
                        break;
                case HTTP1_ERROR:
                        (void) snprintf(end, sizeof end, "error: %s", ev.reason);
                        more = false;
                        break;
                case HTTP1_NEED_DATA:
                default:
                        if (http1_parser_eof(p) < 0)
                                (void) snprintf(end, sizeof end, "cut");
                        more = false;
                        break;
                }
        }
        json_decref(message);
        json_object_set_new(out, "end", json_string(end));
        _cleanup_free_ char *text = json_to_str(out);
        puts(text ? text : "");
        http1_parser_free(p);
}

int main(void) {
        char *line = NULL;
        size_t cap = 0;
        ssize_t len;
        while ((len = getline(&line, &cap, stdin)) > 0) {
                size_t n = (size_t) len - (line[len - 1] == '\n');
                uint8_t *raw = malloc(n / 2 + 1);
                if (!raw || str_unhex(line, n, raw) < 0)
                        return 2;
                dump(raw, n / 2);
                free(raw);
        }
        free(line);
        return 0;
}
