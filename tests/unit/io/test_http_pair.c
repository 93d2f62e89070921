/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The HTTP client and server against each other and against other implementations: curl and
 * Python's http.client ask our server, our client asks Python's http.server.
 *
 * The server under test: GET /bytes?n=N[&chunked=1] gives N patterned bytes; POST /sum reads a body
 * and answers "length checksum"; GET /cut?n=N breaks off after N bytes; GET /hang answers never.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/str.h"
#include "io/http_client.h"
#include "io/http_server.h"
#include "loop.h"
#include "test.h"

#define PIECE (64u * 1024)

static uint8_t pattern_at(uint64_t i) {
        return (uint8_t) (i * 31 + (i >> 9));
}
static uint32_t sum_of(uint32_t sum, const uint8_t *d, size_t n) {
        for (size_t i = 0; i < n; i++)
                sum = sum * 131 + d[i];
        return sum;
}
static uint32_t pattern_sum(uint64_t n) {
        uint32_t sum = 0;
        for (uint64_t i = 0; i < n; i++)
                sum = sum * 131 + pattern_at(i);
        return sum;
}

/* --- server ----------------------------------------------------------------------------- */

struct request {
        struct http_x *x;
        uint64_t at, n; /* bytes of the answer */
        bool cut, upload;
        uint64_t got;
        uint32_t sum;
};
static int n_open; /* exchanges whose handler state lives */
static size_t max_queued;

static void pump(struct request *r) {
        uint8_t piece[PIECE];
        while (r->at < r->n && http_x_queued(r->x) < STREAM_HIGH_WATER) {
                size_t n = r->n - r->at < PIECE ? (size_t) (r->n - r->at) : PIECE;
                for (size_t i = 0; i < n; i++)
                        piece[i] = pattern_at(r->at + i);
                if (http_x_write(r->x, piece, n) < 0)
                        return;
                r->at += n;
                if (http_x_queued(r->x) > max_queued)
                        max_queued = http_x_queued(r->x);
        }
        if (r->at == r->n) {
                r->at++;
                if (r->cut)
                        http_x_abort(r->x);
                else
                        assert_int_equal(http_x_end(r->x), 0);
        }
}
static void x_body(void *arg, const uint8_t *d, size_t n) {
        struct request *r = arg;
        r->got += n;
        r->sum = sum_of(r->sum, d, n);
}
static void x_end(void *arg) {
        struct request *r = arg;
        if (!r->upload)
                return;
        char text[64];
        int n = snprintf(text, sizeof text, "%llu %u", (unsigned long long) r->got, r->sum);
        assert_int_equal(http_x_respond(r->x, 200, NULL, 0, text, (size_t) n), 0);
}
static void x_drain(void *arg) {
        struct request *r = arg;
        if (r->at < r->n)
                pump(r);
}
static void x_fin(void *arg) {
        n_open--;
        free(arg);
}
static const struct http_x_ops x_ops = {
        .on_body = x_body, .on_end = x_end, .on_drain = x_drain, .on_abort = x_fin, .on_done = x_fin,
};

static uint64_t query_u64(const char *target, const char *key) {
        _cleanup_buf_ struct buf b = { 0 };
        uint64_t v = 0;
        if (http1_query_get(target, key, &b) == 1)
                assert_int_equal(str_to_u64(buf_str(&b), UINT64_MAX, &v), 0);
        return v;
}
static void on_request(void *arg, struct http_x *x) {
        (void) arg;
        const char *t = http_x_head(x)->target;
        struct request *r = calloc(1, sizeof *r);
        assert_non_null(r);
        n_open++;
        r->x = x;
        r->n = query_u64(t, "n");
        r->cut = str_has_prefix(t, "/cut");
        http_x_set_ops(x, &x_ops, r);
        if (str_has_prefix(t, "/sum"))
                r->upload = true;
        else if (str_has_prefix(t, "/bytes") || r->cut) {
                int64_t len = query_u64(t, "chunked") ? -1 : (int64_t) r->n + (r->cut ? 1 : 0);
                assert_int_equal(http_x_start(x, 200, NULL, 0, len), 0);
                pump(r);
        } else if (!str_has_prefix(t, "/hang"))
                assert_int_equal(http_x_respond(x, 404, NULL, 0, NULL, 0), 0);
}

struct world {
        uv_loop_t loop;
        struct http_server *server;
        struct listener *listener;
        uint16_t port;
};
static void on_conn(void *arg, struct stream *s, int fd) {
        (void) fd;
        assert_int_equal(http_server_add(arg, s, NULL), 0);
}
static void world_init(struct world *w) {
        uv_loop_init(&w->loop);
        n_open = 0;
        max_queued = 0;
        struct http_server_config cfg = { .on_request = on_request };
        assert_int_equal(http_server_new(&w->loop, &cfg, &w->server, NULL), 0);
        int fd = -1;
        assert_int_equal(listen_tcp("127.0.0.1", 0, &fd, NULL), 0);
        struct sockaddr_in sa;
        socklen_t len = sizeof sa;
        assert_int_equal(getsockname(fd, (struct sockaddr *) &sa, &len), 0);
        w->port = ntohs(sa.sin_port);
        assert_int_equal(listener_new(&w->loop, fd, on_conn, w->server, &w->listener, NULL), 0);
}
static void world_done(struct world *w) {
        http_server_free(w->server);
        listener_free(w->listener);
        assert_int_equal(n_open, 0);
        loop_done(&w->loop);
}
static struct stream *pair_with_server(struct world *w) {
        int fds[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        struct stream *a = NULL, *b = NULL;
        assert_int_equal(stream_from_fd(&w->loop, fds[0], &a, NULL), 0);
        assert_int_equal(stream_from_fd(&w->loop, fds[1], &b, NULL), 0);
        assert_int_equal(http_server_add(w->server, a, NULL), 0);
        return b;
}

/* --- our client ------------------------------------------------------------------------- */

struct client {
        struct http_call *call;
        struct stream *kept;
        int status, err;
        bool end, slow;
        uint64_t got, to_send;
        uint32_t sum;
        struct buf text; /* the first bytes of the body */
};
static void c_head(void *arg, const struct http1_head *h) {
        ((struct client *) arg)->status = h->status;
}
static void c_body(void *arg, const uint8_t *d, size_t n) {
        struct client *c = arg;
        c->got += n;
        c->sum = sum_of(c->sum, d, n);
        if (c->text.len < 100)
                buf_append(&c->text, d, n < 100 ? n : 100);
        if (c->slow)
                http_call_read_pause(c->call);
}
static void c_end(void *arg) {
        struct client *c = arg;
        c->end = true;
        c->kept = http_call_reuse(c->call);
        http_call_free(STEAL(c->call));
}
static void c_feed(struct client *c) {
        uint8_t piece[PIECE];
        while (c->to_send > 0 && http_call_queued(c->call) < STREAM_HIGH_WATER) {
                size_t n = c->to_send < PIECE ? (size_t) c->to_send : PIECE;
                memset(piece, 'u', n);
                assert_int_equal(http_call_write(c->call, piece, n), 0);
                c->to_send -= n;
        }
        if (c->to_send == 0)
                assert_int_equal(http_call_end(c->call), 0);
}
static void c_drain(void *arg) {
        c_feed(arg);
}
static void c_error(void *arg, int err) {
        struct client *c = arg;
        c->err = err;
        http_call_free(STEAL(c->call));
}
static const struct http_call_ops c_ops = { c_head, c_body, c_end, c_drain, c_error };

static void call(struct world *w, struct client *c, struct stream *s, const char *method, const char *target,
                 int64_t len) {
        bool slow = c->slow;
        buf_done(&c->text);
        *c = (struct client){ .slow = slow };
        assert_int_equal(http_call_new(&w->loop, s, method, target, NULL, 0, len, &c_ops, c, &c->call, NULL),
                         0);
}

static void test_downloads(void **state) {
        (void) state;
        struct world w;
        world_init(&w);
        struct client c = { 0 };
        struct stream *s = pair_with_server(&w);
        static const unsigned sizes[] = { 0, 1, 65535, 65536, 65537, 5000000 };
        for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
                for (int chunked = 0; chunked < 2; chunked++) {
                        char t[64];
                        (void) snprintf(t, sizeof t, "/bytes?n=%u&chunked=%d", sizes[i], chunked);
                        call(&w, &c, s, "GET", t, 0);
                        RUN_UNTIL(&w.loop, c.end || c.err);
                        assert_true(c.end);
                        assert_int_equal(c.got, sizes[i]);
                        assert_int_equal(c.sum, pattern_sum(sizes[i]));
                        assert_non_null(c.kept); /* all of them on one connection */
                        s = c.kept;
                }
        stream_close(s);
        buf_done(&c.text);
        world_done(&w);
}

static void test_uploads(void **state) {
        (void) state;
        struct world w;
        world_init(&w);
        struct client c = { 0 };
        struct stream *s = pair_with_server(&w);
        static const unsigned sizes[] = { 0, 1, 65537, 5000000 };
        for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
                for (int chunked = 0; chunked < 2; chunked++) {
                        call(&w, &c, s, "POST", "/sum", chunked ? -1 : (int64_t) sizes[i]);
                        c.to_send = sizes[i];
                        c_feed(&c);
                        RUN_UNTIL(&w.loop, c.end || c.err);
                        assert_true(c.end);
                        char want[32];
                        (void) snprintf(want, sizeof want, "%u ", sizes[i]);
                        assert_memory_equal(buf_str(&c.text), want, strlen(want));
                        s = c.kept;
                        assert_non_null(s);
                }
        stream_close(s);
        buf_done(&c.text);
        world_done(&w);
}

static void test_cut_is_an_error(void **state) {
        (void) state;
        struct world w;
        world_init(&w);
        static const char *const targets[] = {"/cut?n=0", "/cut?n=1000000", "/cut?n=0&chunked=1",
                                              "/cut?n=1000000&chunked=1"};
        for (size_t i = 0; i < ARRAY_SIZE(targets); i++) {
                struct client c = { 0 };
                call(&w, &c, pair_with_server(&w), "GET", targets[i], 0);
                RUN_UNTIL(&w.loop, c.end || c.err);
                assert_false(c.end);
                assert_int_equal(c.err, -ECONNRESET);
                buf_done(&c.text);
        }
        world_done(&w);
}

/* A reader that takes nothing for a while: neither side piles up. */
static void test_slow_reader(void **state) {
        (void) state;
        struct world w;
        world_init(&w);
        struct client c = { .slow = true };
        call(&w, &c, pair_with_server(&w), "GET", "/bytes?n=20000000&chunked=1", 0);
        for (int i = 0; i < 30; i++) {
                run_pending(&w.loop);
                http_call_read_resume(c.call);
        }
        assert_true(c.got < 8000000);
        assert_true(max_queued <= STREAM_HIGH_WATER + PIECE + 64);
        c.slow = false;
        http_call_read_resume(c.call);
        RUN_UNTIL(&w.loop, c.end);
        assert_int_equal(c.got, 20000000);
        assert_int_equal(c.sum, pattern_sum(20000000));
        stream_close(c.kept);
        buf_done(&c.text);
        world_done(&w);
}

static void test_client_goes_away(void **state) {
        (void) state;
        struct world w;
        world_init(&w);
        struct client c = { 0 };
        call(&w, &c, pair_with_server(&w), "GET", "/hang", 0);
        RUN_UNTIL(&w.loop, n_open == 1);
        http_call_free(c.call);
        RUN_UNTIL(&w.loop, n_open == 0);
        /* In the middle of an upload and of a download. */
        call(&w, &c, pair_with_server(&w), "POST", "/sum", -1);
        assert_int_equal(http_call_write(c.call, "x", 1), 0);
        RUN_UNTIL(&w.loop, n_open == 1);
        http_call_free(c.call);
        RUN_UNTIL(&w.loop, n_open == 0);
        call(&w, &c, pair_with_server(&w), "GET", "/bytes?n=20000000", 0);
        RUN_UNTIL(&w.loop, c.got > 0);
        http_call_free(c.call);
        RUN_UNTIL(&w.loop, n_open == 0);
        assert_int_equal(http_server_connections(w.server), 0);
        buf_done(&c.text);
        world_done(&w);
}

/* --- other implementations -------------------------------------------------------------- */

struct child {
        uv_process_t p;
        uv_pipe_t out;
        struct buf text;
        int64_t exit_status;
        bool exited, eof;
};
static void child_alloc(uv_handle_t *h, size_t hint, uv_buf_t *b) {
        (void) h;
        (void) hint;
        static char mem[65536];
        *b = uv_buf_init(mem, sizeof mem);
}
static void child_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b) {
        struct child *c = s->data;
        if (n > 0)
                buf_append(&c->text, b->base, (size_t) n);
        else if (n < 0) {
                c->eof = true;
                uv_close((uv_handle_t *) s, NULL);
        }
}
static void child_exit(uv_process_t *p, int64_t status, int sig) {
        struct child *c = p->data;
        c->exit_status = sig ? 128 + sig : status;
        c->exited = true;
        uv_close((uv_handle_t *) p, NULL);
}
static bool have(const char *program) {
        _cleanup_buf_ struct buf cmd = { 0 };
        buf_printf(&cmd, "command -v %s >/dev/null 2>&1", program);
        return system(buf_str(&cmd)) == 0;
}
static void child_start(struct world *w, struct child *c, char **argv) {
        memset(c, 0, sizeof *c);
        uv_pipe_init(&w->loop, &c->out, 0);
        uv_stdio_container_t io[3] = {
                {.flags = UV_IGNORE},
                {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *) &c->out},
                {.flags = UV_INHERIT_FD, .data.fd = 2}};
        uv_process_options_t o = {
                .file = argv[0], .args = argv, .exit_cb = child_exit, .stdio = io, .stdio_count = 3};
        c->p.data = c;
        c->out.data = c;
        assert_int_equal(uv_spawn(&w->loop, &c->p, &o), 0);
        assert_int_equal(uv_read_start((uv_stream_t *) &c->out, child_alloc, child_read), 0);
}
/* Runs sh -c script with PORT and U in the environment. */
static void shell(struct world *w, const char *script, int64_t want_exit, const char *want) {
        _cleanup_buf_ struct buf cmd = { 0 };
        buf_printf(&cmd, "PORT=%u; U=http://127.0.0.1:%u; export PORT U; %s", w->port, w->port, script);
        char sh[] = "/bin/sh", c[] = "-c";
        char *argv[] = { sh, c, (char *) (uintptr_t) buf_str(&cmd), NULL };
        struct child ch;
        child_start(w, &ch, argv);
        RUN_UNTIL(&w->loop, ch.exited && ch.eof);
        if (ch.exit_status != want_exit || (want && strcmp(buf_str(&ch.text), want) != 0))
                fail_msg("%s\nexit %d, output:\n%s", script, (int) ch.exit_status, buf_str(&ch.text));
        buf_done(&ch.text);
}

static void test_curl(void **state) {
        (void) state;
        if (!have("curl")) {
                print_message("curl is not installed\n");
                skip();
        }
        struct world w;
        world_init(&w);
#define CURL "curl -sS --noproxy '*' --max-time 100 "
        shell(&w, CURL "\"$U/bytes?n=3000000\" | wc -c | tr -d ' \n'", 0, "3000000");
        shell(&w, CURL "\"$U/bytes?n=3000000&chunked=1\" | wc -c | tr -d ' \n'", 0, "3000000");
        shell(&w, CURL "-0 \"$U/bytes?n=3000000&chunked=1\" | wc -c | tr -d ' \n'", 0, "3000000");
        shell(&w, CURL "-I -o /dev/null -w '%{http_code}' $U/bytes?n=5", 0, "200");
        shell(&w, CURL "-o /dev/null -w '%{http_code} %{size_download}' $U/nothing", 0, "404 0");
        /* Two requests, one connection. */
        shell(&w, CURL "-w '%{num_connects};' -o /dev/null $U/bytes?n=10 -o /dev/null $U/bytes?n=20", 0,
              "1;0;");
        /* With Expect: 100-continue, and chunked. */
        shell(&w,
              "head -c 2000000 /dev/zero | " CURL
              "-H 'Expect: 100-continue' --data-binary @- $U/sum | cut -d' ' -f1 | tr -d '\n'",
              0, "2000000");
        shell(&w, "head -c 2000000 /dev/zero | " CURL "-T - $U/sum | cut -d' ' -f1 | tr -d '\n'", 0,
              "2000000");
        /* Broken off: the transfer ends early (18) or the connection is reset (56). */
        shell(&w, CURL "-o /dev/null \"$U/cut?n=100\" 2>/dev/null; r=$?; test $r = 18 -o $r = 56", 0, NULL);
        shell(&w, CURL "-o /dev/null \"$U/cut?n=100&chunked=1\" 2>/dev/null; r=$?; test $r = 18 -o $r = 56",
              0, NULL);
        world_done(&w);
}

static void test_python_client(void **state) {
        (void) state;
        if (!have("python3")) {
                print_message("python3 is not installed\n");
                skip();
        }
        struct world w;
        world_init(&w);
        shell(&w,
              "python3 - <<'EOF'\n"
              "import http.client, os\n"
              "c = http.client.HTTPConnection('127.0.0.1', int(os.environ['PORT']), timeout=100)\n"
              "for chunked in (0, 1):\n"
              "    c.request('GET', f'/bytes?n=100000&chunked={chunked}')\n"
              "    r = c.getresponse()\n"
              "    d = r.read()\n"
              "    assert r.status == 200 and len(d) == 100000, (r.status, len(d))\n"
              "    assert all(d[i] == (i * 31 + (i >> 9)) & 255 for i in range(len(d)))\n"
              "c.request('POST', '/sum', body=iter([b'abc', b'', b'defg']), encode_chunked=True,\n"
              "          headers={'Transfer-Encoding': 'chunked'})\n"
              "assert c.getresponse().read().split()[0] == b'7'\n"
              "c.request('POST', '/sum', body=b'x' * 300000)\n"
              "assert c.getresponse().read().split()[0] == b'300000'\n"
              "c.request('HEAD', '/bytes?n=7')\n"
              "r = c.getresponse()\n"
              "assert r.read() == b'' and r.getheader('Content-Length') == '7'\n"
              "c.request('GET', '/cut?n=10&chunked=1')\n"
              "try:\n"
              "    c.getresponse().read()\n"
              "    raise SystemExit('a cut body was taken for complete')\n"
              "except (http.client.IncompleteRead, ConnectionError):\n"
              "    print('ok')\n"
              "EOF",
              0, "ok\n");
        world_done(&w);
}

static struct stream *connected;
static int connect_err;
static void on_connect(void *arg, int err, struct stream *s) {
        *(bool *) arg = true;
        connect_err = err;
        connected = s;
}

static void test_python_server(void **state) {
        (void) state;
        if (!have("python3")) {
                print_message("python3 is not installed\n");
                skip();
        }
        struct world w;
        world_init(&w);
        char py[] = "python3", u[] = "-u", c[] = "-c";
        char script[] = "import http.server as h\n"
                        "class H(h.BaseHTTPRequestHandler):\n"
                        "    protocol_version = 'HTTP/1.1'\n"
                        "    def log_message(self, *a): pass\n"
                        "    def do_POST(self):\n"
                        "        n = int(self.headers['Content-Length'])\n"
                        "        d = self.rfile.read(n)\n"
                        "        self.send_response(200)\n"
                        "        if self.path == '/close':\n"
                        "            self.send_header('Connection', 'close')\n"
                        "        else:\n"
                        "            self.send_header('Content-Length', str(len(d)))\n"
                        "        self.end_headers()\n"
                        "        self.wfile.write(d)\n"
                        "s = h.HTTPServer(('127.0.0.1', 0), H)\n"
                        "print(s.server_port)\n"
                        "s.serve_forever()\n";
        char *argv[] = { py, u, c, script, NULL };
        struct child ch;
        child_start(&w, &ch, argv);
        RUN_UNTIL(&w.loop, ch.exited || (ch.text.len > 0 && memchr(buf_data(&ch.text), '\n', ch.text.len)));
        assert_false(ch.exited);
        uint16_t port = (uint16_t) atoi(buf_str(&ch.text));
        bool done = false;
        struct stream_connect *sc;
        assert_int_equal(stream_connect_tcp(&w.loop, "127.0.0.1", port, on_connect, &done, &sc, NULL), 0);
        RUN_UNTIL(&w.loop, done);
        assert_int_equal(connect_err, 0);
        struct client cl = { 0 };
        struct stream *s = connected;
        for (int i = 0; i < 3; i++) {
                call(&w, &cl, s, "POST", i < 2 ? "/x" : "/close", 300000);
                cl.to_send = 300000;
                c_feed(&cl);
                RUN_UNTIL(&w.loop, cl.end || cl.err);
                assert_true(cl.end);
                assert_int_equal(cl.got, 300000);
                assert_int_equal(cl.kept != NULL, i < 2);
                s = cl.kept;
        }
        buf_done(&cl.text);
        uv_process_kill(&ch.p, SIGTERM);
        RUN_UNTIL(&w.loop, ch.exited && ch.eof);
        buf_done(&ch.text);
        world_done(&w);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_downloads),        cmocka_unit_test(test_uploads),
                cmocka_unit_test(test_cut_is_an_error),  cmocka_unit_test(test_slow_reader),
                cmocka_unit_test(test_client_goes_away), cmocka_unit_test(test_curl),
                cmocka_unit_test(test_python_client),    cmocka_unit_test(test_python_server),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
