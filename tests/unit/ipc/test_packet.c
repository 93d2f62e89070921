/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "ipc/ipc.h"
#include "ipc/messages.h"

static uint8_t buf[IPC_PACKET_MAX];

static unsigned open_fds(void) {
        DIR *d = opendir("/proc/self/fd");
        assert_non_null(d);
        unsigned n = 0;
        while (readdir(d))
                n++;
        closedir(d);
        return n;
}

static void pair(int sv[2]) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv), 0);
}

static void send_raw(int fd, const void *data, size_t n, const int *fds, size_t n_fds) {
        union {
                const void *in;
                void *out;
        } u = { .in = data };
        struct iovec iov = { u.out, n };
        uint8_t control[CMSG_SPACE(sizeof(int) * 64)] __attribute__((aligned(8))) = { 0 };
        struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
        if (n_fds > 0) {
                msg.msg_control = control;
                msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
                struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
                memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
        }
        assert_int_equal(sendmsg(fd, &msg, 0), n);
}

static void one_packet(void **state) {
        (void) state;
        int sv[2];
        pair(sv);
        struct ipc_packet p;
        struct error e = ERROR_INIT;
        assert_int_equal(ipc_recv(sv[1], buf, &p, &e), -EAGAIN);
        assert_int_equal(ipc_send(sv[0], IPC_PLACE, IPC_FLAG_REPLY, 0x01020304, "body", 4, NULL, 0, &e), 0);
        assert_int_equal(ipc_recv(sv[1], buf, &p, &e), 1);
        assert_int_equal(p.type, IPC_PLACE);
        assert_int_equal(p.flags, IPC_FLAG_REPLY);
        assert_int_equal(p.seq, 0x01020304);
        assert_int_equal(p.body_n, 4);
        assert_memory_equal(p.body, "body", 4);
        assert_int_equal(p.n_fds, 0);
        fd_close(sv[0]);
        assert_int_equal(ipc_recv(sv[1], buf, &p, &e), 0);
        fd_close(sv[1]);
}

static void descriptors_travel_and_close(void **state) {
        (void) state;
        int sv[2], pipe_fd[2];
        pair(sv);
        assert_int_equal(pipe2(pipe_fd, O_CLOEXEC), 0);
        unsigned before = open_fds();
        struct ipc_packet p;
        assert_int_equal(ipc_send(sv[0], 1, 0, 1, NULL, 0, pipe_fd, 2, NULL), 0);
        assert_int_equal(ipc_recv(sv[1], buf, &p, NULL), 1);
        assert_int_equal(p.n_fds, 2);
        assert_int_equal(p.body_n, 0);
        assert_int_equal(fcntl(p.fds[0], F_GETFD), FD_CLOEXEC);
        assert_int_equal(write(p.fds[1], "x", 1), 1);
        char c;
        assert_int_equal(read(pipe_fd[0], &c, 1), 1);
        assert_int_equal(open_fds(), before + 2);
        ipc_packet_close_fds(&p);
        assert_int_equal(open_fds(), before);
        assert_int_equal(p.fds[0], -EBADF);
        fd_close(pipe_fd[0]);
        fd_close(pipe_fd[1]);
        fd_close(sv[0]);
        fd_close(sv[1]);
}

static void the_most_descriptors(void **state) {
        (void) state;
        int sv[2], many[IPC_FDS_MAX + 1];
        pair(sv);
        for (size_t i = 0; i < ARRAY_SIZE(many); i++)
                many[i] = sv[0];
        unsigned before = open_fds();
        struct ipc_packet p;
        struct error e = ERROR_INIT;
        assert_int_equal(ipc_send(sv[0], 1, 0, 1, NULL, 0, many, IPC_FDS_MAX, NULL), 0);
        assert_int_equal(ipc_recv(sv[1], buf, &p, NULL), 1);
        assert_int_equal(p.n_fds, IPC_FDS_MAX);
        ipc_packet_close_fds(&p);
        assert_int_equal(ipc_send(sv[0], 1, 0, 1, NULL, 0, many, IPC_FDS_MAX + 1, &e), -EMSGSIZE);
        /* A peer that does not ask our library first. */
        send_raw(sv[0], "12345678", 8, many, IPC_FDS_MAX + 1);
        assert_int_equal(ipc_recv(sv[1], buf, &p, &e), -EPROTO);
        assert_non_null(strstr(e.msg, "descriptors"));
        assert_int_equal(open_fds(), before);
        fd_close(sv[0]);
        fd_close(sv[1]);
}

static void wrong_packets(void **state) {
        (void) state;
        int sv[2];
        pair(sv);
        unsigned before = open_fds();
        struct ipc_packet p;
        struct error e = ERROR_INIT;
        send_raw(sv[0], "1234567", 7, sv, 2);
        assert_int_equal(ipc_recv(sv[1], buf, &p, &e), -EPROTO);
        assert_non_null(strstr(e.msg, "header"));
        static const uint8_t flags[8] = { 1, 0, 4, 0, 1, 0, 0, 0 };
        send_raw(sv[0], flags, 8, sv, 2);
        assert_int_equal(ipc_recv(sv[1], buf, &p, &e), -EPROTO);
        assert_non_null(strstr(e.msg, "flags"));
        uint8_t *big = calloc(1, IPC_PACKET_MAX + 1);
        assert_non_null(big);
        int size = 2 * (int) IPC_PACKET_MAX;
        assert_int_equal(setsockopt(sv[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size), 0);
        send_raw(sv[0], big, IPC_PACKET_MAX + 1, sv, 2);
        assert_int_equal(ipc_recv(sv[1], buf, &p, &e), -EPROTO);
        assert_non_null(strstr(e.msg, "longer"));
        free(big);
        assert_int_equal(open_fds(), before);
        assert_int_equal(ipc_send(sv[0], 1, 0, 1, buf, IPC_PACKET_MAX - 7, NULL, 0, &e), -EMSGSIZE);
        fd_close(sv[0]);
        fd_close(sv[1]);
}

static void the_largest_packet(void **state) {
        (void) state;
        int sv[2];
        pair(sv);
        uint8_t *body = malloc(IPC_PACKET_MAX);
        assert_non_null(body);
        memset(body, 0xa5, IPC_PACKET_MAX);
        struct ipc_packet p;
        assert_int_equal(ipc_send(sv[0], 1, 0, 1, body, IPC_PACKET_MAX - 8, NULL, 0, NULL), 0);
        assert_int_equal(ipc_recv(sv[1], buf, &p, NULL), 1);
        assert_int_equal(p.body_n, IPC_PACKET_MAX - 8);
        assert_memory_equal(p.body, body, p.body_n);
        free(body);
        fd_close(sv[0]);
        fd_close(sv[1]);
}

static void sockets(void **state) {
        (void) state;
        char dir[] = "/tmp/cspace-ipc-XXXXXX", path[64];
        assert_non_null(mkdtemp(dir));
        snprintf(path, sizeof path, "%s/s.sock", dir);
        struct error e = ERROR_INIT;
        int fd = -EBADF, c = -EBADF, again = -EBADF;
        assert_int_equal(ipc_connect(path, &c, &e), -ENOENT);
        assert_non_null(strstr(e.msg, path));
        assert_int_equal(ipc_listen(path, 0660, &fd, &e), 0);
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0660);
        assert_int_equal(ipc_connect(path, &c, &e), 0);
        int peer = accept(fd, NULL, NULL);
        uid_t uid;
        pid_t pid;
        assert_int_equal(ipc_peer(peer, &uid, &pid), 0);
        assert_int_equal(uid, getuid());
        assert_int_equal(pid, getpid());
        assert_int_equal(ipc_listen(path, 0660, &again, &e), -EADDRINUSE);
        fd_close(peer);
        fd_close(c);
        fd_close(fd);
        assert_int_equal(ipc_connect(path, &c, &e), -ECONNREFUSED);
        /* What a killed program left is replaced. */
        int d = open(dir, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
        assert_int_equal(ipc_listen_at(d, "s.sock", SOCK_SEQPACKET, 0600, &fd, &e), 0);
        assert_int_equal(ipc_connect(path, &c, &e), 0);
        assert_int_equal(ipc_listen_at(d, "../s.sock", SOCK_SEQPACKET, 0600, &again, &e), -EINVAL);
        fd_close(c);
        fd_close(fd);
        unlink(path);
        fd_close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
        assert_int_equal(ipc_listen(path, 0660, &fd, &e), -EEXIST);
        unlink(path);
        fd_close(d);
        rmdir(dir);
        char too_long[200];
        memset(too_long, 'x', sizeof too_long - 1);
        too_long[sizeof too_long - 1] = 0;
        assert_int_equal(ipc_listen(too_long, 0600, &fd, &e), -ENAMETOOLONG);
        assert_int_equal(ipc_connect(too_long, &c, &e), -ENAMETOOLONG);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(one_packet),           cmocka_unit_test(descriptors_travel_and_close),
                cmocka_unit_test(the_most_descriptors), cmocka_unit_test(wrong_packets),
                cmocka_unit_test(the_largest_packet),   cmocka_unit_test(sockets),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
