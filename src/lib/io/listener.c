/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Listening sockets. Nothing that accept() reports ends a listener: out of descriptors, an aborted
 * connection or a network error pause it for PAUSE_MS and it goes on.
 */

#include "io/stream.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "io/unix_addr.h"

#define PAUSE_MS 100
#define ACCEPT_BURST 32
#define BACKLOG 511

struct listener {
        uv_poll_t poll;
        uv_timer_t timer;
        unsigned n_open;
        int fd;
        uv_loop_t *loop;
        listener_cb cb;
        void *arg;
};

static void on_readable(uv_poll_t *h, int status, int events);

static void on_resume(uv_timer_t *t) {
        struct listener *l = t->data;
        if (uv_poll_start(&l->poll, UV_READABLE, on_readable) < 0)
                (void) uv_timer_start(&l->timer, on_resume, PAUSE_MS, 0);
}

static void pause_accepting(struct listener *l) {
        (void) uv_poll_stop(&l->poll);
        (void) uv_timer_start(&l->timer, on_resume, PAUSE_MS, 0);
}

static void on_readable(uv_poll_t *h, int status, int events) {
        (void) events;
        struct listener *l = h->data;
        if (status < 0) {
                pause_accepting(l);
                return;
        }
        for (int i = 0; i < ACCEPT_BURST && l->fd >= 0; i++) {
                int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
                if (fd < 0) {
                        if (errno == EINTR || errno == ECONNABORTED)
                                continue;
                        if (errno != EAGAIN)
                                pause_accepting(l);
                        return;
                }
                struct stream *s;
                if (stream_from_fd(l->loop, fd, &s, NULL) < 0) {
                        pause_accepting(l);
                        return;
                }
                l->cb(l->arg, s, fd);
        }
}

int listener_new(uv_loop_t *loop, int fd, listener_cb cb, void *arg, struct listener **ret,
                 struct error *err) {
        _cleanup_fd_ int own = fd;
        struct listener *l = calloc(1, sizeof *l);
        if (!l)
                return error_set(err, -ENOMEM, "out of memory");
        int r = uv_poll_init(loop, &l->poll, fd); /* sets O_NONBLOCK */
        if (r < 0) {
                free(l);
                return error_errno(err, r, "cannot poll listening descriptor %d", fd);
        }
        (void) uv_timer_init(loop, &l->timer);
        l->n_open = 2;
        l->poll.data = l;
        l->timer.data = l;
        l->fd = fd_steal(&own);
        l->loop = loop;
        l->cb = cb;
        l->arg = arg;
        on_resume(&l->timer);
        *ret = l;
        return 0;
}

static void on_handle_closed(uv_handle_t *h) {
        struct listener *l = h->data;
        if (--l->n_open == 0)
                free(l);
}

void listener_free(struct listener *l) {
        if (!l)
                return;
        uv_close((uv_handle_t *) &l->poll, on_handle_closed);
        uv_close((uv_handle_t *) &l->timer, on_handle_closed);
        l->fd = fd_close(l->fd);
}

int listen_tcp(const char *ip, uint16_t port, int *ret_fd, struct error *err) {
        struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(port) };
        struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
        const struct sockaddr *sa = (const struct sockaddr *) &v4;
        socklen_t len = sizeof v4;
        if (inet_pton(AF_INET6, ip, &v6.sin6_addr) == 1) {
                sa = (const struct sockaddr *) &v6;
                len = sizeof v6;
        } else if (inet_pton(AF_INET, ip, &v4.sin_addr) != 1)
                return error_set(err, -EINVAL, "\"%s\" is no IP address", ip);

        _cleanup_fd_ int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return error_errno(err, errno, "cannot make a socket");
        int on = 1;
        (void) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, sa, len) < 0 || listen(fd, BACKLOG) < 0)
                return error_errno(err, errno, "cannot listen on %s port %u", ip, port);
        *ret_fd = fd_steal(&fd);
        return 0;
}

/* Removes a socket file that no process listens on. */
static int remove_stale(const char *path, const struct unix_addr *a, struct error *err) {
        struct stat st;
        if (lstat(path, &st) < 0)
                return errno == ENOENT ? 0 : error_errno(err, errno, "\"%s\"", path);
        if (!S_ISSOCK(st.st_mode))
                return error_set(err, -EEXIST, "\"%s\" exists and is no socket", path);
        _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return error_errno(err, errno, "cannot make a socket");
        if (connect(fd, (const struct sockaddr *) &a->sa, a->len) == 0 || errno != ECONNREFUSED)
                return error_set(err, -EADDRINUSE, "another process listens on \"%s\"", path);
        if (unlink(path) < 0 && errno != ENOENT)
                return error_errno(err, errno, "cannot remove \"%s\"", path);
        return 0;
}

int listen_unix(const char *path, mode_t mode, int *ret_fd, struct error *err) {
        _cleanup_(unix_addr_done) struct unix_addr a = { .dirfd = -EBADF };
        int r = unix_addr_init(path, &a, err);
        if (r < 0)
                return r;
        r = remove_stale(path, &a, err);
        if (r < 0)
                return r;
        _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return error_errno(err, errno, "cannot make a socket");
        /* The mode of the descriptor is the upper bound of the file's mode, so that there is no
         * moment in which the file is wider open than asked. */
        if (fchmod(fd, mode) < 0 || bind(fd, (const struct sockaddr *) &a.sa, a.len) < 0)
                return error_errno(err, errno, "cannot bind \"%s\"", path);
        if (chmod(path, mode) < 0 || listen(fd, BACKLOG) < 0) {
                r = error_errno(err, errno, "cannot listen on \"%s\"", path);
                (void) unlink(path);
                return r;
        }
        *ret_fd = fd_steal(&fd);
        return 0;
}
