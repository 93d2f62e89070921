/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "modules.h"

static const char dep[] = "kernel/lib/crc16.ko:\n"
                          "kernel/fs/mbcache.ko:\n"
                          "kernel/fs/jbd2/jbd2.ko:\n"
                          "kernel/fs/ext4/ext4.ko: kernel/lib/crc16.ko kernel/fs/mbcache.ko kernel/fs/jbd2/jbd2.ko\n"
                          "kernel/drivers/virtio/virtio.ko:\n"
                          "kernel/drivers/virtio/virtio_ring.ko: kernel/drivers/virtio/virtio.ko\n"
                          "kernel/drivers/block/virtio_blk.ko: kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko\n"
                          "kernel/drivers/char/hw_random/virtio-rng.ko: kernel/drivers/virtio/virtio_ring.ko\n"
                          "kernel/net/packed.ko.xz: kernel/lib/crc16.ko\n"
                          "kernel/net/netfilter/a.ko: kernel/net/netfilter/b.ko\n"
                          "kernel/net/netfilter/b.ko:\n"
                          "kernel/bad/x.ko: kernel/bad/y.ko\n"
                          "kernel/bad/y.ko: kernel/bad/x.ko\n"
                          "kernel/bad/z.ko: kernel/bad/nowhere.ko\n";
static const char builtin[] = "kernel/drivers/virtio/virtio_mmio.ko\nkernel/crypto/crc32c_generic.ko\n";

static size_t place(const struct modules *m, const char *path) {
        for (size_t i = 0; i < m->n_order; i++)
                if (strcmp(m->order[i], path) == 0)
                        return i;
        fail_msg("%s is not in the order", path);
        return 0;
}

static void dependencies_come_first(void **state) {
        _cleanup_(modules_done) struct modules m;

        (void) state;
        assert_int_equal(modules_init(&m, dep, builtin, NULL), 0);
        assert_int_equal(modules_want(&m, "ext4", NULL), 0);
        assert_int_equal(m.n_order, 4);
        assert_string_equal(m.order[3], "kernel/fs/ext4/ext4.ko");
        assert_int_equal(modules_want(&m, "virtio_blk", NULL), 0);
        assert_int_equal(m.n_order, 7);
        assert_true(place(&m, "kernel/drivers/virtio/virtio.ko") < place(&m, "kernel/drivers/virtio/virtio_ring.ko"));
        assert_true(place(&m, "kernel/drivers/virtio/virtio_ring.ko") < place(&m, "kernel/drivers/block/virtio_blk.ko"));
}

static void each_once(void **state) {
        _cleanup_(modules_done) struct modules m;

        (void) state;
        assert_int_equal(modules_init(&m, dep, builtin, NULL), 0);
        for (unsigned i = 0; i < 3; i++)
                assert_int_equal(modules_want(&m, "virtio_blk", NULL), 0);
        assert_int_equal(m.n_order, 3);
}

static void names_with_dash_and_packed_files(void **state) {
        _cleanup_(modules_done) struct modules m;

        (void) state;
        assert_int_equal(modules_init(&m, dep, builtin, NULL), 0);
        assert_int_equal(modules_want(&m, "virtio_rng", NULL), 0);
        assert_string_equal(m.order[m.n_order - 1], "kernel/drivers/char/hw_random/virtio-rng.ko");
        assert_int_equal(modules_want(&m, "packed", NULL), 0);
        /* No prefix of a name, no name with more in front. */
        assert_int_equal(modules_want(&m, "ext", NULL), -ENOENT);
        assert_int_equal(modules_want(&m, "blk", NULL), -ENOENT);
        assert_int_equal(modules_want(&m, "ext42", NULL), -ENOENT);
}

static void built_in_is_fine_missing_is_not(void **state) {
        _cleanup_(modules_done) struct modules m;
        struct error e = ERROR_INIT;

        (void) state;
        assert_int_equal(modules_init(&m, dep, builtin, NULL), 0);
        assert_int_equal(modules_want(&m, "virtio_mmio", &e), 0);
        assert_int_equal(modules_want(&m, "crc32c-generic", &e), 0);
        assert_int_equal(m.n_order, 0);
        assert_int_equal(modules_want(&m, "floppy", &e), -ENOENT);
        assert_non_null(strstr(e.msg, "floppy"));
}

static void folders(void **state) {
        _cleanup_(modules_done) struct modules m;

        (void) state;
        assert_int_equal(modules_init(&m, dep, builtin, NULL), 0);
        assert_int_equal(modules_want_folder(&m, "kernel/net/netfilter/", NULL), 0);
        assert_int_equal(m.n_order, 2);
        assert_string_equal(m.order[0], "kernel/net/netfilter/b.ko");
        assert_int_equal(modules_want_folder(&m, "kernel/none/", NULL), 0);
}

static void broken_tables(void **state) {
        _cleanup_(modules_done) struct modules m;
        struct error e = ERROR_INIT;

        (void) state;
        assert_int_equal(modules_init(&m, dep, builtin, NULL), 0);
        assert_int_equal(modules_want(&m, "x", &e), -ELOOP);
        assert_int_equal(modules_want(&m, "z", &e), -ENOENT);
        assert_non_null(strstr(e.msg, "nowhere"));
}

static void an_empty_table(void **state) {
        _cleanup_(modules_done) struct modules m;

        (void) state;
        assert_int_equal(modules_init(&m, "", "", NULL), 0);
        assert_int_equal(modules_want(&m, "ext4", NULL), -ENOENT);
        assert_int_equal(modules_want_folder(&m, "kernel/", NULL), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(dependencies_come_first),
                cmocka_unit_test(each_once),
                cmocka_unit_test(names_with_dash_and_packed_files),
                cmocka_unit_test(built_in_is_fine_missing_is_not),
                cmocka_unit_test(folders),
                cmocka_unit_test(broken_tables),
                cmocka_unit_test(an_empty_table),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
