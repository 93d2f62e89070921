/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Finding the delimiter, CRLF "--" boundary, in a stream cut anywhere.
 *
 * A boundary has no CR, so the delimiter has one only at its start: when a match breaks off, the
 * bytes matched so far are content, and only the byte that broke it can begin another match. They
 * need not be stored either: they are equal to the delimiter's own bytes and are given from there.
 * After the delimiter two more bytes decide: CRLF starts a part, "--" ends the message, others
 * mean that it was content after all.
 */

#include "wire/multipart.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "wire/multipart_head.h"

enum state {
        ST_PREAMBLE,  /* before the first delimiter; its CRLF may be the start of input */
        ST_DATA,      /* content of a part */
        ST_DELIM,     /* the delimiter matched; what follows decides */
        ST_DELIM_DASH, /* one "-" after it */
        ST_DELIM_CR,  /* a CR after it */
        ST_PADDING,   /* white space after it */
        ST_PADDING_CR,
        ST_HEAD,      /* header lines of a part */
        ST_EPILOGUE,
        ST_DEAD,
};

struct multipart_parser {
        enum state state;
        char delim[MULTIPART_BOUNDARY_MAX + 8];
        size_t delim_len;
        size_t matched;      /* bytes of delim that match so far */
        size_t outside;      /* bytes of preamble or epilogue */
        size_t n_parts;
        bool in_part;        /* MULTIPART_PART given, MULTIPART_PART_END not yet */
        bool closing;        /* MULTIPART_END is due after MULTIPART_PART_END */
        bool head_due;       /* a part head follows after MULTIPART_PART_END */
        bool finished;
        struct buf head;
        size_t line_start;
        char *decoded;       /* filename, decoded */
        struct multipart_part part;
        const char *reason;
};

int multipart_new(const char *content_type, struct multipart_parser **ret, struct error *err) {
        char boundary[MULTIPART_BOUNDARY_MAX + 1];
        int r = multipart_boundary(content_type, boundary, err);
        if (r < 0)
                return r;
        struct multipart_parser *p = calloc(1, sizeof *p);
        if (!p)
                return error_set(err, -ENOMEM, "out of memory");
        memcpy(p->delim, "\r\n--", 4);
        memcpy(p->delim + 4, boundary, strlen(boundary) + 1);
        p->delim_len = strlen(boundary) + 4;
        p->matched = 2; /* the first delimiter may stand at the very start */
        p->head = BUF_INIT(MULTIPART_HEAD_MAX);
        *ret = p;
        return 0;
}

void multipart_free(struct multipart_parser *p) {
        if (!p)
                return;
        buf_done(&p->head);
        free(p->decoded);
        free(p);
}

static bool fail(struct multipart_parser *p, const char *reason) {
        p->state = ST_DEAD;
        p->reason = reason;
        return false;
}

static bool give_data(struct multipart_event *ev, const void *data, size_t n) {
        if (n == 0)
                return false;
        *ev = (struct multipart_event){ .type = MULTIPART_DATA, .data = data, .n = n };
        return true;
}

/* --- content ---------------------------------------------------------------------------- */

/* Where in d[0..n) the content stops: at a whole delimiter, or at one that the end cuts off. */
static size_t content_before_delim(const struct multipart_parser *p, const uint8_t *d, size_t n,
                                   size_t *matched) {
        size_t i = 0;
        while (i < n) {
                const uint8_t *cr = memchr(d + i, '\r', n - i);
                if (!cr)
                        break;
                size_t at = (size_t) (cr - d), left = n - at;
                size_t cmp = left < p->delim_len ? left : p->delim_len;
                if (memcmp(cr, p->delim, cmp) == 0) {
                        *matched = cmp;
                        return at;
                }
                i = at + 1;
        }
        *matched = 0;
        return n;
}

/* A match under way since an earlier call goes on. True: it broke off, ev gives its bytes. */
static bool continue_match(struct multipart_parser *p, const uint8_t *d, size_t n, size_t *used,
                           struct multipart_event *ev) {
        while (*used < n && p->matched < p->delim_len) {
                if ((uint8_t) p->delim[p->matched] != d[*used]) {
                        size_t m = p->matched;
                        p->matched = 0;
                        return give_data(ev, p->delim, m);
                }
                p->matched++;
                ++*used;
        }
        if (p->matched == p->delim_len)
                p->state = ST_DELIM;
        return false;
}

static bool step_data(struct multipart_parser *p, const uint8_t *d, size_t n, size_t *used,
                      struct multipart_event *ev) {
        if (p->matched > 0)
                return continue_match(p, d, n, used, ev);
        size_t matched, len = content_before_delim(p, d + *used, n - *used, &matched);
        const uint8_t *from = d + *used;
        p->matched = matched;
        *used += len + matched;
        if (p->matched == p->delim_len)
                p->state = ST_DELIM;
        return give_data(ev, from, len);
}

static bool step_preamble(struct multipart_parser *p, const uint8_t *d, size_t n, size_t *used) {
        struct multipart_event unused;
        size_t before = *used;
        (void) step_data(p, d, n, used, &unused);
        p->outside += *used - before;
        if (p->outside > MULTIPART_PREAMBLE_MAX)
                return fail(p, "no delimiter of the boundary at the start");
        return false;
}

/* The delimiter was followed by something else: it was content. */
static bool not_a_delim(struct multipart_parser *p, struct multipart_event *ev) {
        bool dash = p->state == ST_DELIM_DASH, cr = p->state == ST_DELIM_CR;
        p->state = p->n_parts ? ST_DATA : ST_PREAMBLE;
        p->matched = cr ? 1 : 0;
        if (!p->n_parts)
                return false;
        /* delim is followed by a "-" in the array for just this case. */
        p->delim[p->delim_len] = '-';
        return give_data(ev, p->delim, p->delim_len + (dash ? 1 : 0));
}

static bool step_delim(struct multipart_parser *p, uint8_t c, size_t *used, struct multipart_event *ev) {
        switch (p->state) {
        case ST_DELIM:
                if (c == '-')
                        p->state = ST_DELIM_DASH;
                else if (c == '\r')
                        p->state = ST_DELIM_CR;
                else if (c == ' ' || c == '\t')
                        p->state = ST_PADDING;
                else
                        return not_a_delim(p, ev);
                break;
        case ST_DELIM_DASH:
                if (c != '-')
                        return not_a_delim(p, ev);
                p->closing = true;
                p->state = ST_EPILOGUE;
                break;
        case ST_DELIM_CR:
                if (c != '\n')
                        return not_a_delim(p, ev);
                p->head_due = true;
                p->state = ST_HEAD;
                break;
        case ST_PADDING:
                if (c == '\r')
                        p->state = ST_PADDING_CR;
                else if (c != ' ' && c != '\t')
                        return fail(p, "a delimiter is followed by text");
                break;
        case ST_PADDING_CR:
                if (c != '\n')
                        return fail(p, "a delimiter is followed by text");
                p->head_due = true;
                p->state = ST_HEAD;
                break;
        case ST_PREAMBLE:
        case ST_DATA:
        case ST_HEAD:
        case ST_EPILOGUE:
        case ST_DEAD:
        default:
                break;
        }
        ++*used;
        return false;
}

/* --- head ------------------------------------------------------------------------------- */

static bool finish_head(struct multipart_parser *p, struct multipart_event *ev) {
        size_t n = p->head.len - 2; /* without the empty line */
        free(p->decoded);
        p->decoded = malloc(n + 1);
        if (!p->decoded)
                return fail(p, "out of memory");
        if (++p->n_parts > MULTIPART_PARTS_MAX)
                return fail(p, "too many parts");
        const char *wrong =
                multipart_head_parse((char *) p->head.data + p->head.start, n, p->decoded, &p->part);
        if (wrong)
                return fail(p, wrong);
        p->state = ST_DATA;
        p->matched = 0;
        p->in_part = true;
        *ev = (struct multipart_event){ .type = MULTIPART_PART, .part = &p->part };
        return true;
}

static bool step_head(struct multipart_parser *p, const uint8_t *d, size_t n, size_t *used,
                      struct multipart_event *ev) {
        const uint8_t *from = d + *used;
        const uint8_t *nl = memchr(from, '\n', n - *used);
        size_t take = nl ? (size_t) (nl - from) + 1 : n - *used;
        int r = buf_append(&p->head, from, take);
        if (r < 0)
                return fail(p, r == -ENOBUFS ? "a part's header lines are too long" : "out of memory");
        *used += take;
        if (!nl)
                return false;
        const uint8_t *line = buf_data(&p->head) + p->line_start;
        size_t len = p->head.len - p->line_start;
        if (len < 2 || line[len - 2] != '\r')
                return fail(p, "a part's header line does not end in CRLF");
        p->line_start = p->head.len;
        return len == 2 ? finish_head(p, ev) : false;
}

/* --- the machine ------------------------------------------------------------------------ */

/* Events that are due without input. */
static bool due(struct multipart_parser *p, struct multipart_event *ev) {
        if (p->state == ST_DEAD) {
                *ev = (struct multipart_event){ .type = MULTIPART_ERROR, .reason = p->reason };
                return true;
        }
        if ((p->closing || p->head_due) && p->in_part) {
                p->in_part = false;
                *ev = (struct multipart_event){ .type = MULTIPART_PART_END };
                return true;
        }
        if (p->head_due) {
                p->head_due = false;
                buf_clear(&p->head);
                p->line_start = 0;
        }
        if (p->closing) {
                p->closing = false;
                p->finished = true;
                p->outside = 0;
                *ev = (struct multipart_event){ .type = MULTIPART_END };
                return true;
        }
        return false;
}

void multipart_parse(struct multipart_parser *p, const uint8_t *data, size_t n, size_t *used,
                     struct multipart_event *ev) {
        *used = 0;
        if (!data)
                data = (const uint8_t *) "";
        for (;;) {
                if (due(p, ev))
                        return;
                if (*used == n) {
                        *ev = (struct multipart_event){ .type = MULTIPART_NEED_DATA };
                        return;
                }
                bool given = false;
                switch (p->state) {
                case ST_PREAMBLE:
                        given = step_preamble(p, data, n, used);
                        break;
                case ST_DATA:
                        given = step_data(p, data, n, used, ev);
                        break;
                case ST_DELIM:
                case ST_DELIM_DASH:
                case ST_DELIM_CR:
                case ST_PADDING:
                case ST_PADDING_CR:
                        given = step_delim(p, data[*used], used, ev);
                        break;
                case ST_HEAD:
                        given = step_head(p, data, n, used, ev);
                        break;
                case ST_EPILOGUE:
                        p->outside += n - *used;
                        *used = n;
                        if (p->outside > MULTIPART_PREAMBLE_MAX)
                                (void) fail(p, "too much after the last delimiter");
                        break;
                case ST_DEAD:
                default:
                        break;
                }
                if (given)
                        return;
        }
}

int multipart_eof(const struct multipart_parser *p) {
        return p->finished && p->state != ST_DEAD ? 0 : -EPROTO;
}
