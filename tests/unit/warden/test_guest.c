/* SPDX-License-Identifier: Apache-2.0 */

/* Leaving a guest: a VMM that is nothing but a port, and at the port's other end a guest that this file plays. */

#include "test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "guest.h"

#define TIMEOUT_MS 20000

static const uint8_t nonce[12] = "0123456789ab";
static const uint8_t settings[] = { 0, 0, 0, 4, 0, 0, 0, 0, 0 };
static const uint8_t parts[] = { 0, 0, 6, 4, 0, 0, 0, 0, 0, 0xf0, 0xc5, 0, 0, 0, 1 };

struct fixture {
        struct vmm vmm; /* first */
        struct vmm_ops ops;
        uv_loop_t loop;
        uv_timer_t tick, connecting;
        struct guest *g;
        int port; /* the machine's end */
        stream_connect_cb cb;
        void *arg;
        int host_end;
        int n_up, n_down, n_left;
        bool agreed;
};

static void on_up(void *arg) {
        ((struct fixture *) arg)->n_up++;
}

static void on_down(void *arg, const char *why) {
        (void) why;
        ((struct fixture *) arg)->n_down++;
}

static void on_left(void *arg, bool agreed) {
        struct fixture *f = arg;
        f->n_left++;
        f->agreed = agreed;
}

static const struct guest_handler handler = { .on_up = on_up, .on_down = on_down, .on_left = on_left };

static void on_connecting(uv_timer_t *t) {
        struct fixture *f = t->data;
        struct stream *s;
        assert_int_equal(stream_from_fd(&f->loop, f->host_end, &s, NULL), 0);
        f->cb(f->arg, 0, s);
}

static int open_stream(struct vmm *v, stream_connect_cb cb, void *arg, struct error *err) {
        struct fixture *f = (struct fixture *) v;
        int p[2];
        (void) err;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, p), 0);
        f->port = fd_close(f->port);
        f->port = p[0];
        f->host_end = p[1];
        f->cb = cb;
        f->arg = arg;
        uv_timer_start(&f->connecting, on_connecting, 0, 0);
        return 0;
}

static void on_tick(uv_timer_t *t) {
        (void) t;
}

#define UNTIL(f, cond)                                       \
        do {                                                 \
                uint64_t end_ = clock_mono_ms() + TIMEOUT_MS; \
                while (!(cond)) {                            \
                        assert_true(clock_mono_ms() < end_); \
                        uv_run(&(f)->loop, UV_RUN_ONCE);     \
                }                                            \
        } while (0)

static void turn(struct fixture *f, int n) {
        while (n-- > 0)
                uv_run(&f->loop, UV_RUN_NOWAIT);
}

static void setup(struct fixture *f) {
        *f = (struct fixture){ .port = -EBADF, .ops = { .open_stream = open_stream } };
        assert_int_equal(uv_loop_init(&f->loop), 0);
        f->vmm.ops = &f->ops;
        f->vmm.loop = &f->loop;
        uv_timer_init(&f->loop, &f->tick);
        uv_timer_init(&f->loop, &f->connecting);
        f->connecting.data = f;
        uv_timer_start(&f->tick, on_tick, 20, 20); /* so that UNTIL looks at the clock */
        assert_int_equal(guest_new(&f->loop, &f->vmm, &handler, f, &f->g, NULL), 0);
}

static void teardown(struct fixture *f) {
        guest_free(f->g);
        fd_close(f->port);
        uv_close((uv_handle_t *) &f->tick, NULL);
        uv_close((uv_handle_t *) &f->connecting, NULL);
        uv_run(&f->loop, UV_RUN_DEFAULT);
        assert_int_equal(uv_loop_close(&f->loop), 0);
}

static void say(struct fixture *f, unsigned kind) {
        uint8_t b[LINK_HELLO_SIZE];
        memcpy(b, LINK_MAGIC, 16);
        b[16] = LINK_VERSION >> 8;
        b[17] = LINK_VERSION & 0xff;
        b[18] = (uint8_t) (kind >> 8);
        b[19] = (uint8_t) kind;
        memcpy(b + 20, nonce, sizeof(nonce));
        assert_int_equal(write(f->port, b, sizeof(b)), sizeof(b));
}

/* A session with an agent that says `first` of itself. */
static void come_up(struct fixture *f, const void *first, size_t n) {
        int before = f->n_up;
        guest_connect(f->g, 0);
        UNTIL(f, f->port >= 0);
        say(f, LINK_KIND_GUEST);
        assert_int_equal(write(f->port, first, n), n);
        UNTIL(f, f->n_up > before);
        turn(f, 5);
}

/* All that the host has sent so far; whether that is its end. */
static bool swallow(struct fixture *f) {
        uint8_t b[4096];
        ssize_t r;
        while ((r = read(f->port, b, sizeof(b))) > 0)
                ;
        return r == 0;
}

static void agreed(void **state) {
        (void) state;
        struct fixture f;
        setup(&f);
        for (int i = 1; i <= 2; i++) { /* and it comes back */
                come_up(&f, parts, sizeof(parts));
                guest_leave(f.g, true);
                assert_false(guest_up(f.g));
                assert_null(guest_link(f.g));
                turn(&f, 5);
                assert_false(swallow(&f));
                guest_port_closed(f.g); /* of an earlier time: no sign now */
                assert_int_equal(f.n_left, i - 1);
                say(&f, LINK_KIND_PARTED);
                UNTIL(&f, swallow(&f));
                assert_int_equal(f.n_left, i - 1); /* the machine still has its end */
                f.port = fd_close(f.port);
                UNTIL(&f, f.n_left == i);
                assert_true(f.agreed);
        }
        turn(&f, 20);
        assert_int_equal(f.port, -EBADF); /* it stays closed */
        assert_int_equal(f.n_down, 0);
        teardown(&f);
}

/* One that cannot, or is deaf: the port is closed at once, and the VMM's word is the sign. */
static void not_asked(void **state) {
        (void) state;
        for (int deaf = 0; deaf < 2; deaf++) {
                struct fixture f;
                setup(&f);
                if (deaf)
                        come_up(&f, parts, sizeof(parts));
                else
                        come_up(&f, settings, sizeof(settings));
                guest_leave(f.g, !deaf);
                UNTIL(&f, swallow(&f));
                assert_int_equal(f.n_left, 0);
                guest_port_closed(f.g);
                assert_int_equal(f.n_left, 1);
                assert_false(f.agreed);
                guest_port_closed(f.g);
                assert_int_equal(f.n_left, 1);
                teardown(&f);
        }
}

/* It said that it can, and does not: in no case more than the two limits. */
static void not_kept(void **state) {
        (void) state;
        for (int way = 0; way < 4; way++) {
                struct fixture f;
                setup(&f);
                come_up(&f, parts, sizeof(parts));
                guest_leave(f.g, true);
                turn(&f, 5);
                assert_false(swallow(&f));
                if (way == 1) /* closes without a word */
                        f.port = fd_close(f.port);
                else if (way == 2) { /* says the word, and the machine does not close */
                        say(&f, LINK_KIND_PARTED);
                        UNTIL(&f, swallow(&f));
                } else if (way == 3) /* says another */
                        say(&f, LINK_KIND_GUEST);
                UNTIL(&f, f.n_left == 1);
                assert_false(f.agreed);
                if (f.port >= 0)
                        assert_true(swallow(&f));
                assert_false(guest_up(f.g));
                teardown(&f);
        }
}

static void no_session(void **state) {
        (void) state;
        struct fixture f;
        setup(&f);
        guest_leave(f.g, true); /* not even connected */
        UNTIL(&f, f.n_left == 1);
        assert_false(f.agreed);
        guest_connect(f.g, 0);
        UNTIL(&f, f.port >= 0);
        guest_leave(f.g, true); /* no hello yet */
        UNTIL(&f, f.n_left == 2);
        assert_true(swallow(&f));
        assert_int_equal(f.n_up, 0);
        teardown(&f);
}

/* Whoever wants the guest again before it was left gets it, and hears nothing of the leaving. */
static void called_back(void **state) {
        (void) state;
        for (int closing = 0; closing < 2; closing++) {
                struct fixture f;
                setup(&f);
                come_up(&f, parts, sizeof(parts));
                guest_leave(f.g, !closing);
                turn(&f, 3);
                f.port = fd_close(f.port);
                come_up(&f, parts, sizeof(parts));
                assert_int_equal(f.n_up, 2);
                assert_int_equal(f.n_left, 0);
                guest_port_closed(f.g);
                assert_int_equal(f.n_left, 0);
                assert_true(guest_up(f.g));
                teardown(&f);
        }
}

static void freed_while_leaving(void **state) {
        (void) state;
        for (int ask = 0; ask < 2; ask++) {
                struct fixture f;
                setup(&f);
                come_up(&f, parts, sizeof(parts));
                guest_leave(f.g, ask);
                teardown(&f);
                assert_int_equal(f.n_left, 0);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(agreed),
                cmocka_unit_test(not_asked),
                cmocka_unit_test(not_kept),
                cmocka_unit_test(no_session),
                cmocka_unit_test(called_back),
                cmocka_unit_test(freed_while_leaving),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
