/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A request head of any kind through the real parser and the router, and the same bytes as the
 * list filters. What must hold whatever comes in: a sandbox route has a well-formed id and a port,
 * a refusal has a text, and an id that is not ours is never turned into one that is.
 */

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "proxy/e2b_query.h"
#include "proxy/router.h"
#include "wire/http1.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_route(const struct http1_head *head) {
        struct route r;

        router_decide(head, "sb.example.com", &r);
        if (r.kind == ROUTE_SANDBOX &&
            (r.port == 0 || r.id[0] == '\0' || strspn(r.id, "abcdefghijklmnopqrstuvwxyz0123456789") != strlen(r.id)))
                abort();
        if (r.kind == ROUTE_REFUSED && (r.status != 400 || !r.message))
                abort();
        /* What is public of the agent never starts like its internal services. */
        if (router_agent_path_public(head->target) && (strncmp(head->target, "/cspace", 7) == 0 ||
                                                       strncmp(head->target, "/control", 8) == 0 ||
                                                       strstr(head->target, "/../") == head->target))
                abort();
}

static void check_request(const uint8_t *data, size_t n) {
        struct http1_parser *p = http1_parser_new(HTTP1_REQUESTS);
        struct http1_event ev = { .type = HTTP1_NEED_DATA };
        size_t used;

        for (size_t at = 0; p; at += used) {
                http1_parse(p, data + at, n - at, &used, &ev);
                if (ev.type == HTTP1_HEAD)
                        check_route(ev.head);
                if (ev.type == HTTP1_ERROR || ev.type == HTTP1_NEED_DATA)
                        break;
        }
        http1_parser_free(p);
}

static void check_query(const uint8_t *data, size_t n) {
        char *text = strndup((const char *) data, n);
        struct error err = ERROR_INIT;
        json_t *j = NULL;
        unsigned states;

        if (text && e2b_parse_metadata(text, &j, &err) < 0 && !err.msg[0])
                abort();
        if (text)
                (void) e2b_parse_states(text, &states, &err);
        json_decref(j);
        free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        check_request(data, n);
        check_query(data, n);
        return 0;
}
