/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "splice.h"

static uv_loop_t loop;
static struct splices *all;

static int set_up(void **state) {
        (void) state;
        (void) signal(SIGPIPE, SIG_IGN);
        all = splices_new();
        return all ? uv_loop_init(&loop) : -1;
}

static int tear_down(void **state) {
        (void) state;
        splices_free(all);
        (void) uv_run(&loop, UV_RUN_DEFAULT);
        return uv_loop_close(&loop);
}

/* Two sockets whose far ends are spliced; the test holds the near ones, non-blocking. */
static void make(int *a, int *b) {
        int x[2], y[2];
        struct stream *sx, *sy;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, x), 0);
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, y), 0);
        assert_int_equal(stream_from_fd(&loop, x[1], &sx, NULL), 0);
        assert_int_equal(stream_from_fd(&loop, y[1], &sy, NULL), 0);
        assert_int_equal(splice_start(all, sx, sy), 0);
        *a = x[0];
        *b = y[0];
}

static void turn(void) {
        (void) uv_run(&loop, UV_RUN_NOWAIT);
}

/* Writes n bytes of a pattern as far as they go; the number written so far. */
static size_t push(int fd, size_t done, size_t n) {
        uint8_t piece[4096];
        for (size_t i = 0; i < sizeof piece; i++)
                piece[i] = (uint8_t) ((done + i) * 7);
        size_t m = n - done < sizeof piece ? n - done : sizeof piece;
        ssize_t w = m ? write(fd, piece, m) : 0;
        return done + (w > 0 ? (size_t) w : 0);
}

/* Reads all there is up to the end of file, slowly; how much came. */
static size_t drain(int fd) {
        uint8_t piece[1000];
        size_t done = 0;
        for (ssize_t r = 1; r != 0;) {
                r = read(fd, piece, sizeof piece);
                assert_true(r >= 0 || errno == EAGAIN);
                for (ssize_t i = 0; i < r; i++)
                        assert_int_equal(piece[i], (uint8_t) ((done + (size_t) i) * 7));
                done += r > 0 ? (size_t) r : 0;
                turn();
        }
        return done;
}

/* A sender that writes and closes at once, and a reader that is slow. */
static void all_arrives(void **state) {
        (void) state;
        enum { TOTAL = 300000 };
        int a, b;
        make(&a, &b);
        size_t sent = 0;
        while (sent < TOTAL) {
                sent = push(a, sent, TOTAL);
                turn();
        }
        close(a);
        for (int i = 0; i < 50; i++) /* the end is seen while most of it is queued */
                turn();
        assert_int_equal(drain(b), TOTAL);
        close(b);
        turn();
}

/* The slow side holds the fast one back: no more than the queues and socket buffers in between. */
static void held_back(void **state) {
        (void) state;
        int a, b;
        make(&a, &b);
        size_t sent = 0, last;
        int idle = 0;
        while (idle < 200) {
                last = sent;
                sent = push(a, sent, (size_t) 64 * 1024 * 1024);
                turn();
                idle = sent == last ? idle + 1 : 0;
        }
        assert_true(sent < 4 * 1024 * 1024);
        close(a);
        assert_int_equal(drain(b), sent);
        close(b);
        turn();
}

/* An answer that is sent before the whole question was read, and the connection closed. */
static void early_answer(void **state) {
        (void) state;
        int a, b;
        char answer[16] = "";
        make(&a, &b);
        assert_int_equal(write(b, "answer", 6), 6);
        close(b);
        for (int i = 0; i < 20; i++) {
                (void) push(a, 0, 4096);
                turn();
        }
        assert_int_equal(read(a, answer, sizeof answer), 6);
        assert_string_equal(answer, "answer");
        close(a);
        turn();
}

static void half_close(void **state) {
        (void) state;
        int a, b;
        char text[8] = "";
        make(&a, &b);
        assert_int_equal(write(a, "ask", 3), 3);
        assert_int_equal(shutdown(a, SHUT_WR), 0);
        for (int i = 0; i < 20; i++)
                turn();
        assert_int_equal(read(b, text, sizeof text), 3);
        assert_int_equal(read(b, text, sizeof text), 0);
        assert_int_equal(write(b, "reply", 5), 5);
        for (int i = 0; i < 20; i++)
                turn();
        assert_int_equal(read(a, text, sizeof text), 5);
        assert_memory_equal(text, "reply", 5);
        close(b);
        close(a);
        turn();
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(all_arrives), cmocka_unit_test(held_back),
                                            cmocka_unit_test(early_answer), cmocka_unit_test(half_close) };
        return cmocka_run_group_tests(tests, set_up, tear_down);
}
