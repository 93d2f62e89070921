/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The HTTP/1.1 parser, for requests or (-DRESPONSES) responses. Holds: the events do not depend on
 * the cuts; a head that is accepted can be written again by the writers and then reads the same;
 * framing is never ambiguous; the target helpers take whatever target was accepted.
 */

#include "fuzz.h"

#include "wire/http1.h"

#ifdef RESPONSES
#define ROLE HTTP1_RESPONSES
#else
#define ROLE HTTP1_REQUESTS
#endif

static void note_head(struct buf *out, const struct http1_head *h) {
        (void) buf_printf(out, "H%s %s %d %s %d", h->is_request ? h->method : "",
                          h->is_request ? h->target : "", h->status, h->is_request ? "" : h->reason,
                          h->minor);
        for (size_t i = 0; i < h->n_fields; i++)
                (void) buf_printf(out, "|%s:%s", h->fields[i].name, h->fields[i].value);
        (void) buf_printf(out, " %lld%d%d%d%d\n", (long long) h->content_length, h->chunked, h->keep_alive,
                          h->upgrade, h->expect_continue);
}

static bool has(const struct http1_head *h, const char *name) {
        return http1_get(h, name) != NULL;
}

static void check_head(const struct http1_head *h) {
        REQUIRE(h->is_request == (ROLE == HTTP1_REQUESTS));
        REQUIRE(h->n_fields <= LIMIT_HTTP_HEADERS);
        REQUIRE(!(has(h, "content-length") && has(h, "transfer-encoding")));
        REQUIRE(h->chunked == has(h, "transfer-encoding"));
        REQUIRE((h->content_length >= 0) == has(h, "content-length"));
        REQUIRE(h->minor == 0 || h->minor == 1);
        if (h->is_request)
                REQUIRE(h->minor == 0 || has(h, "host"));
        else
                REQUIRE(h->status >= 100 && h->status <= 599);
        for (size_t i = 0; i < h->n_fields; i++) {
                const char *v = h->fields[i].value;
                REQUIRE(http1_is_token(h->fields[i].name, strlen(h->fields[i].name)));
                REQUIRE(http1_is_value(v, strlen(v)));
                REQUIRE(v[0] != ' ' && v[0] != '\t');
        }
}

static void check_target(const char *target) {
        struct buf path = BUF_INIT(0), value = BUF_INIT(0);
        if (http1_path_of(target, &path) == 0)
                REQUIRE(path.len > 0 && !memchr(buf_data(&path), '?', path.len));
        int r = http1_query_get(target, "a", &value);
        REQUIRE(r == 0 || r == 1 || r == -22);
        REQUIRE(!memchr(buf_data(&value), 0, value.len));
        buf_done(&path);
        buf_done(&value);
}

static void parse(const uint8_t *data, size_t n, struct cuts cuts, struct buf *out);

/* Written again, it reads the same. */
static void check_again(const struct http1_head *h) {
        struct buf text = BUF_INIT(0), first = BUF_INIT(0), again = BUF_INIT(0);
        int r = h->is_request ? http1_write_request(&text, h->method, h->target)
                              : buf_printf(&text, "HTTP/1.1 %d %s\r\n", h->status, h->reason);
        for (size_t i = 0; i < h->n_fields && r == 0; i++)
                r = http1_write_field(&text, h->fields[i].name, h->fields[i].value);
        REQUIRE(r == 0);
        REQUIRE(http1_write_end_of_head(&text) == 0);
        struct http1_parser *p = http1_parser_new(ROLE);
        REQUIRE(p);
        struct http1_event ev;
        size_t used;
        http1_parse(p, buf_data(&text), text.len, &used, &ev);
        /* The writers add white space and 1.1; only what that changes may differ. */
        if (h->minor == 1 && text.len <= LIMIT_HTTP_HEAD) {
                REQUIRE(ev.type == HTTP1_HEAD);
                note_head(&first, h);
                note_head(&again, ev.head);
                require_same(&first, &again);
        }
        http1_parser_free(p);
        buf_done(&text);
        buf_done(&first);
        buf_done(&again);
}

/* False: the parser is dead. */
static bool feed(struct http1_parser *p, const uint8_t *d, size_t n, struct buf *out, bool checks) {
        for (;;) {
                struct http1_event ev = { 0 };
                size_t used = SIZE_MAX;
                http1_parse(p, d, n, &used, &ev);
                REQUIRE(used <= n);
                switch (ev.type) {
                case HTTP1_NEED_DATA:
                        REQUIRE(used == n);
                        return true;
                case HTTP1_HEAD:
                        check_head(ev.head);
                        if (checks) {
                                check_again(ev.head);
                                if (ev.head->is_request)
                                        check_target(ev.head->target);
                        }
                        note_head(out, ev.head);
                        if (ROLE == HTTP1_RESPONSES && has(ev.head, "x-no-body"))
                                http1_parser_no_body(p);
                        break;
                case HTTP1_BODY:
                        REQUIRE(ev.n > 0 && ev.data >= d && ev.data + ev.n <= d + n);
                        REQUIRE(buf_append(out, ev.data, ev.n) == 0);
                        break;
                case HTTP1_END:
                        REQUIRE(buf_puts(out, "\nE\n") == 0);
                        break;
                case HTTP1_ERROR:
                        REQUIRE(ev.reason && ev.status >= 400 && ev.status <= 599);
                        REQUIRE(buf_printf(out, "X%d %s", ev.status, ev.reason) == 0);
                        return false;
                default:
                        abort();
                }
                d += used;
                n -= used;
        }
}

static void parse(const uint8_t *data, size_t n, struct cuts cuts, struct buf *out) {
        struct http1_parser *p = http1_parser_new(ROLE);
        REQUIRE(p);
        bool alive = true;
        while (alive && n > 0) {
                size_t take = cuts_next(&cuts, n);
                uint8_t *piece = piece_of(data, take);
                alive = feed(p, piece, take, out, cuts.max == 0);
                free(piece);
                data += take;
                n -= take;
        }
        if (alive) {
                int r = http1_parser_eof(p);
                REQUIRE(buf_printf(out, "eof%d", r) == 0);
                if (r == 0)
                        REQUIRE(feed(p, (const uint8_t *) "", 0, out, false));
        }
        http1_parser_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        struct buf whole = BUF_INIT(0);
        parse(data, n, cuts_of(data, n, 0), &whole);
        static const size_t sizes[] = { 1, 7, 100 };
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
                struct buf cut = BUF_INIT(0);
                parse(data, n, cuts_of(data, n, sizes[i]), &cut);
                require_same(&whole, &cut);
                buf_done(&cut);
        }
        buf_done(&whole);
        return 0;
}
