/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The proxy between a real HTTP server and a stand-in for a warden: a Unix socket that speaks the
 * data.sock protocol and, by port number, misbehaves in each way a guest can. What the client gets
 * must always be right or recognisably broken.
 */

#include "test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#include "base/buf.h"
#include "base/limits.h"
#include "io/http_client.h"
#include "io/http_server.h"
#include "proxy/proxy.h"

#define ID "abcdefghijklmnopqrstuvwx23"
#define ID2 "zyxwvutsrqponmlkjihgfedc54"

enum {
        PORT_CLOSED = 1000,    /* refused each time */
        PORT_OPENS = 1001,     /* refused twice, then as PORT_HTTP */
        PORT_HANGS_UP = 1002,  /* accepted, closed without an answer */
        PORT_HALF = 1003,      /* half of an answer, then closed */
        PORT_HALF_CHUNKS = 1004,
        PORT_BUSY = 1005,      /* 503 */
        PORT_NONSENSE = 1006,  /* no status line of the protocol */
        PORT_EARLY = 1007,     /* status line and answer in one piece */
        PORT_ECHO = 1008,      /* upgrades to an echo */
        PORT_GARBAGE = 1009,   /* accepted, no HTTP */
        PORT_SILENT = 1010,    /* accepted, never answers */
        PORT_TRICKLE = 1011,   /* an answer that goes on and on */
        PORT_UNTIL_EOF = 1012, /* an answer without length that ends properly */
        PORT_UNTIL_CUT = 1013, /* the same, cut off */
        PORT_REDIRECT = 1014,  /* sends the client elsewhere */
        PORT_SCRIPT = 1015,    /* fields that a page of the API's origin must not have */
        PORT_HTTP = 3000,
};

/* --- the guest -------------------------------------------------------------------------------- */

struct guest_conn {
        struct guest_conn *next;
        struct stream *s;
        struct buf in;
        unsigned port;
        bool echo;
};

static struct {
        uv_loop_t loop;
        struct proxy *proxy;
        struct http_server *api, *agent;
        struct listener *listener;
        char dir[64];
        struct guest_conn *conns;
        unsigned n_conns, n_refused; /* connections seen since the last reset */
        unsigned agent_requests;
        bool agent_closes; /* the agent ends kept connections without a word */
        struct proxy_target target;
        char target_id[32];
} t;

static void guest_say(struct guest_conn *c, const char *s) {
        assert_int_equal(stream_write(c->s, s, strlen(s)), 0);
}

static void guest_close(struct guest_conn *c) {
        stream_close(c->s);
        c->s = NULL;
}

static void guest_act(struct guest_conn *c) {
        switch (c->port) {
        case PORT_HANGS_UP:
                guest_close(c);
                break;
        case PORT_HALF:
                guest_say(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
                guest_close(c);
                break;
        case PORT_HALF_CHUNKS:
                guest_say(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n");
                guest_close(c);
                break;
        case PORT_REDIRECT:
                guest_say(c, "HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n");
                break;
        case PORT_SCRIPT:
                guest_say(c, "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nSet-Cookie: session=stolen\r\n"
                             "Access-Control-Allow-Origin: *\r\nClear-Site-Data: \"*\"\r\nContent-Length: 2\r\n\r\nhi");
                break;
        case PORT_UNTIL_EOF:
                guest_say(c, "HTTP/1.0 200 OK\r\n\r\nwhole");
                assert_int_equal(stream_shutdown(c->s), 0);
                break;
        case PORT_UNTIL_CUT:
                guest_say(c, "HTTP/1.0 200 OK\r\n\r\nwhole");
                guest_close(c);
                break;
        case PORT_ECHO:
                guest_say(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n"
                             "X-Extra: 1\r\n\r\nwelcome ");
                c->echo = true;
                break;
        case PORT_GARBAGE:
                guest_say(c, "SSH-2.0-dropbear\r\n");
                break;
        case PORT_TRICKLE:
                guest_say(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
                break;
        default:
                break;
        }
}

static void guest_status(struct guest_conn *c) {
        t.n_conns++;
        if (c->port == PORT_CLOSED || (c->port == PORT_OPENS && t.n_refused < 2)) {
                t.n_refused++;
                guest_say(c, "502 closed\n");
                guest_close(c);
        } else if (c->port == PORT_BUSY) {
                guest_say(c, "503 no room\n");
                guest_close(c);
        } else if (c->port == PORT_NONSENSE) {
                guest_say(c, "hello there, this is no status\n");
        } else if (c->port == PORT_EARLY) {
                guest_say(c, "200 OK\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly");
        } else {
                guest_say(c, "200 OK\n");
                if (c->port == AGENT_PORT || c->port == PORT_HTTP || c->port == PORT_OPENS) {
                        struct stream *s = c->s;
                        c->s = NULL;
                        assert_int_equal(http_server_add(t.agent, s, NULL), 0);
                }
        }
}

static void guest_data(void *arg, const uint8_t *data, size_t n) {
        struct guest_conn *c = arg;
        char line[64];

        if (c->echo) {
                assert_int_equal(stream_write(c->s, data, n), 0);
                return;
        }
        assert_int_equal(buf_append(&c->in, data, n), 0);
        const uint8_t *nl = memchr(buf_data(&c->in), '\n', c->in.len);
        if (c->port == 0) {
                if (!nl)
                        return;
                snprintf(line, sizeof(line), "%.*s", (int) c->in.len, (const char *) buf_data(&c->in));
                assert_int_equal(sscanf(line, "CONNECT %u\n", &c->port), 1);
                buf_clear(&c->in);
                guest_status(c);
        } else if (memmem(buf_data(&c->in), c->in.len, "\r\n\r\n", 4)) {
                buf_clear(&c->in);
                guest_act(c);
        }
}

static void guest_gone(void *arg) {
        struct guest_conn *c = arg;

        if (c->s)
                guest_close(c);
}

static void guest_error(void *arg, int err) {
        (void) err;
        guest_gone(arg);
}

static const struct stream_handler guest_handler = { .on_data = guest_data, .on_eof = guest_gone, .on_error = guest_error };

static void on_accept(void *arg, struct stream *s, int fd) {
        struct guest_conn *c = calloc(1, sizeof(*c));

        (void) arg;
        (void) fd;
        c->s = s;
        c->next = t.conns;
        t.conns = c;
        stream_set_handler(s, &guest_handler, c);
        stream_read_start(s);
}

/* The agent and other HTTP services: tell what they were asked. */
struct served {
        struct http_x *x;
        size_t n;
        uint64_t sum;
};

static void served_body(void *arg, const uint8_t *data, size_t n) {
        struct served *s = arg;

        s->n += n;
        for (size_t i = 0; i < n; i++)
                s->sum = s->sum * 31 + data[i];
}

static void served_end(void *arg) {
        struct served *s = arg;
        const struct http1_head *h = http_x_head(s->x);
        struct buf out = BUF_INIT(0);

        t.agent_requests++;
        if (t.agent_closes && t.agent_requests > 1) {
                http_x_abort(s->x);
                return;
        }
        buf_printf(&out, "%s %s %zu %llu\n", h->method, h->target, s->n, (unsigned long long) s->sum);
        for (size_t i = 0; i < h->n_fields; i++)
                buf_printf(&out, "%s: %s\n", h->fields[i].name, h->fields[i].value);
        struct http_header extra[] = { { "X-From", "guest" }, { "Keep-Alive", "timeout=5" }, { "Proxy-Authenticate", "no" } };
        assert_int_equal(http_x_respond(s->x, 200, extra, 3, buf_data(&out), out.len), 0);
        buf_done(&out);
}

static void served_over(void *arg) {
        free(arg);
}

static const struct http_x_ops served_ops = { .on_body = served_body, .on_end = served_end, .on_done = served_over, .on_abort = served_over };

static void on_agent_request(void *arg, struct http_x *x) {
        struct served *s = calloc(1, sizeof(*s));

        (void) arg;
        s->x = x;
        http_x_set_ops(x, &served_ops, s);
}

/* --- the client ------------------------------------------------------------------------------- */

static void on_api_request(void *arg, struct http_x *x) {
        (void) arg;
        proxy_serve(t.proxy, x, &t.target);
}

struct result {
        struct http_call *call;
        bool head, ended, failed;
        int status, err;
        struct buf body;
        char content_type[64], from[16], hop[16], csp[64], cookie[64];
        struct stream *upgraded;
        struct buf echoed;
        bool echo_eof;
};

static void echo_data(void *arg, const uint8_t *data, size_t n) {
        struct result *r = arg;

        buf_append(&r->echoed, data, n);
}

static void echo_eof(void *arg) {
        struct result *r = arg;

        r->echo_eof = true;
}

static void echo_error(void *arg, int err) {
        struct result *r = arg;

        (void) err;
        r->echo_eof = true;
}

static const struct stream_handler echo_handler = { .on_data = echo_data, .on_eof = echo_eof, .on_error = echo_error };

static void copy(char *to, size_t cap, const char *from) {
        snprintf(to, cap, "%s", from ? from : "");
}

static void r_head(void *arg, const struct http1_head *h) {
        struct result *r = arg;

        r->head = true;
        r->status = h->status;
        copy(r->content_type, sizeof(r->content_type), http1_get(h, "Content-Type"));
        copy(r->from, sizeof(r->from), http1_get(h, "X-From"));
        copy(r->hop, sizeof(r->hop), http1_get(h, "Keep-Alive"));
        copy(r->csp, sizeof(r->csp), http1_get(h, "Content-Security-Policy"));
        copy(r->cookie, sizeof(r->cookie), http1_get(h, "Set-Cookie"));
        if (h->status == 101) {
                r->upgraded = http_call_upgrade(r->call);
                assert_non_null(r->upgraded);
                stream_set_handler(r->upgraded, &echo_handler, r);
        }
}

static void r_body(void *arg, const uint8_t *data, size_t n) {
        struct result *r = arg;

        assert_int_equal(buf_append(&r->body, data, n), 0);
}

static void r_end(void *arg) {
        struct result *r = arg;

        r->ended = true;
}

static void r_error(void *arg, int err) {
        struct result *r = arg;

        r->failed = true;
        r->err = err;
}

static const struct http_call_ops r_ops = { .on_head = r_head, .on_body = r_body, .on_end = r_end, .on_error = r_error };

static void begin_on(struct result *r, const char *id, uint16_t port, const char *method, const char *target,
                     const struct http_header *h, size_t nh, int64_t length) {
        struct stream *client, *server;
        int fds[2];

        memset(r, 0, sizeof(*r));
        snprintf(t.target_id, sizeof(t.target_id), "%s", id);
        t.target.id = t.target_id;
        t.target.port = port;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
        assert_int_equal(stream_from_fd(&t.loop, fds[0], &client, NULL), 0);
        assert_int_equal(stream_from_fd(&t.loop, fds[1], &server, NULL), 0);
        assert_int_equal(http_server_add(t.api, server, NULL), 0);
        assert_int_equal(http_call_new(&t.loop, client, method, target, h, nh, length, &r_ops, r, &r->call, NULL), 0);
        if (length == 0)
                assert_int_equal(http_call_end(r->call), 0);
}

static void run_until(bool *flag, bool *other) {
        uint64_t deadline = uv_hrtime() + 20ULL * 1000 * 1000 * 1000;

        while (!*flag && !(other && *other)) {
                uv_run(&t.loop, UV_RUN_ONCE);
                assert_true(uv_hrtime() < deadline);
        }
}

static void turn(void) {
        for (int i = 0; i < 20; i++)
                uv_run(&t.loop, UV_RUN_NOWAIT);
}

static void finish(struct result *r) {
        http_call_free(r->call);
        stream_close(r->upgraded);
        buf_done(&r->body);
        buf_done(&r->echoed);
        turn();
}

static void get(struct result *r, const char *id, uint16_t port, const char *target) {
        begin_on(r, id, port, "GET", target, NULL, 0, 0);
        run_until(&r->ended, &r->failed);
}

static void expect_refusal(struct result *r, int status, const char *json) {
        assert_true(r->ended);
        assert_int_equal(r->status, status);
        assert_string_equal(r->content_type, "application/json");
        assert_string_equal(buf_str(&r->body), json);
        finish(r);
}

/* --- set-up ------------------------------------------------------------------------------------ */

static void tick(uv_timer_t *timer) {
        (void) timer; /* so that UV_RUN_ONCE returns and deadlines are seen */
}

static uv_timer_t ticker;

static int set_up(void **state) {
        struct http_server_config api = { .on_request = on_api_request }, agent = { .on_request = on_agent_request };
        char path[128];
        int fd;

        (void) state;
        memset(&t, 0, sizeof(t));
        uv_loop_init(&t.loop);
        uv_timer_init(&t.loop, &ticker);
        uv_timer_start(&ticker, tick, 100, 100);
        strcpy(t.dir, "/tmp/test_proxy.XXXXXX");
        assert_non_null(mkdtemp(t.dir));
        snprintf(path, sizeof(path), "%s/sandboxes", t.dir);
        assert_int_equal(mkdir(path, 0700), 0);
        snprintf(path, sizeof(path), "%s/sandboxes/" ID, t.dir);
        assert_int_equal(mkdir(path, 0700), 0);
        strcat(path, "/data.sock");
        assert_int_equal(listen_unix(path, 0600, &fd, NULL), 0);
        assert_int_equal(listener_new(&t.loop, fd, on_accept, NULL, &t.listener, NULL), 0);
        assert_int_equal(http_server_new(&t.loop, &api, &t.api, NULL), 0);
        assert_int_equal(http_server_new(&t.loop, &agent, &t.agent, NULL), 0);
        assert_int_equal(proxy_new(&t.loop, t.dir, &t.proxy, NULL), 0);
        return 0;
}

static int tear_down(void **state) {
        char cmd[128];

        (void) state;
        proxy_free(t.proxy);
        http_server_free(t.api);
        http_server_free(t.agent);
        listener_free(t.listener);
        while (t.conns) {
                struct guest_conn *c = t.conns;
                t.conns = c->next;
                stream_close(c->s);
                buf_done(&c->in);
                free(c);
        }
        uv_close((uv_handle_t *) &ticker, NULL);
        uv_run(&t.loop, UV_RUN_DEFAULT);
        assert_int_equal(uv_loop_close(&t.loop), 0);
        snprintf(cmd, sizeof(cmd), "rm -rf %s", t.dir);
        assert_int_equal(system(cmd), 0);
        return 0;
}

/* --- tests -------------------------------------------------------------------------------------- */

static void test_forward(void **state) {
        struct http_header h[] = {
                { "Host", "3000-x.example.com" }, { "X-Own", "mine" },     { "X-API-KEY", "e2b_secret" },
                { "Connection", "X-Hop" },        { "X-Hop", "1" },        { "TE", "trailers" },
                { "X-Forwarded-For", "9.9.9.9" }, { "Authorization", "Bearer e2b_0123" },
                { "E2b-Traffic-Access-Token", "tr4ffic" }, { "Upgrade", "h2c" },
        };
        struct result r;

        (void) state;
        t.target.peer = "10.0.0.7";
        begin_on(&r, ID, PORT_HTTP, "GET", "/a%2Fb?c=d", h, sizeof(h) / sizeof(h[0]), 0);
        run_until(&r.ended, &r.failed);
        assert_int_equal(r.status, 200);
        assert_string_equal(r.from, "guest");
        assert_string_equal(r.hop, "");
        const char *b = buf_str(&r.body);
        assert_ptr_equal(strstr(b, "GET /a%2Fb?c=d 0 0\n"), b);
        assert_non_null(strstr(b, "Host: 3000-x.example.com\n"));
        assert_non_null(strstr(b, "X-Own: mine\n"));
        assert_non_null(strstr(b, "X-Forwarded-For: 9.9.9.9, 10.0.0.7\n"));
        assert_non_null(strstr(b, "X-Forwarded-Host: 3000-x.example.com\n"));
        assert_null(strstr(b, "e2b_"));
        assert_null(strstr(b, "X-Hop"));
        assert_null(strstr(b, "TE:"));
        assert_null(strstr(b, "tr4ffic"));
        assert_null(strstr(b, "h2c"));
        finish(&r);
}

static void test_own_target_and_token(void **state) {
        struct http_header h[] = { { "X-Access-Token", "of the client" }, { "Authorization", "Basic dXNlcjo=" } };
        struct result r;

        (void) state;
        t.target.target = "/cspace/v1/files?path=x";
        t.target.access_token = "of the server";
        begin_on(&r, ID, AGENT_PORT, "GET", "/v1/sandboxes/x/files", h, 2, 0);
        run_until(&r.ended, &r.failed);
        const char *b = buf_str(&r.body);
        assert_ptr_equal(strstr(b, "GET /cspace/v1/files?path=x "), b);
        assert_non_null(strstr(b, "X-Access-Token: of the server\n"));
        assert_null(strstr(b, "of the client"));
        assert_non_null(strstr(b, "Basic"));
        finish(&r);

        t.target.strip_auth = true;
        begin_on(&r, ID, AGENT_PORT, "GET", "/", h, 2, 0);
        run_until(&r.ended, &r.failed);
        assert_null(strstr(buf_str(&r.body), "Basic"));
        finish(&r);
}

static void upload(int64_t length, size_t total) {
        struct result r;
        uint8_t piece[8192];
        uint64_t sum = 0;
        char want[64];

        begin_on(&r, ID, PORT_OPENS, "POST", "/up", NULL, 0, length);
        t.n_refused = 0;
        for (size_t sent = 0; sent < total; sent += sizeof(piece)) {
                for (size_t i = 0; i < sizeof(piece); i++) {
                        piece[i] = (uint8_t) (sent / 7 + i);
                        sum = sum * 31 + piece[i];
                }
                while (http_call_queued(r.call) > STREAM_HIGH_WATER)
                        uv_run(&t.loop, UV_RUN_ONCE);
                assert_int_equal(http_call_write(r.call, piece, sizeof(piece)), 0);
        }
        assert_int_equal(http_call_end(r.call), 0);
        run_until(&r.ended, &r.failed);
        assert_int_equal(r.status, 200);
        snprintf(want, sizeof(want), "POST /up %zu %llu\n", total, (unsigned long long) sum);
        assert_ptr_equal(strstr(buf_str(&r.body), want), buf_str(&r.body));
        finish(&r);
}

/* The port opens at the third try; nothing of a body sent meanwhile is lost. */
static void test_body_waits_for_the_port(void **state) {
        (void) state;
        upload(8 << 20, 8 << 20);
        upload(-1, 8 << 20);
}

static void test_refused(void **state) {
        struct result r;

        (void) state;
        get(&r, ID, PORT_CLOSED, "/");
        assert_int_equal(t.n_refused, 5);
        expect_refusal(&r, 502, "{\"sandboxId\":\"" ID "\",\"message\":\"The sandbox is running but port is not open\","
                                "\"code\":502,\"port\":1000}");
        get(&r, ID2, PORT_HTTP, "/");
        expect_refusal(&r, 502, "{\"sandboxId\":\"" ID2 "\",\"message\":\"The sandbox was not found\",\"code\":502}");

        t.target.errors = PROXY_ERRORS_NATIVE;
        get(&r, ID2, AGENT_PORT, "/");
        expect_refusal(&r, 502, "{\"error\":{\"code\":\"guest_unreachable\",\"message\":\"The sandbox was not found\"}}");
}

static void test_no_answer(void **state) {
        static const uint16_t ports[] = { PORT_HANGS_UP, PORT_BUSY, PORT_NONSENSE, PORT_GARBAGE };
        struct result r;

        (void) state;
        for (size_t i = 0; i < sizeof(ports) / sizeof(ports[0]); i++) {
                get(&r, ID, ports[i], "/");
                assert_true(r.ended);
                assert_int_equal(r.status, 502);
                assert_non_null(strstr(buf_str(&r.body), "\"code\":502"));
                finish(&r);
        }
}

static void test_garbage_is_named(void **state) {
        struct result r;

        (void) state;
        get(&r, ID, PORT_GARBAGE, "/");
        assert_int_equal(r.status, 502);
        assert_non_null(strstr(buf_str(&r.body), "The answer of port 1009 of the sandbox is not proper HTTP"));
        finish(&r);
        t.target.errors = PROXY_ERRORS_NATIVE;
        get(&r, ID, PORT_GARBAGE, "/");
        assert_int_equal(r.status, 502);
        assert_non_null(strstr(buf_str(&r.body), "\"guest_protocol\""));
        finish(&r);
}

/* A guest that does nothing for too long; a client that does nothing has all the time it wants. */
static void test_stall(void **state) {
        struct result r;

        (void) state;
        t.target.errors = PROXY_ERRORS_NATIVE;
        t.target.stall_ms = 300;
        get(&r, ID, PORT_SILENT, "/");
        assert_int_equal(r.status, 504);
        assert_non_null(strstr(buf_str(&r.body), "\"guest_timeout\""));
        finish(&r);
        get(&r, ID, PORT_TRICKLE, "/");
        assert_int_equal(r.status, 200);
        assert_true(r.failed);
        finish(&r);

        begin_on(&r, ID, PORT_HTTP, "POST", "/slow", NULL, 0, 10);
        for (int i = 0; i < 10; i++) {
                uint64_t then = uv_hrtime() + 90ULL * 1000 * 1000;
                while (uv_hrtime() < then)
                        uv_run(&t.loop, UV_RUN_ONCE);
                assert_int_equal(http_call_write(r.call, "x", 1), 0);
                if (i == 4) /* longer than a stall in one piece */
                        for (then = uv_hrtime() + 700ULL * 1000 * 1000; uv_hrtime() < then;)
                                uv_run(&t.loop, UV_RUN_ONCE);
        }
        assert_int_equal(http_call_end(r.call), 0);
        run_until(&r.ended, &r.failed);
        assert_int_equal(r.status, 200);
        finish(&r);
}

static void test_half_an_answer(void **state) {
        struct result r;

        (void) state;
        get(&r, ID, PORT_HALF, "/");
        assert_int_equal(r.status, 200);
        assert_true(r.failed);
        assert_false(r.ended);
        finish(&r);
        get(&r, ID, PORT_HALF_CHUNKS, "/");
        assert_true(r.failed);
        assert_false(r.ended);
        finish(&r);
}

/* Without a length only the way the stream ends tells a whole answer from a part. */
static void test_until_close(void **state) {
        struct result r;

        (void) state;
        get(&r, ID, PORT_UNTIL_EOF, "/");
        assert_true(r.ended);
        assert_string_equal(buf_str(&r.body), "whole");
        finish(&r);
        get(&r, ID, PORT_UNTIL_CUT, "/");
        assert_true(r.failed);
        assert_false(r.ended);
        finish(&r);
}

static void test_early(void **state) {
        struct result r;

        (void) state;
        get(&r, ID, PORT_EARLY, "/");
        assert_true(r.ended);
        assert_string_equal(buf_str(&r.body), "early");
        finish(&r);
}

static void test_upgrade(void **state) {
        struct http_header h[] = { { "Connection", "Upgrade" }, { "Upgrade", "echo" } };
        struct result r;

        (void) state;
        begin_on(&r, ID, PORT_ECHO, "GET", "/", h, 2, 0);
        run_until(&r.head, &r.failed);
        assert_int_equal(r.status, 101);
        stream_read_start(r.upgraded);
        assert_int_equal(stream_write(r.upgraded, "ping", 4), 0);
        while (r.echoed.len < 12)
                uv_run(&t.loop, UV_RUN_ONCE);
        assert_string_equal(buf_str(&r.echoed), "welcome ping");
        proxy_drop(t.proxy, ID);
        run_until(&r.echo_eof, NULL);
        finish(&r);
}

/* Under the API's own origin an agent that was taken over must not steer a browser or a client
 * with a key; as sandbox traffic the same answers are nobody's business but the sandbox's. */
static void test_native_answers(void **state) {
        struct result r;

        (void) state;
        get(&r, ID, PORT_REDIRECT, "/");
        assert_int_equal(r.status, 302);
        finish(&r);
        get(&r, ID, PORT_SCRIPT, "/");
        assert_string_equal(r.cookie, "session=stolen");
        assert_string_equal(r.csp, "");
        finish(&r);

        t.target.errors = PROXY_ERRORS_NATIVE;
        get(&r, ID, PORT_REDIRECT, "/");
        expect_refusal(&r, 502, "{\"error\":{\"code\":\"guest_protocol\",\"message\":\"The agent gave an answer that makes no "
                                "sense\"}}");
        get(&r, ID, PORT_SCRIPT, "/");
        assert_int_equal(r.status, 200);
        assert_string_equal(r.cookie, "");
        assert_string_equal(r.content_type, "text/html");
        assert_string_equal(r.csp, "sandbox; default-src 'none'");
        finish(&r);
}

/* The agent's connection is kept; other ports get a new one each time. */
static void test_kept_connections(void **state) {
        struct result r;

        (void) state;
        for (int i = 0; i < 5; i++) {
                get(&r, ID, AGENT_PORT, "/health");
                assert_int_equal(r.status, 200);
                finish(&r);
        }
        assert_int_equal(t.n_conns, 1);
        for (int i = 0; i < 3; i++) {
                get(&r, ID, PORT_HTTP, "/");
                finish(&r);
        }
        assert_int_equal(t.n_conns, 4);
}

/* A kept connection that dies under a request: repeated when that is safe, an error when not. */
static void test_stale_connection(void **state) {
        struct result r;

        (void) state;
        get(&r, ID, AGENT_PORT, "/1");
        finish(&r);
        t.agent_closes = true;
        begin_on(&r, ID, AGENT_PORT, "POST", "/2", NULL, 0, 0);
        run_until(&r.ended, &r.failed);
        assert_int_equal(r.status, 502);
        assert_int_equal(t.agent_requests, 2);
        finish(&r);

        t.agent_closes = false;
        get(&r, ID, AGENT_PORT, "/3");
        assert_int_equal(r.status, 200);
        finish(&r);
        t.agent_closes = true;
        get(&r, ID, AGENT_PORT, "/4");
        assert_int_equal(t.agent_requests, 5); /* asked twice */
        assert_int_equal(r.status, 502);
        finish(&r);
}

static void test_drop(void **state) {
        struct result waiting, running, fresh;

        (void) state;
        begin_on(&waiting, ID, PORT_SILENT, "GET", "/", NULL, 0, 0);
        turn(); /* the target is looked at when the request has arrived */
        begin_on(&running, ID, PORT_TRICKLE, "GET", "/", NULL, 0, 0);
        while (running.body.len < 5)
                uv_run(&t.loop, UV_RUN_ONCE);
        proxy_drop(t.proxy, ID);
        run_until(&waiting.ended, &waiting.failed);
        run_until(&running.ended, &running.failed);
        assert_true(running.failed);
        assert_false(running.ended);
        finish(&running);
        expect_refusal(&waiting, 502, "{\"sandboxId\":\"" ID "\",\"message\":\"The sandbox was not found\",\"code\":502}");
        proxy_drop(t.proxy, ID);
        proxy_drop(t.proxy, ID2);

        get(&fresh, ID, AGENT_PORT, "/");
        assert_int_equal(fresh.status, 200);
        finish(&fresh);
}

/* The client goes away at each stage; the guest's side is let go of. */
static void test_client_gone(void **state) {
        static const uint16_t ports[] = { PORT_SILENT, PORT_TRICKLE, PORT_CLOSED, AGENT_PORT };
        struct result r;

        (void) state;
        for (size_t i = 0; i < sizeof(ports) / sizeof(ports[0]); i++)
                for (int turns = 0; turns < 12; turns++) {
                        begin_on(&r, ID, ports[i], "POST", "/", NULL, 0, 100);
                        assert_int_equal(http_call_write(r.call, "part of it", 10), 0);
                        for (int k = 0; k < turns; k++)
                                uv_run(&t.loop, UV_RUN_NOWAIT);
                        finish(&r);
                }
        turn();
        for (struct guest_conn *c = t.conns; c; c = c->next)
                if (c->port == PORT_SILENT || c->port == PORT_TRICKLE)
                        assert_null(c->s);
}

/* A client that waits for a silent guest and goes away is noticed at once. */
static void test_client_gone_in_silence(void **state) {
        static const uint16_t ports[] = { PORT_SILENT, PORT_TRICKLE };
        struct result r;

        (void) state;
        for (size_t i = 0; i < sizeof(ports) / sizeof(ports[0]); i++) {
                begin_on(&r, ID, ports[i], "GET", "/", NULL, 0, 0);
                while (!t.conns || t.conns->port != ports[i])
                        uv_run(&t.loop, UV_RUN_ONCE);
                turn();
                assert_non_null(t.conns->s);
                finish(&r);
                while (t.conns->s)
                        uv_run(&t.loop, UV_RUN_ONCE);
        }
}

static void test_agent_paths(void **state) {
        (void) state;
        /* Through proxy_serve() the daemon itself reaches everything; the rule for clients is
         * tested with the router. Here: that an upgrade of the agent is never passed on. */
        struct http_header h[] = { { "Connection", "Upgrade" }, { "Upgrade", "cspace-attach" } };
        struct result r;

        begin_on(&r, ID, AGENT_PORT, "GET", "/x", h, 2, 0);
        run_until(&r.ended, &r.failed);
        assert_null(strstr(buf_str(&r.body), "cspace-attach"));
        finish(&r);
}

/* --- calls --------------------------------------------------------------------------------------- */

struct called {
        bool done;
        int err, status;
        char body[256];
};

static void on_called(void *arg, int err, const struct error *e, int status, const char *body, size_t n) {
        struct called *c = arg;

        assert_true((err < 0) == (e != NULL));
        c->done = true;
        c->err = err;
        c->status = status;
        snprintf(c->body, sizeof(c->body), "%.*s", err < 0 ? (int) sizeof(e->msg) : (int) n, err < 0 ? e->msg : body);
}

static void call(struct called *c, const struct proxy_request *rq) {
        struct error err = ERROR_INIT;

        memset(c, 0, sizeof(*c));
        assert_int_equal(proxy_call(t.proxy, rq, on_called, c, NULL, &err), 0);
        assert_false(c->done);
        run_until(&c->done, NULL);
}

static void test_call(void **state) {
        struct proxy_request rq = { .id = ID, .method = "POST", .target = "/m", .access_token = "tok", .body = "{}",
                                    .body_n = 2, .max_answer = 4096 };
        struct proxy_call *pending;
        struct called c;

        (void) state;
        call(&c, &rq);
        assert_int_equal(c.err, 0);
        assert_int_equal(c.status, 200);
        assert_ptr_equal(strstr(c.body, "POST /m 2 "), c.body);
        assert_non_null(strstr(c.body, "X-Access-Token: tok\n"));
        call(&c, &rq);
        assert_int_equal(t.n_conns, 1);

        rq.max_answer = 10;
        call(&c, &rq);
        assert_int_equal(c.err, -EMSGSIZE);
        rq.max_answer = 4096;
        rq.id = ID2;
        call(&c, &rq);
        assert_int_equal(c.err, -ENOENT);

        rq.id = ID;
        memset(&c, 0, sizeof(c));
        assert_int_equal(proxy_call(t.proxy, &rq, on_called, &c, &pending, NULL), 0);
        proxy_call_cancel(pending);
        turn();
        assert_false(c.done);
        assert_int_equal(proxy_call(t.proxy, &rq, on_called, &c, &pending, NULL), 0);
        proxy_drop(t.proxy, ID);
        assert_true(c.done);
        assert_int_equal(c.err, -ENOENT);
        assert_non_null(strstr(c.body, "POST /m in the sandbox: it was cut off"));
}

static void test_call_timeout(void **state) {
        struct proxy_request rq = { .id = ID, .method = "GET", .target = "/", .max_answer = 10, .timeout_ms = 50 };
        struct called c;

        (void) state;
        /* No connection is accepted any more, so the status line never comes. */
        listener_free(t.listener);
        t.listener = NULL;
        char path[128];
        int fd;
        snprintf(path, sizeof(path), "%s/sandboxes/" ID "/data.sock", t.dir);
        unlink(path);
        assert_int_equal(listen_unix(path, 0600, &fd, NULL), 0);
        call(&c, &rq);
        assert_int_equal(c.err, -ETIMEDOUT);
        close(fd);
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                T(test_forward),      T(test_own_target_and_token), T(test_body_waits_for_the_port),
                T(test_refused),      T(test_no_answer),            T(test_half_an_answer),
                T(test_garbage_is_named), T(test_stall),
                T(test_early),        T(test_upgrade),              T(test_kept_connections),
                T(test_stale_connection), T(test_drop),             T(test_client_gone),
                T(test_client_gone_in_silence),
                T(test_agent_paths),  T(test_until_close),          T(test_native_answers),
                T(test_call),                 T(test_call_timeout),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
