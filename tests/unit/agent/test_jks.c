/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "jks.h"

static const uint8_t head[] = { 0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2, 0, 0, 0, 0 };

/* An empty store, as keytool writes it with this password. */
static const uint8_t empty_digest[] = { 0xe2, 0x68, 0x6e, 0x45, 0xfb, 0x43, 0xdf, 0xa4, 0xd9, 0x92,
                                        0xdd, 0x41, 0xce, 0xb6, 0xb2, 0x1c, 0x63, 0x30, 0xd7, 0x92 };

static void digests(void **state) {
        uint8_t store[sizeof head + JKS_DIGEST_BYTES], tail[JKS_ENTRY_MAX + JKS_DIGEST_BYTES], again[sizeof tail];
        struct jks j;
        (void) state;
        memcpy(store, head, sizeof head);
        memset(store + sizeof head, 0, JKS_DIGEST_BYTES);
        assert_int_equal(jks_read(store, sizeof store, &j), 0);
        assert_int_equal(j.count, 0);
        assert_int_equal(j.body, sizeof head);
        assert_int_equal(jks_tail(&j, NULL, 0, tail), JKS_DIGEST_BYTES);
        assert_memory_equal(tail, empty_digest, JKS_DIGEST_BYTES);
        long n = jks_tail(&j, (const uint8_t *) "certificate", 11, tail);
        assert_int_equal(n, 4 + 8 + 8 + 7 + 4 + 11 + JKS_DIGEST_BYTES);
        assert_memory_equal(tail, "\0\0\0\2\0\6cspace\0\0\0\0\0\0\0\0\0\5X.509\0\0\0\x0b" "certificate", 42);
        /* The store with it, read again, has the same digest. */
        uint8_t full[sizeof head + JKS_ENTRY_MAX];
        memcpy(full, head, sizeof head);
        full[11] = 1;
        memcpy(full + sizeof head, tail, (size_t) n);
        assert_int_equal(jks_read(full, sizeof head + (size_t) n, &j), 0);
        assert_int_equal(j.count, 1);
        assert_int_equal(jks_tail(&j, NULL, 0, again), JKS_DIGEST_BYTES);
        assert_memory_equal(again, tail + n - JKS_DIGEST_BYTES, JKS_DIGEST_BYTES);
}

static void refused(void **state) {
        uint8_t store[64] = { 0 }, tail[JKS_ENTRY_MAX + JKS_DIGEST_BYTES];
        static uint8_t large[JKS_ENTRY_MAX];
        struct jks j;
        (void) state;
        assert_int_equal(jks_read(store, 0, &j), -EINVAL);
        assert_int_equal(jks_read(store, sizeof store, &j), -EINVAL);
        memcpy(store, head, sizeof head);
        assert_int_equal(jks_read(store, sizeof head + JKS_DIGEST_BYTES - 1, &j), -EINVAL);
        store[7] = 3;
        assert_int_equal(jks_read(store, sizeof store, &j), -EINVAL);
        store[7] = 2;
        store[8] = 0xff;
        assert_int_equal(jks_read(store, sizeof store, &j), -EINVAL);
        store[8] = 0;
        assert_int_equal(jks_read(store, sizeof store, &j), 0);
        assert_int_equal(jks_tail(&j, large, sizeof large, tail), -E2BIG);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(digests),
                cmocka_unit_test(refused),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
