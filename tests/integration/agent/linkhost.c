/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The host end of the guest stream, for tests: joins a transport (a Unix socket that QEMU or the
 * agent is at the other end of) to a Unix socket on which each connection begins with a line
 * "CONNECT AUTHORITY\n", answered by "200\n" or "502\n". The authority "part" parts from the guest, as before a save.
 *
 *   linkhost connect|listen TRANSPORT.sock LOCAL.sock
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/splice.h"
#include "base/buf.h"
#include "io/stream.h"
#include "link/link.h"

static uv_loop_t loop;
static struct link *host;
static struct splices *splices;
static const char *transport_path;
static uv_timer_t again;

struct client {
        struct stream *s;
        struct buf line;
};

static void client_free(struct client *c) {
        stream_close(c->s);
        buf_done(&c->line);
        free(c);
}

static void opened(void *arg, int err, struct stream *s) {
        struct client *c = arg;
        if (err < 0) {
                (void) stream_write(c->s, "502\n", 4);
                client_free(c);
                return;
        }
        (void) stream_write(c->s, "200\n", 4);
        struct stream *mine = c->s;
        c->s = NULL;
        if (stream_prefix(mine, buf_data(&c->line), c->line.len, false, &mine) == 0)
                (void) splice_start(splices, mine, s);
        client_free(c);
}

static void client_data(void *arg, const uint8_t *data, size_t n) {
        struct client *c = arg;
        if (buf_append(&c->line, data, n) < 0) {
                client_free(c);
                return;
        }
        const uint8_t *end = memchr(buf_data(&c->line), '\n', c->line.len);
        if (!end)
                return;
        size_t len = (size_t) (end - buf_data(&c->line));
        char authority[64];
        int got = snprintf(authority, sizeof authority, "%.*s", (int) len, (const char *) buf_data(&c->line));
        buf_consume(&c->line, len + 1);
        stream_read_stop(c->s);
        if (host && strcmp(authority, "CONNECT part") == 0) {
                client_free(c);
                if (link_part(host) < 0)
                        (void) puts("no parting");
                (void) fflush(stdout);
                return;
        }
        if (!host || got <= 8 || link_open(host, authority + 8, opened, c) < 0) {
                (void) stream_write(c->s, "502\n", 4);
                client_free(c);
        }
}

static void client_eof(void *arg) {
        client_free(arg);
}

static void client_error(void *arg, int err) {
        (void) err;
        client_free(arg);
}

static void on_client(void *arg, struct stream *s, int fd) {
        static const struct stream_handler h = { .on_data = client_data, .on_eof = client_eof, .on_error = client_error };
        (void) arg;
        (void) fd;
        struct client *c = calloc(1, sizeof *c);
        if (!c) {
                stream_close(s);
                return;
        }
        c->s = s;
        c->line = BUF_INIT(1024 * 1024);
        stream_set_handler(s, &h, c);
        stream_read_start(s);
}

static void on_ready(void *arg) {
        (void) arg;
        (void) puts("ready");
        (void) fflush(stdout);
}

static void retry(uv_timer_t *t);

static void on_close(void *arg, int err, const char *why) {
        (void) arg;
        (void) printf("closed %d %s\n", err, why ? why : "");
        (void) fflush(stdout);
        link_free(host);
        host = NULL;
        if (transport_path)
                (void) uv_timer_start(&again, retry, 200, 0);
}

static void have_transport(struct stream *s) {
        static const struct link_handler h = { .on_ready = on_ready, .on_close = on_close };
        if (host || link_new(&loop, LINK_HOST, s, &h, NULL, &host, NULL) < 0) {
                if (host)
                        stream_close(s);
        }
}

static void on_connected(void *arg, int err, struct stream *s) {
        (void) arg;
        if (err < 0)
                (void) uv_timer_start(&again, retry, 50, 0);
        else
                have_transport(s);
}

static void retry(uv_timer_t *t) {
        struct stream_connect *c;
        (void) t;
        if (stream_connect_unix(&loop, transport_path, on_connected, NULL, &c, NULL) < 0)
                (void) uv_timer_start(&again, retry, 50, 0);
}

static void on_transport(void *arg, struct stream *s, int fd) {
        (void) arg;
        (void) fd;
        have_transport(s);
}

int main(int argc, char **argv) {
        struct error e = ERROR_INIT;
        struct listener *local, *transport;
        int fd;
        if (argc != 4)
                return 2;
        (void) signal(SIGPIPE, SIG_IGN);
        (void) uv_loop_init(&loop);
        (void) uv_timer_init(&loop, &again);
        splices = splices_new();
        if (listen_unix(argv[3], 0600, &fd, &e) < 0 || listener_new(&loop, fd, on_client, NULL, &local, &e) < 0) {
                (void) fprintf(stderr, "%s\n", e.msg);
                return 1;
        }
        if (strcmp(argv[1], "listen") == 0) {
                if (listen_unix(argv[2], 0600, &fd, &e) < 0 ||
                    listener_new(&loop, fd, on_transport, NULL, &transport, &e) < 0) {
                        (void) fprintf(stderr, "%s\n", e.msg);
                        return 1;
                }
        } else {
                transport_path = argv[2];
                retry(&again);
        }
        return uv_run(&loop, UV_RUN_DEFAULT);
}
