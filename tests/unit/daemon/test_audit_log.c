/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <sys/stat.h>

#include "audit/audit_log.h"
#include "audit/audit_read.h"
#include "audit/audit_store.h"
#include "base/clock.h"
#include "base/fd.h"
#include "fixture.h"

#define A "aaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B "bbbbbbbbbbbbbbbbbbbbbbbbbb"
#define KIB 1024u

struct logs {
        char dir[64], path[96];
        struct audit_log *log;
};

static void open_log(struct logs *l, uint64_t sandbox, uint64_t total) {
        struct error e = ERROR_INIT;
        assert_int_equal(audit_log_open(l->path, sandbox, total, &l->log, &e), 0);
}

static int setup(void **state) {
        struct logs *l = calloc(1, sizeof *l);
        (void) snprintf(l->dir, sizeof l->dir, "/tmp/cspace-unit-XXXXXX");
        assert_non_null(mkdtemp(l->dir));
        (void) snprintf(l->path, sizeof l->path, "%s/audit", l->dir);
        *state = l;
        return 0;
}

static int teardown(void **state) {
        struct logs *l = *state;
        audit_log_free(l->log);
        (void) nftw(l->dir, fixture_rm, 8, FTW_DEPTH | FTW_PHYS);
        free(l);
        return 0;
}

static void add(struct logs *l, const char *id, unsigned from, unsigned n) {
        struct error e = ERROR_INIT;
        struct buf b = BUF_INIT(0);
        for (unsigned i = 0; i < n; i++)
                (void) buf_printf(&b, "{\"time\":\"2026-01-02T03:04:05.000Z\",\"kind\":\"dns\",\"n\":%u}\n", from + i);
        assert_int_equal(audit_log_append(l->log, id, buf_data(&b), b.len, &e), 0);
        assert_int_equal(audit_log_sync(l->log, id, &e), 0);
        buf_done(&b);
}

/* How many lines; their numbers must be without a gap, the last one `last`. */
static size_t count(struct logs *l, const char *id, unsigned last) {
        const struct audit_query any = { .filter = NULL };
        struct audit_page p = { .lines = BUF_INIT(0) };
        struct error e = ERROR_INIT;
        assert_int_equal(audit_read(audit_log_dirfd(l->log), id, &any, (struct audit_place){ 0 }, SIZE_MAX, &p, &e), 0);
        assert_true(p.end);
        unsigned want = last + 1 - (unsigned) p.n;
        const char *text = buf_str(&p.lines), *at = text;
        for (size_t i = 0; i < p.n; i++, want++) {
                at = strstr(at, "\"n\":");
                assert_non_null(at);
                assert_int_equal(strtoul(at + 4, NULL, 10), want);
                at++;
        }
        size_t n = p.n;
        buf_done(&p.lines);
        return n;
}

static void bounds(void **state) {
        struct logs *l = *state;
        open_log(l, 64 * KIB, 96 * KIB);
        add(l, B, 0, 10);
        unsigned n = 0;
        for (unsigned i = 0; i < 50; i++, n += 100) {
                add(l, A, n, 100);
                assert_in_range(audit_log_bytes(l->log), 1, 96 * KIB);
        }
        size_t kept = count(l, A, n - 1);
        assert_in_range(kept, 300, 1200);
        assert_int_equal(count(l, B, 9), 10); /* the small one pays nothing */
        /* The same after opening again. */
        uint64_t bytes = audit_log_bytes(l->log);
        audit_log_free(l->log);
        open_log(l, 64 * KIB, 96 * KIB);
        assert_int_equal(audit_log_bytes(l->log), bytes);
        assert_int_equal(count(l, A, n - 1), kept);
        add(l, A, n, 1);
        (void) count(l, A, n);
        /* A smaller limit takes hold. */
        audit_log_free(l->log);
        open_log(l, 64 * KIB, 32 * KIB);
        add(l, A, n + 1, 1);
        assert_in_range(audit_log_bytes(l->log), 1, 32 * KIB);
}

static void torn(void **state) {
        struct logs *l = *state;
        char path[192];
        open_log(l, 64 * KIB, 1024 * KIB);
        add(l, A, 0, 3);
        audit_log_free(l->log);
        (void) snprintf(path, sizeof path, "%s/" A "/0000000001.jsonl", l->path);
        int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
        assert_int_equal(write(fd, "{\"n\":\"}", 7), 7); /* ends like a whole one */
        (void) close(fd);
        open_log(l, 64 * KIB, 1024 * KIB);
        assert_int_equal(count(l, A, 2), 3);
        add(l, A, 3, 2);
        assert_int_equal(count(l, A, 4), 5);
}

static void places(void **state) {
        struct logs *l = *state;
        const struct audit_query any = { .filter = NULL };
        struct error e = ERROR_INIT;
        struct audit_place at = { 0 };
        open_log(l, 64 * KIB, 1024 * KIB);
        for (unsigned i = 0; i < 8; i++)
                add(l, A, i * 50, 50);
        size_t n = 0;
        for (bool end = false; !end;) {
                struct audit_page p = { .lines = BUF_INIT(0) };
                char text[AUDIT_CURSOR_SIZE];
                assert_int_equal(audit_read(audit_log_dirfd(l->log), A, &any, at, 7, &p, &e), 0);
                assert_in_range(p.n, 0, 7);
                audit_place_text(&p.next, text);
                assert_int_equal(audit_place_parse(text, &at), 0);
                n += p.n;
                end = p.end;
                buf_done(&p.lines);
        }
        assert_int_equal(n, 400);
        struct audit_page p = { .lines = BUF_INIT(0) };
        at.offset += 1;
        assert_int_equal(audit_read(audit_log_dirfd(l->log), A, &any, at, 7, &p, &e), -EINVAL);
        assert_int_equal(audit_read(audit_log_dirfd(l->log), B, &any, at, 7, &p, &e), -ENOENT);
        static const char *const bad[] = { "", ".", "1", "1.", ".1", "1.1.1", "-1.0", "99999999999.0", "1.x" };
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
                assert_int_equal(audit_place_parse(bad[i], &at), -EINVAL);
        assert_int_equal(audit_log_append(l->log, "../x", "y\n", 2, &e), -EINVAL);
}

static bool only_b(void *arg, const char *id) {
        (void) arg;
        return strcmp(id, B) == 0;
}

static void sweeping(void **state) {
        struct logs *l = *state;
        int64_t now = clock_real_ms();
        open_log(l, 64 * KIB, 1024 * KIB);
        add(l, A, 0, 3);
        add(l, B, 0, 3);
        audit_log_retire(l->log, A);
        assert_int_equal(audit_log_sweep(l->log, now - 60000, only_b, NULL), 0); /* too young */
        uint64_t both = audit_log_bytes(l->log);
        assert_int_equal(audit_log_sweep(l->log, now + 60000, only_b, NULL), 1);
        assert_int_equal(audit_log_bytes(l->log), both / 2);
        assert_int_equal(count(l, B, 2), 3);
        add(l, A, 7, 1);
        assert_int_equal(count(l, A, 7), 1);
}

static bool matches(const char *line, const char *key, const char *value) {
        struct audit_query q = { .filter = NULL };
        struct error e = ERROR_INIT;
        if (key)
                assert_int_equal(audit_query_set(&q, key, value, &e), 0);
        bool r = audit_query_match(&q, line, strlen(line));
        audit_query_done(&q);
        return r;
}

static void queries(void **state) {
        (void) state;
        /* The path tries to be other members. */
        static const char line[] = "{\"time\":\"2026-01-02T03:04:05.678Z\",\"kind\":\"request\",\"verdict\":\"deny\",\"rule\":\"r\","
                                   "\"reason\":\"no_rule\",\"host\":\"a.b.c\","
                                   "\"path\":\"/\\\",\\\"verdict\\\":\\\"allow\\\",\\\"kind\\\":\\\"lost\"}";
        static const char lost[] = "{\"time\":\"2026-01-02T03:04:05.678Z\",\"kind\":\"lost\",\"sandbox\":\"" A "\",\"records\":3}";
        assert_true(matches(line, NULL, NULL));
        assert_true(matches(line, "verdict", "deny"));
        assert_false(matches(line, "verdict", "allow"));
        assert_true(matches(line, "kind", "request"));
        assert_false(matches(line, "kind", "lost"));
        assert_true(matches(line, "host", "*.b.c"));
        assert_true(matches(line, "since", "2026-01-02T03:04:05.678Z"));
        assert_false(matches(line, "until", "2026-01-02T03:04:05.678Z"));
        assert_true(matches(lost, NULL, NULL));
        assert_true(matches(lost, "kind", "lost"));
        assert_false(matches(lost, "kind", "dns"));
        assert_false(matches(lost, "verdict", "deny"));
        assert_true(matches(lost, "since", "2026-01-02T03:04:05.678Z"));
        assert_false(matches(lost, "until", "2026-01-02T03:04:05.678Z"));
        assert_false(matches("{\"kind\":\"dns\"}", "host", "a.b"));
        struct audit_query q = { .filter = NULL };
        struct error e = ERROR_INIT;
        assert_int_equal(audit_query_set(&q, "kind", "x", &e), -EINVAL);
        assert_int_equal(audit_query_set(&q, "since", "yesterday", &e), -EINVAL);
        audit_query_done(&q);
}

static void normalising(void **state) {
        (void) state;
        static const char lines[] =
                "{\"time\":\"2026-01-02T03:04:05.678Z\",\"kind\":\"dns\",\"verdict\":\"deny\",\"rule\":\"default\","
                "\"reason\":\"no_rule\",\"sandbox\":\"" B "\",\"host\":\"x.y\",\"type\":\"A\",\"more\":1}\n"
                "nonsense\n\n"
                "{\"time\":\"2026-01-02T03:04:05.678Z\",\"kind\":\"dns\",\"verdict\":\"maybe\"}\n"
                "{\"time\":\"2026-01-02T03:04:05.678Z\",\"kind\":\"connect\",\"verdict\":\"allow\",\"reason\":\"rule\",\"rule\":\"r\",\"binding\":\"b1\",\"repeated\":2}";
        struct buf out = BUF_INIT(0);
        struct audit_uses uses = { .n = 0 };
        size_t good = 0;
        assert_int_equal(audit_normalise(A, lines, strlen(lines), &out, &good, &uses), 2);
        assert_int_equal(uses.n, 1);
        assert_string_equal(uses.at[0].binding, "b1");
        assert_int_equal(uses.at[0].n, 3);
        assert_int_equal(uses.tally.verdicts[AUDIT_CONNECT][true], 3);
        assert_int_equal(uses.tally.verdicts[AUDIT_DNS][false], 1);
        assert_int_equal(uses.tally.denied[REASON_NO_RULE], 1);
        assert_int_equal(good, 2);
        const char *text = buf_str(&out);
        assert_non_null(strstr(text, "\"sandbox\":\"" A "\""));
        assert_null(strstr(text, B));
        assert_null(strstr(text, "more"));
        assert_string_equal(text + out.len - 2, "}\n");
        buf_done(&out);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(bounds, setup, teardown),
                cmocka_unit_test_setup_teardown(torn, setup, teardown),
                cmocka_unit_test_setup_teardown(places, setup, teardown),
                cmocka_unit_test_setup_teardown(sweeping, setup, teardown),
                cmocka_unit_test(queries),
                cmocka_unit_test(normalising),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
