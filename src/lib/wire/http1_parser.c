/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The message parser: collects a head, then follows the body (RFC 9112, 6 and 7) without copying
 * it. A head is judged only when it is complete, so that the verdict cannot depend on how the
 * bytes arrived; only what can never become a message (a wrong first byte, a bare LF, a limit)
 * ends it earlier.
 */

#include "wire/http1.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "wire/http1_chars.h"
#include "wire/http1_head.h"

#define CHUNK_DIGITS_MAX 16
#define CHUNK_LINE_MAX (CHUNK_DIGITS_MAX + HTTP1_CHUNK_EXT_MAX + 2)

enum state {
        ST_START,      /* between messages; empty lines before a request line are skipped */
        ST_HEAD,       /* collecting the head */
        ST_BODY,       /* HTTP1_HEAD was given; the next call decides how the body ends */
        ST_LENGTH,     /* `left` bytes of body to come */
        ST_CLOSE,      /* body until the end of input */
        ST_CHUNK_LINE, /* collecting a chunk's size line */
        ST_CHUNK_DATA, /* `left` bytes of this chunk to come */
        ST_CHUNK_CR,   /* the CR after a chunk's data */
        ST_CHUNK_LF,
        ST_TRAILERS,   /* collecting trailer lines */
        ST_END,        /* message complete, HTTP1_END still to be given */
        ST_DEAD,
};

struct http1_parser {
        enum http1_role role;
        enum state state;
        struct buf text;      /* the head; its strings stay valid during the body */
        size_t line_start;    /* in text */
        size_t n_lines;
        unsigned n_empty;     /* empty lines skipped before this message */
        struct buf line;      /* chunk size line or trailer line */
        size_t trailer_bytes, n_trailers;
        size_t ext_bytes;     /* chunk extensions of this message so far */
        uint64_t left;
        bool no_body;
        bool eof;             /* http1_parser_eof() ended a body */
        struct http1_head head;
        struct http1_fault fault;
        struct http1_field fields[LIMIT_HTTP_HEADERS];
};

struct http1_parser *http1_parser_new(enum http1_role role) {
        struct http1_parser *p = calloc(1, sizeof *p);
        if (!p)
                return NULL;
        p->role = role;
        p->text = BUF_INIT(LIMIT_HTTP_HEAD);
        p->line = BUF_INIT(LIMIT_HTTP_HEAD);
        return p;
}

void http1_parser_free(struct http1_parser *p) {
        if (!p)
                return;
        buf_done(&p->text);
        buf_done(&p->line);
        free(p);
}

void http1_parser_no_body(struct http1_parser *p) {
        p->no_body = true;
}

static void fail(struct http1_parser *p, int status, const char *reason) {
        p->state = ST_DEAD;
        /* The reader of responses is a client: whatever is wrong is the server's fault. */
        p->fault.status = p->role == HTTP1_RESPONSES ? 502 : status;
        p->fault.reason = reason;
}

static void restart(struct http1_parser *p) {
        p->state = ST_START;
        buf_clear(&p->text);
        buf_clear(&p->line);
        p->line_start = p->n_lines = 0;
        p->n_empty = 0;
        p->trailer_bytes = p->n_trailers = p->ext_bytes = 0;
        p->left = 0;
        p->no_body = p->eof = false;
}

/* --- head ------------------------------------------------------------------------------- */

static size_t skip_to_start(struct http1_parser *p, const uint8_t *d, size_t n) {
        for (size_t i = 0; i < n; i++) {
                uint8_t c = d[i];
                bool after_cr = p->text.len == 1;
                if (p->role == HTTP1_REQUESTS && c == '\r' && !after_cr &&
                    p->n_empty < HTTP1_EMPTY_LINES_MAX) {
                        if (buf_append(&p->text, &c, 1) < 0)
                                fail(p, 500, "out of memory");
                        continue;
                }
                if (after_cr && c == '\n') {
                        buf_clear(&p->text);
                        p->n_empty++;
                        continue;
                }
                bool ok = !after_cr && (p->role == HTTP1_REQUESTS ? http1_is(c, C_TOKEN) : c == 'H');
                if (!ok) {
                        fail(p, 400, "this is not HTTP");
                        return i;
                }
                p->state = ST_HEAD;
                return i;
        }
        return n;
}

/* Moves one line, or what there is of it, to b. *complete tells whether its LF is in. */
static size_t take_line(struct http1_parser *p, struct buf *b, const uint8_t *d, size_t n, bool *complete) {
        const uint8_t *nl = memchr(d, '\n', n);
        size_t take = nl ? (size_t) (nl - d) + 1 : n;
        *complete = nl != NULL;
        int r = buf_append(b, d, take);
        if (r == -ENOBUFS)
                fail(p, 431, "the header lines are too long");
        else if (r < 0)
                fail(p, 500, "out of memory");
        else if (nl && (b->len < 2 || buf_data(b)[b->len - 2] != '\r'))
                fail(p, 400, "a line does not end in CRLF");
        return take;
}

static size_t collect_head(struct http1_parser *p, const uint8_t *d, size_t n, bool *done) {
        size_t i = 0;
        while (i < n) {
                bool complete;
                i += take_line(p, &p->text, d + i, n - i, &complete);
                if (p->state == ST_DEAD) {
                        if (p->fault.status == 431 && p->n_lines == 0)
                                fail(p, 414, "the request line is too long");
                        return i;
                }
                if (!complete)
                        break;
                size_t len = p->text.len - p->line_start;
                if (len == 2 && p->n_lines > 0) {
                        *done = true;
                        return i;
                }
                p->line_start = p->text.len;
                if (++p->n_lines > LIMIT_HTTP_HEADERS + 1) {
                        fail(p, 431, "too many header lines");
                        return i;
                }
        }
        return i;
}

static void finish_head(struct http1_parser *p) {
        struct http1_fault f = { 0 };
        char *text = (char *) p->text.data + p->text.start;
        if (!http1_head_parse(text, p->text.len, p->role == HTTP1_REQUESTS, p->fields, &p->head, &f)) {
                fail(p, f.status, f.reason);
                return;
        }
        p->state = ST_BODY;
}

static void choose_body(struct http1_parser *p) {
        struct http1_head *h = &p->head;
        bool none = p->no_body;
        if (!h->is_request)
                none = none || h->status < 200 || h->status == 204 || h->status == 304;
        if (none)
                p->state = ST_END;
        else if (h->chunked)
                p->state = ST_CHUNK_LINE;
        else if (h->content_length > 0) {
                p->left = (uint64_t) h->content_length;
                p->state = ST_LENGTH;
        } else if (h->is_request || h->content_length == 0)
                p->state = ST_END;
        else {
                p->state = ST_CLOSE;
                h->keep_alive = false;
        }
}

/* --- chunks ----------------------------------------------------------------------------- */

static int hex_value(uint8_t c) {
        if (c >= '0' && c <= '9')
                return c - '0';
        if (c >= 'a' && c <= 'f')
                return c - 'a' + 10;
        return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* chunk-size [ ";" extension ], no white space in front of the semicolon. */
static void parse_chunk_line(struct http1_parser *p) {
        const uint8_t *s = buf_data(&p->line);
        size_t n = p->line.len - 2, i = 0;
        uint64_t size = 0;
        for (; i < n && hex_value(s[i]) >= 0; i++) {
                if (i == CHUNK_DIGITS_MAX || size > (uint64_t) INT64_MAX >> 4) {
                        fail(p, 400, "a chunk size is too large");
                        return;
                }
                size = size << 4 | (uint64_t) hex_value(s[i]);
        }
        if (i == 0 || (i < n && s[i] != ';')) {
                fail(p, 400, "a chunk size is not a hexadecimal number");
                return;
        }
        if (!http1_is_value((const char *) s + i, n - i)) {
                fail(p, 400, "a chunk extension has control characters");
                return;
        }
        p->ext_bytes += n - i;
        if (n - i > HTTP1_CHUNK_EXT_MAX || p->ext_bytes > HTTP1_CHUNK_EXT_TOTAL) {
                fail(p, 400, "chunk extensions are too long");
                return;
        }
        buf_clear(&p->line);
        p->left = size;
        p->state = size > 0 ? ST_CHUNK_DATA : ST_TRAILERS;
}

static size_t collect_chunk_line(struct http1_parser *p, const uint8_t *d, size_t n) {
        size_t room = CHUNK_LINE_MAX - p->line.len;
        bool complete;
        size_t used = take_line(p, &p->line, d, n < room ? n : room, &complete);
        if (p->state == ST_DEAD)
                return used;
        if (complete)
                parse_chunk_line(p);
        else if (p->line.len == CHUNK_LINE_MAX)
                fail(p, 400, "a chunk size line is too long");
        return used;
}

static size_t collect_trailers(struct http1_parser *p, const uint8_t *d, size_t n) {
        bool complete;
        size_t used = take_line(p, &p->line, d, n, &complete);
        p->trailer_bytes += used;
        if (p->state == ST_DEAD)
                return used;
        if (p->trailer_bytes > LIMIT_HTTP_HEAD) {
                fail(p, 431, "the trailers are too long");
                return used;
        }
        if (!complete)
                return used;
        if (p->line.len == 2) {
                p->state = ST_END;
                return used;
        }
        struct http1_field unused;
        struct http1_fault f = { 0 };
        if (++p->n_trailers > LIMIT_HTTP_HEADERS)
                fail(p, 431, "too many trailer lines");
        else if (!http1_field_parse((char *) p->line.data + p->line.start, p->line.len - 2, &unused, &f))
                fail(p, f.status, f.reason);
        buf_clear(&p->line);
        return used;
}

/* --- the machine ------------------------------------------------------------------------ */

static void give_body(struct http1_parser *p, const uint8_t *d, size_t n, struct http1_event *ev,
                      size_t *used) {
        size_t take = p->state != ST_CLOSE && p->left < n ? (size_t) p->left : n;
        *ev = (struct http1_event){ .type = HTTP1_BODY, .head = &p->head, .data = d, .n = take };
        *used += take;
        if (p->state == ST_CLOSE)
                return;
        p->left -= take;
        if (p->left == 0)
                p->state = p->state == ST_LENGTH ? ST_END : ST_CHUNK_CR;
}

/* One step on d[0..n): true when ev is filled, else *used has grown or the state has changed. */
static bool step(struct http1_parser *p, const uint8_t *d, size_t n, size_t *used, struct http1_event *ev) {
        bool head_done = false;
        switch (p->state) {
        case ST_START:
                *used += skip_to_start(p, d, n);
                return false;
        case ST_HEAD:
                *used += collect_head(p, d, n, &head_done);
                if (!head_done)
                        return false;
                finish_head(p);
                if (p->state == ST_DEAD)
                        return false;
                *ev = (struct http1_event){ .type = HTTP1_HEAD, .head = &p->head };
                return true;
        case ST_BODY:
                choose_body(p);
                return false;
        case ST_LENGTH:
        case ST_CLOSE:
        case ST_CHUNK_DATA:
                give_body(p, d, n, ev, used);
                return true;
        case ST_CHUNK_LINE:
                *used += collect_chunk_line(p, d, n);
                return false;
        case ST_CHUNK_CR:
        case ST_CHUNK_LF:
                if (d[0] != (p->state == ST_CHUNK_CR ? '\r' : '\n')) {
                        fail(p, 400, "a chunk is longer than its size says");
                        return false;
                }
                p->state = p->state == ST_CHUNK_CR ? ST_CHUNK_LF : ST_CHUNK_LINE;
                ++*used;
                return false;
        case ST_TRAILERS:
                *used += collect_trailers(p, d, n);
                return false;
        case ST_END:
                *ev = (struct http1_event){ .type = HTTP1_END, .head = &p->head };
                restart(p);
                return true;
        case ST_DEAD:
        default:
                *ev = (struct http1_event){ .type = HTTP1_ERROR,
                                            .status = p->fault.status,
                                            .reason = p->fault.reason };
                return true;
        }
}

void http1_parse(struct http1_parser *p, const uint8_t *data, size_t n, size_t *used,
                 struct http1_event *ev) {
        *used = 0;
        if (!data)
                data = (const uint8_t *) "";
        for (;;) {
                /* These go on without input. */
                bool idle = p->state == ST_BODY || p->state == ST_END || p->state == ST_DEAD;
                if (*used == n && !idle) {
                        if (p->state == ST_CLOSE && p->eof) {
                                p->state = ST_END;
                                continue;
                        }
                        *ev = (struct http1_event){ .type = HTTP1_NEED_DATA };
                        return;
                }
                if (step(p, data + *used, n - *used, used, ev))
                        return;
        }
}

int http1_parser_eof(struct http1_parser *p) {
        switch (p->state) {
        case ST_START:
                return p->text.len == 0 ? 0 : -EPROTO;
        case ST_END:
                return 0;
        case ST_BODY:
                choose_body(p);
                return p->state == ST_BODY ? -EPROTO : http1_parser_eof(p);
        case ST_CLOSE:
                p->eof = true;
                return 0;
        case ST_HEAD:
        case ST_LENGTH:
        case ST_CHUNK_LINE:
        case ST_CHUNK_DATA:
        case ST_CHUNK_CR:
        case ST_CHUNK_LF:
        case ST_TRAILERS:
        case ST_DEAD:
        default:
                return -EPROTO;
        }
}
