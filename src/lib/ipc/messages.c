/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Encoders and decoders of every message, expanded from the rows of messages.h.
 *
 * Both directions go through a cursor that carries the first failure along, so that a row expands
 * to one call and a message to a straight list of calls. Encoding checks the same limits as
 * decoding: a value that the peer would refuse is the sender's error and is reported there.
 *
 *   U32   4 bytes, little-endian        U64   8 bytes
 *   STR   u32 length, bytes, no NUL     BLOB  u32 length, bytes
 */

#include "ipc/messages.h"

#include <errno.h>
#include <string.h>

/* ---- writing ------------------------------------------------------------------------------- */

struct writer {
        uint8_t *out;
        size_t cap, n;
        int err;
};

static void put_bytes(struct writer *w, const void *data, size_t n) {
        if (w->err)
                return;
        if (n > w->cap - w->n) {
                w->err = -ENOBUFS;
                return;
        }
        if (n > 0)
                memcpy(w->out + w->n, data, n);
        w->n += n;
}

static void put_le(struct writer *w, uint64_t v, size_t width) {
        uint8_t le[8];
        for (size_t i = 0; i < width; i++)
                le[i] = (uint8_t) (v >> (8 * i));
        put_bytes(w, le, width);
}

static void put_uint(struct writer *w, uint64_t v, size_t width, uint64_t limit) {
        if (v > limit && !w->err)
                w->err = -EINVAL;
        put_le(w, v, width);
}

static void put_var(struct writer *w, const void *data, size_t n, size_t limit) {
        if ((n > limit || (n > 0 && !data)) && !w->err)
                w->err = -EINVAL;
        put_le(w, n, 4);
        put_bytes(w, data, n);
}

/* s is an array of limit + 1 bytes; one without an end is the caller's mistake. */
static void put_str(struct writer *w, const char *s, size_t limit) {
        put_var(w, s, strnlen(s, limit + 1), limit);
}

/* ---- reading ------------------------------------------------------------------------------- */

struct reader {
        const uint8_t *in;
        size_t n;
        int err;
};

static const uint8_t *get_bytes(struct reader *r, size_t n) {
        if (r->err)
                return NULL;
        if (n > r->n) {
                r->err = -EPROTO;
                return NULL;
        }
        const uint8_t *at = r->in;
        r->in += n;
        r->n -= n;
        return at;
}

static uint64_t get_uint(struct reader *r, size_t width, uint64_t limit) {
        const uint8_t *le = get_bytes(r, width);
        if (!le)
                return 0;
        uint64_t v = 0;
        for (size_t i = 0; i < width; i++)
                v |= (uint64_t) le[i] << (8 * i);
        if (v > limit) {
                r->err = -EPROTO;
                return 0;
        }
        return v;
}

static const void *get_var(struct reader *r, size_t limit, size_t *ret_n) {
        uint64_t n = get_uint(r, 4, limit);
        const uint8_t *at = get_bytes(r, (size_t) n);
        *ret_n = at ? (size_t) n : 0;
        return at;
}

static void get_str(struct reader *r, size_t limit, char *out) {
        size_t n;
        const void *s = get_var(r, limit, &n);
        if (!s)
                return;
        if (memchr(s, 0, n)) {
                r->err = -EPROTO;
                return;
        }
        memcpy(out, s, n);
        out[n] = 0;
}

/* ---- the messages -------------------------------------------------------------------------- */

#define PUT_U32(name, limit) put_uint(&w, m->name, 4, (limit));
#define PUT_U64(name, limit) put_uint(&w, m->name, 8, (limit));
#define PUT_STR(name, limit) put_str(&w, m->name, (limit));
#define PUT_BLOB(name, limit) put_var(&w, m->name, m->name##_n, (limit));
#define PUT(kind, name, limit) PUT_##kind(name, limit)

#define GET_U32(name, limit) t.name = (uint32_t) get_uint(&r, 4, (limit));
#define GET_U64(name, limit) t.name = get_uint(&r, 8, (limit));
#define GET_STR(name, limit) get_str(&r, (limit), t.name);
#define GET_BLOB(name, limit) t.name = get_var(&r, (limit), &t.name##_n);
#define GET(kind, name, limit) GET_##kind(name, limit)

#define M(number, UPPER, lower)                                                                 \
        int ipc_##lower##_encode(const struct ipc_##lower *m, uint8_t *out, size_t cap, size_t *ret_n) { \
                struct writer w = { .out = out, .cap = cap };                                           \
                (void) m;                                                                               \
                IPC_##UPPER##_FIELDS(PUT)                                                               \
                if (w.err)                                                                              \
                        return w.err;                                                                   \
                *ret_n = w.n;                                                                           \
                return 0;                                                                               \
        }                                                                                               \
        int ipc_##lower##_decode(const void *body, size_t n, struct ipc_##lower *m) {                   \
                struct reader r = { .in = body, .n = n };                                               \
                struct ipc_##lower t = {};                                                              \
                IPC_##UPPER##_FIELDS(GET)                                                               \
                if (r.err)                                                                              \
                        return r.err;                                                                   \
                if (r.n > 0)                                                                            \
                        return -EPROTO;                                                                 \
                *m = t;                                                                                 \
                return 0;                                                                               \
        }
IPC_MESSAGES(M)
#undef M

/* A number that two have does not compile. */
const char *ipc_type_name(uint16_t type) {
        switch (type) {
#define M(number, UPPER, lower) \
        case number:            \
                return #lower;
                IPC_MESSAGES(M)
#undef M
        default:
                return "?";
        }
}
