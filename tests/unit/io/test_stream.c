/* SPDX-License-Identifier: Apache-2.0 */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "io/stream.h"
#include "loop.h"
#include "test.h"

/* What one side of a stream has seen. */
struct end {
        struct stream *s;
        struct buf in;
        bool eof, stop_after_data, close_in_data, close_in_eof;
        int err, n_err, n_drain, n_data;
};

static void e_data(void *arg, const uint8_t *d, size_t n) {
        struct end *e = arg;
        e->n_data++;
        assert_int_equal(buf_append(&e->in, d, n), 0);
        if (e->stop_after_data)
                stream_read_stop(e->s);
        if (e->close_in_data)
                stream_close(STEAL(e->s));
}
static void e_eof(void *arg) {
        struct end *e = arg;
        assert_false(e->eof);
        e->eof = true;
        if (e->close_in_eof)
                stream_close(STEAL(e->s));
}
static void e_drain(void *arg) {
        ((struct end *) arg)->n_drain++;
}
static void e_error(void *arg, int err) {
        struct end *e = arg;
        e->err = err;
        e->n_err++;
}
static const struct stream_handler handler = { e_data, e_eof, e_drain, e_error };

static void end_init(struct end *e, uv_loop_t *loop, int fd) {
        memset(e, 0, sizeof *e);
        assert_int_equal(stream_from_fd(loop, fd, &e->s, NULL), 0);
        stream_set_handler(e->s, &handler, e);
}
static void end_done(struct end *e) {
        stream_close(STEAL(e->s));
        buf_done(&e->in);
}

static void tcp_pair(int fds[2]) {
        int l = -1;
        assert_int_equal(listen_tcp("127.0.0.1", 0, &l, NULL), 0);
        struct sockaddr_in sa;
        socklen_t len = sizeof sa;
        assert_int_equal(getsockname(l, (struct sockaddr *) &sa, &len), 0);
        fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(fds[0], (struct sockaddr *) &sa, len), 0);
        struct pollfd p = { .fd = l, .events = POLLIN };
        assert_int_equal(poll(&p, 1, WAIT_MS), 1);
        fds[1] = accept4(l, NULL, NULL, SOCK_CLOEXEC);
        assert_true(fds[1] >= 0);
        close(l);
}

static void make_pair(int kind, int fds[2]) {
        if (kind == AF_UNIX)
                assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        else
                tcp_pair(fds);
}
static const int kinds[] = { AF_UNIX, AF_INET };

static void test_both_ways(void **state) {
        (void) state;
        for (size_t k = 0; k < ARRAY_SIZE(kinds); k++) {
                uv_loop_t loop;
                uv_loop_init(&loop);
                int fds[2];
                struct end a, b;
                make_pair(kinds[k], fds);
                end_init(&a, &loop, fds[0]);
                end_init(&b, &loop, fds[1]);
                stream_read_start(a.s);
                stream_read_start(b.s);
                assert_int_equal(stream_write(a.s, "hello", 5), 0);
                struct iovec v[3] = {
                        {(void *) (uintptr_t) "wo", 2}, {NULL, 0}, {(void *) (uintptr_t) "rld", 3}};
                assert_int_equal(stream_writev(b.s, v, 3), 0);
                assert_int_equal(a.in.len, 0); /* no callback from inside a call */
                assert_int_equal(stream_shutdown(a.s), 0);
                RUN_UNTIL(&loop, b.eof && a.in.len == 5);
                assert_memory_equal(buf_data(&a.in), "world", 5);
                assert_memory_equal(buf_data(&b.in), "hello", 5);
                assert_int_equal(stream_write(a.s, "x", 1), -EPIPE);
                /* The other direction still works. */
                assert_int_equal(stream_write(b.s, "!", 1), 0);
                assert_int_equal(stream_shutdown(b.s), 0);
                RUN_UNTIL(&loop, a.eof);
                assert_int_equal(a.in.len, 6);
                run_pending(&loop);
                assert_int_equal(a.n_err + b.n_err, 0);
                end_done(&a);
                end_done(&b);
                loop_done(&loop);
        }
}

static void test_queue_drain_limit(void **state) {
        (void) state;
        for (size_t k = 0; k < ARRAY_SIZE(kinds); k++) {
                uv_loop_t loop;
                uv_loop_init(&loop);
                int fds[2];
                struct end a, b;
                make_pair(kinds[k], fds);
                end_init(&a, &loop, fds[0]);
                end_init(&b, &loop, fds[1]);
                static uint8_t piece[1 << 20];
                for (size_t i = 0; i < sizeof piece; i++)
                        piece[i] = (uint8_t) (i * 7 + (i >> 8));
                size_t sent = 0;
                int r;
                while ((r = stream_write(a.s, piece, sizeof piece)) == 0)
                        sent += sizeof piece;
                assert_int_equal(r, -ENOBUFS);
                assert_true(stream_queued(a.s) <= STREAM_QUEUE_MAX);
                assert_true(stream_queued(a.s) > STREAM_QUEUE_MAX - sizeof piece);
                assert_int_equal(a.n_drain, 0);
                stream_read_start(b.s);
                RUN_UNTIL(&loop, b.in.len == sent);
                assert_true(a.n_drain >= 1);
                assert_int_equal(stream_queued(a.s), 0);
                for (size_t i = 0; i < sent; i += sizeof piece)
                        assert_memory_equal(buf_data(&b.in) + i, piece, sizeof piece);
                end_done(&a);
                end_done(&b);
                loop_done(&loop);
        }
}

static void test_read_stop_holds_back(void **state) {
        (void) state;
        for (size_t k = 0; k < ARRAY_SIZE(kinds); k++) {
                uv_loop_t loop;
                uv_loop_init(&loop);
                int fds[2];
                struct end a, b;
                make_pair(kinds[k], fds);
                end_init(&a, &loop, fds[0]);
                end_init(&b, &loop, fds[1]);
                b.stop_after_data = true;
                stream_read_start(b.s);
                static uint8_t piece[4 << 20];
                assert_int_equal(stream_write(a.s, piece, sizeof piece), 0);
                RUN_UNTIL(&loop, b.n_data == 1);
                run_pending(&loop);
                assert_int_equal(b.n_data, 1);
                assert_true(stream_queued(a.s) > 0);
                /* Each start gives one more piece. */
                stream_read_start(b.s);
                RUN_UNTIL(&loop, b.n_data == 2);
                b.stop_after_data = false;
                stream_read_start(b.s);
                RUN_UNTIL(&loop, b.in.len == sizeof piece);
                end_done(&a);
                end_done(&b);
                loop_done(&loop);
        }
}

static void test_close_flushes(void **state) {
        (void) state;
        for (size_t k = 0; k < ARRAY_SIZE(kinds); k++) {
                uv_loop_t loop;
                uv_loop_init(&loop);
                int fds[2];
                struct end a, b;
                make_pair(kinds[k], fds);
                end_init(&a, &loop, fds[0]);
                end_init(&b, &loop, fds[1]);
                static uint8_t piece[8 << 20];
                assert_int_equal(stream_write(a.s, piece, sizeof piece), 0);
                assert_true(stream_queued(a.s) > 0);
                stream_close(STEAL(a.s));
                stream_read_start(b.s);
                RUN_UNTIL(&loop, b.eof);
                assert_int_equal(b.in.len, sizeof piece);
                assert_int_equal(a.n_drain + a.n_err, 0);
                end_done(&a);
                end_done(&b);
                loop_done(&loop);
        }
}

static void test_abort_resets(void **state) {
        (void) state;
        uv_loop_t loop;
        uv_loop_init(&loop);
        int fds[2];
        struct end a, b;
        tcp_pair(fds);
        end_init(&a, &loop, fds[0]);
        end_init(&b, &loop, fds[1]);
        stream_read_start(b.s);
        static uint8_t piece[8 << 20];
        assert_int_equal(stream_write(a.s, piece, sizeof piece), 0);
        stream_abort(STEAL(a.s));
        RUN_UNTIL(&loop, b.n_err);
        assert_int_equal(b.err, -ECONNRESET);
        assert_false(b.eof);
        run_pending(&loop);
        assert_int_equal(b.n_err, 1);
        assert_int_equal(stream_write(b.s, "x", 1), -EPIPE);
        end_done(&a);
        end_done(&b);
        loop_done(&loop);
}

/* The peer answers and closes without reading what we send: its answer is not lost. */
static void test_answer_survives_failed_write(void **state) {
        (void) state;
        for (size_t k = 0; k < ARRAY_SIZE(kinds); k++) {
                uv_loop_t loop;
                uv_loop_init(&loop);
                int fds[2];
                struct end a;
                make_pair(kinds[k], fds);
                end_init(&a, &loop, fds[0]);
                assert_int_equal(write(fds[1], "answer", 6), 6);
                close(fds[1]);
                stream_read_start(a.s);
                for (int i = 0; i < 3; i++)
                        (void) stream_write(a.s, "request", 7);
                RUN_UNTIL(&loop, a.n_err || a.eof);
                assert_int_equal(a.in.len, 6);
                RUN_UNTIL(&loop, a.n_err);
                run_pending(&loop);
                assert_int_equal(a.n_err, 1);
                end_done(&a);
                loop_done(&loop);
        }
}

/* The same while the owner is not reading: told once there is nothing more to read. */
static void test_failed_write_while_paused(void **state) {
        (void) state;
        uv_loop_t loop;
        uv_loop_init(&loop);
        int fds[2];
        struct end a;
        make_pair(AF_UNIX, fds);
        end_init(&a, &loop, fds[0]);
        assert_int_equal(write(fds[1], "answer", 6), 6);
        close(fds[1]);
        assert_int_equal(stream_write(a.s, "x", 1), -EPIPE);
        run_pending(&loop);
        assert_int_equal(a.n_err, 0);
        stream_read_start(a.s);
        RUN_UNTIL(&loop, a.n_err);
        assert_int_equal(a.in.len, 6);
        assert_true(a.eof);
        assert_int_equal(a.err, -EPIPE);
        end_done(&a);

        /* Nothing unread: told at once. */
        make_pair(AF_INET, fds);
        end_init(&a, &loop, fds[0]);
        struct linger l = { 1, 0 };
        setsockopt(fds[1], SOL_SOCKET, SO_LINGER, &l, sizeof l);
        close(fds[1]);
        RUN_UNTIL(&loop, a.n_err);
        assert_int_equal(a.err, -ECONNRESET);
        assert_false(a.eof);
        end_done(&a);
        loop_done(&loop);
}

/* A peer that only refuses to read gives no hang-up to wait for. */
static void test_peer_refuses_to_read(void **state) {
        (void) state;
        for (int reading = 0; reading < 2; reading++) {
                uv_loop_t loop;
                uv_loop_init(&loop);
                int fds[2];
                struct end a;
                make_pair(AF_UNIX, fds);
                end_init(&a, &loop, fds[0]);
                if (reading)
                        stream_read_start(a.s);
                assert_int_equal(shutdown(fds[1], SHUT_RD), 0);
                assert_int_equal(stream_write(a.s, "x", 1), -EPIPE);
                assert_int_equal(a.n_err, 0);
                RUN_UNTIL(&loop, a.n_err);
                assert_int_equal(a.err, -EPIPE);
                assert_true(count_rounds(&loop) < 10);
                assert_int_equal(a.n_err, 1);
                close(fds[1]);
                end_done(&a);
                loop_done(&loop);
        }
}

/* After its end of file, a Unix peer that is gone entirely is reported; one that only shut down
 * is not. */
static void test_gone_after_eof(void **state) {
        (void) state;
        uv_loop_t loop;
        uv_loop_init(&loop);
        int fds[2];
        struct end a;
        make_pair(AF_UNIX, fds);
        end_init(&a, &loop, fds[0]);
        stream_read_start(a.s);
        assert_int_equal(shutdown(fds[1], SHUT_WR), 0);
        RUN_UNTIL(&loop, a.eof);
        run_pending(&loop);
        assert_int_equal(a.n_err, 0);
        assert_int_equal(stream_write(a.s, "late", 4), 0);
        char b[8];
        assert_int_equal(read(fds[1], b, sizeof b), 4);
        close(fds[1]);
        RUN_UNTIL(&loop, a.n_err);
        assert_int_equal(a.err, -EPIPE);
        run_pending(&loop);
        assert_int_equal(a.n_err, 1);
        end_done(&a);
        loop_done(&loop);
}

/* A character device whose other side is closed (as a virtio port without a host end) has a
 * level-triggered EPOLLHUP: one on_error in each state of the stream, and no busy loop. */
static void test_hangup_of_device(void **state) {
        (void) state;
        for (int mode = 0; mode < 4; mode++) {
                uv_loop_t loop;
                uv_loop_init(&loop);
                int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
                assert_true(master >= 0);
                assert_int_equal(grantpt(master), 0);
                assert_int_equal(unlockpt(master), 0);
                int slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
                assert_true(slave >= 0);
                struct end a;
                end_init(&a, &loop, slave);
                static uint8_t piece[1 << 20];
                if (mode & 1)
                        stream_read_start(a.s);
                if (mode & 2)
                        assert_int_equal(stream_write(a.s, piece, sizeof piece), 0);
                run_pending(&loop);
                assert_int_equal(a.n_err, 0);
                close(master);
                RUN_UNTIL(&loop, a.n_err);
                assert_true(a.err == -ECONNRESET || a.err == -EIO);
                assert_true(count_rounds(&loop) < 10);
                assert_int_equal(a.n_err, 1);
                assert_false(a.eof);
                end_done(&a);
                loop_done(&loop);
        }
}

/* A peer gone with bytes unread while reading is stopped: quiet until the owner reads on. */
static void test_paused_hangup_is_quiet(void **state) {
        (void) state;
        for (size_t k = 0; k < ARRAY_SIZE(kinds); k++) {
                uv_loop_t loop;
                uv_loop_init(&loop);
                int fds[2];
                struct end a;
                make_pair(kinds[k], fds);
                end_init(&a, &loop, fds[0]);
                run_pending(&loop);
                assert_int_equal(write(fds[1], "tail", 4), 4);
                close(fds[1]);
                assert_true(count_rounds(&loop) < 10);
                assert_int_equal(a.n_err + a.n_data, 0);
                stream_read_start(a.s);
                RUN_UNTIL(&loop, a.eof);
                assert_int_equal(a.in.len, 4);
                assert_true(count_rounds(&loop) < 10);
                end_done(&a);
                loop_done(&loop);
        }
}

static void test_urgent_data_is_quiet(void **state) {
        (void) state;
        uv_loop_t loop;
        uv_loop_init(&loop);
        int fds[2];
        struct end a;
        tcp_pair(fds);
        end_init(&a, &loop, fds[0]);
        run_pending(&loop);
        assert_int_equal(send(fds[1], "!", 1, MSG_OOB), 1);
        assert_true(count_rounds(&loop) < 10);
        assert_int_equal(a.n_err, 0);
        close(fds[1]);
        end_done(&a);
        loop_done(&loop);
}

static void test_close_in_callbacks(void **state) {
        (void) state;
        uv_loop_t loop;
        uv_loop_init(&loop);
        int fds[2];
        struct end a;
        make_pair(AF_UNIX, fds);
        end_init(&a, &loop, fds[0]);
        a.close_in_data = true;
        stream_read_start(a.s);
        assert_int_equal(write(fds[1], "x", 1), 1);
        RUN_UNTIL(&loop, a.n_data);
        assert_null(a.s);
        close(fds[1]);
        end_done(&a);

        make_pair(AF_UNIX, fds);
        end_init(&a, &loop, fds[0]);
        a.close_in_eof = true;
        stream_read_start(a.s);
        close(fds[1]);
        RUN_UNTIL(&loop, a.eof);
        run_pending(&loop);
        assert_int_equal(a.n_err, 0);
        end_done(&a);
        loop_done(&loop);
}

struct conn {
        int err, n;
        struct stream *s;
        struct stream *accepted[8];
        int n_accepted;
};
static void on_connect(void *arg, int err, struct stream *s) {
        struct conn *c = arg;
        c->err = err;
        c->n++;
        c->s = s;
}
static void on_accept(void *arg, struct stream *s, int fd) {
        struct conn *c = arg;
        assert_true(fd >= 0);
        struct ucred cred;
        socklen_t len = sizeof cred;
        assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len), 0);
        assert_true((size_t) c->n_accepted < ARRAY_SIZE(c->accepted));
        c->accepted[c->n_accepted++] = s;
}

static void test_connect_tcp(void **state) {
        (void) state;
        uv_loop_t loop;
        uv_loop_init(&loop);
        int l = -1;
        assert_int_equal(listen_tcp("127.0.0.1", 0, &l, NULL), 0);
        struct sockaddr_in sa;
        socklen_t len = sizeof sa;
        assert_int_equal(getsockname(l, (struct sockaddr *) &sa, &len), 0);
        struct conn c = { 0 };
        struct listener *li = NULL;
        assert_int_equal(listener_new(&loop, l, on_accept, &c, &li, NULL), 0);
        struct stream_connect *sc = NULL;
        assert_int_equal(
                stream_connect_tcp(&loop, "127.0.0.1", ntohs(sa.sin_port), on_connect, &c, &sc, NULL), 0);
        assert_int_equal(c.n, 0);
        RUN_UNTIL(&loop, c.n && c.n_accepted);
        assert_int_equal(c.err, 0);
        stream_close(c.s);
        stream_close(c.accepted[0]);
        listener_free(li);
        run_pending(&loop);

        /* Refused. */
        c = (struct conn){ 0 };
        assert_int_equal(
                stream_connect_tcp(&loop, "127.0.0.1", ntohs(sa.sin_port), on_connect, &c, &sc, NULL), 0);
        RUN_UNTIL(&loop, c.n);
        assert_int_equal(c.err, -ECONNREFUSED);
        assert_null(c.s);

        /* Cancelled. */
        c = (struct conn){ 0 };
        assert_int_equal(
                stream_connect_tcp(&loop, "127.0.0.1", ntohs(sa.sin_port), on_connect, &c, &sc, NULL), 0);
        stream_connect_cancel(sc);
        run_pending(&loop);
        assert_int_equal(c.n, 0);

        struct error err = ERROR_INIT;
        assert_int_equal(stream_connect_tcp(&loop, "localhost", 1, on_connect, &c, &sc, &err), -EINVAL);
        assert_non_null(strstr(err.msg, "localhost"));
        loop_done(&loop);
}

static void release_on_data(void *arg, const uint8_t *data, size_t n) {
        struct end *e = arg;
        e_data(e, data, n);
        e->n_drain = stream_fd_release(STEAL(e->s)); /* it has no other use here */
}

/* The descriptor outlives the stream, also from inside one of its callbacks, and is good for another. */
static void test_released(void **state) {
        (void) state;
        static const struct stream_handler releasing = { release_on_data, e_eof, NULL, e_error };
        uv_loop_t loop;
        uv_loop_init(&loop);
        int p[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, p), 0);
        struct end e;
        end_init(&e, &loop, p[0]);
        stream_set_handler(e.s, &releasing, &e);
        stream_read_start(e.s);
        assert_int_equal(write(p[1], "one", 3), 3);
        RUN_UNTIL(&loop, !e.s);
        assert_int_equal(e.n_drain, p[0]);
        assert_int_equal(e.in.len, 3);
        assert_int_equal(write(p[1], "two", 3), 3);
        run_pending(&loop);
        assert_int_equal(e.n_data, 1);
        buf_done(&e.in);

        end_init(&e, &loop, p[0]);
        stream_read_start(e.s);
        RUN_UNTIL(&loop, e.in.len == 3);
        assert_int_equal(stream_write(e.s, "three", 5), 0);
        char b[8];
        assert_int_equal(read(p[1], b, sizeof b), 5);
        stream_close(e.s);
        buf_done(&e.in);
        close(p[1]);
        loop_done(&loop);
}

static void test_unix_listen_connect(void **state) {
        (void) state;
        uv_loop_t loop;
        uv_loop_init(&loop);
        char dir[] = "/tmp/test-stream-XXXXXX";
        assert_non_null(mkdtemp(dir));
        char sub[512], path[1024];
        /* Beyond what sun_path holds. */
        (void) snprintf(sub, sizeof sub, "%s/%0150d", dir, 7);
        assert_int_equal(mkdir(sub, 0700), 0);
        (void) snprintf(path, sizeof path, "%s/api.sock", sub);

        struct error err = ERROR_INIT;
        int l = -1, again = -1;
        assert_int_equal(listen_unix(path, 0660, &l, &err), 0);
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0660);
        assert_int_equal(listen_unix(path, 0660, &again, &err), -EADDRINUSE);
        assert_non_null(strstr(err.msg, path));

        struct conn c = { 0 };
        struct listener *li = NULL;
        struct stream_connect *sc = NULL;
        assert_int_equal(listener_new(&loop, l, on_accept, &c, &li, NULL), 0);
        assert_int_equal(stream_connect_unix(&loop, path, on_connect, &c, &sc, NULL), 0);
        assert_int_equal(c.n, 0);
        /* One of the two is the probe of the second listen_unix(). */
        RUN_UNTIL(&loop, c.n && c.n_accepted == 2);
        assert_int_equal(c.err, 0);
        stream_close(c.s);
        stream_close(c.accepted[0]);
        stream_close(c.accepted[1]);
        listener_free(li);
        run_pending(&loop);

        c = (struct conn){ 0 };
        assert_int_equal(stream_connect_unix(&loop, path, on_connect, &c, &sc, NULL), 0);
        RUN_UNTIL(&loop, c.n);
        assert_int_equal(c.err, -ECONNREFUSED);

        /* What a dead process left behind is replaced; a file that is no socket is not. */
        assert_int_equal(listen_unix(path, 0600, &l, &err), 0);
        close(l);
        assert_int_equal(unlink(path), 0);
        close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
        assert_int_equal(listen_unix(path, 0600, &l, &err), -EEXIST);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(stream_connect_unix(&loop, path, on_connect, &c, &sc, NULL), 0);
        c.n = 0;
        RUN_UNTIL(&loop, c.n);
        assert_int_equal(c.err, -ENOENT);
        rmdir(sub);
        rmdir(dir);
        loop_done(&loop);
}

/* A full backlog gives EAGAIN without an event; the connect is repeated. */
static void test_unix_backlog_full(void **state) {
        (void) state;
        uv_loop_t loop;
        uv_loop_init(&loop);
        struct sockaddr_un sa = { .sun_family = AF_UNIX };
        (void) snprintf(sa.sun_path, sizeof sa.sun_path, "/tmp/test-stream-%d.sock", (int) getpid());
        int l = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(bind(l, (struct sockaddr *) &sa, sizeof sa), 0);
        assert_int_equal(listen(l, 0), 0);
        struct conn c[4] = { 0 };
        struct stream_connect *sc;
        for (int i = 0; i < 4; i++)
                assert_int_equal(stream_connect_unix(&loop, sa.sun_path, on_connect, &c[i], &sc, NULL), 0);
        run_pending(&loop);
        assert_int_equal(c[3].n, 0);
        int got[4], n = 0;
        while (!(c[0].n && c[1].n && c[2].n && c[3].n)) {
                struct pollfd p = { .fd = l, .events = POLLIN };
                if (n < 4 && poll(&p, 1, 0) == 1)
                        got[n++] = accept(l, NULL, NULL);
                uv_run(&loop, UV_RUN_ONCE);
        }
        for (int i = 0; i < 4; i++) {
                assert_int_equal(c[i].err, 0);
                stream_close(c[i].s);
        }
        while (n > 0)
                close(got[--n]);
        close(l);
        unlink(sa.sun_path);
        loop_done(&loop);
}

/* Out of descriptors: the listener pauses and goes on. */
static void test_listener_survives_emfile(void **state) {
        (void) state;
        uv_loop_t loop;
        uv_loop_init(&loop);
        int l = -1;
        assert_int_equal(listen_tcp("127.0.0.1", 0, &l, NULL), 0);
        struct sockaddr_in sa;
        socklen_t len = sizeof sa;
        assert_int_equal(getsockname(l, (struct sockaddr *) &sa, &len), 0);
        struct conn c = { 0 };
        struct listener *li = NULL;
        assert_int_equal(listener_new(&loop, l, on_accept, &c, &li, NULL), 0);
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        run_pending(&loop);

        struct rlimit old, none;
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
        none = old;
        none.rlim_cur = 3;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
        assert_int_equal(connect(fd, (struct sockaddr *) &sa, len), 0);
        assert_true(count_rounds(&loop) < 20);
        assert_int_equal(c.n_accepted, 0);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
        RUN_UNTIL(&loop, c.n_accepted == 1);
        stream_close(c.accepted[0]);
        close(fd);
        listener_free(li);
        loop_done(&loop);
}

static void test_prefix(void **state) {
        (void) state;
        uv_loop_t loop;
        uv_loop_init(&loop);
        int fds[2];
        make_pair(AF_UNIX, fds);
        struct stream *inner = NULL, *p = NULL;
        assert_int_equal(stream_from_fd(&loop, fds[0], &inner, NULL), 0);
        assert_int_equal(stream_prefix(inner, NULL, 0, false, &p), 0);
        assert_ptr_equal(p, inner);
        assert_int_equal(stream_prefix(inner, "early ", 6, false, &p), 0);
        struct end a = { .s = p };
        stream_set_handler(p, &handler, &a);
        stream_read_start(p);
        assert_int_equal(a.in.len, 6);
        assert_int_equal(write(fds[1], "bird", 4), 4);
        close(fds[1]);
        RUN_UNTIL(&loop, a.eof);
        assert_memory_equal(buf_data(&a.in), "early bird", 10);
        end_done(&a);

        /* Closed from inside the first piece; end of file replayed. */
        make_pair(AF_UNIX, fds);
        assert_int_equal(stream_from_fd(&loop, fds[0], &inner, NULL), 0);
        assert_int_equal(stream_prefix(inner, "x", 1, true, &p), 0);
        a = (struct end){ .s = p, .close_in_data = true };
        stream_set_handler(p, &handler, &a);
        stream_read_start(p);
        assert_null(a.s);
        buf_done(&a.in);
        close(fds[1]);

        make_pair(AF_UNIX, fds);
        assert_int_equal(stream_from_fd(&loop, fds[0], &inner, NULL), 0);
        assert_int_equal(stream_prefix(inner, "x", 1, true, &p), 0);
        a = (struct end){ .s = p };
        stream_set_handler(p, &handler, &a);
        stream_read_start(p);
        assert_true(a.eof);
        assert_int_equal(a.in.len, 1);
        close(fds[1]);
        end_done(&a);
        loop_done(&loop);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_both_ways),
                cmocka_unit_test(test_queue_drain_limit),
                cmocka_unit_test(test_read_stop_holds_back),
                cmocka_unit_test(test_close_flushes),
                cmocka_unit_test(test_abort_resets),
                cmocka_unit_test(test_answer_survives_failed_write),
                cmocka_unit_test(test_failed_write_while_paused),
                cmocka_unit_test(test_peer_refuses_to_read),
                cmocka_unit_test(test_gone_after_eof),
                cmocka_unit_test(test_hangup_of_device),
                cmocka_unit_test(test_paused_hangup_is_quiet),
                cmocka_unit_test(test_urgent_data_is_quiet),
                cmocka_unit_test(test_close_in_callbacks),
                cmocka_unit_test(test_released),
                cmocka_unit_test(test_connect_tcp),
                cmocka_unit_test(test_unix_listen_connect),
                cmocka_unit_test(test_unix_backlog_full),
                cmocka_unit_test(test_listener_survives_emfile),
                cmocka_unit_test(test_prefix),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
