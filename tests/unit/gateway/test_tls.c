/* SPDX-License-Identifier: Apache-2.0 */

/* A TLS connection between a leaf of the authority and a client that trusts a file with its certificate. */

#include <errno.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../io/loop.h"
#include "base/buf.h"
#include "base/fd.h"
#include "ca/ca.h"
#include "io/stream_tls.h"
#include "trust.h"

static const uint8_t seed[CA_SEED_BYTES] = "0123456789abcdef0123456789abcdef";

struct end {
        struct stream *s;
        struct buf in;
        int ready; /* 1: up, negative: failed */
        char why[ERROR_MSG_MAX];
        bool eof, hold;
        int err, drains;
};

static void on_data(void *arg, const uint8_t *d, size_t n) {
        struct end *e = arg;
        assert_int_equal(buf_append(&e->in, d, n), 0);
        if (e->hold)
                stream_read_stop(e->s);
}
static void on_eof(void *arg) {
        ((struct end *) arg)->eof = true;
}
static void on_drain(void *arg) {
        ((struct end *) arg)->drains++;
}
static void on_error(void *arg, int err) {
        ((struct end *) arg)->err = err;
}
static const struct stream_handler handler = { on_data, on_eof, on_drain, on_error };

static void on_ready(void *arg, int err, const struct error *e) {
        struct end *end = arg;
        end->ready = err ? err : 1;
        if (err)
                (void) snprintf(end->why, sizeof end->why, "%s", e->msg);
        else
                stream_read_start(end->s);
}

struct fixture {
        uv_loop_t loop;
        struct ca *ca;
        struct trust *trust;
        SSL_CTX *server_ctx, *client_ctx;
        struct end server, client;
};

static void write_pem(const char *pem, char path[64]) {
        (void) snprintf(path, 64, "/tmp/cspace-trust-XXXXXX");
        int fd = mkstemp(path);
        assert_true(fd >= 0);
        assert_int_equal(fd_write_all(fd, "# junk\n-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", 65, NULL), 0);
        assert_int_equal(fd_write_all(fd, pem, strlen(pem), NULL), 0);
        close(fd);
}

static void setup(struct fixture *f, const uint8_t *trusted_seed) {
        char path[64];
        struct ca *trusted;
        memset(f, 0, sizeof *f);
        uv_loop_init(&f->loop);
        assert_int_equal(ca_new(seed, &f->ca, NULL), 0);
        assert_int_equal(ca_new(trusted_seed, &trusted, NULL), 0);
        write_pem(ca_pem(trusted, NULL), path);
        assert_int_equal(trust_load(path, &f->trust, NULL), 0);
        assert_int_equal(trust_count(f->trust), 1);
        unlink(path);
        ca_free(trusted);
        f->server_ctx = SSL_CTX_new(TLS_server_method());
        f->client_ctx = SSL_CTX_new(TLS_client_method());
        assert_int_equal(trust_use(f->trust, f->client_ctx, NULL), 0);
        SSL_CTX_set_verify(f->client_ctx, SSL_VERIFY_PEER, NULL);
}

static void teardown(struct fixture *f) {
        stream_close(f->client.s);
        stream_close(f->server.s);
        buf_done(&f->client.in);
        buf_done(&f->server.in);
        loop_done(&f->loop);
        SSL_CTX_free(f->server_ctx);
        SSL_CTX_free(f->client_ctx);
        trust_free(f->trust);
        ca_free(f->ca);
}

static void connect_both(struct fixture *f, const char *leaf, const char *wanted) {
        int fds[2];
        struct stream *a, *b;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        assert_int_equal(stream_from_fd(&f->loop, fds[0], &a, NULL), 0);
        assert_int_equal(stream_from_fd(&f->loop, fds[1], &b, NULL), 0);
        SSL *server = SSL_new(f->server_ctx), *client = SSL_new(f->client_ctx);
        assert_int_equal(ca_use_leaf(f->ca, leaf, server, NULL), 0);
        SSL_set_accept_state(server);
        SSL_set_connect_state(client);
        SSL_set_hostflags(client, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
        if (wanted[0] >= '0' && wanted[0] <= '9')
                assert_int_equal(X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(client), wanted), 1);
        else
                assert_int_equal(SSL_set1_host(client, wanted), 1);
        assert_int_equal(stream_tls_new(a, server, on_ready, &f->server, &f->server.s, NULL), 0);
        assert_int_equal(stream_tls_new(b, client, on_ready, &f->client, &f->client.s, NULL), 0);
        stream_set_handler(f->server.s, &handler, &f->server);
        stream_set_handler(f->client.s, &handler, &f->client);
        stream_tls_start(f->server.s, NULL, 0);
        stream_tls_start(f->client.s, NULL, 0);
        RUN_UNTIL(&f->loop, f->client.ready != 0 && f->server.ready != 0);
}

static void test_transfer(void **state) {
        (void) state;
        for (int version = TLS1_2_VERSION; version <= TLS1_3_VERSION; version++) {
                struct fixture f;
                setup(&f, seed);
                SSL_CTX_set_max_proto_version(f.client_ctx, version);
                connect_both(&f, "a.example.com", "a.example.com");
                assert_int_equal(f.client.ready, 1);
                assert_int_equal(f.server.ready, 1);
                assert_int_equal(SSL_version(stream_tls_ssl(f.server.s)), version);

                /* more than one record and more than a socket's buffer, read in steps by the other side */
                size_t n = 3u << 20;
                uint8_t *data = malloc(n);
                for (size_t i = 0; i < n; i++)
                        data[i] = (uint8_t) (i * 7 + (i >> 9));
                f.client.hold = true;
                assert_int_equal(stream_write(f.server.s, data, n), 0);
                assert_int_equal(stream_write(f.client.s, "ping", 4), 0);
                RUN_UNTIL(&f.loop, f.server.in.len == 4);
                while (f.client.in.len < n) {
                        size_t had = f.client.in.len;
                        stream_read_start(f.client.s);
                        if (f.client.in.len == had)
                                RUN_UNTIL(&f.loop, f.client.in.len > had);
                        assert_true(f.client.in.len - had <= 16384); /* it stopped in its callback */
                }
                assert_memory_equal(buf_data(&f.client.in), data, n);
                RUN_UNTIL(&f.loop, f.server.drains > 0);
                free(data);

                f.client.hold = false;
                stream_read_start(f.client.s);
                assert_int_equal(stream_shutdown(f.server.s), 0);
                RUN_UNTIL(&f.loop, f.client.eof);
                assert_false(stream_tls_truncated(f.client.s));
                assert_int_equal(stream_write(f.server.s, "x", 1), -EPIPE);
                assert_int_equal(stream_write(f.client.s, "late", 4), 0); /* half-closed, not closed */
                RUN_UNTIL(&f.loop, f.server.in.len == 8);
                teardown(&f);
        }
}

static void test_truncated(void **state) {
        (void) state;
        struct fixture f;
        setup(&f, seed);
        connect_both(&f, "a.example.com", "a.example.com");
        RUN_UNTIL(&f.loop, f.client.ready == 1);
        stream_write(f.server.s, "part", 4);
        stream_abort(f.server.s);
        f.server.s = NULL;
        RUN_UNTIL(&f.loop, f.client.eof || f.client.err);
        assert_int_equal(f.client.in.len, 4);
        assert_true(f.client.err || stream_tls_truncated(f.client.s));
        teardown(&f);
}

static void refused(const uint8_t *trusted, const char *leaf, const char *wanted, const char *why) {
        struct fixture f;
        setup(&f, trusted);
        connect_both(&f, leaf, wanted);
        assert_true(f.client.ready < 0);
        assert_true(f.server.ready < 0); /* told by the alert */
        assert_non_null(strstr(f.client.why, why));
        teardown(&f);
}

static void test_names(void **state) {
        (void) state;
        static const uint8_t other[CA_SEED_BYTES] = "other";
        char longest[254];
        for (size_t i = 0; i < sizeof longest; i++)
                longest[i] = i % 50 == 49 ? '.' : 'a';
        longest[253] = '\0';
        refused(seed, "a.example.com", "b.example.com", "certificate verify failed");
        refused(seed, "example.com", "a.example.com", "certificate verify failed");
        refused(other, "a.example.com", "a.example.com", "certificate verify failed");
        refused(seed, "10.0.0.1", "10.0.0.2", "certificate verify failed");
        static const char *const fine[] = { "10.0.0.1", "single", "a_b.example" };
        for (size_t i = 0; i < 4; i++) {
                struct fixture f;
                const char *name = i < 3 ? fine[i] : longest;
                setup(&f, seed);
                connect_both(&f, name, name);
                assert_int_equal(f.client.ready, 1);
                teardown(&f);
        }
}

/* A gateway that was started again is the same authority: only the signature's random part differs. */
static void test_same_again(void **state) {
        (void) state;
        struct ca *a, *b, *c;
        static const uint8_t other[CA_SEED_BYTES] = "other";
        assert_int_equal(ca_new(seed, &a, NULL), 0);
        assert_int_equal(ca_new(seed, &b, NULL), 0);
        assert_int_equal(ca_new(other, &c, NULL), 0);
        const size_t line = sizeof "-----BEGIN CERTIFICATE-----" - 1 + 1 + 64 + 1; /* the first has the total length in it */
        assert_memory_equal(ca_pem(a, NULL) + line, ca_pem(b, NULL) + line, 300);
        assert_memory_not_equal(ca_pem(a, NULL) + line, ca_pem(c, NULL) + line, 300);
        ca_free(a);
        ca_free(b);
        ca_free(c);
}

static void test_cache(void **state) {
        (void) state;
        struct fixture f;
        setup(&f, seed);
        X509 *first = NULL, *oldest = NULL;
        for (int i = 0; i < CA_LEAVES_MAX + 5; i++) {
                char name[32];
                (void) snprintf(name, sizeof name, "h%d.example", i);
                SSL *s = SSL_new(f.server_ctx);
                assert_int_equal(ca_use_leaf(f.ca, name, s, NULL), 0);
                X509 *again = SSL_get_certificate(s);
                assert_int_equal(ca_use_leaf(f.ca, name, s, NULL), 0);
                assert_ptr_equal(SSL_get_certificate(s), again);
                if (i == 0) {
                        first = again;
                        X509_up_ref(first);
                }
                if (i > 0 && i <= 5) { /* the first stays in use, so others go */
                        assert_int_equal(ca_use_leaf(f.ca, "h0.example", s, NULL), 0);
                        assert_ptr_equal(SSL_get_certificate(s), first);
                }
                SSL_free(s);
        }
        assert_int_equal(ca_leaves(f.ca), CA_LEAVES_MAX);
        SSL *s = SSL_new(f.server_ctx);
        assert_int_equal(ca_use_leaf(f.ca, "h1.example", s, NULL), 0);
        oldest = SSL_get_certificate(s);
        assert_non_null(oldest);
        assert_int_equal(ca_leaves(f.ca), CA_LEAVES_MAX);
        SSL_free(s);
        X509_free(first);
        teardown(&f);
}

static void test_trust_errors(void **state) {
        (void) state;
        struct trust *t;
        struct error e = ERROR_INIT;
        assert_int_equal(trust_load("/nonexistent", &t, &e), -ENOENT);
        assert_int_equal(trust_load("/dev/null", &t, &e), -EINVAL);
        assert_int_equal(trust_load("/etc/passwd", &t, &e), -ENOENT); /* no certificate in it */
}

#define ROOTS "/etc/ssl/certs/ca-certificates.crt"

/* The index knows each root of the host by the name by which OpenSSL asks for it. */
static void every_root_is_found(void **state) {
        (void) state;
        struct trust *t;
        FILE *f = fopen(ROOTS, "re");
        if (!f)
                skip();
        assert_int_equal(trust_load(ROOTS, &t, NULL), 0);
        SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
        assert_int_equal(trust_use(t, ctx, NULL), 0);
        X509_STORE_CTX *sc = X509_STORE_CTX_new();
        assert_int_equal(X509_STORE_CTX_init(sc, SSL_CTX_get_cert_store(ctx), NULL, NULL), 1);
        size_t n = 0;
        for (X509 *c; (c = PEM_read_X509(f, NULL, NULL, NULL)); n++) {
                X509_OBJECT *o = X509_STORE_CTX_get_obj_by_subject(sc, X509_LU_X509, X509_get_subject_name(c));
                assert_non_null(o);
                assert_int_equal(X509_NAME_cmp(X509_get_subject_name(X509_OBJECT_get0_X509(o)), X509_get_subject_name(c)), 0);
                X509_OBJECT_free(o);
                X509_free(c);
        }
        assert_int_equal(n, trust_count(t));
        fclose(f);
        X509_STORE_CTX_free(sc);
        SSL_CTX_free(ctx);
        trust_free(t);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_transfer),   cmocka_unit_test(test_truncated), cmocka_unit_test(test_names),
                cmocka_unit_test(test_same_again), cmocka_unit_test(test_cache),     cmocka_unit_test(test_trust_errors),
                cmocka_unit_test(every_root_is_found),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
