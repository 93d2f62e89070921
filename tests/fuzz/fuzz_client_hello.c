/* SPDX-License-Identifier: Apache-2.0 */

/* A ClientHello in one piece and in many: the same verdict, and a name that is one. */

#include "fuzz.h"
#include "wire/client_hello.h"

static enum client_hello_result run(const uint8_t *data, size_t n, size_t max, struct client_hello *h, const char **why) {
        struct client_hello_parser *p = client_hello_parser_new();
        struct cuts c = cuts_of(data, n, max);
        enum client_hello_result r = CLIENT_HELLO_MORE;
        REQUIRE(p);
        for (size_t at = 0; at < n && r == CLIENT_HELLO_MORE;) {
                size_t len = cuts_next(&c, n - at);
                uint8_t *piece = piece_of(data + at, len);
                r = client_hello_feed(p, piece, len, h, why);
                free(piece);
                at += len;
        }
        client_hello_parser_free(p);
        return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        static const size_t sizes[] = { 1, 5, 64 };
        struct client_hello whole = { 0 }, cut = { 0 };
        const char *why_whole = "", *why_cut = "";
        enum client_hello_result r = run(data, n, 0, &whole, &why_whole);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
                cut = (struct client_hello){ 0 };
                REQUIRE(run(data, n, sizes[i], &cut, &why_cut) == r);
                REQUIRE(strcmp(whole.name, cut.name) == 0);
                REQUIRE(r != CLIENT_HELLO_ERROR || strcmp(why_whole, why_cut) == 0);
        }
        size_t len = strlen(whole.name);
        REQUIRE(strspn(whole.name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == len);
        REQUIRE(len == 0 || (whole.name[0] != '.' && whole.name[len - 1] != '.'));
        if (r == CLIENT_HELLO_DONE)
                REQUIRE(client_hello_is_tls(data, n) == 1);
        return 0;
}
