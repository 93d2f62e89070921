/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "vmm/qmp.h"

/* A QMP server made of a descriptor, and what the client made of it. */
struct fixture {
        uv_loop_t loop;
        uv_timer_t tick;
        char dir[64];
        int listener, server;
        struct qmp *q;
        bool closed;
        int close_err;
        char events[200], order[64];
        bool free_in_callback;
};

static void on_tick(uv_timer_t *t) {
        (void) t;
}

static void event(void *arg, const char *name, const json_t *data) {
        struct fixture *f = arg;
        const char *status = json_string_value(json_object_get(data, "status"));
        size_t n = strlen(f->events);
        snprintf(f->events + n, sizeof(f->events) - n, "%s:%s;", name, status ? status : "");
}

static void closed(void *arg, int err, const char *why) {
        struct fixture *f = arg;
        (void) why;
        assert_false(f->closed);
        f->closed = true;
        f->close_err = err;
}

static const struct qmp_handler handler = { event, closed };

static int set_up(void **state) {
        struct fixture *f = calloc(1, sizeof(*f));
        assert_non_null(f);
        strcpy(f->dir, "/tmp/qmp-test-XXXXXX");
        assert_non_null(mkdtemp(f->dir));
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        snprintf(a.sun_path, sizeof(a.sun_path), "%s/s", f->dir);
        f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(bind(f->listener, (struct sockaddr *) &a, sizeof(a)), 0);
        assert_int_equal(listen(f->listener, 1), 0);
        uv_loop_init(&f->loop);
        uv_timer_init(&f->loop, &f->tick);
        uv_timer_start(&f->tick, on_tick, 20, 20);
        assert_int_equal(qmp_connect(&f->loop, a.sun_path, &handler, f, &f->q, NULL), 0);
        f->server = accept(f->listener, NULL, NULL);
        assert_true(f->server >= 0);
        *state = f;
        return 0;
}

static int tear_down(void **state) {
        struct fixture *f = *state;
        char path[80];
        qmp_free(f->q);
        uv_close((uv_handle_t *) &f->tick, NULL);
        uv_run(&f->loop, UV_RUN_DEFAULT);
        assert_int_equal(uv_loop_close(&f->loop), 0);
        fd_close(f->listener);
        fd_close(f->server);
        snprintf(path, sizeof(path), "%s/s", f->dir);
        unlink(path);
        rmdir(f->dir);
        free(f);
        return 0;
}

#define UNTIL(f, cond)                                    \
        do {                                              \
                uint64_t end_ = clock_mono_ms() + 10000;  \
                while (!(cond)) {                         \
                        assert_true(clock_mono_ms() < end_); \
                        uv_run(&(f)->loop, UV_RUN_ONCE);  \
                }                                         \
        } while (0)

static void put(struct fixture *f, const char *text) {
        assert_int_equal(write(f->server, text, strlen(text)), strlen(text));
}

static void answered(void *arg, int err, const struct error *e, const json_t *ret) {
        struct fixture *f = arg;
        size_t n = strlen(f->order);
        if (err < 0)
                snprintf(f->order + n, sizeof(f->order) - n, "E(%.20s)", e->msg);
        else
                snprintf(f->order + n, sizeof(f->order) - n, "%d", (int) json_integer_value(json_object_get(ret, "n")));
        if (f->free_in_callback) {
                struct qmp *q = f->q;
                f->q = NULL;
                qmp_free(q);
        }
}

static void chain_in_order(void **state) {
        struct fixture *f = *state;
        char buf[1000];
        put(f, "{\"QMP\": {\"version\": {}}}\r\n");
        qmp_send(f->q, answered, f, "qmp_capabilities", NULL);
        qmp_send(f->q, answered, f, "migrate", "{s:s,s:[b]}", "uri", "fd:x", "list", 1);
        uv_run(&f->loop, UV_RUN_NOWAIT);
        ssize_t n = read(f->server, buf, sizeof(buf) - 1);
        assert_true(n > 0);
        buf[n] = '\0';
        assert_string_equal(buf, "{\"execute\":\"qmp_capabilities\"}\n"
                                 "{\"execute\":\"migrate\",\"arguments\":{\"uri\":\"fd:x\",\"list\":[true]}}\n");
        put(f, "{\"return\": {\"n\": 1}}\r\n{\"event\": \"MIGRATION\", \"data\": {\"status\": \"setup\"}, "
               "\"timestamp\": {}}\r\n{\"err");
        UNTIL(f, strcmp(f->order, "1") == 0);
        put(f, "or\": {\"class\": \"GenericError\", \"desc\": \"no such file\"}}\r\n");
        UNTIL(f, f->order[1]);
        assert_string_equal(f->order, "1E(no such file)");
        assert_string_equal(f->events, "MIGRATION:setup;");
        assert_false(f->closed);
}

static void descriptor_is_handed_over(void **state) {
        struct fixture *f = *state;
        char buf[200], control[CMSG_SPACE(sizeof(int))];
        int p[2];
        assert_int_equal(pipe(p), 0);
        qmp_send_fd(f->q, answered, f, p[1], "state");
        struct iovec v = { buf, sizeof(buf) };
        struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
        ssize_t n = recvmsg(f->server, &m, 0);
        assert_true(n > 0);
        buf[n] = '\0';
        assert_string_equal(buf, "{\"execute\":\"getfd\",\"arguments\":{\"fdname\":\"state\"}}\n");
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        int got = -1;
        if (c)
                memcpy(&got, CMSG_DATA(c), sizeof(int));
        assert_int_equal(write(got, "x", 1), 1);
        assert_int_equal(read(p[0], buf, 1), 1);
        close(got);
        close(p[0]);
        close(p[1]);
        put(f, "{\"return\": {}}\n");
        UNTIL(f, f->order[0]);
}

static void garbage_ends_the_connection(void **state) {
        struct fixture *f = *state;
        static const char *const bad[] = {
                "nonsense\n", "[1]\n", "{\"return\": {}}\n{\"error\": {}}\n", "{}\n", "{\"QMP\": 1}\n{\"QMP\": 1}\n",
                "{\"return\": {}}\n{\"return\": {}}\n", "{\"a\":\"\\u0000\"}\n", "{\"return\":{},\"return\":{}}\n",
        };
        (void) f;
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
                void *s = NULL;
                set_up(&s);
                struct fixture *g = s;
                qmp_send(g->q, answered, g, "stop", NULL);
                put(g, bad[i]);
                UNTIL(g, g->closed);
                assert_int_equal(g->close_err, -EPROTO);
                tear_down(&s);
        }
}

static void endless_line(void **state) {
        struct fixture *f = *state;
        static char block[8192];
        memset(block, 'x', sizeof(block));
        for (int i = 0; i < 10000 && !f->closed; i++) {
                (void) !send(f->server, block, sizeof(block), MSG_DONTWAIT | MSG_NOSIGNAL);
                uv_run(&f->loop, UV_RUN_NOWAIT);
        }
        assert_true(f->closed);
        assert_int_equal(f->close_err, -EPROTO);
}

static void loss_fails_commands(void **state) {
        struct fixture *f = *state;
        qmp_send(f->q, answered, f, "stop", NULL);
        qmp_send(f->q, answered, f, "cont", NULL);
        f->server = fd_close(f->server);
        UNTIL(f, f->closed);
        assert_string_equal(f->order, "E(the VM is gone)E(the VM is gone)");
        qmp_send(f->q, answered, f, "quit", NULL); /* afterwards: an error at once */
        assert_non_null(strstr(f->order, "\"quit\" cannot"));
}

static void freed_inside_a_callback(void **state) {
        struct fixture *f = *state;
        f->free_in_callback = true;
        qmp_send(f->q, answered, f, "stop", NULL);
        put(f, "{\"return\": {\"n\": 4}}\n{\"event\": \"STOP\"}\n");
        UNTIL(f, f->order[0]);
        uv_run(&f->loop, UV_RUN_NOWAIT);
        assert_string_equal(f->events, "");
        assert_false(f->closed);
}

static void too_many_commands(void **state) {
        struct fixture *f = *state;
        for (int i = 0; i < QMP_COMMANDS_MAX; i++)
                qmp_send(f->q, NULL, NULL, "cont", NULL);
        qmp_send(f->q, answered, f, "cont", NULL);
        assert_string_equal(f->order, "E(\"cont\" cannot be sen)");
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
        const struct CMUnitTest tests[] = {
                T(chain_in_order),      T(descriptor_is_handed_over), T(garbage_ends_the_connection),
                T(endless_line),        T(loss_fails_commands),       T(freed_inside_a_callback),
                T(too_many_commands),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
