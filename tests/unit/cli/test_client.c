/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "client_internal.h"
#include "test.h"

static char config[] = "/tmp/cspace-client-XXXXXX";

static struct client *fresh(void) {
        struct error err = ERROR_INIT;
        struct client *c = NULL;

        cli()->stuck = false;
        if (client_new(&c, &err) < 0)
                fail_msg("%s", err.msg);
        return c;
}

static int setup(void **state) {
        (void) state;
        cli()->api = "unix:/nonexistent/api.sock";
        cli()->config = NULL;
        return 0;
}

/* A client that is let go of at once, without a wait that ends in giving up. */
static void ends_without_waiting(void **state) {
        struct api_error e;

        (void) state;
        client_free(fresh());
        assert_false(cli()->stuck);

        struct client *c = fresh();
        client_pause(c, 1);
        client_free(c);
        assert_false(cli()->stuck);

        c = fresh();
        assert_int_equal(client_call(c, "GET", "/health", NULL, 0, NULL, &e), -1);
        assert_string_equal(e.code, "unreachable");
        client_free(c);
        assert_false(cli()->stuck);

        c = fresh();
        client_interrupt(c);
        client_pause(c, 100000);
        client_free(c);
        assert_false(cli()->stuck);
}

static void on_timer(uv_timer_t *t) {
        (void) t;
}

static void one_that_cannot_end_is_left(void **state) {
        static uv_timer_t open;
        struct client *c = fresh();

        (void) state;
        uv_timer_init(client_loop(c), &open);
        uv_timer_start(&open, on_timer, 1000000, 0);
        client_free(c);
        assert_true(cli()->stuck);
        uv_close((uv_handle_t *) &open, NULL);
        client_free(c);
}

static void refused(const char *text, const char *want) {
        struct error err = ERROR_INIT;
        struct api_error e;
        int fd = open(config, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

        assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t) strlen(text));
        close(fd);
        cli()->api = NULL;
        cli()->config = config;
        struct client *c = fresh();
        error_set(&err, -EACCES, "connect");
        client_dial_error(c, &err, &e);
        if (!strstr(e.message, want) || strstr(e.message, "7070"))
                fail_msg("%s", e.message);
        client_free(c);
}

static void names_the_configured_address(void **state) {
        (void) state;
        close(mkstemp(config));
        refused("[api]\nlisten = 127.0.0.1:7411\n", "--api http://127.0.0.1:7411 with a key");
        refused("[api]\nlisten = [::1]:81\n", "--api http://[::1]:81 with a key");
        unlink(config);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup(ends_without_waiting, setup),
                cmocka_unit_test_setup(one_that_cannot_end_is_left, setup),
                cmocka_unit_test_setup(names_the_configured_address, setup),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
