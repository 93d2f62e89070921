/* SPDX-License-Identifier: Apache-2.0 */
#include "store/idem.h"

#include "api/api.h"
#include "fixture.h"
#include "io/stream.h"

/* A request over a real exchange; the route's handler does what a test wants. */
struct rig {
        struct fixture *f;
        struct api *api;
        char answer[4096];
        size_t n;
};

static enum { FAIL, REPLY, OPERATION } what;
static unsigned handled;
static char op_id[ID_SIZE];


static void on_stored(void *arg, int err, const struct error *e) {
        struct api_req *r = arg;
        (void) e;
        idem_settle(r->app, r->idem_scope, err >= 0);
        api_reply(r, 201, json_pack("{s:s}", "made", "yes"));
        api_req_unref(r);
}

static void handler(struct api_req *r) {
        struct op *o = NULL;
        int rc = idem_begin(r, &o);
        if (rc == 2)
                api_reply(r, 202, json_pack("{s:s}", "op", o->id));
        if (rc != 0)
                return;
        handled++;
        struct db_batch *b = db_batch_new();
        if (what == FAIL) {
                db_batch_free(b);
                api_error(r, API_INVALID_ARGUMENT, "wrong");
        } else if (what == REPLY) {
                json_t *j = json_pack("{s:s}", "made", "yes");
                idem_bind_reply(r->app, r->idem_scope, 201, j, b);
                json_decref(j);
                assert_int_equal(db_batch_submit(r->app->db, b, on_stored, api_req_ref(r)), 0);
        } else {
                o = op_new(r->app, b, OP_CREATE, "s", "", "");
                memcpy(op_id, o->id, sizeof op_id);
                idem_bind_op(r->app, r->idem_scope, o->id, b);
                assert_int_equal(db_batch_submit(r->app->db, b, on_stored, api_req_ref(r)), 0);
        }
}

static const struct api_route routes[] = {
        { "POST", "/v1/x", handler, API_BODY_JSON, API_FLAG_IDEM },
        { "POST", "/v1/y/{id}", handler, API_BODY_JSON, API_FLAG_IDEM },
};

static const struct conn_kind trusted = { .trusted = true };

/* Sends one request on a connection of its own; returns the status. */
static int ask(struct rig *g, const char *target, const char *key, const char *body) {
        int pair[2];
        char text[2048];
        struct stream *s = NULL;
        struct error e = ERROR_INIT;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
        assert_int_equal(stream_from_fd(&g->f->loop, pair[0], &s, &e), 0);
        assert_int_equal(http_server_add(api_http(g->api, API_UNIX), s, (void *) (uintptr_t) &trusted), 0);
        int n = snprintf(text, sizeof text, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n%s%s%sConnection: close\r\n\r\n%s", target,
                         strlen(body), key ? "Idempotency-Key: " : "", key ? key : "", key ? "\r\n" : "", body);
        assert_int_equal(write(pair[1], text, (size_t) n), n);
        g->n = 0;
        for (int i = 0; i < 20000; i++) {
                (void) uv_run(&g->f->loop, UV_RUN_NOWAIT);
                ssize_t r = read(pair[1], g->answer + g->n, sizeof g->answer - 1 - g->n);
                if (r == 0)
                        break;
                if (r > 0)
                        g->n += (size_t) r;
                else
                        (void) usleep(50);
        }
        g->answer[g->n] = 0;
        (void) close(pair[1]);
        int status = 0;
        assert_int_equal(sscanf(g->answer, "HTTP/1.1 %d", &status), 1);
        return status;
}

static void open_rig(struct rig *g, struct fixture *f) {
        struct error e = ERROR_INIT;
        *g = (struct rig){ .f = f };
        assert_int_equal(api_new(&f->app, &g->api, &e), 0);
        f->app.api = g->api;
        assert_int_equal(api_add_routes(g->api, routes, ARRAY_SIZE(routes), &e), 0);
        handled = 0;
}

static void replies(void **state) {
        struct rig g;
        open_rig(&g, *state);
        what = REPLY;
        assert_int_equal(ask(&g, "/v1/x", "k", "{\"a\":1}"), 201);
        assert_int_equal(ask(&g, "/v1/x", "k", "{\"a\":1}"), 201);
        assert_non_null(strstr(g.answer, "\"made\":\"yes\""));
        assert_int_equal(handled, 1);
        assert_int_equal(ask(&g, "/v1/x", "k", "{\"a\":2}"), 422);
        assert_int_equal(ask(&g, "/v1/y/1", "k", "{\"a\":1}"), 422);
        assert_int_equal(ask(&g, "/v1/x", "K", "{\"a\":1}"), 201);
        assert_int_equal(ask(&g, "/v1/x", NULL, "{\"a\":1}"), 201);
        assert_int_equal(handled, 3);
        /* durable */
        api_free(g.api);
        fixture_close(*state);
        fixture_open(*state);
        open_rig(&g, *state);
        assert_int_equal(ask(&g, "/v1/x", "k", "{\"a\":1}"), 201);
        assert_int_equal(ask(&g, "/v1/x", "k", "{\"a\":3}"), 422);
        assert_int_equal(handled, 0);
        api_free(g.api);
}

/* How long a client waits is not what it asks for. */
static void patience(void **state) {
        struct rig g;
        open_rig(&g, *state);
        what = REPLY;
        assert_int_equal(ask(&g, "/v1/x?wait=30", "k", "{}"), 201);
        assert_int_equal(ask(&g, "/v1/x?wait=5", "k", "{}"), 201);
        assert_int_equal(ask(&g, "/v1/x", "k", "{}"), 201);
        assert_int_equal(ask(&g, "/v1/x?", "k", "{}"), 201);
        assert_int_equal(handled, 1);
        assert_int_equal(ask(&g, "/v1/x?name=a", "k", "{}"), 422);
        assert_int_equal(ask(&g, "/v1/x?waiting=1", "k", "{}"), 422);
        assert_int_equal(ask(&g, "/v1/x?name=a&wait=1&b=2", "q", "{}"), 201);
        assert_int_equal(ask(&g, "/v1/x?name=a&b=2&wait", "q", "{}"), 201);
        assert_int_equal(ask(&g, "/v1/x?name=ab=2", "q", "{}"), 422);
        assert_int_equal(handled, 2);
        api_free(g.api);
}

static void operations(void **state) {
        struct rig g;
        open_rig(&g, *state);
        what = OPERATION;
        assert_int_equal(ask(&g, "/v1/x", "k", "{}"), 201);
        assert_int_equal(ask(&g, "/v1/x", "k", "{}"), 202);
        assert_non_null(strstr(g.answer, op_id));
        assert_int_equal(handled, 1);
        api_free(g.api);
}

/* A request that did nothing leaves its key free. */
static void failures(void **state) {
        struct rig g;
        open_rig(&g, *state);
        what = FAIL;
        assert_int_equal(ask(&g, "/v1/x", "k", "{}"), 400);
        assert_int_equal(ask(&g, "/v1/x", "k", "{\"other\":1}"), 400);
        what = REPLY;
        assert_int_equal(ask(&g, "/v1/x", "k", "{}"), 201);
        assert_int_equal(handled, 3);
        api_free(g.api);
}

static void bad_keys(void **state) {
        struct rig g;
        char long_key[IDEM_KEY_MAX + 2];
        open_rig(&g, *state);
        what = REPLY;
        memset(long_key, 'x', sizeof long_key - 1);
        long_key[sizeof long_key - 1] = 0;
        assert_int_equal(ask(&g, "/v1/x", long_key, "{}"), 400);
        assert_int_equal(ask(&g, "/v1/x", "a b", "{}"), 400);
        assert_int_equal(ask(&g, "/v1/x", "", "{}"), 400);
        long_key[sizeof long_key - 2] = 0;
        assert_int_equal(ask(&g, "/v1/x", long_key, "{}"), 201);
        api_free(g.api);
}

/* The same machinery, as long as it is up: routes, bodies, methods. */
static void requests(void **state) {
        struct rig g;
        open_rig(&g, *state);
        what = REPLY;
        assert_int_equal(ask(&g, "/v1/x", NULL, ""), 201);
        assert_int_equal(ask(&g, "/v1/x", NULL, "{"), 400);
        assert_int_equal(ask(&g, "/v1/x", NULL, "[1]"), 400);
        assert_int_equal(ask(&g, "/v1/x", NULL, "{\"a\":1,\"a\":2}"), 400);
        assert_int_equal(ask(&g, "/v1/x/", NULL, "{}"), 404);
        assert_int_equal(ask(&g, "/v1//x", NULL, "{}"), 404);
        assert_int_equal(ask(&g, "/v1/y/", NULL, "{}"), 404);
        assert_int_equal(ask(&g, "/v1/y/a%2Fb", NULL, "{}"), 201);
        assert_int_equal(ask(&g, "/v1/y/a%00b", NULL, "{}"), 400);
        assert_int_equal(ask(&g, "/v1/y/%", NULL, "{}"), 400);
        assert_int_equal(ask(&g, "/v1/y/a/b", NULL, "{}"), 404);
        assert_int_equal(ask(&g, "/1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/16/17", NULL, "{}"), 400);
        struct error e = ERROR_INIT;
        assert_true(api_add_routes(g.api, routes, 1, &e) < 0);
        api_free(g.api);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, fixture_setup, fixture_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(replies), TEST(patience), TEST(operations), TEST(failures), TEST(bad_keys), TEST(requests),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
