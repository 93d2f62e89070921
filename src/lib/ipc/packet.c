/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One packet on a SOCK_SEQPACKET socket, and the sockets themselves.
 *
 * The kernel keeps packet boundaries, so there is no reassembly: a packet is whole, or it was cut
 * by a buffer that is too small, which the flags of recvmsg() tell (MSG_TRUNC for bytes, MSG_CTRUNC
 * for descriptors). Descriptors that came with a refused packet are closed before the refusal is
 * reported, or a peer could fill our table by sending nonsense.
 */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fd.h"
#include "ipc/ipc.h"

#define HEADER_SIZE 8
#define LISTEN_BACKLOG 256

static void put16(uint8_t *p, uint16_t v) {
        p[0] = (uint8_t) v;
        p[1] = (uint8_t) (v >> 8);
}

static uint16_t get16(const uint8_t *p) {
        return (uint16_t) (p[0] | p[1] << 8);
}

void ipc_packet_close_fds(struct ipc_packet *p) {
        for (size_t i = 0; i < p->n_fds; i++)
                p->fds[i] = fd_close(p->fds[i]);
        p->n_fds = 0;
}

int ipc_send(int fd, uint16_t type, uint16_t flags, uint32_t seq, const void *body, size_t body_n,
             const int *fds, size_t n_fds, struct error *err) {
        if (body_n > IPC_PACKET_MAX - HEADER_SIZE || n_fds > IPC_FDS_MAX)
                return error_set(err, -EMSGSIZE, "message of %zu bytes and %zu descriptors is too large",
                                 body_n, n_fds);
        uint8_t head[HEADER_SIZE];
        put16(head, type);
        put16(head + 2, flags);
        put16(head + 4, (uint16_t) seq);
        put16(head + 6, (uint16_t) (seq >> 16));

        /* sendmsg() does not write through iov_base; the union says so without a cast. */
        union {
                const void *in;
                void *out;
        } data = { .in = body };
        struct iovec iov[] = { { head, sizeof head }, { data.out, body_n } };
        struct msghdr msg = { .msg_iov = iov, .msg_iovlen = body_n > 0 ? 2 : 1 };

        _Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int) * IPC_FDS_MAX)] = {};
        if (n_fds > 0) {
                msg.msg_control = control;
                msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
                struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
                memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
        }
        ssize_t n;
        do
                n = sendmsg(fd, &msg, MSG_NOSIGNAL);
        while (n < 0 && errno == EINTR);
        if (n < 0)
                return error_errno(err, errno, "could not send a message");
        return 0;
}

static void collect_fds(struct msghdr *msg, struct ipc_packet *p) {
        for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
                if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
                        continue;
                size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                for (size_t i = 0; i < n; i++) {
                        int fd;
                        memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
                        if (p->n_fds < IPC_FDS_MAX)
                                p->fds[p->n_fds++] = fd;
                        else
                                fd_close(fd);
                }
        }
}

int ipc_recv(int fd, uint8_t *buf, struct ipc_packet *ret, struct error *err) {
        _Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int) * IPC_FDS_MAX)];
        struct iovec iov = { buf, IPC_PACKET_MAX };
        struct msghdr msg = {
                .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control
        };
        ssize_t n;
        do
                n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
        while (n < 0 && errno == EINTR);
        if (n < 0)
                return error_errno(err, errno, "could not receive a message");

        struct ipc_packet p = {};
        for (size_t i = 0; i < IPC_FDS_MAX; i++)
                p.fds[i] = -EBADF;
        collect_fds(&msg, &p);
        const char *wrong = NULL;
        if (msg.msg_flags & MSG_TRUNC)
                wrong = "longer than the limit";
        else if (msg.msg_flags & MSG_CTRUNC)
                wrong = "with too many descriptors";
        else if (n > 0 && n < HEADER_SIZE)
                wrong = "shorter than its header";
        if (n == 0 && !wrong) { /* end of stream; nobody who speaks this protocol sends an empty packet */
                ipc_packet_close_fds(&p);
                return 0;
        }
        p.type = get16(buf);
        p.flags = get16(buf + 2);
        p.seq = (uint32_t) get16(buf + 4) | (uint32_t) get16(buf + 6) << 16;
        p.body = buf + HEADER_SIZE;
        p.body_n = wrong ? 0 : (size_t) n - HEADER_SIZE;
        if (!wrong && (p.flags & ~(IPC_FLAG_REPLY | IPC_FLAG_ERROR)) != 0)
                wrong = "with unknown flags";
        if (wrong) {
                ipc_packet_close_fds(&p);
                return error_set(err, -EPROTO, "message %s", wrong);
        }
        *ret = p;
        return 1;
}

/* ---- sockets ------------------------------------------------------------------------------- */

static int address(const char *path, struct sockaddr_un *ret, struct error *err) {
        *ret = (struct sockaddr_un){ .sun_family = AF_UNIX };
        size_t n = strlen(path);
        if (n == 0 || n >= sizeof ret->sun_path)
                return error_set(err, -ENAMETOOLONG, "socket path \"%s\" is empty or longer than %zu bytes",
                                 path, sizeof ret->sun_path - 1);
        memcpy(ret->sun_path, path, n);
        return 0;
}

static int connect_to(const struct sockaddr_un *sa, int type, int *ret_fd) {
        _cleanup_fd_ int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return -errno;
        if (connect(fd, (const struct sockaddr *) sa, sizeof *sa) < 0)
                return -errno;
        *ret_fd = fd_steal(&fd);
        return 0;
}

/* A socket file that nobody listens on is what a killed program left; any other file is not ours
 * to remove. */
static int clear_stale(const struct sockaddr_un *sa, int type, struct error *err) {
        struct stat st;
        if (lstat(sa->sun_path, &st) < 0)
                return errno == ENOENT ? 0
                                       : error_errno(err, errno, "could not look at \"%s\"", sa->sun_path);
        if (!S_ISSOCK(st.st_mode))
                return error_set(err, -EEXIST, "\"%s\" is there and is not a socket", sa->sun_path);
        _cleanup_fd_ int fd = -EBADF;
        int r = connect_to(sa, type | SOCK_NONBLOCK, &fd);
        if (r != -ECONNREFUSED && r != -ENOENT)
                return error_set(err, -EADDRINUSE, "another program listens on \"%s\"", sa->sun_path);
        if (unlink(sa->sun_path) < 0 && errno != ENOENT)
                return error_errno(err, errno, "could not remove the old socket \"%s\"", sa->sun_path);
        return 0;
}

static int listen_at(const struct sockaddr_un *sa, int type, mode_t mode, const char *name, int *ret_fd,
                     struct error *err) {
        int r = clear_stale(sa, type, err);
        if (r < 0)
                return r;
        _cleanup_fd_ int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return error_errno(err, errno, "could not make a socket");
        /* The mode of the socket before bind() is that of the file: it is never there with a wider one. */
        if (fchmod(fd, mode) < 0 || bind(fd, (const struct sockaddr *) sa, sizeof *sa) < 0)
                return error_errno(err, errno, "could not bind \"%s\"", name);
        if (chmod(sa->sun_path, mode) < 0 || listen(fd, LISTEN_BACKLOG) < 0) {
                r = error_errno(err, errno, "could not listen on \"%s\"", name);
                (void) unlink(sa->sun_path);
                return r;
        }
        *ret_fd = fd_steal(&fd);
        return 0;
}

int ipc_listen(const char *path, mode_t mode, int *ret_fd, struct error *err) {
        struct sockaddr_un sa;
        int r = address(path, &sa, err);
        if (r < 0)
                return r;
        return listen_at(&sa, SOCK_SEQPACKET, mode, path, ret_fd, err);
}

int ipc_listen_at(int dirfd, const char *name, int type, mode_t mode, int *ret_fd, struct error *err) {
        struct sockaddr_un sa = { .sun_family = AF_UNIX };
        int n = snprintf(sa.sun_path, sizeof sa.sun_path, "/proc/self/fd/%d/%s", dirfd, name);
        if (n < 0 || (size_t) n >= sizeof sa.sun_path || strchr(name, '/'))
                return error_set(err, -EINVAL, "socket name \"%s\" is not a file name", name);
        return listen_at(&sa, type, mode, name, ret_fd, err);
}

static int connect_path(const char *path, int type, int *ret_fd, struct error *err) {
        struct sockaddr_un sa;
        int r = address(path, &sa, err);
        if (r < 0)
                return r;
        r = connect_to(&sa, type, ret_fd);
        if (r < 0)
                return error_errno(err, r, "could not connect to \"%s\"", path);
        return 0;
}

int ipc_connect(const char *path, int *ret_fd, struct error *err) {
        return connect_path(path, SOCK_SEQPACKET, ret_fd, err);
}

int ipc_connect_now(const char *path, int *ret_fd, struct error *err) {
        return connect_path(path, SOCK_SEQPACKET | SOCK_NONBLOCK, ret_fd, err);
}

int ipc_peer(int fd, uid_t *ret_uid, pid_t *ret_pid) {
        struct ucred cred;
        socklen_t n = sizeof cred;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) < 0)
                return -errno;
        *ret_uid = cred.uid;
        *ret_pid = cred.pid;
        return 0;
}
