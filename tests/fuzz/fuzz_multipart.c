/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The multipart reader. The first line of the input is the Content-Type. Holds: the events do not
 * depend on the cuts; they come in order; no byte of content is invented.
 */

#include "fuzz.h"

#include "wire/multipart.h"

struct trace {
        struct buf out;
        size_t content;
        bool in_part, ended;
};

static bool feed(struct multipart_parser *p, const uint8_t *d, size_t n, struct trace *t) {
        for (;;) {
                struct multipart_event ev = { 0 };
                size_t used = SIZE_MAX;
                multipart_parse(p, d, n, &used, &ev);
                REQUIRE(used <= n);
                int r = 0;
                switch (ev.type) {
                case MULTIPART_NEED_DATA:
                        REQUIRE(used == n);
                        return true;
                case MULTIPART_PART:
                        REQUIRE(!t->in_part && !t->ended && ev.part->name);
                        REQUIRE(!ev.part->filename == !ev.part->filename_raw);
                        t->in_part = true;
                        r = buf_printf(&t->out, "\nP%s|%s|%s\n", ev.part->name,
                                       ev.part->filename ? ev.part->filename : "",
                                       ev.part->content_type ? ev.part->content_type : "");
                        break;
                case MULTIPART_DATA:
                        REQUIRE(t->in_part && ev.n > 0);
                        t->content += ev.n;
                        r = buf_append(&t->out, ev.data, ev.n);
                        break;
                case MULTIPART_PART_END:
                        REQUIRE(t->in_part);
                        t->in_part = false;
                        r = buf_puts(&t->out, "\nE");
                        break;
                case MULTIPART_END:
                        REQUIRE(!t->in_part && !t->ended);
                        t->ended = true;
                        r = buf_puts(&t->out, "\nEND");
                        break;
                case MULTIPART_ERROR:
                        REQUIRE(ev.reason);
                        r = buf_printf(&t->out, "\nX%s", ev.reason);
                        REQUIRE(r == 0 && multipart_eof(p) < 0);
                        return false;
                default:
                        abort();
                }
                REQUIRE(r == 0);
                d += used;
                n -= used;
        }
}

static struct buf parse(const char *type, const uint8_t *data, size_t n, struct cuts cuts) {
        struct trace t = { 0 };
        struct multipart_parser *p;
        size_t total = n;
        if (multipart_new(type, &p, NULL) < 0)
                return t.out;
        bool alive = true;
        while (alive && n > 0) {
                size_t take = cuts_next(&cuts, n);
                uint8_t *piece = piece_of(data, take);
                alive = feed(p, piece, take, &t);
                free(piece);
                data += take;
                n -= take;
        }
        if (alive)
                REQUIRE((multipart_eof(p) == 0) == t.ended);
        REQUIRE(t.content <= total);
        multipart_free(p);
        return t.out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        const uint8_t *nl = memchr(data, '\n', n);
        if (!nl)
                return 0;
        char *type = strndup((const char *) data, (size_t) (nl - data));
        REQUIRE(type);
        n -= (size_t) (nl - data) + 1;
        data = nl + 1;
        struct buf whole = parse(type, data, n, cuts_of(data, n, 0));
        static const size_t sizes[] = { 1, 5, 60 };
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
                struct buf cut = parse(type, data, n, cuts_of(data, n, sizes[i]));
                require_same(&whole, &cut);
                buf_done(&cut);
        }
        buf_done(&whole);
        free(type);
        return 0;
}
