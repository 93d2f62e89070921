/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * TLS as a stream over another stream, either side. OpenSSL sees memory only: what the inner stream
 * delivers goes in, records come out and are written to the inner stream.
 *
 * The peer's end is on_eof in any case; whether it was announced (close_notify) or might have been
 * forged by somebody on the way, stream_tls_truncated() tells.
 */

#include <openssl/ssl.h>

#include "io/stream.h"

/* Called once, from the loop or from inside stream_tls_start(): 0 when the handshake is done, else a
 * negative errno with the reason in e; the stream is then good for stream_close() only. */
typedef void (*stream_tls_ready)(void *arg, int err, const struct error *e);

/* Takes inner and ssl (accept or connect state set, no BIO) and closes both on failure. Nothing happens
 * before stream_tls_start(), which is given the bytes already read from inner (copied). */
int stream_tls_new(struct stream *inner, SSL *ssl, stream_tls_ready ready, void *arg, struct stream **ret,
                   struct error *err);
void stream_tls_start(struct stream *s, const void *first, size_t n);

SSL *stream_tls_ssl(struct stream *s);
bool stream_tls_truncated(struct stream *s);

/* What OpenSSL has to say about its last failure, first error first; empties its queue. */
int stream_tls_error(struct error *err, const char *what);
