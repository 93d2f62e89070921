/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "ipc/ipc.h"
#include "ipc/messages.h"

/* Both ends run on one loop; `peer` is a plain descriptor where a test plays the other side. */
struct fixture {
        uv_loop_t loop;
        struct ipc_conn *a, *b;
        int peer;
        unsigned packets, closes, replies;
        int close_err, reply_err;
        char reply_msg[ERROR_MSG_MAX];
        uint8_t last[64];
        size_t last_n;
        struct ipc_packet held;
        int taken;
        bool free_in_packet, free_in_reply, answer_error, hold, take;
};

static unsigned open_fds(void) {
        DIR *d = opendir("/proc/self/fd");
        unsigned n = 0;
        while (readdir(d))
                n++;
        closedir(d);
        return n;
}

static void on_packet(void *arg, struct ipc_conn *c, struct ipc_packet *p) {
        struct fixture *f = arg;
        f->packets++;
        f->last_n = p->body_n < sizeof f->last ? p->body_n : sizeof f->last;
        memcpy(f->last, p->body, f->last_n);
        if (f->take) {
                f->taken = p->fds[0];
                p->fds[0] = -EBADF;
        }
        if (f->free_in_packet) {
                ipc_conn_free(c);
                f->b = NULL;
        } else if (f->hold) {
                f->held = *p;
        } else if (f->answer_error) {
                struct error e = ERROR_INIT;
                (void) error_set(&e, -ENOSPC, "no room for \"%s\"", "x");
                assert_int_equal(ipc_conn_reply_error(c, p, &e), 0);
        } else if (p->seq) {
                assert_int_equal(ipc_conn_reply(c, p, p->body, p->body_n, p->fds, p->n_fds), 0);
        }
}

static void on_close(void *arg, struct ipc_conn *c, int err) {
        struct fixture *f = arg;
        (void) c;
        f->closes++;
        f->close_err = err;
}

static const struct ipc_conn_handler handler = { .on_packet = on_packet, .on_close = on_close, .peer = "the stand-in" };

static void on_reply(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        struct fixture *f = arg;
        f->replies++;
        f->reply_err = err;
        if (err < 0) {
                assert_null(p);
                assert_int_equal(e->code, err);
                memcpy(f->reply_msg, e->msg, sizeof f->reply_msg);
        } else {
                assert_non_null(p);
                f->last_n = p->body_n < sizeof f->last ? p->body_n : sizeof f->last;
                memcpy(f->last, p->body, f->last_n);
        }
        if (f->free_in_reply) {
                ipc_conn_free(f->a);
                f->a = NULL;
        }
}

static int setup(void **state) {
        struct fixture *f = calloc(1, sizeof *f);
        int sv[2];
        struct error e;
        f->peer = -EBADF;
        f->taken = -EBADF;
        uv_loop_init(&f->loop);
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
        assert_int_equal(ipc_conn_new(&f->loop, sv[0], &handler, f, &f->a, &e), 0);
        assert_int_equal(ipc_conn_new(&f->loop, sv[1], &handler, f, &f->b, &e), 0);
        *state = f;
        return 0;
}

static int setup_raw(void **state) {
        struct fixture *f = calloc(1, sizeof *f);
        int sv[2];
        struct error e;
        f->taken = -EBADF;
        uv_loop_init(&f->loop);
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
        assert_int_equal(ipc_conn_new(&f->loop, sv[0], &handler, f, &f->a, &e), 0);
        f->peer = sv[1];
        *state = f;
        return 0;
}

static int teardown(void **state) {
        struct fixture *f = *state;
        ipc_conn_free(f->a);
        ipc_conn_free(f->b);
        uv_run(&f->loop, UV_RUN_DEFAULT);
        assert_int_equal(uv_loop_close(&f->loop), 0); /* no handle is left */
        fd_close(f->peer);
        fd_close(f->taken);
        free(f);
        return 0;
}

#define RUN_UNTIL(f, cond)                                                                                   \
        while (!(cond))                                                                                      \
        assert_true(uv_run(&(f)->loop, UV_RUN_ONCE) != 0 || (cond))

static void call_and_reply(void **state) {
        struct fixture *f = *state;
        assert_int_equal(ipc_conn_call(f->a, IPC_QUERY, "hello", 5, NULL, 0, 10000, on_reply, f), 0);
        assert_int_equal(f->replies, 0);
        RUN_UNTIL(f, f->replies);
        assert_int_equal(f->packets, 1);
        assert_int_equal(f->reply_err, 0);
        assert_int_equal(f->last_n, 5);
        assert_memory_equal(f->last, "hello", 5);
}

static void many_calls_in_flight(void **state) {
        struct fixture *f = *state;
        for (int i = 0; i < 500; i++)
                assert_int_equal(ipc_conn_call(f->a, IPC_QUERY, &i, sizeof i, NULL, 0, 0, on_reply, f), 0);
        RUN_UNTIL(f, f->replies == 500);
        assert_int_equal(f->packets, 500);
}

static void errors_travel(void **state) {
        struct fixture *f = *state;
        f->answer_error = true;
        assert_int_equal(ipc_conn_call(f->a, IPC_PLACE, NULL, 0, NULL, 0, 0, on_reply, f), 0);
        RUN_UNTIL(f, f->replies);
        assert_int_equal(f->reply_err, -ENOSPC);
        assert_string_equal(f->reply_msg, "no room for \"x\"");
}

static void events_have_no_answer(void **state) {
        struct fixture *f = *state;
        assert_int_equal(ipc_conn_event(f->a, IPC_EXITED, "e", 1), 0);
        RUN_UNTIL(f, f->packets == 1);
        assert_int_equal(f->replies, 0);
}

static void late_answers_are_dropped(void **state) {
        struct fixture *f = *state;
        f->hold = true;
        assert_int_equal(ipc_conn_call(f->a, IPC_QUERY, NULL, 0, NULL, 0, 5, on_reply, f), 0);
        RUN_UNTIL(f, f->replies);
        assert_int_equal(f->reply_err, -ETIMEDOUT);
        RUN_UNTIL(f, f->packets == 1);
        assert_int_equal(ipc_conn_reply(f->b, &f->held, NULL, 0, NULL, 0), 0);
        f->hold = false;
        assert_int_equal(ipc_conn_call(f->a, IPC_QUERY, NULL, 0, NULL, 0, 0, on_reply, f), 0);
        RUN_UNTIL(f, f->replies == 2);
        assert_int_equal(f->reply_err, 0);
}

static void the_first_deadline_wins(void **state) {
        struct fixture *f = *state;
        f->hold = true;
        assert_int_equal(ipc_conn_call(f->a, IPC_QUERY, NULL, 0, NULL, 0, 100000, on_reply, f), 0);
        assert_int_equal(ipc_conn_call(f->a, IPC_QUERY, NULL, 0, NULL, 0, 5, on_reply, f), 0);
        RUN_UNTIL(f, f->replies == 1);
        assert_int_equal(f->reply_err, -ETIMEDOUT);
}

static void a_peer_that_goes_away(void **state) {
        struct fixture *f = *state;
        assert_int_equal(ipc_conn_call(f->a, IPC_QUERY, NULL, 0, NULL, 0, 0, on_reply, f), 0);
        assert_int_equal(ipc_conn_call(f->a, IPC_QUERY, NULL, 0, NULL, 0, 0, on_reply, f), 0);
        ipc_conn_free(f->b);
        f->b = NULL;
        RUN_UNTIL(f, f->closes == 1);
        assert_int_equal(f->close_err, 0);
        assert_int_equal(f->replies, 2);
        assert_int_equal(f->reply_err, -ECONNRESET);
        assert_int_equal(ipc_conn_call(f->a, IPC_QUERY, NULL, 0, NULL, 0, 0, on_reply, f), -ENOTCONN);
        assert_int_equal(ipc_conn_event(f->a, IPC_EXITED, NULL, 0), -ENOTCONN);
}

static void free_cancels(void **state) {
        struct fixture *f = *state;
        for (int i = 0; i < 3; i++)
                assert_int_equal(ipc_conn_call(f->a, IPC_QUERY, NULL, 0, NULL, 0, 1000, on_reply, f), 0);
        ipc_conn_free(f->a);
        f->a = NULL;
        assert_int_equal(f->replies, 3);
        assert_int_equal(f->reply_err, -ECANCELED);
        assert_int_equal(f->closes, 0);
}

static void free_inside_callbacks(void **state) {
        struct fixture *f = *state;
        f->free_in_reply = true;
        for (int i = 0; i < 3; i++)
                assert_int_equal(ipc_conn_call(f->a, IPC_QUERY, NULL, 0, NULL, 0, 0, on_reply, f), 0);
        RUN_UNTIL(f, f->replies == 3); /* the first frees, and that cancels the others */
        assert_int_equal(f->reply_err, -ECANCELED);
        RUN_UNTIL(f, f->closes == 1); /* b sees the end */
}

static void free_inside_packet(void **state) {
        struct fixture *f = *state;
        f->free_in_packet = true;
        for (int i = 0; i < 3; i++)
                assert_int_equal(ipc_conn_call(f->a, IPC_QUERY, NULL, 0, NULL, 0, 0, on_reply, f), 0);
        RUN_UNTIL(f, f->replies == 3);
        assert_int_equal(f->packets, 1);
        assert_int_equal(f->reply_err, -ECONNRESET);
}

static void untaken_descriptors_are_closed(void **state) {
        struct fixture *f = *state;
        int p[2];
        assert_int_equal(pipe2(p, O_CLOEXEC), 0);
        unsigned before = open_fds();
        assert_int_equal(ipc_conn_call(f->a, IPC_BUILD, NULL, 0, p, 2, 0, on_reply, f), 0);
        RUN_UNTIL(f, f->replies);
        assert_int_equal(open_fds(), before);
        f->take = true;
        f->hold = true;
        assert_int_equal(ipc_conn_call(f->a, IPC_BUILD, NULL, 0, p, 2, 0, on_reply, f), 0);
        RUN_UNTIL(f, f->packets == 2);
        assert_int_equal(open_fds(), before + 1);
        assert_true(f->taken >= 0);
        fd_close(p[0]);
        fd_close(p[1]);
}

static void a_slow_reader_meets_a_bound(void **state) {
        struct fixture *f = *state;
        static uint8_t body[64 * 1024];
        unsigned before = open_fds();
        int r = 0;
        unsigned sent = 0;
        while (r == 0 && sent < 10000) {
                int fd = f->peer;
                r = ipc_conn_call(f->a, IPC_BUILD, body, sizeof body, &fd, 1, 0, on_reply, f);
                sent += r == 0;
        }
        assert_int_equal(r, -ENOBUFS);
        assert_true(sent > 60 && sent < 100);
        assert_true(open_fds() > before); /* waiting descriptors are ours */
        /* Everything accepted arrives, in order, once the peer reads. */
        static uint8_t in[IPC_PACKET_MAX];
        for (unsigned i = 1; i <= sent; i++) {
                struct ipc_packet p;
                uv_run(&f->loop, UV_RUN_NOWAIT);
                assert_int_equal(ipc_recv(f->peer, in, &p, NULL), 1);
                assert_int_equal(p.seq, i);
                assert_int_equal(p.body_n, sizeof body);
                assert_int_equal(p.n_fds, 1);
                ipc_packet_close_fds(&p);
        }
        assert_int_equal(open_fds(), before);
        assert_int_equal(ipc_conn_event(f->a, IPC_EXITED, NULL, 0), 0);
}

static void garbage_ends_the_connection(void **state) {
        struct fixture *f = *state;
        assert_int_equal(ipc_conn_call(f->a, IPC_QUERY, NULL, 0, NULL, 0, 0, on_reply, f), 0);
        assert_int_equal(send(f->peer, "bad", 3, 0), 3);
        RUN_UNTIL(f, f->closes == 1);
        assert_int_equal(f->close_err, -EPROTO);
        assert_int_equal(f->replies, 1);
        assert_int_equal(f->reply_err, -EPROTO);
}

static void unreadable_error_reply(void **state) {
        struct fixture *f = *state;
        assert_int_equal(ipc_conn_call(f->a, IPC_QUERY, NULL, 0, NULL, 0, 0, on_reply, f), 0);
        assert_int_equal(
                ipc_send(f->peer, IPC_QUERY, IPC_FLAG_REPLY | IPC_FLAG_ERROR, 1, "xx", 2, NULL, 0, NULL), 0);
        RUN_UNTIL(f, f->replies == 1);
        assert_int_equal(f->reply_err, -EPROTO);
        /* Success in an error's clothes. */
        struct ipc_error m = { .code = 0, .message = "fine" };
        uint8_t body[64];
        size_t n;
        assert_int_equal(ipc_error_encode(&m, body, sizeof body, &n), 0);
        assert_int_equal(ipc_conn_call(f->a, IPC_QUERY, NULL, 0, NULL, 0, 0, on_reply, f), 0);
        assert_int_equal(
                ipc_send(f->peer, IPC_QUERY, IPC_FLAG_REPLY | IPC_FLAG_ERROR, 2, body, n, NULL, 0, NULL), 0);
        RUN_UNTIL(f, f->replies == 2);
        assert_int_equal(f->reply_err, -EPROTO);
        /* An answer to nothing is no event. */
        assert_int_equal(ipc_send(f->peer, IPC_QUERY, IPC_FLAG_REPLY, 77, NULL, 0, NULL, 0, NULL), 0);
        assert_int_equal(ipc_send(f->peer, IPC_EXITED, 0, 0, NULL, 0, NULL, 0, NULL), 0);
        RUN_UNTIL(f, f->packets == 1);
        assert_int_equal(f->replies, 2);
}

static void answer_then_close(void **state) {
        struct fixture *f = *state;
        assert_int_equal(ipc_conn_call(f->a, IPC_QUERY, NULL, 0, NULL, 0, 0, on_reply, f), 0);
        assert_int_equal(ipc_send(f->peer, IPC_QUERY, IPC_FLAG_REPLY, 1, "z", 1, NULL, 0, NULL), 0);
        f->peer = fd_close(f->peer);
        RUN_UNTIL(f, f->closes == 1);
        assert_int_equal(f->replies, 1);
        assert_int_equal(f->reply_err, 0);
        assert_memory_equal(f->last, "z", 1);
}

static void not_a_socket(void **state) {
        (void) state;
        uv_loop_t loop;
        uv_loop_init(&loop);
        struct error e = ERROR_INIT;
        struct ipc_conn *c = NULL;
        int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
        fd_close(fd);
        assert_true(ipc_conn_new(&loop, file, &handler, NULL, &c, &e) < 0);
        assert_null(c);
        assert_int_equal(fcntl(file, F_GETFD), -1); /* taken on failure too */
        ipc_conn_free(NULL);
        assert_int_equal(uv_loop_close(&loop), 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define R(name) cmocka_unit_test_setup_teardown(name, setup_raw, teardown)
int main(void) {
        const struct CMUnitTest tests[] = {
                T(call_and_reply),
                T(many_calls_in_flight),
                T(errors_travel),
                T(events_have_no_answer),
                T(late_answers_are_dropped),
                T(the_first_deadline_wins),
                T(a_peer_that_goes_away),
                T(free_cancels),
                T(free_inside_callbacks),
                T(free_inside_packet),
                T(untaken_descriptors_are_closed),
                R(a_slow_reader_meets_a_bound),
                R(garbage_ends_the_connection),
                R(unreadable_error_reply),
                R(answer_then_close),
                cmocka_unit_test(not_a_socket),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
