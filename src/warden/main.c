/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cspace-warden: drives one VM and carries the stream into it. Started by cspace-rootd, never by
 * hand; with --stub it is the process that becomes the VM (stub.h).
 */

#include <jansson.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/id.h"
#include "base/log.h"
#include "base/str.h"
#include "confine.h"
#include "options.h"
#include "stub.h"
#include "warden.h"

static void on_signal(uv_signal_t *h, int signum) {
        (void) signum;
        uv_stop(h->loop);
}

static void raise_descriptor_limit(void) {
        struct rlimit r;
        if (getrlimit(RLIMIT_NOFILE, &r) < 0)
                return;
        r.rlim_cur = r.rlim_max < 4096 ? r.rlim_max : 4096;
        (void) setrlimit(RLIMIT_NOFILE, &r);
}

/* jansson would open /dev/urandom at its first object, which is not allowed any more then. */
static int seed_json(struct error *err) {
        size_t seed = 0;
        int r = random_bytes(&seed, sizeof(seed));
        if (r < 0)
                return error_errno(err, r, "random numbers");
        json_object_seed(seed | 1);
        return 0;
}

static int run(struct warden_config *cfg, struct error *err) {
        uv_loop_t loop;
        uv_signal_t term;
        struct warden *w;
        int r = uv_loop_init(&loop);
        if (r < 0)
                return error_errno(err, r, "loop");
        uv_signal_init(&loop, &term);
        uv_signal_start(&term, on_signal, SIGTERM);
        r = warden_new(&loop, cfg, &w, err);
        if (r < 0)
                return r;
        r = confine(cfg->mode == WARDEN_BOOT, err);
        if (r < 0)
                return r;
        (void) malloc_trim(0);
        uv_run(&loop, UV_RUN_DEFAULT);
        /* The VM goes on; a warden with --adopt can take it over. */
        warden_free(w);
        uv_close((uv_handle_t *) &term, NULL);
        uv_run(&loop, UV_RUN_DEFAULT);
        (void) uv_loop_close(&loop);
        return 0;
}

int main(int argc, char **argv) {
        struct warden_config cfg;
        struct error err = ERROR_INIT;
        if (argc == 2 && str_eq(argv[1], "--stub"))
                return stub_main(STUB_FD);
        if (argc == 2 && str_eq(argv[1], "--version")) {
                puts("cspace-warden " CSPACE_VERSION);
                return EXIT_SUCCESS;
        }
        log_setup("cspace-warden", LOG_LVL_INFO);
        signal(SIGPIPE, SIG_IGN);
        int r = options_parse(argc, argv, &cfg, &err);
        if (r >= 0)
                r = options_take_fds(&cfg, &err);
        raise_descriptor_limit();
        tzset(); /* log lines have a time, and libc would read /etc/localtime at the first */
        if (r >= 0)
                r = seed_json(&err);
        if (r >= 0)
                r = run(&cfg, &err);
        if (r < 0) {
                log_error("%s", err.msg);
                return EXIT_FAILURE;
        }
        return EXIT_SUCCESS;
}
