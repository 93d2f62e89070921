/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One BIO serves both directions. Reading takes from `in`, where the ciphertext waits that the inner
 * stream delivered; writing appends to `out`, which goes to the inner stream after each call into
 * OpenSSL, so that the records of one write leave in one piece. Therefore SSL_write() never has to
 * wait, and the inner stream's queue is the only one.
 *
 * While the owner does not read, at most one delivery of the inner stream waits in `in`.
 *
 * Any callback may close the stream: `busy` counts those on the stack, and the memory goes with the
 * last of them.
 */

#include "io/stream_tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"

#define PLAIN_SIZE (16u * 1024 + 1) /* a record's worth */
#define JOIN_SIZE (16u * 1024)
#define IN_MAX (1024u * 1024)
#define KEEP_OUT (32u * 1024)

struct tls_stream {
        struct stream base;
        struct stream *inner;
        SSL *ssl;
        stream_tls_ready ready;
        void *ready_arg;
        const uint8_t *slice; /* what the inner stream is just delivering, before `in` holds it */
        size_t slice_n;
        struct buf in, out;
        unsigned busy;
        bool up;          /* handshake done */
        bool reading;
        bool pumping;
        bool inner_eof, told_eof, truncated;
        bool shut;
        bool failed;
        bool closed;
};

static struct tls_stream *of(struct stream *s) {
        return CONTAINER_OF(s, struct tls_stream, base);
}

/* ---- the BIO ------------------------------------------------------------------------------- */

static int bio_read(BIO *b, char *to, int n) {
        struct tls_stream *s = BIO_get_data(b);
        size_t want = n > 0 ? (size_t) n : 0, got;
        BIO_clear_retry_flags(b);
        if (s->in.len > 0) {
                got = want < s->in.len ? want : s->in.len;
                memcpy(to, buf_data(&s->in), got);
                buf_consume(&s->in, got);
        } else {
                got = want < s->slice_n ? want : s->slice_n;
                if (got > 0) {
                        memcpy(to, s->slice, got);
                        s->slice += got;
                        s->slice_n -= got;
                }
        }
        if (got > 0)
                return (int) got;
        if (s->inner_eof)
                return 0;
        BIO_set_retry_read(b);
        return -1;
}

static int bio_write(BIO *b, const char *from, int n) {
        struct tls_stream *s = BIO_get_data(b);
        BIO_clear_retry_flags(b);
        if (n <= 0)
                return 0;
        return buf_append(&s->out, from, (size_t) n) < 0 ? -1 : n;
}

static long bio_ctrl(BIO *b, int cmd, long num, void *ptr) {
        struct tls_stream *s = BIO_get_data(b);
        (void) num;
        (void) ptr;
        if (cmd == BIO_CTRL_EOF)
                return s->inner_eof && s->in.len == 0 && s->slice_n == 0;
        return cmd == BIO_CTRL_FLUSH;
}

/* Made at the first stream and kept: it holds no state. */
static BIO_METHOD *bio_method(void) {
        static BIO_METHOD *m;
        if (m)
                return m;
        m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "stream");
        if (m && (!BIO_meth_set_read(m, bio_read) || !BIO_meth_set_write(m, bio_write) ||
                  !BIO_meth_set_ctrl(m, bio_ctrl))) {
                BIO_meth_free(m);
                m = NULL;
        }
        return m;
}

/* ---- ends ---------------------------------------------------------------------------------- */

int stream_tls_error(struct error *err, const char *what) {
        unsigned long e = ERR_get_error();
        const char *reason = e ? ERR_reason_error_string(e) : NULL;
        ERR_clear_error();
        return error_set(err, -EPROTO, "%s: %s", what, reason ? reason : "the connection was closed");
}

static void release(struct tls_stream *s) {
        SSL_free(s->ssl);
        buf_done(&s->in);
        buf_done(&s->out);
        free(s);
}

static void leave(struct tls_stream *s) {
        s->busy--;
        if (s->closed && s->busy == 0)
                release(s);
}

static void tell_ready(struct tls_stream *s, int code, const struct error *e) {
        stream_tls_ready ready = s->ready;
        s->ready = NULL;
        if (ready && !s->closed)
                ready(s->ready_arg, code, e);
}

static void fail(struct tls_stream *s, int code, const struct error *e) {
        if (s->failed || s->closed)
                return;
        s->failed = true;
        stream_read_stop(s->inner);
        if (!s->up)
                tell_ready(s, code, e);
        else if (s->base.handler)
                s->base.handler->on_error(s->base.arg, code);
}

static void fail_ssl(struct tls_stream *s, const char *what) {
        struct error e = ERROR_INIT;
        fail(s, stream_tls_error(&e, what), &e);
}

static int flush(struct tls_stream *s) {
        if (s->out.len == 0)
                return 0;
        int r = stream_write(s->inner, buf_data(&s->out), s->out.len);
        if (s->out.cap > KEEP_OUT)
                buf_done(&s->out);
        else
                buf_clear(&s->out);
        return r;
}

/* ---- handshake and reading ----------------------------------------------------------------- */

static void shake(struct tls_stream *s) {
        ERR_clear_error();
        int r = SSL_do_handshake(s->ssl);
        int why = SSL_get_error(s->ssl, r);
        int w = flush(s); /* an alert says why it failed */
        if (r == 1) {
                s->up = true;
                tell_ready(s, 0, NULL);
                return;
        }
        if (why != SSL_ERROR_WANT_READ) {
                fail_ssl(s, "TLS handshake");
                return;
        }
        if (w < 0) {
                struct error e = ERROR_INIT;
                fail(s, error_errno(&e, w, "TLS handshake"), &e);
        }
}

static void end_of_input(struct tls_stream *s) {
        if (s->told_eof)
                return;
        s->told_eof = true;
        s->truncated = !(SSL_get_shutdown(s->ssl) & SSL_RECEIVED_SHUTDOWN);
        s->base.handler->on_eof(s->base.arg);
}

/* One record: true when there may be more. */
static bool read_record(struct tls_stream *s) {
        uint8_t plain[PLAIN_SIZE];
        ERR_clear_error();
        int n = SSL_read(s->ssl, plain, sizeof plain);
        if (n > 0) {
                s->base.handler->on_data(s->base.arg, plain, (size_t) n);
                return true;
        }
        switch (SSL_get_error(s->ssl, n)) {
        case SSL_ERROR_ZERO_RETURN:
                end_of_input(s);
                return false;
        case SSL_ERROR_WANT_READ:
                return false;
        default:
                if (s->inner_eof && s->in.len == 0 && s->slice_n == 0 && !ERR_peek_error())
                        end_of_input(s);
                else
                        fail_ssl(s, "TLS");
                return false;
        }
}

static bool wants(const struct tls_stream *s) {
        return !s->closed && !s->failed && !s->told_eof && (!s->up || s->reading);
}

/* Works on what there is until it is used up or the owner wants no more. */
static void pump(struct tls_stream *s) {
        if (s->pumping)
                return;
        s->pumping = true;
        s->busy++;
        bool more = true;
        while (more && wants(s)) {
                bool was_up = s->up;
                if (s->up)
                        more = read_record(s);
                else
                        shake(s);
                if (!was_up && !s->up)
                        more = false;
        }
        if (!s->closed && !s->failed && flush(s) < 0) /* answers to what was read: key updates, tickets */
                more = false;
        s->pumping = false;
        leave(s);
}

static void keep_rest(struct tls_stream *s) {
        if (s->slice_n > 0 && !s->failed && buf_append(&s->in, s->slice, s->slice_n) < 0) {
                struct error e = ERROR_INIT;
                fail(s, error_set(&e, -ENOBUFS, "TLS: too much waits to be read"), &e);
        }
        s->slice_n = 0;
}

static void watch(struct tls_stream *s) {
        if (s->closed || s->failed)
                return;
        if (wants(s) && !s->inner_eof)
                stream_read_start(s->inner);
        else
                stream_read_stop(s->inner);
}

static void in_data(void *arg, const uint8_t *data, size_t n) {
        struct tls_stream *s = arg;
        s->busy++;
        s->slice = data;
        s->slice_n = n;
        if (s->in.len > 0)
                keep_rest(s); /* order */
        pump(s);
        if (!s->closed) {
                keep_rest(s);
                watch(s);
        }
        leave(s);
}

static void in_eof(void *arg) {
        struct tls_stream *s = arg;
        s->busy++;
        s->inner_eof = true;
        pump(s);
        leave(s);
}

static void in_drain(void *arg) {
        struct tls_stream *s = arg;
        if (s->up && !s->failed && s->base.handler && s->base.handler->on_drain)
                s->base.handler->on_drain(s->base.arg);
}

static void in_error(void *arg, int err) {
        struct tls_stream *s = arg;
        struct error e = ERROR_INIT;
        s->busy++;
        fail(s, error_errno(&e, err, "TLS handshake"), &e);
        leave(s);
}

static const struct stream_handler inner_handler = {
        .on_data = in_data, .on_eof = in_eof, .on_drain = in_drain, .on_error = in_error
};

/* ---- ops ----------------------------------------------------------------------------------- */

static void op_read_start(struct stream *st) {
        struct tls_stream *s = of(st);
        if (s->reading)
                return;
        s->reading = true;
        s->busy++;
        pump(s);
        watch(s);
        leave(s);
}

static void op_read_stop(struct stream *st) {
        struct tls_stream *s = of(st);
        s->reading = false;
        watch(s);
}

static int put(struct tls_stream *s, const void *data, size_t n) {
        size_t done = 0;
        if (n == 0)
                return 0;
        ERR_clear_error();
        return SSL_write_ex(s->ssl, data, n, &done) == 1 && done == n ? 0 : -EPIPE;
}

/* The pieces share records: a chunk's size line is not worth one of its own. */
static int op_writev(struct stream *st, const struct iovec *v, int n) {
        struct tls_stream *s = of(st);
        size_t total = 0;
        if (!s->up || s->shut || s->failed)
                return -EPIPE;
        for (int i = 0; i < n; i++)
                total += v[i].iov_len;
        if (total > STREAM_QUEUE_MAX / 2 || stream_queued(s->inner) > STREAM_QUEUE_MAX / 2 - total)
                return -ENOBUFS;
        if (n == 1)
                return put(s, v[0].iov_base, v[0].iov_len) < 0 ? -EPIPE : flush(s);
        uint8_t joined[JOIN_SIZE];
        size_t at = 0;
        for (int i = 0; i < n; i++)
                for (size_t from = 0; from < v[i].iov_len;) {
                        size_t part = v[i].iov_len - from < sizeof joined - at ? v[i].iov_len - from : sizeof joined - at;
                        memcpy(joined + at, (const uint8_t *) v[i].iov_base + from, part);
                        at += part;
                        from += part;
                        if (at == sizeof joined) {
                                if (put(s, joined, at) < 0)
                                        return -EPIPE;
                                at = 0;
                        }
                }
        return put(s, joined, at) < 0 ? -EPIPE : flush(s);
}

static int op_write(struct stream *st, const void *data, size_t n) {
        struct iovec v = { .iov_base = (void *) (uintptr_t) data, .iov_len = n };
        return op_writev(st, &v, 1);
}

static size_t op_queued(const struct stream *st) {
        return stream_queued(((const struct tls_stream *) (const void *) st)->inner);
}

static int op_shutdown(struct stream *st) {
        struct tls_stream *s = of(st);
        if (!s->up || s->failed)
                return -EPIPE;
        if (s->shut)
                return 0;
        s->shut = true;
        ERR_clear_error();
        (void) SSL_shutdown(s->ssl);
        int r = flush(s);
        return r < 0 ? r : stream_shutdown(s->inner);
}

static void op_close(struct stream *st, bool abort) {
        struct tls_stream *s = of(st);
        if (s->closed)
                return;
        s->closed = true;
        if (abort)
                stream_abort(s->inner);
        else {
                if (s->up && !s->failed && !s->shut) {
                        ERR_clear_error();
                        (void) SSL_shutdown(s->ssl);
                        (void) flush(s);
                }
                stream_close(s->inner);
        }
        if (s->busy == 0)
                release(s);
}

static const struct stream_ops tls_ops = {
        .read_start = op_read_start,
        .read_stop = op_read_stop,
        .write = op_write,
        .queued = op_queued,
        .shutdown = op_shutdown,
        .close = op_close,
        .writev = op_writev,
};

int stream_tls_new(struct stream *inner, SSL *ssl, stream_tls_ready ready, void *arg, struct stream **ret,
                   struct error *err) {
        struct tls_stream *s = calloc(1, sizeof *s);
        BIO_METHOD *m = bio_method();
        BIO *b = s && m ? BIO_new(m) : NULL;
        if (!b) {
                free(s);
                SSL_free(ssl);
                stream_close(inner);
                return error_set(err, -ENOMEM, "out of memory");
        }
        s->base.ops = &tls_ops;
        s->inner = inner;
        s->ssl = ssl;
        s->ready = ready;
        s->ready_arg = arg;
        s->in = BUF_INIT(IN_MAX);
        s->out = BUF_INIT(STREAM_QUEUE_MAX);
        BIO_set_data(b, s);
        BIO_set_init(b, 1);
        SSL_set_bio(ssl, b, b);
        stream_set_handler(inner, &inner_handler, s);
        *ret = &s->base;
        return 0;
}

void stream_tls_start(struct stream *st, const void *first, size_t n) {
        struct tls_stream *s = of(st);
        s->busy++;
        s->slice = first;
        s->slice_n = n;
        pump(s);
        if (!s->closed) {
                keep_rest(s);
                watch(s);
        }
        leave(s);
}

SSL *stream_tls_ssl(struct stream *st) {
        return of(st)->ssl;
}

bool stream_tls_truncated(struct stream *st) {
        return of(st)->truncated;
}
