/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "fsop.h"
#include "watch.h"

static uv_loop_t loop;
static struct watchers *all;
static struct watcher *watcher;
static char dir[] = "/tmp/cspace-watch-XXXXXX";
static struct buf events; /* "C name\n" */
static int ready = 1, lost;

static const char *at(const char *rel) {
        static char out[4][4096];
        static unsigned i;
        char *p = out[i++ % 4];
        (void) snprintf(p, sizeof out[0], "%s/%s", dir, rel);
        return p;
}

static void on_ready(void *arg, int err, const struct error *e) {
        (void) arg;
        (void) e;
        ready = err;
}

static void on_event(void *arg, enum watch_event type, const char *name, const char *path) {
        (void) arg;
        (void) path;
        assert_int_equal(buf_printf(&events, "%c %s\n", "CWRNA"[type], name), 0);
}

static void on_lost(void *arg, int err, const char *why) {
        (void) arg;
        (void) why;
        lost = err;
}

static const struct watch_ops ops = { .on_ready = on_ready, .on_event = on_event, .on_lost = on_lost };

static void begin(const char *path, bool recursive) {
        ready = 1;
        lost = 0;
        buf_clear(&events);
        assert_int_equal(watcher_new(all, path, recursive, &ops, NULL, &watcher, NULL), 0);
        while (ready == 1)
                (void) uv_run(&loop, UV_RUN_ONCE);
        if (ready < 0)
                watcher = NULL;
}

static void finish(void) {
        watcher_free(watcher);
        watcher = NULL;
        (void) uv_run(&loop, UV_RUN_NOWAIT);
}

/* Runs until the line has come. */
static void expect(const char *line) {
        while (!lost && !strstr(buf_str(&events), line))
                (void) uv_run(&loop, UV_RUN_ONCE);
        assert_int_equal(lost, 0);
}

static size_t times(const char *line) {
        size_t n = 0;
        for (const char *p = buf_str(&events); (p = strstr(p, line)); p++)
                n++;
        return n;
}

static void put(const char *path) {
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, "x", 1), 1);
        close(fd);
}

static int set_up(void **state) {
        (void) state;
        if (uv_loop_init(&loop) < 0 || !(all = watchers_new(&loop)) || !mkdtemp(dir))
                return -1;
        return 0;
}

static int tear_down(void **state) {
        (void) state;
        watchers_free(all);
        (void) uv_run(&loop, UV_RUN_DEFAULT);
        buf_done(&events);
        (void) fsop_remove(dir, NULL);
        return uv_loop_close(&loop);
}

static void flat(void **state) {
        (void) state;
        begin(dir, false);
        assert_int_equal(ready, 0);
        put(at("f"));
        expect("C f\n");
        expect("W f\n");
        assert_int_equal(chmod(at("f"), 0600), 0);
        expect("A f\n");
        assert_int_equal(rename(at("f"), at("g")), 0);
        expect("N f\n");
        expect("C g\n");
        assert_int_equal(unlink(at("g")), 0);
        expect("R g\n");
        assert_int_equal(mkdir(at("sub"), 0755), 0);
        expect("C sub\n");
        put(at("sub/inner"));
        put(at("last"));
        expect("W last\n");
        assert_int_equal(times("inner"), 0);
        finish();
}

/* Folders that appear, with what was made in them before they could be watched. */
static void tree(void **state) {
        (void) state;
        begin(dir, true);
        for (int i = 0; i < 30; i++) {
                char name[64], line[80];
                (void) snprintf(name, sizeof name, "t%d/a/b/c", i);
                assert_int_equal(fsop_mkdirs(at(name), NULL, NULL), 0);
                (void) snprintf(name, sizeof name, "t%d/a/b/c/file", i);
                put(at(name));
                (void) snprintf(line, sizeof line, "C %s\n", name);
                expect(line);
        }
        for (int i = 0; i < 30; i++) {
                char line[80];
                (void) snprintf(line, sizeof line, "C t%d/a/b/c/file\n", i);
                assert_int_equal(times(line), 1);
                (void) snprintf(line, sizeof line, "C t%d/a\n", i);
                assert_int_equal(times(line), 1);
        }
        /* a tree that is moved in, and out again */
        char other[] = "/tmp/cspace-watch2-XXXXXX", from[100];
        assert_non_null(mkdtemp(other));
        (void) snprintf(from, sizeof from, "%s/tree/x", other);
        assert_int_equal(fsop_mkdirs(from, NULL, NULL), 0);
        (void) snprintf(from, sizeof from, "%s/tree", other);
        assert_int_equal(rename(from, at("in")), 0);
        expect("C in\n");
        expect("C in/x\n");
        put(at("in/x/new"));
        expect("C in/x/new\n");
        assert_int_equal(rename(at("in"), from), 0);
        expect("N in\n");
        (void) snprintf(from, sizeof from, "%s/tree/x/unseen", other);
        put(from);
        put(at("end"));
        expect("W end\n");
        assert_int_equal(times("unseen"), 0);
        assert_int_equal(fsop_remove(other, NULL), 0);
        finish();
}

static void overflow(void **state) {
        (void) state;
        begin(dir, false);
        watcher_pause(watcher);
        for (int i = 0; i < 40000; i++) {
                char name[32];
                (void) snprintf(name, sizeof name, "o%d", i % 100);
                put(at(name));
                assert_int_equal(unlink(at(name)), 0);
        }
        watcher_resume(watcher);
        while (!lost)
                (void) uv_run(&loop, UV_RUN_ONCE);
        assert_int_equal(lost, -EOVERFLOW);
        finish();
}

static void failures(void **state) {
        (void) state;
        put(at("plain"));
        begin(at("plain"), false);
        assert_int_equal(ready, -ENOTDIR);
        begin(at("none"), true);
        assert_int_equal(ready, -ENOENT);
        /* freed while its scan runs */
        assert_int_equal(watcher_new(all, dir, true, &ops, NULL, &watcher, NULL), 0);
        finish();
        struct watcher *many[WATCHERS_MAX + 1];
        int n = 0, r = 0;
        struct error e = ERROR_INIT;
        while (n <= WATCHERS_MAX && (r = watcher_new(all, dir, false, &ops, NULL, &many[n], &e)) == 0)
                n++;
        assert_true(r == -ENOBUFS || r == -EMFILE); /* the limit here, or the kernel's on instances */
        while (n > 0)
                watcher_free(many[--n]);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(flat), cmocka_unit_test(tree), cmocka_unit_test(overflow),
                                            cmocka_unit_test(failures) };
        return cmocka_run_group_tests(tests, set_up, tear_down);
}
