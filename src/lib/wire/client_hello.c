/* SPDX-License-Identifier: Apache-2.0 */

/*
 * record    type u8 = 22 | version u16 = 0x03xx | length u16 | fragment        (RFC 8446, 5.1)
 * message   type u8 = 1  | length u24 | version u16 | random 32 | session id <0..32>
 *           cipher suites <2..> | compression <1..> | extensions <0..>
 *
 * Records are joined first; the message is judged only when it is complete, so that the verdict
 * cannot depend on how it was cut.
 */

#include "wire/client_hello.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

#define RECORD_HEAD 5
#define RECORD_MAX (16u * 1024)
#define TYPE_HANDSHAKE 22
#define MESSAGE_HEAD 4
#define MESSAGE_CLIENT_HELLO 1
#define EXTENSIONS_MAX 64

enum {
        EXT_SERVER_NAME = 0,
        EXT_ALPN = 16,
        EXT_SUPPORTED_VERSIONS = 43,
        EXT_ENCRYPTED_CLIENT_HELLO = 0xfe0d,
        EXT_ENCRYPTED_SERVER_NAME = 0xffce, /* its forerunner */
};

struct client_hello_parser {
        uint8_t head[RECORD_HEAD];
        size_t head_n;
        size_t left;      /* of this record's fragment */
        unsigned records;
        struct buf message;
        bool ended;
};

/* A cursor over hostile bytes: reading beyond the end sets `bad` and gives zeros from then on. */
struct span {
        const uint8_t *at;
        size_t n;
        bool bad;
};

struct client_hello_parser *client_hello_parser_new(void) {
        struct client_hello_parser *p = calloc(1, sizeof *p);
        if (p)
                p->message = BUF_INIT(CLIENT_HELLO_MAX);
        return p;
}

void client_hello_parser_free(struct client_hello_parser *p) {
        if (!p)
                return;
        buf_done(&p->message);
        free(p);
}

static uint32_t take_uint(struct span *s, size_t width) {
        uint32_t v = 0;
        if (s->n < width) {
                s->bad = true;
                s->n = 0;
                return 0;
        }
        for (size_t i = 0; i < width; i++)
                v = v << 8 | s->at[i];
        s->at += width;
        s->n -= width;
        return v;
}

static struct span take(struct span *s, size_t n) {
        if (s->n < n) {
                s->bad = true;
                s->n = 0;
                return (struct span){ .at = s->at, .bad = true };
        }
        struct span part = { .at = s->at, .n = n };
        s->at += n;
        s->n -= n;
        return part;
}

/* A vector with a length of `width` bytes in front. */
static struct span take_vector(struct span *s, size_t width) {
        return take(s, take_uint(s, width));
}

/* ---- extensions ---------------------------------------------------------------------------- */

static bool name_char(uint8_t c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
}

/* Dots separate labels of 1 to 63 characters; the last has none behind it (RFC 6066, 3). */
static const char *copy_name(struct span s, char *out) {
        size_t label = 0;
        if (s.n == 0 || s.n > CLIENT_HELLO_NAME_MAX)
                return "the server name is empty or too long";
        for (size_t i = 0; i < s.n; i++) {
                uint8_t c = s.at[i];
                if (c >= 'A' && c <= 'Z')
                        c = (uint8_t) (c - 'A' + 'a');
                if (!name_char(c))
                        return "the server name has characters that are not allowed";
                label = c == '.' ? 0 : label + 1;
                if (label > 63 || (c == '.' && (i == 0 || s.at[i - 1] == '.' || i + 1 == s.n)))
                        return "the server name has an empty or too long label";
                out[i] = (char) c;
        }
        out[s.n] = '\0';
        return NULL;
}

static const char *read_server_name(struct span ext, struct client_hello *h) {
        struct span list = take_vector(&ext, 2);
        uint32_t type = take_uint(&list, 1);
        struct span name = take_vector(&list, 2);
        if (ext.bad || list.bad || name.bad || ext.n > 0 || list.n > 0)
                return "the server name extension is malformed or has more than one name";
        if (type != 0)
                return "the server name is not a host name";
        return copy_name(name, h->name);
}

static bool is_text(struct span s, const char *text) {
        return s.n == strlen(text) && memcmp(s.at, text, s.n) == 0;
}

static const char *read_alpn(struct span ext, struct client_hello *h) {
        struct span list = take_vector(&ext, 2);
        if (ext.n > 0 || list.n == 0)
                list.bad = true;
        while (list.n > 0 && !list.bad) {
                struct span name = take_vector(&list, 1);
                if (name.n == 0)
                        list.bad = true;
                h->alpn_h2 |= is_text(name, "h2");
                h->alpn_http11 |= is_text(name, "http/1.1");
        }
        h->has_alpn = true;
        return ext.bad || list.bad ? "the protocol list (ALPN) is malformed" : NULL;
}

static const char *read_versions(struct span ext, struct client_hello *h) {
        struct span list = take_vector(&ext, 1);
        if (ext.n > 0 || list.n == 0)
                list.bad = true;
        uint16_t best = 0;
        while (list.n > 0 && !list.bad) {
                uint16_t v = (uint16_t) take_uint(&list, 2);
                if (v >= 0x0300 && v <= 0x0304 && v > best) /* others are placeholders (RFC 8701) */
                        best = v;
        }
        h->version = best;
        return ext.bad || list.bad ? "the list of versions is malformed" : NULL;
}

static const char *read_extension(uint32_t type, struct span ext, struct client_hello *h) {
        switch (type) {
        case EXT_SERVER_NAME:
                return read_server_name(ext, h);
        case EXT_ALPN:
                return read_alpn(ext, h);
        case EXT_SUPPORTED_VERSIONS:
                return read_versions(ext, h);
        case EXT_ENCRYPTED_CLIENT_HELLO:
        case EXT_ENCRYPTED_SERVER_NAME:
                h->encrypted = true;
                return NULL;
        default:
                return NULL;
        }
}

static const char *read_extensions(struct span list, struct client_hello *h) {
        uint16_t seen[EXTENSIONS_MAX];
        for (size_t n = 0; list.n > 0; n++) {
                uint16_t type = (uint16_t) take_uint(&list, 2);
                struct span ext = take_vector(&list, 2);
                if (list.bad || ext.bad)
                        return "an extension is cut short";
                if (n == EXTENSIONS_MAX)
                        return "too many extensions";
                for (size_t i = 0; i < n; i++)
                        if (seen[i] == type)
                                return "an extension is there twice";
                seen[n] = type;
                const char *why = read_extension(type, ext, h);
                if (why)
                        return why;
        }
        return NULL;
}

static const char *read_message(const struct buf *m, struct client_hello *ret) {
        struct span s = { .at = buf_data(m) + MESSAGE_HEAD, .n = m->len - MESSAGE_HEAD };
        struct client_hello h = { .version = (uint16_t) take_uint(&s, 2) };
        if (h.version > 0x0303)
                h.version = 0x0303; /* TLS 1.3 is said in an extension only */
        (void) take(&s, 32);
        struct span session = take_vector(&s, 1), suites = take_vector(&s, 2), methods = take_vector(&s, 1);
        if (s.bad || session.n > 32 || suites.n < 2 || suites.n % 2 != 0 || methods.n < 1)
                return "the ClientHello is malformed";
        const char *why = NULL;
        if (s.n > 0) {
                struct span list = take_vector(&s, 2);
                if (s.bad || s.n > 0)
                        return "the extensions are malformed";
                why = read_extensions(list, &h);
        }
        if (!why)
                *ret = h;
        return why;
}

/* ---- records ------------------------------------------------------------------------------- */

static const char *begin_record(struct client_hello_parser *p) {
        if (p->head[0] != TYPE_HANDSHAKE || p->head[1] != 3)
                return "this is not a TLS handshake";
        p->left = (size_t) p->head[3] << 8 | p->head[4];
        if (p->left == 0 || p->left > RECORD_MAX)
                return "a TLS record is empty or too long";
        if (++p->records > CLIENT_HELLO_RECORDS_MAX)
                return "the ClientHello is spread over too many records";
        return NULL;
}

/* 1: the message is complete, 0: more, -1: *why. */
static int check_message(struct client_hello_parser *p, const char **why) {
        const uint8_t *m = buf_data(&p->message);
        if (p->message.len > 0 && m[0] != MESSAGE_CLIENT_HELLO) {
                *why = "the first message is not a ClientHello";
                return -1;
        }
        if (p->message.len < MESSAGE_HEAD)
                return 0;
        size_t total = MESSAGE_HEAD + ((size_t) m[1] << 16 | (size_t) m[2] << 8 | m[3]);
        if (total > CLIENT_HELLO_MAX) {
                *why = "the ClientHello is too long";
                return -1;
        }
        if (p->message.len + p->left > total) {
                *why = "there is something behind the ClientHello in its record";
                return -1;
        }
        return p->message.len == total;
}

static const char *take_fragment(struct client_hello_parser *p, const uint8_t *d, size_t n) {
        p->left -= n;
        return buf_append(&p->message, d, n) < 0 ? "out of memory" : NULL;
}

enum client_hello_result client_hello_feed(struct client_hello_parser *p, const uint8_t *data, size_t n,
                                           struct client_hello *ret, const char **ret_reason) {
        const char *why = p->ended ? "the ClientHello has ended" : NULL;
        int complete = 0;
        for (size_t i = 0; i < n && !why && !complete;) {
                if (p->left == 0) {
                        p->head[p->head_n++] = data[i++];
                        /* The first bytes decide alone: nobody waits for the fifth of what is not TLS. */
                        if ((p->head_n == 1 && p->head[0] != TYPE_HANDSHAKE) || (p->head_n == 2 && p->head[1] != 3))
                                why = "this is not a TLS handshake";
                        if (p->head_n < RECORD_HEAD)
                                continue;
                        p->head_n = 0;
                        why = begin_record(p);
                        if (!why)
                                (void) check_message(p, &why);
                        continue;
                }
                /* Its own length first: with it, check_message() keeps the message within its limit. */
                size_t want = p->message.len < MESSAGE_HEAD ? MESSAGE_HEAD - p->message.len : p->left;
                size_t part = want < p->left ? want : p->left;
                part = n - i < part ? n - i : part;
                why = take_fragment(p, data + i, part);
                i += part;
                if (!why)
                        complete = check_message(p, &why);
        }
        if (!why && !complete)
                return CLIENT_HELLO_MORE;
        p->ended = true;
        if (!why)
                why = read_message(&p->message, ret);
        if (!why)
                return CLIENT_HELLO_DONE;
        *ret_reason = why;
        return CLIENT_HELLO_ERROR;
}

int client_hello_is_tls(const uint8_t *data, size_t n) {
        if (n > 0 && data[0] != TYPE_HANDSHAKE)
                return 0;
        return n < 2 ? -1 : data[1] == 3;
}
