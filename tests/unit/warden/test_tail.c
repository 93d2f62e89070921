/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "tail.h"

static void keeps_the_end(void **state) {
        (void) state;
        uv_loop_t loop;
        struct tail *t;
        int p[2];
        uv_loop_init(&loop);
        assert_int_equal(pipe(p), 0);
        assert_int_equal(tail_new(&loop, p[0], 100, &t, NULL), 0);
        assert_string_equal(tail_text(t), "");
        for (int i = 0; i < 5000; i++) {
                char line[16];
                int n = snprintf(line, sizeof(line), "line %04d\n", i);
                assert_int_equal(write(p[1], line, (size_t) n), n);
                if (i % 300 == 0)
                        uv_run(&loop, UV_RUN_NOWAIT);
        }
        tail_drain(t);
        const char *text = tail_text(t);
        assert_int_equal(strlen(text), 100);
        assert_string_equal(text + 90, "line 4999\n");
        assert_string_equal(tail_text(t), text); /* asking changes nothing */

        assert_int_equal(write(p[1], "\x1b[31m\r\n\0\xff", 9), 9);
        tail_drain(t);
        assert_string_equal(tail_text(t) + 100 - 9, "?[31m \n??");
        close(p[1]);
        uv_run(&loop, UV_RUN_DEFAULT); /* the end stops the watching */
        tail_free(t);
        uv_run(&loop, UV_RUN_DEFAULT);
        assert_int_equal(uv_loop_close(&loop), 0);
        tail_free(NULL);
        tail_drain(NULL);
        assert_string_equal(tail_text(NULL), "");
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(keeps_the_end) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
