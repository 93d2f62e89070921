/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A virtio port whose host end is closed has EPOLLHUP set for as long as it is closed, and epoll
 * reports that whether asked or not: a loop that polls such a port spins. So while the agent waits
 * for the host, the port sits in an epoll set of its own, edge-triggered; that set is readable
 * only when something has changed, and it is what the loop polls.
 *
 * After a host that parted (link.h) the port stays open. Whether that host is still there, or the machine
 * was stopped, went on years later and has another one, cannot be told from the port's being open: a close in between may
 * have been missed. But the one that has parted sends nothing more; so whatever comes is from another.
 */
#include "guest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/str.h"
#include "link/link.h"
#include "net.h"
#include "splice.h"
#include "timer.h"

#define PORTS_DIR "/sys/class/virtio-ports"
#define PORT_NAME "cspace"
#define RETRY_MS 20       /* the port is still busy with its last closing */
#define DIALS_MAX 256     /* connects on the guest's loopback under way */

struct guest {
        struct agent *a;
        char path[512];
        bool is_socket;
        int port, epoll;       /* while waiting for the host; the link owns the port after that */
        bool parted;           /* the last host has parted, and has not been seen to close the port */
        uv_poll_t *poll;
        struct timer *retry;
        struct link *link;
        struct splices *splices;
        struct stream_connect *connecting;
        struct dial *dials;
        size_t n_dials;
};

/* A host's wish for a port, while the guest's loopback is being tried. */
struct dial {
        struct guest *g;
        struct dial *next;
        int32_t id;
        uint16_t port;
        unsigned try;
        struct stream_connect *c;
};

static void wait_for_host(struct guest *g);
static void dial_next(struct dial *d);

/* --- streams -------------------------------------------------------------------------------- */

/* Most servers listen on IPv4 loopback or all addresses, some on IPv6 or the card's address only. */
static const char *const dial_addresses[] = { "127.0.0.1", "::1", NET_ADDRESS };

static void dial_free(struct dial *d) {
        for (struct dial **p = &d->g->dials; *p; p = &(*p)->next)
                if (*p == d) {
                        *p = d->next;
                        break;
                }
        d->g->n_dials--;
        if (d->c)
                stream_connect_cancel(d->c);
        free(d);
}

static void dialled(void *arg, int err, struct stream *s) {
        struct dial *d = arg;
        struct stream *host = NULL;
        d->c = NULL;
        if (err < 0) {
                d->try++;
                dial_next(d);
                return;
        }
        if (link_accept(d->g->link, d->id, &host) < 0)
                stream_abort(s);
        else
                (void) splice_start(d->g->splices, host, s);
        dial_free(d);
}

static void dial_next(struct dial *d) {
        while (d->try < ARRAY_SIZE(dial_addresses)) {
                if (stream_connect_tcp(d->g->a->loop, dial_addresses[d->try], d->port, dialled, d, &d->c, NULL) == 0)
                        return;
                d->c = NULL;
                d->try++;
        }
        link_refuse(d->g->link, d->id, 502);
        dial_free(d);
}

static void dial(struct guest *g, int32_t id, uint16_t port) {
        struct dial *d = g->n_dials < DIALS_MAX ? calloc(1, sizeof *d) : NULL;
        if (!d) {
                link_refuse(g->link, id, 503);
                return;
        }
        *d = (struct dial){ .g = g, .next = g->dials, .id = id, .port = port };
        g->dials = d;
        g->n_dials++;
        dial_next(d);
}

static void serve(struct guest *g, int32_t id, struct http_server *server) {
        struct stream *s = NULL;
        if (link_accept(g->link, id, &s) == 0)
                (void) http_server_add(server, s, TAG_LINK);
}

static void on_open(void *arg, struct link *l, int32_t id, const char *authority) {
        static const char loopback[] = "127.0.0.1:";
        struct guest *g = arg;
        uint64_t port;
        if (str_eq(authority, "control"))
                serve(g, id, g->a->control);
        else if (!str_has_prefix(authority, loopback) ||
                 str_to_u64(authority + sizeof loopback - 1, UINT16_MAX, &port) < 0 || port == 0)
                link_refuse(l, id, 404);
        else if (port == AGENT_PORT)
                serve(g, id, g->a->api);
        else
                dial(g, id, (uint16_t) port);
}

/* --- sessions ------------------------------------------------------------------------------- */

static void end_session(struct guest *g) {
        while (g->dials)
                dial_free(g->dials);
        link_free(g->link);
        g->link = NULL;
}

static void on_close(void *arg, int err, const char *why) {
        struct guest *g = arg;
        log_debug("the host's session ended: %s (%d)", why ? why : "", err);
        end_session(g);
        wait_for_host(g);
}

static void on_parted(void *arg, struct stream *transport);

static void begin_session(struct guest *g, struct stream *transport) {
        static const struct link_handler handler = { .on_open = on_open, .on_close = on_close, .on_parted = on_parted };
        struct error e = ERROR_INIT;
        if (link_new(g->a->loop, LINK_GUEST, transport, &handler, g, &g->link, &e) < 0) {
                log_error("guest stream: %s", e.msg);
                g->link = NULL;
                timer_start(g->retry, 1000);
        }
}

/* --- the port ------------------------------------------------------------------------------- */

static void poll_closed(uv_handle_t *h) {
        free(h);
}

static void stop_waiting(struct guest *g) {
        if (g->poll) {
                (void) uv_poll_stop(g->poll);
                uv_close((uv_handle_t *) g->poll, poll_closed);
                g->poll = NULL;
        }
        g->epoll = fd_close(g->epoll);
}

static bool host_is_open(const struct guest *g, bool *ret_readable) {
        struct pollfd p = { .fd = g->port, .events = POLLIN | POLLOUT };
        bool open = poll(&p, 1, 0) >= 0 && !(p.revents & (POLLHUP | POLLERR | POLLNVAL));
        *ret_readable = open && (p.revents & POLLIN);
        return open;
}

static void host_opened(struct guest *g) {
        struct stream *s = NULL;
        struct error e = ERROR_INIT;
        stop_waiting(g);
        g->parted = false;
        if (stream_from_fd(g->a->loop, fd_steal(&g->port), &s, &e) < 0) {
                log_error("guest stream: %s", e.msg);
                timer_start(g->retry, 1000);
                return;
        }
        begin_session(g, s);
}

static void look(struct guest *g) {
        bool readable, open = host_is_open(g, &readable);
        if (!open)
                g->parted = false;
        else if (!g->parted || readable)
                host_opened(g);
}

static void on_change(uv_poll_t *h, int status, int events) {
        struct guest *g = h->data;
        struct epoll_event ev;
        (void) status;
        (void) events;
        while (epoll_wait(g->epoll, &ev, 1, 0) > 0)
                ;
        look(g);
}

static int watch_port(struct guest *g) {
        struct epoll_event ev = { .events = EPOLLIN | EPOLLOUT | EPOLLET };
        g->epoll = epoll_create1(EPOLL_CLOEXEC);
        if (g->epoll < 0 || epoll_ctl(g->epoll, EPOLL_CTL_ADD, g->port, &ev) < 0)
                return -errno;
        g->poll = calloc(1, sizeof *g->poll);
        if (!g->poll)
                return -ENOMEM;
        int r = uv_poll_init(g->a->loop, g->poll, g->epoll);
        if (r < 0) {
                free(g->poll);
                g->poll = NULL;
                return r;
        }
        g->poll->data = g;
        return uv_poll_start(g->poll, UV_READABLE, on_change);
}

static void wait_on_port(struct guest *g) {
        int r = watch_port(g);
        if (r == 0)
                return look(g);
        log_error("guest stream: cannot watch the port: %s", strerror(-r));
        stop_waiting(g);
        g->port = fd_close(g->port);
        timer_start(g->retry, 1000);
}

static void connected(void *arg, int err, struct stream *s) {
        struct guest *g = arg;
        g->connecting = NULL;
        if (err < 0)
                timer_start(g->retry, 200);
        else
                begin_session(g, s);
}

static void wait_for_host(struct guest *g) {
        if (g->is_socket) {
                if (stream_connect_unix(g->a->loop, g->path, connected, g, &g->connecting, NULL) < 0) {
                        g->connecting = NULL;
                        timer_start(g->retry, 200);
                }
                return;
        }
        /* A new opening also drops what an earlier session left in the port's buffers. */
        g->parted = false;
        g->port = open(g->path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
        if (g->port < 0) {
                g->port = -EBADF;
                timer_start(g->retry, errno == EBUSY ? RETRY_MS : 1000);
                return;
        }
        wait_on_port(g);
}

static void on_parted(void *arg, struct stream *transport) {
        struct guest *g = arg;
        end_session(g);
        if (g->is_socket) { /* this end is the machine's too, which closes */
                stream_close(transport);
                return wait_for_host(g);
        }
        g->port = stream_fd_release(transport);
        g->parted = true;
        wait_on_port(g);
}

static void retry(void *arg) {
        wait_for_host(arg);
}

/* --- life ----------------------------------------------------------------------------------- */

static int find_port(char out[512], struct error *err) {
        DIR *d = opendir(PORTS_DIR);
        for (struct dirent *de; d && (de = readdir(d));) {
                char path[512];
                _cleanup_free_ char *name = NULL;
                if (snprintf(path, sizeof path, PORTS_DIR "/%s/name", de->d_name) >= (int) sizeof path ||
                    fd_read_file_at(AT_FDCWD, path, 256, &name, NULL, NULL) < 0)
                        continue;
                name[strcspn(name, "\n")] = '\0';
                if (str_eq(name, PORT_NAME)) {
                        (void) snprintf(out, 512, "/dev/%.200s", de->d_name);
                        closedir(d);
                        return 0;
                }
        }
        if (d)
                closedir(d);
        return error_set(err, -ENOENT, "there is no virtio port named " PORT_NAME);
}

int guest_new(struct agent *a, const char *path, struct guest **ret, struct error *err) {
        struct guest *g = calloc(1, sizeof *g);
        if (!g)
                return error_set(err, -ENOMEM, "out of memory");
        g->a = a;
        g->port = g->epoll = -EBADF;
        int r = path ? str_copy(g->path, sizeof g->path, path) : find_port(g->path, err);
        if (r < 0) {
                free(g);
                return r;
        }
        struct stat st;
        g->is_socket = stat(g->path, &st) == 0 && S_ISSOCK(st.st_mode);
        g->retry = timer_new(a->loop, retry, g);
        g->splices = splices_new();
        if (!g->retry || !g->splices) {
                guest_free(g);
                return error_set(err, -ENOMEM, "out of memory");
        }
        wait_for_host(g);
        *ret = g;
        return 0;
}

void guest_free(struct guest *g) {
        if (!g)
                return;
        end_session(g);
        if (g->connecting)
                stream_connect_cancel(g->connecting);
        stop_waiting(g);
        fd_close(g->port);
        timer_free(g->retry);
        splices_free(g->splices);
        free(g);
}
