/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A request against bindings: the first line is a target, the others are fields ("Name: value") of a request that
 * the HTTP parser let through; then, after an empty line, a response. Holds: what goes out has the secret exactly
 * where the binding puts it, and the guest's own fields of that name and parameters of that name not at all; a
 * placeholder never goes out; the response never comes back with the secret, wherever it is cut.
 */

#include "fuzz.h"

#include "policy/binding.h"

#define SECRET "abcabcabd-secret"
#define PLACEHOLDER "placeholderplaceholderplaceholder"

static const char config[] =
        "[{\"id\":\"q\",\"credential\":\"c\",\"hosts\":[\"a.test\"],\"paths\":[\"/q/\"],\"placeholder\":\"" PLACEHOLDER "\","
        "\"inject\":{\"as\":\"query\",\"name\":\"key\"}},"
        "{\"id\":\"h\",\"credential\":\"c\",\"hosts\":[\"a.test\"],\"inject\":{\"as\":\"basic\",\"user\":\"u\"}}]";

static size_t count(const struct buf *b, const char *s) {
        const uint8_t *d = buf_data(b), *end = d + b->len;
        size_t n = 0;

        while ((d = memmem(d, (size_t) (end - d), s, strlen(s)))) {
                d++;
                n++;
        }
        return n;
}

static void check_request(const struct binding_use *u, const struct binding_request *q) {
        struct buf out = BUF_INIT(0);

        if (u->outcome == BINDING_DENY) {
                REQUIRE(u->reason != REASON_RULE);
                return;
        }
        REQUIRE(binding_write_target(u, q->target, &out) == 0);
        bool query = u->outcome == BINDING_ADD && strcmp(u->id, "q") == 0;
        /* The guest may have written the same bytes itself. */
        struct buf before = BUF_INIT(0);
        REQUIRE(buf_puts(&before, q->target) == 0);
        REQUIRE(count(&out, SECRET) >= (query ? 1u : 0u) && count(&out, SECRET) <= count(&before, SECRET) + (query ? 1u : 0u));
        size_t n = query ? strlen("?key=" SECRET) : 0;
        if (query)
                REQUIRE(out.len >= n && memcmp(buf_data(&out) + out.len - n + 1, "key=" SECRET, n - 1) == 0);
        for (size_t i = 0; i < q->n_fields; i++) {
                if (binding_leaves_out(u, q->fields[i].name))
                        continue;
                REQUIRE(strcasecmp(q->fields[i].name, "authorization") != 0);
                REQUIRE(buf_printf(&out, "%s: %s\n", q->fields[i].name, q->fields[i].value) == 0);
        }
        REQUIRE(count(&out, PLACEHOLDER) == 0);
        REQUIRE(binding_write_fields(u, &out) == 0);
        buf_done(&out);
        buf_done(&before);
}

static void check_response(const struct binding_use *u, const uint8_t *data, size_t n) {
        static const size_t sizes[] = { 0, 1, 3, 20 };
        struct buf whole = BUF_INIT(0);

        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
                struct cuts cuts = cuts_of(data, n, sizes[i]);
                struct buf out = BUF_INIT(0);
                struct mask *m = NULL;
                size_t left = n;
                REQUIRE(mask_new(u, &m) == 0);
                while (left > 0) {
                        size_t take = cuts_next(&cuts, left);
                        uint8_t *piece = piece_of(data + n - left, take);
                        REQUIRE(mask_feed(m, piece, take, &out) == 0);
                        free(piece);
                        left -= take;
                }
                REQUIRE(mask_end(m, &out) == 0);
                mask_free(m);
                REQUIRE(out.len == n && count(&out, SECRET) == 0);
                if (i == 0)
                        whole = out;
                else {
                        require_same(&whole, &out);
                        buf_done(&out);
                }
        }
        buf_done(&whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        static struct bindings *b;
        struct host h;
        struct http1_event ev = { 0 };
        struct buf head = BUF_INIT(0);
        const uint8_t *body = memmem(data, n, "\n\n", 2);
        size_t head_n = body ? (size_t) (body - data) : n, used;

        if (!b) {
                json_t *j = NULL;
                REQUIRE(bindings_new(&b) == 0 && json_parse(config, sizeof config - 1, 4096, &j, NULL) == 0);
                REQUIRE(bindings_load(b, j, NULL) == 0);
                REQUIRE(bindings_set_secret(b, "c", SECRET, strlen(SECRET), 0, NULL) == 0);
                json_decref(j);
        }
        REQUIRE(buf_puts(&head, "GET ") == 0);
        const uint8_t *line = memchr(data, '\n', head_n);
        size_t target_n = line ? (size_t) (line - data) : head_n;
        REQUIRE(buf_append(&head, data, target_n) == 0 && buf_puts(&head, " HTTP/1.1\r\nHost: a.test\r\n") == 0);
        for (size_t i = target_n + 1; i < head_n; i++)
                REQUIRE(data[i] == '\n' ? buf_puts(&head, "\r\n") == 0 : buf_append(&head, data + i, 1) == 0);
        REQUIRE(buf_puts(&head, "\r\n\r\n") == 0);
        struct http1_parser *p = http1_parser_new(HTTP1_REQUESTS);
        REQUIRE(p && host_parse("a.test", 6, &h, NULL) == 0);
        http1_parse(p, buf_data(&head), head.len, &used, &ev);
        if (ev.type == HTTP1_HEAD) {
                const struct binding_request q = { .host = &h, .port = 443, .protocol = POLICY_TLS, .method = ev.head->method,
                                                   .target = ev.head->target, .fields = ev.head->fields, .n_fields = ev.head->n_fields };
                struct binding_use u = bindings_judge(b, &q, 0, 1);
                check_request(&u, &q);
                if (u.outcome == BINDING_ADD && body)
                        check_response(&u, body + 2, n - head_n - 2);
        }
        http1_parser_free(p);
        buf_done(&head);
        return 0;
}
