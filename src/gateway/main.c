/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cspace-gateway: the only way out of one sandbox. It listens inside of the sandbox's network namespace, on
 * sockets that cspace-rootd made there, and dials out from the host's. Started by cspace-rootd, never
 * by hand. Files are read before the confinement, and none after it.
 */

#include <jansson.h>
#include <malloc.h>
#include <openssl/crypto.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "acceptor.h"
#include "base/id.h"
#include "base/log.h"
#include "base/str.h"
#include "confine.h"
#include "ctl.h"
#include "dns_io.h"
#include "gateway.h"
#include "options.h"

#define DESCRIPTORS_MAX 16384 /* two a connection, and pipes */

static void on_signal(uv_signal_t *h, int signum) {
        (void) signum;
        uv_stop(h->loop);
}

static void raise_descriptor_limit(void) {
        struct rlimit r;
        if (getrlimit(RLIMIT_NOFILE, &r) < 0)
                return;
        r.rlim_cur = r.rlim_max < DESCRIPTORS_MAX ? r.rlim_max : DESCRIPTORS_MAX;
        (void) setrlimit(RLIMIT_NOFILE, &r);
}

/* What was JSON may have been a secret. */
static void wipe_and_free(void *p) {
        if (p)
                explicit_bzero(p, malloc_usable_size(p));
        free(p);
}

/* Libraries that would open files at their first use have it now. */
static int warm_up(struct error *err) {
        size_t seed = 0;
        int r = random_bytes(&seed, sizeof seed);
        if (r < 0)
                return error_errno(err, r, "random numbers");
        json_set_alloc_funcs(malloc, wipe_and_free);
        json_object_seed(seed | 1);
        tzset();
        /* No configuration file of the host decides what TLS is here. */
        if (OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG, NULL) != 1)
                return error_set(err, -EIO, "OpenSSL cannot be initialised");
        return 0;
}

struct parts {
        struct gateway gw;
        struct ctl *ctl;
        uv_timer_t patience;
        bool hears;
        struct dns_io *dns;
        struct acceptor *acceptor;
        struct error failed; /* it could not begin to hear */
};

static void hear(void *arg) {
        struct parts *p = arg;
        if (p->hears)
                return;
        p->hears = true;
        (void) uv_timer_stop(&p->patience);
        int r = dns_io_new(&p->gw, GATEWAY_FD_DNS_UDP, GATEWAY_FD_DNS_TCP, &p->dns, &p->failed);
        if (r == 0)
                r = acceptor_new(&p->gw, GATEWAY_FD_TCP, &p->acceptor, &p->failed);
        if (r < 0)
                uv_stop(p->gw.loop);
}

static void on_patience(uv_timer_t *t) {
        log_warn("there is no configuration after %d ms: everything is refused until it comes", GATEWAY_PATIENCE_MS);
        hear(t->data);
}

static int begin(struct parts *p, uv_loop_t *loop, const struct options *o, struct error *err) {
        int r = gateway_init(&p->gw, loop, &o->gateway, err);
        if (o->trust_fd)
                (void) close(GATEWAY_FD_TRUST);
        if (r == 0)
                r = ctl_new(&p->gw, GATEWAY_FD_CTL, hear, p, &p->ctl, err);
        if (r == 0)
                r = confine(err);
        (void) uv_timer_init(loop, &p->patience);
        p->patience.data = p;
        (void) uv_timer_start(&p->patience, on_patience, GATEWAY_PATIENCE_MS, 0);
        return r;
}

static int run(const struct options *o, struct error *err) {
        static struct parts p;
        uv_loop_t loop;
        uv_signal_t term;
        int r = uv_loop_init(&loop);
        if (r < 0)
                return error_errno(err, r, "loop");
        uv_signal_init(&loop, &term);
        uv_signal_start(&term, on_signal, SIGTERM);
        r = begin(&p, &loop, o, err);
        if (r < 0)
                return r;
        (void) malloc_trim(0);
        uv_run(&loop, UV_RUN_DEFAULT);
        acceptor_free(p.acceptor);
        dns_io_free(p.dns);
        ctl_free(p.ctl);
        gateway_done(&p.gw);
        uv_close((uv_handle_t *) &term, NULL);
        uv_close((uv_handle_t *) &p.patience, NULL);
        uv_run(&loop, UV_RUN_DEFAULT);
        gateway_free(&p.gw);
        (void) uv_loop_close(&loop);
        if (p.failed.code < 0)
                *err = p.failed;
        return p.failed.code;
}

int main(int argc, char **argv) {
        struct options o;
        struct error err = ERROR_INIT;
        if (argc == 2 && str_eq(argv[1], "--version")) {
                puts("cspace-gateway " CSPACE_VERSION);
                return EXIT_SUCCESS;
        }
        log_setup("cspace-gateway", LOG_LVL_INFO);
        signal(SIGPIPE, SIG_IGN);
        /* One thread, and memory given back: a thousand of these run on a host. */
        (void) mallopt(M_ARENA_MAX, 1);
        (void) mallopt(M_TRIM_THRESHOLD, 128 * 1024);
        int r = options_parse(argc, argv, &o, &err);
        if (r == 0)
                r = options_take_fds(&err);
        raise_descriptor_limit();
        if (r == 0)
                r = warm_up(&err);
        if (r == 0)
                r = run(&o, &err);
        if (r < 0) {
                log_error("%s", err.msg);
                return EXIT_FAILURE;
        }
        return EXIT_SUCCESS;
}
