/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "test.h"
#include "wire/tar.h"
#include "wire/tar_header.h"

/* What a stream says, as text, whatever pieces it comes in. */
static char *read_all(const uint8_t *data, size_t n, size_t piece) {
        static const char kinds[] = "fdlhcbpo";
        struct tar_reader *r = tar_reader_new();
        struct buf out = BUF_INIT(0);
        bool dead = false;

        assert_non_null(r);
        for (size_t at = 0; at < n && !dead;) {
                size_t give = piece < n - at ? piece : n - at, used = 0, part = 0;
                struct tar_event ev = { .type = TAR_NEED_DATA };

                do {
                        tar_read(r, data + at + part, give - part, &used, &ev);
                        assert_true(used <= give - part);
                        part += used;
                        switch (ev.type) {
                        case TAR_ENTRY:
                                buf_printf(&out, "%c %s>%s %o %llu %lld.%09u:", kinds[ev.entry->type],
                                           ev.entry->name, ev.entry->link, ev.entry->mode,
                                           (unsigned long long) ev.entry->size, (long long) ev.entry->mtime_s,
                                           ev.entry->mtime_ns);
                                for (size_t i = 0; i < ev.entry->n_xattrs; i++)
                                        buf_printf(&out, "[%s=%.*s]", ev.entry->xattrs[i].name, (int) ev.entry->xattrs[i].n,
                                                   (const char *) ev.entry->xattrs[i].value);
                                break;
                        case TAR_DATA:
                                assert_true(ev.n > 0);
                                buf_append(&out, ev.data, ev.n);
                                break;
                        case TAR_ENTRY_END:
                                buf_puts(&out, "\n");
                                break;
                        case TAR_END:
                                buf_puts(&out, "END\n");
                                break;
                        case TAR_ERROR:
                                buf_printf(&out, "ERROR %s\n", ev.reason);
                                dead = true;
                                break;
                        case TAR_NEED_DATA:
                                assert_int_equal(part, give);
                                break;
                        }
                } while (ev.type != TAR_NEED_DATA && !dead);
                at += give;
        }
        buf_puts(&out, tar_reader_complete(r) ? "complete" : "incomplete");
        char *text = strdup(buf_str(&out));
        buf_done(&out);
        tar_reader_free(r);
        return text;
}

static void expect(const struct buf *b, const char *text) {
        static const size_t pieces[] = { 1, 3, 511, 512, 513, 100000 };

        for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
                char *got = read_all(buf_data(b), b->len, pieces[i]);
                assert_string_equal(got, text);
                free(got);
        }
}

static void add(struct buf *b, enum tar_type type, const char *name, const char *link, const char *data,
                int64_t s, uint32_t ns) {
        const struct tar_entry e = {
                .type = type,
                .name = name,
                .link = link,
                .mode = 0644,
                .size = strlen(data),
                .mtime_s = s,
                .mtime_ns = ns,
        };

        assert_int_equal(tar_write_entry(b, &e), 0);
        assert_int_equal(buf_puts(b, data), 0);
        assert_int_equal(tar_write_padding(b, e.size), 0);
}

static void test_round_trip(void **state) {
        (void) state;
        _cleanup_buf_ struct buf b = BUF_INIT(0);

        add(&b, TAR_DIR, "./", "", "", 1, 0);
        add(&b, TAR_FILE, "a", "", "hello", 1700000000, 123456789);
        add(&b, TAR_FILE, "empty", "", "", -2, 500000000);
        add(&b, TAR_SYMLINK, "l", "/etc/passwd", "", 0, 0);
        add(&b, TAR_HARDLINK, "h", "a", "", 0, 0);
        add(&b, TAR_FIFO, "p", "", "", 0, 0);
        tar_write_end(&b);
        expect(&b, "d ./> 644 0 1.000000000:\n"
                   "f a> 644 5 1700000000.123456789:hello\n"
                   "f empty> 644 0 -2.500000000:\n"
                   "l l>/etc/passwd 644 0 0.000000000:\n"
                   "h h>a 644 0 0.000000000:\n"
                   "p p> 644 0 0.000000000:\n"
                   "END\ncomplete");
}

static void test_names_are_bytes(void **state) {
        (void) state;
        /* A decomposed letter, a byte that is no UTF-8, both short and long. */
        char name[400], link[300], text[1600];
        _cleanup_buf_ struct buf b = BUF_INIT(0);

        memset(name, 'n', 399);
        name[399] = '\0';
        memcpy(name + 200, "e\xcc\x81\xff\n", 5);
        memset(link, 'l', 299);
        link[299] = '\0';
        add(&b, TAR_FILE, "e\xcc\x81\xff", "", "x", 0, 0);
        add(&b, TAR_SYMLINK, name, link, "", 0, 0);
        tar_write_end(&b);
        snprintf(text, sizeof text,
                 "f e\xcc\x81\xff> 644 1 0.000000000:x\nl %s>%s 644 0 0.000000000:\nEND\ncomplete", name,
                 link);
        expect(&b, text);
}

/* The part of a long name that fits into the header ends with a slash: still a file. */
static void test_name_cut_after_a_slash(void **state) {
        (void) state;
        char name[256], text[400];
        _cleanup_buf_ struct buf b = BUF_INIT(0);

        for (int i = 0; i < 254; i += 2)
                memcpy(name + i, "d/", 2);
        memcpy(name + 254, "f", 2);
        add(&b, TAR_FILE, name, "", "x", 0, 0);
        tar_write_end(&b);
        snprintf(text, sizeof text, "f %s> 644 1 0.000000000:x\nEND\ncomplete", name);
        expect(&b, text);
}

static void test_large_numbers(void **state) {
        (void) state;
        const struct tar_entry e = {
                .type = TAR_FILE, .name = "big", .size = 1ULL << 40, .mtime_s = 1LL << 36
        };
        _cleanup_buf_ struct buf b = BUF_INIT(0);

        assert_int_equal(tar_write_entry(&b, &e), 0);
        expect(&b, "f big> 0 1099511627776 68719476736.000000000:incomplete");
}

static void test_writer_refuses(void **state) {
        (void) state;
        char name[TAR_NAME_MAX + 2];
        _cleanup_buf_ struct buf b = BUF_INIT(0);

        memset(name, 'x', sizeof name - 1);
        name[sizeof name - 1] = '\0';
        assert_int_equal(tar_write_entry(&b, &(struct tar_entry) { .type = TAR_FILE, .name = "" }), -EINVAL);
        assert_int_equal(tar_write_entry(&b, &(struct tar_entry) { .type = TAR_FILE, .name = name }),
                         -EINVAL);
        assert_int_equal(tar_write_entry(&b, &(struct tar_entry) { .type = TAR_DIR, .name = "d", .size = 1 }),
                         -EINVAL);
        assert_int_equal(tar_write_entry(&b, &(struct tar_entry) { .type = TAR_OTHER, .name = "d" }),
                         -EINVAL);
        assert_int_equal(b.len, 0);
}

/* A header written by hand, with a checksum that fits. */
static void header(struct buf *b, const char *name, char type, const char *size, const char *link) {
        uint8_t block[TAR_BLOCK] = { 0 };

        memcpy(block, name, strnlen(name, 100));
        memcpy(block + 100, "0000644", 7);
        memcpy(block + 108, "0000000", 7);
        memcpy(block + 116, "0000000", 7);
        memcpy(block + 124, size, strnlen(size, 12));
        memcpy(block + 136, "00000000000", 11);
        block[156] = (uint8_t) type;
        memcpy(block + 157, link, strnlen(link, 100));
        snprintf((char *) block + 148, 8, "%06o", tar_header_sum(block));
        buf_append(b, block, sizeof block);
}

static void padded(struct buf *b, const char *data, size_t n) {
        buf_append(b, data, n);
        tar_write_padding(b, n);
}

static void test_gnu_and_v7(void **state) {
        (void) state;
        _cleanup_buf_ struct buf b = BUF_INIT(0);

        header(&b, "././@LongLink", 'L', "00000000006", "");
        padded(&b, "longs", 6);
        header(&b, "././@LongLink", 'K', "00000000004", "");
        padded(&b, "tar", 4);
        header(&b, "cut", '2', "0", "cut");
        header(&b, "dir/", '\0', "", "");
        header(&b, "label", 'V', "", "");
        header(&b, "file", '0', "3 ", "");
        padded(&b, "abc", 3);
        tar_write_end(&b);
        buf_puts(&b, "anything after the end");
        expect(&b,
               "l longs>tar 644 0 0.000000000:\nd dir/> 644 0 0.000000000:\nf file> 644 3 0.000000000:abc\nEND\ncomplete");
}

static void test_pax_overrides(void **state) {
        (void) state;
        static const char right[] = "17 path=pax/name\n9 size=2\n20 mtime=12.0000005\n21 SCHILY.xattr.ab=b\n";
        _cleanup_buf_ struct buf b = BUF_INIT(0);
        char size[12];

        snprintf(size, sizeof size, "%o", (unsigned) (sizeof right - 1));
        header(&b, "x", 'x', size, "");
        padded(&b, right, sizeof right - 1);
        header(&b, "short", '0', "77777777777", "");
        padded(&b, "ok", 2);
        tar_write_end(&b);
        expect(&b, "f pax/name> 644 2 12.000000500:[ab=b]ok\nEND\ncomplete");
}

static void test_xattrs(void **state) {
        (void) state;
        static const struct tar_xattr two[] = { { "user.a", (const uint8_t *) "x=\n1", 4 }, { "security.capability", NULL, 0 } };
        const struct tar_entry e = { .type = TAR_FILE, .name = "a", .mode = 0644, .xattrs = two, .n_xattrs = 2 };
        struct tar_xattr many[TAR_XATTRS_MAX + 1];
        char name[TAR_XATTR_NAME_MAX + 2];
        _cleanup_buf_ struct buf b = BUF_INIT(0);

        assert_int_equal(tar_write_entry(&b, &e), 0);
        add(&b, TAR_FILE, "b", "", "none of its own", 0, 0);
        tar_write_end(&b);
        expect(&b, "f a> 644 0 0.000000000:[user.a=x=\n1][security.capability=]\nf b> 644 15 0.000000000:none of its own\nEND\ncomplete");
        for (size_t i = 0; i <= TAR_XATTRS_MAX; i++)
                many[i] = two[0];
        struct tar_entry bad = { .type = TAR_FILE, .name = "a", .xattrs = many, .n_xattrs = TAR_XATTRS_MAX + 1 };
        assert_int_equal(tar_write_entry(&b, &bad), -EINVAL);
        memset(name, 'n', sizeof name - 1);
        name[sizeof name - 1] = '\0';
        bad.n_xattrs = 1;
        many[0].name = name;
        assert_int_equal(tar_write_entry(&b, &bad), -EINVAL);
        many[0].name = "user.a=b";
        assert_int_equal(tar_write_entry(&b, &bad), -EINVAL);
}

static void expect_error(struct buf *b, const char *part) {
        char *got = read_all(buf_data(b), b->len, 512);

        if (!strstr(got, "ERROR") || !strstr(got, part))
                fail_msg("no error with \"%s\": %s", part, got);
        free(got);
}

/* One more than the limit, by hand; and a name that is none. */
static void test_xattrs_refused(void **state) {
        (void) state;
        _cleanup_buf_ struct buf records = BUF_INIT(0), b = BUF_INIT(0), c = BUF_INIT(0);
        char size[12];

        for (size_t i = 0; i <= TAR_XATTRS_MAX; i++)
                buf_puts(&records, "20 SCHILY.xattr.a=b\n");
        snprintf(size, sizeof size, "%o", (unsigned) records.len);
        header(&b, "x", 'x', size, "");
        padded(&b, (const char *) buf_data(&records), records.len);
        expect_error(&b, "more extended attributes");
        header(&c, "x", 'x', "00000000024", "");
        padded(&c, "20 SCHILY.xattr.\0=b\n", 20);
        expect_error(&c, "name that is none");
}

static void test_refused(void **state) {
        (void) state;
        static const struct {
                const char *name, *size, *link, *part;
                char type;
        } cases[] = {
                { "a", "x", "", "number", '0' },
                { "a", "-1", "", "number", '0' },
                { "a", "\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "", "number", '0' },
                { "a", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "", "number", '0' },
                { "", "0", "", "no name", '0' },
                { "a", "0", "", "no target", '1' },
                { "a", "0", "", "no target", '2' },
                { "a", "1", "b", "has data", '1' },
                { "a", "1", "", "has data", '5' },
                { "a", "0", "", "sparse", 'S' },
                { "a", "0", "", "volumes", 'M' },
                { "a", "4000001", "", "limit", 'x' },
        };

        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
                _cleanup_buf_ struct buf b = BUF_INIT(0);
                header(&b, cases[i].name, cases[i].type, cases[i].size, cases[i].link);
                expect_error(&b, cases[i].part);
        }
}

static void test_refused_pax(void **state) {
        (void) state;
        static const char *const records[] = {
                "5 a=b\n",
                "99 path=x\n",
                "9 path=x",
                "0 path=x\n",
                " path=x\n",
                "11 path=x\0\n",
                "path=x\n",
                "8 size=\n",
                "11 size=-1\n",
                "29 size=99999999999999999999\n",
                "22 GNU.sparse.major=1\n",
                "7 =abc\n",
        };

        for (size_t i = 0; i < sizeof records / sizeof records[0]; i++) {
                _cleanup_buf_ struct buf b = BUF_INIT(0);
                size_t n = i == 5 ? 11 : strlen(records[i]);
                char size[12];

                snprintf(size, sizeof size, "%o", (unsigned) n);
                header(&b, "x", 'x', size, "");
                padded(&b, records[i], n);
                header(&b, "f", '0', "0", "");
                expect_error(&b, i == 5            ? "NUL"
                                 : i == 10         ? "sparse"
                                 : i > 6 && i < 10 ? "number"
                                                   : "malformed");
        }
}

static void test_damage(void **state) {
        (void) state;
        _cleanup_buf_ struct buf b = BUF_INIT(0), c = BUF_INIT(0), d = BUF_INIT(0), many = BUF_INIT(0);

        header(&b, "a", '0', "0", "");
        b.data[b.start] = 'b';
        expect_error(&b, "checksum");
        /* A lone block of zeros, then more. */
        uint8_t zeros[TAR_BLOCK] = { 0 };
        buf_append(&c, zeros, sizeof zeros);
        header(&c, "a", '0', "0", "");
        expect_error(&c, "lone");
        /* Ends within, or without the mark. */
        header(&d, "a", '0', "5", "");
        expect(&d, "f a> 644 5 0.000000000:incomplete");
        padded(&d, "12345", 5);
        expect(&d, "f a> 644 5 0.000000000:12345\nincomplete");
        for (int i = 0; i < 20; i++)
                header(&many, "x", 'x', "0", "");
        expect_error(&many, "limit");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_round_trip),    cmocka_unit_test(test_names_are_bytes),
                cmocka_unit_test(test_large_numbers), cmocka_unit_test(test_writer_refuses),
                cmocka_unit_test(test_gnu_and_v7),    cmocka_unit_test(test_pax_overrides),
                cmocka_unit_test(test_xattrs),        cmocka_unit_test(test_xattrs_refused),
                cmocka_unit_test(test_xattrs),
                cmocka_unit_test(test_xattrs_refused),
                cmocka_unit_test(test_refused),       cmocka_unit_test(test_refused_pax),
                cmocka_unit_test(test_damage),        cmocka_unit_test(test_name_cut_after_a_slash),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
