/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* An app with a loop and a database of its own, nothing behind it. */

#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app.h"
#include "base/cleanup.h"
#include "egress/credential.h"
#include "egress/policies.h"
#include "peers/rootd.h"
#include "proxy/proxy.h"
#include "sandbox/sandbox_flow.h"
#include "sandbox/warm.h"
#include "store/db.h"
#include "store/idem.h"
#include "store/key.h"
#include "store/op.h"
#include "template/template.h"
#include "template/variant.h"
#include "test.h"

struct fixture {
        struct app app;
        uv_loop_t loop;
        char dir[64];
};

static inline void fixture_open(struct fixture *f) {
        char path[96];
        struct error e = ERROR_INIT;
        memset(&f->app, 0, sizeof f->app);
        conf_defaults(&f->app.conf);
        assert_int_equal(uv_loop_init(&f->loop), 0);
        f->app.loop = &f->loop;
        (void) snprintf(path, sizeof path, "%s/state.db", f->dir);
        assert_int_equal(conf_set(&f->app.conf, "paths", "data", f->dir, &e), 0);
        assert_int_equal(db_open(f->app.loop, path, &f->app.db, &e), 0);
        assert_int_equal(keys_load(&f->app, &f->app.keys, &e), 0);
        assert_int_equal(ops_load(&f->app, &f->app.ops, &e), 0);
        assert_int_equal(idems_load(&f->app, &f->app.idems, &e), 0);
        assert_int_equal(templates_load(&f->app, &f->app.templates, &e), 0);
        assert_int_equal(variants_load(&f->app, &f->app.variants, &e), 0);
        assert_int_equal(policies_load(&f->app, &f->app.policies, &e), 0);
        assert_int_equal(credentials_load(&f->app, &f->app.credentials, &e), 0);
        assert_int_equal(sandboxes_load(&f->app, &f->app.sandboxes, &e), 0);
        assert_int_equal(db_start(f->app.db, &e), 0);
        assert_int_equal(removals_new(&f->app, &f->app.removals, &e), 0);
        assert_int_equal(warm_new(&f->app, &f->app.warm, &e), 0);
}

static inline void fixture_close(struct fixture *f) {
        struct app *a = &f->app;
        a->stopping = true;
        rootd_stop(a->rootd);
        warm_free(a->warm);
        a->warm = NULL;
        deletes_abandon(a);
        sandboxes_abandon(a);
        variants_abandon(a);
        db_close(a->db);
        variants_free(a->variants);
        removals_free(a->removals);
        proxy_free(a->proxy);
        templates_free(a->templates);
        sandboxes_free(a->sandboxes);
        rootd_free(a->rootd);
        ops_free(a, a->ops);
        idems_free(a->idems);
        policies_free(a->policies);
        credentials_free(a->credentials);
        keys_free(a->keys);
        while (uv_run(&f->loop, UV_RUN_NOWAIT) != 0)
                ;
        assert_int_equal(uv_loop_close(&f->loop), 0);
}

static inline int fixture_rm(const char *path, const struct stat *st, int type, struct FTW *ftw) {
        (void) st;
        (void) type;
        (void) ftw;
        return remove(path);
}

static inline int fixture_setup(void **state) {
        struct fixture *f = calloc(1, sizeof *f);
        (void) snprintf(f->dir, sizeof f->dir, "/tmp/cspace-unit-XXXXXX");
        assert_non_null(mkdtemp(f->dir));
        fixture_open(f);
        *state = f;
        return 0;
}

static inline int fixture_teardown(void **state) {
        struct fixture *f = *state;
        fixture_close(f);
        (void) nftw(f->dir, fixture_rm, 8, FTW_DEPTH | FTW_PHYS);
        free(f);
        return 0;
}

/* Turns the loop until *done. */
static inline void fixture_run(struct fixture *f, const bool *done) {
        for (int i = 0; i < 100000 && !*done; i++) {
                (void) uv_run(&f->loop, UV_RUN_NOWAIT);
                (void) usleep(50);
        }
        assert_true(*done);
}

struct fixture_result {
        bool done;
        int err;
};
static inline void fixture_done(void *arg, int err, const struct error *e) {
        struct fixture_result *r = arg;
        (void) e;
        r->done = true;
        r->err = err;
}

/* Submits b and waits; returns what it gave. */
static inline int fixture_commit(struct fixture *f, struct db_batch *b) {
        struct fixture_result r = { 0 };
        int rc = db_batch_submit(f->app.db, b, fixture_done, &r);
        if (rc < 0)
                return rc;
        fixture_run(f, &r.done);
        return r.err;
}
