/* SPDX-License-Identifier: Apache-2.0 */
#include "dns/dns_message.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "dns/dns_server.h"

#define LABEL_MAX 63
#define NAME_WIRE_MAX 255
#define OPT_FIXED 11      /* root name, type, class, ttl, length */
#define EDE_OPTION 15
#define EDE_BLOCKED 15
#define EDE_TEXT_MAX 160  /* an answer stays below the 512 bytes that any resolver takes */
#define UDP_ALWAYS 512

static uint16_t u16(const uint8_t *p) {
        return (uint16_t) (p[0] << 8 | p[1]);
}

bool dns_is_answer(const uint8_t *header) {
        return header[2] >> 7;
}

static unsigned opcode(const uint8_t *header) {
        return header[2] >> 3 & 15;
}

/* Where the question ends: labels, type, class. 0: malformed. */
static size_t question_end(const uint8_t *d, size_t n) {
        size_t at = DNS_HEADER_SIZE;

        while (at < n && d[at] != 0) {
                if (d[at] > LABEL_MAX)
                        return 0;
                at += 1u + d[at];
        }
        at += 1;
        return at - DNS_HEADER_SIZE > NAME_WIRE_MAX || at + 4 > n ? 0 : at + 4;
}

/* The one additional record that a query may have. */
static int read_opt(const uint8_t *d, size_t n, struct dns_query *q) {
        if (n < OPT_FIXED || d[0] != 0 || u16(d + 1) != DNS_TYPE_OPT || n != OPT_FIXED + (size_t) u16(d + 9))
                return -EBADMSG;
        q->edns = true;
        q->edns_version = d[6];
        /* Options are not used, but they must be whole. */
        for (size_t at = OPT_FIXED; at < n;) {
                if (n - at < 4 || n - at - 4 < u16(d + at + 2))
                        return -EBADMSG;
                at += 4u + u16(d + at + 2);
        }
        return 0;
}

/* Labels joined by dots. A dot or NUL within a label has no canonical form. */
static void read_name(const uint8_t *d, struct dns_query *q) {
        char text[DNS_SHOWN_SIZE];
        size_t n = 0;
        bool plain = true;

        for (size_t at = DNS_HEADER_SIZE; d[at] != 0; at += 1u + d[at]) {
                for (size_t i = 1; i <= d[at]; i++) {
                        uint8_t c = d[at + i];
                        plain = plain && c != '.' && c != 0;
                        text[n++] = c ? (char) c : '?';
                }
                text[n++] = '.';
        }
        text[n] = '\0';
        memcpy(q->shown, text, n + 1);
        if (!plain || n < 2 || host_parse_name(text, n, q->name, NULL) < 0)
                q->name[0] = '\0';
        if (n == 0)
                strcpy(q->shown, ".");
}

int dns_query_read(const uint8_t *data, size_t n, struct dns_query *ret) {
        struct dns_query q = { .data = data };

        if (opcode(data) != 0)
                return -EOPNOTSUPP;
        /* One question, no answers, no authority, at most OPT; not truncated. */
        if (n > DNS_QUERY_MAX || u16(data + 4) != 1 || u16(data + 6) != 0 || u16(data + 8) != 0 || u16(data + 10) > 1 ||
            (data[2] & 2))
                return -EBADMSG;
        size_t end = question_end(data, n);
        if (end == 0)
                return -EBADMSG;
        int r = u16(data + 10) ? read_opt(data + end, n - end, &q) : n == end ? 0 : -EBADMSG;
        if (r < 0)
                return r;
        q.question_end = end;
        q.type = u16(data + end - 4);
        q.class = u16(data + end - 2);
        read_name(data, &q);
        *ret = q;
        return 0;
}

/* --- answers ----------------------------------------------------------------------------- */

struct writer {
        uint8_t *out;
        size_t n, cap;
        bool full;
};

static void put(struct writer *w, const void *data, size_t n) {
        if (w->full || n > w->cap - w->n) {
                w->full = true;
                return;
        }
        memcpy(w->out + w->n, data, n);
        w->n += n;
}

static void put16(struct writer *w, unsigned v) {
        const uint8_t b[2] = { (uint8_t) (v >> 8), (uint8_t) v };

        put(w, b, sizeof b);
}

/* The owner is the question's name, in its own spelling. */
static void put_record(struct writer *w, uint16_t type, size_t n) {
        put16(w, 0xc000 | DNS_HEADER_SIZE);
        put16(w, type);
        put16(w, DNS_CLASS_IN);
        put16(w, 0);
        put16(w, DNS_TTL_S);
        put16(w, (unsigned) n);
}

/* A canonical name has one byte more on the wire for its first label's length, and one for the root. */
static void put_ptr(struct writer *w, const char *name) {
        put_record(w, DNS_TYPE_PTR, strlen(name) + 2);
        for (;;) {
                size_t n = strcspn(name, ".");
                const uint8_t len = (uint8_t) n;
                put(w, &len, 1);
                put(w, name, n);
                if (name[n] == '\0')
                        break;
                name += n + 1;
        }
        put(w, "", 1);
}

/* "Blocked", with a sentence that dig and a good resolver library show. */
static void put_opt(struct writer *w, const struct dns_reply *r) {
        char text[EDE_TEXT_MAX];
        size_t len = 0;

        if (r->why) {
                int n = snprintf(text, sizeof text, "cspace rule %s: %s", r->rule, r->why);
                len = n < 0 ? 0 : (size_t) n < sizeof text ? (size_t) n : sizeof text - 1;
        }
        put(w, "", 1);
        put16(w, DNS_TYPE_OPT);
        put16(w, DNS_ANSWER_MAX);
        put16(w, (unsigned) r->rcode >> 4 << 8); /* upper bits of the rcode, version 0 */
        put16(w, 0);
        put16(w, len ? (unsigned) len + 6 : 0);
        if (len) {
                put16(w, EDE_OPTION);
                put16(w, (unsigned) len + 2);
                put16(w, EDE_BLOCKED);
                put(w, text, len);
        }
}

size_t dns_reply_write(const struct dns_query *q, const struct dns_reply *r, uint8_t *out, size_t cap) {
        struct writer w = { .out = out, .n = DNS_HEADER_SIZE, .cap = cap < UDP_ALWAYS ? cap : UDP_ALWAYS };

        if (cap < DNS_HEADER_SIZE)
                return 0;
        (void) dns_reply_bare(q->data, r->rcode, out);
        out[5] = 1;
        out[7] = r->has_addr || r->ptr;
        out[11] = q->edns;
        put(&w, q->data + DNS_HEADER_SIZE, q->question_end - DNS_HEADER_SIZE);
        if (r->has_addr) {
                put_record(&w, DNS_TYPE_A, sizeof r->addr);
                put(&w, &r->addr, sizeof r->addr);
        } else if (r->ptr) {
                put_ptr(&w, r->ptr);
        }
        if (q->edns)
                put_opt(&w, r);
        return w.full ? 0 : w.n;
}

size_t dns_reply_bare(const uint8_t *query_header, enum dns_rcode rcode, uint8_t out[DNS_HEADER_SIZE]) {
        memset(out, 0, DNS_HEADER_SIZE);
        out[0] = query_header[0];
        out[1] = query_header[1];
        out[2] = (uint8_t) (0x80 | (query_header[2] & 0x79)); /* answer; opcode and RD as they were */
        out[3] = (uint8_t) (0x80 | (rcode & 15));             /* RA */
        return DNS_HEADER_SIZE;
}
