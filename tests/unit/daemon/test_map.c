/* SPDX-License-Identifier: Apache-2.0 */
#include "map.h"

#include <errno.h>
#include <stdio.h>

#include "test.h"

static void puts_and_gets(void **state) {
        (void) state;
        struct map *m = map_new();
        static char keys[5000][16];
        for (size_t i = 0; i < 5000; i++) {
                (void) snprintf(keys[i], sizeof keys[i], "k%zu", i);
                assert_int_equal(map_put(m, keys[i], keys[i]), 0);
        }
        assert_int_equal(map_put(m, "k77", keys[0]), -EEXIST);
        assert_int_equal(map_count(m), 5000);
        for (size_t i = 0; i < 5000; i++)
                assert_ptr_equal(map_get(m, keys[i]), keys[i]);
        assert_null(map_get(m, "k5000"));
        assert_null(map_get(m, ""));
        map_free(m);
}

/* Tombstones neither hide entries nor fill the table up. */
static void churns(void **state) {
        (void) state;
        struct map *m = map_new();
        static char keys[64][16];
        for (unsigned round = 0; round < 2000; round++) {
                char *k = keys[round % 64];
                if (k[0])
                        assert_ptr_equal(map_remove(m, k), k);
                (void) snprintf(k, sizeof keys[0], "r%u", round);
                assert_int_equal(map_put(m, k, k), 0);
                assert_null(map_remove(m, "none"));
        }
        assert_int_equal(map_count(m), 64);
        for (size_t i = 0; i < 64; i++)
                assert_ptr_equal(map_get(m, keys[i]), keys[i]);
        map_free(m);
}

static void visits_while_losing(void **state) {
        (void) state;
        struct map *m = map_new();
        static char keys[100][8];
        for (size_t i = 0; i < 100; i++) {
                (void) snprintf(keys[i], sizeof keys[i], "%zu", i);
                assert_int_equal(map_put(m, keys[i], keys[i]), 0);
        }
        size_t pos = 0, n = 0;
        char *v;
        while ((v = map_next(m, &pos))) {
                n++;
                assert_ptr_equal(map_remove(m, v), v);
        }
        assert_int_equal(n, 100);
        assert_int_equal(map_count(m), 0);
        map_free(m);
        map_free(NULL);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(puts_and_gets),
                cmocka_unit_test(churns),
                cmocka_unit_test(visits_while_losing),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
