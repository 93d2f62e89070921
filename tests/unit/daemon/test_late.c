/* SPDX-License-Identifier: Apache-2.0 */

/* Answers that come late: from a thread that was at work meanwhile, or when the parts of cspaced have gone already. */

#include <errno.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <linux/sockios.h>

#include "api/api.h"
#include "api/upload.h"
#include "audit/audit_store.h"
#include "fixture.h"
#include "io/stream.h"

#define ID "aaaaaaaaaaaaaaaaaaaaaaaaaa"

const struct conn_kind conn_trusted = { .trusted = true }, conn_untrusted = { .trusted = false };

static void on_page(void *arg, int err, const struct error *e, struct audit_page *page) {
        (void) page;
        fixture_done(arg, err, e);
}

static void audit_page_while_stopping(void **state) {
        struct fixture *f = *state;
        struct error e = ERROR_INIT;
        const struct audit_query all = { .filter = NULL };
        struct fixture_result r = { 0 };
        assert_int_equal(audit_store_new(&f->app, &f->app.audit, &e), 0);
        assert_int_equal(audit_store_read(&f->app, ID, &all, (struct audit_place){ 0 }, 10, on_page, &r), 0);
        fixture_run(f, &r.done);
        assert_int_equal(r.err, -ENOENT);
        r.done = false;
        assert_int_equal(audit_store_read(&f->app, ID, &all, (struct audit_place){ 0 }, 10, on_page, &r), 0);
        f->app.stopping = true;
        audit_store_free(f->app.audit);
        f->app.audit = NULL;
        assert_false(r.done);
        fixture_run(f, &r.done);
        assert_int_equal(r.err, -ECANCELED); /* so that nobody looks into a table that is not there */
}

static void second_delete_while_stopping(void **state) {
        struct fixture *f = *state;
        struct app *app = &f->app;
        struct error e = ERROR_INIT;
        struct fixture_result first = { 0 }, second = { 0 };
        struct op *o = NULL, *same = NULL;
        assert_int_equal(conf_set(&app->conf, "paths", "run", f->dir, &e), 0);
        assert_int_equal(proxy_new(app->loop, app->conf.run, &app->proxy, &e), 0);
        assert_int_equal(rootd_new(app, &app->rootd, &e), 0);
        struct sandbox *s = sandbox_alloc(app);
        s->state = SANDBOX_RUNNING;
        assert_int_equal(sandbox_insert(app, s), 0);
        assert_int_equal(sandbox_delete(app, s, "test", "", NULL, fixture_done, &first, &o, &e), 0);
        fixture_run(f, &first.done);
        assert_int_equal(first.err, 0);
        assert_int_equal(sandbox_delete(app, s, "test", "", NULL, fixture_done, &second, &same, &e), 0);
        assert_ptr_equal(same, o);
        sandbox_unref(s);
        app->stopping = true;
        assert_false(second.done);
        fixture_run(f, &second.done);
        assert_int_equal(second.err, -ECANCELED);
}

/* ---- an upload ------------------------------------------------------------------------------- */

static struct fixture_result uploaded;

static void on_uploaded(struct api_req *r, int fd, const struct error *e) {
        fixture_done(&uploaded, fd, e);
        if (fd >= 0)
                (void) close(fd);
        api_reply_empty(r, 204);
}

static void take_upload(struct api_req *r) {
        assert_int_equal(upload_start(r, 10, on_uploaded, NULL), 0);
}

static void hold(uv_work_t *w) {
        uv_sem_wait(w->data);
}

static void held(uv_work_t *w, int status) {
        (void) w;
        (void) status;
}

static void send_all(struct fixture *f, int fd, const char *text) {
        int left = 1;
        assert_int_equal(send(fd, text, strlen(text), 0), (ssize_t) strlen(text));
        for (int i = 0; i < 100000 && left > 0; i++) {
                (void) uv_run(&f->loop, UV_RUN_NOWAIT);
                assert_int_equal(ioctl(fd, SIOCOUTQ, &left), 0);
        }
        assert_int_equal(left, 0);
}

/* What is wrong with the rest of a body stays wrong when the write of its beginning has gone well. */
static void upload_that_is_too_long(void **state) {
        static const struct api_route route = { "POST", "/upload", take_upload, API_BODY_STREAM, 0 };
        struct fixture *f = *state;
        struct app *app = &f->app;
        struct error e = ERROR_INIT;
        struct stream *s = NULL;
        int pair[2];
        uv_sem_t sem;
        uv_work_t first = { .data = &sem };
        assert_int_equal(api_new(app, &app->api, &e), 0);
        assert_int_equal(api_add_routes(app->api, &route, 1, &e), 0);
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        assert_int_equal(stream_from_fd(app->loop, pair[0], &s, &e), 0);
        assert_int_equal(http_server_add(api_http(app->api, API_UNIX), s, (void *) (uintptr_t) &conn_trusted), 0);
        /* The only worker is held, so that the write waits until all has been received. */
        assert_int_equal(uv_sem_init(&sem, 0), 0);
        assert_int_equal(uv_queue_work(app->loop, &first, hold, held), 0);
        send_all(f, pair[1], "POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n0123456789");
        send_all(f, pair[1], "0123456789");
        assert_false(uploaded.done);
        uv_sem_post(&sem);
        fixture_run(f, &uploaded.done);
        assert_int_equal(uploaded.err, -EFBIG);
        (void) close(pair[1]);
        api_free(app->api);
        app->api = NULL;
        uv_sem_destroy(&sem);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, fixture_setup, fixture_teardown)

int main(void) {
        const struct CMUnitTest tests[] = { TEST(audit_page_while_stopping), TEST(second_delete_while_stopping), TEST(upload_that_is_too_long) };
        assert_int_equal(setenv("UV_THREADPOOL_SIZE", "1", 1), 0);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
