/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What a TLS client says first (RFC 8446, 4.1.2), read before any TLS library sees it: the name it
 * asks for, the protocols it offers, and whether it hides another name (Encrypted ClientHello).
 *
 * Sans-I/O: bytes of records go in as they arrive, in pieces of any size; the message may be spread
 * over records. What a second reader could take for something else is refused: two names, a name
 * with a NUL or a trailing dot, doubled extensions, lengths that do not add up, anything behind the
 * message in its last record.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CLIENT_HELLO_MAX (16u * 1024)    /* of the message; one with post-quantum key shares has 2 KiB */
#define CLIENT_HELLO_RECORDS_MAX 64      /* that it may be spread over */
#define CLIENT_HELLO_INPUT_MAX (CLIENT_HELLO_MAX + 5u * CLIENT_HELLO_RECORDS_MAX)
#define CLIENT_HELLO_NAME_MAX 253

struct client_hello {
        char name[CLIENT_HELLO_NAME_MAX + 1]; /* lower case; empty when none was sent */
        bool encrypted;    /* the extension of Encrypted ClientHello is there, be it real or not */
        bool has_alpn;
        bool alpn_h2, alpn_http11;
        uint16_t version;  /* highest offered that this parser knows: 0x0304, 0x0303, ... */
};

enum client_hello_result {
        CLIENT_HELLO_MORE,  /* all input consumed */
        CLIENT_HELLO_DONE,
        CLIENT_HELLO_ERROR,
};

struct client_hello_parser;
struct client_hello_parser *client_hello_parser_new(void); /* NULL: no memory */
void client_hello_parser_free(struct client_hello_parser *p);

/* Feeds the next bytes. DONE fills *ret; ERROR sets *ret_reason (static text). The parser is then
 * at its end. Bytes of later records are left alone. */
enum client_hello_result client_hello_feed(struct client_hello_parser *p, const uint8_t *data, size_t n,
                                           struct client_hello *ret, const char **ret_reason);

/* Whether a stream that begins with these bytes (at least one) is TLS: 1, 0, or -1 for too few. */
int client_hello_is_tls(const uint8_t *data, size_t n);
