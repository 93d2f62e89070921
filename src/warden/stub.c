/* SPDX-License-Identifier: Apache-2.0 */
#include "stub.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "confine.h"

#define STUB_MAGIC 0x62757473u
#define STUB_PARK 64 /* received descriptors are moved up here, out of the way of the numbers asked for */

struct header {
        uint32_t magic, n_argv, n_env, n_fds;
        uint32_t to[STUB_FDS_MAX];
};

union fd_control {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int) * STUB_FDS_MAX)];
};

int stub_send(int sock, const void *strings, size_t len, size_t n_argv, size_t n_env, const struct stub_fd *fds,
              size_t n_fds, struct error *err) {
        if (n_fds == 0 || n_fds > STUB_FDS_MAX || n_argv + n_env > STUB_STRINGS_MAX ||
            len + sizeof(struct header) > STUB_MESSAGE_MAX)
                return error_set(err, -E2BIG, "the VM's command line is too long");
        struct header h = { STUB_MAGIC, (uint32_t) n_argv, (uint32_t) n_env, (uint32_t) n_fds, { 0 } };
        int from[STUB_FDS_MAX];
        for (size_t i = 0; i < n_fds; i++) {
                h.to[i] = (uint32_t) fds[i].to;
                from[i] = fds[i].from;
        }
        struct iovec v[2] = { { &h, sizeof(h) }, { (void *) (uintptr_t) strings, len } };
        union fd_control c = { .space = { 0 } };
        struct msghdr m = { .msg_iov = v, .msg_iovlen = 2, .msg_control = &c,
                            .msg_controllen = CMSG_SPACE(sizeof(int) * n_fds) };
        struct cmsghdr *cm = CMSG_FIRSTHDR(&m);
        cm->cmsg_level = SOL_SOCKET;
        cm->cmsg_type = SCM_RIGHTS;
        cm->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(cm), from, sizeof(int) * n_fds);
        ssize_t r;
        do
                r = sendmsg(sock, &m, MSG_NOSIGNAL);
        while (r < 0 && errno == EINTR);
        return r < 0 ? error_errno(err, errno, "cannot reach the VM stub") : 0;
}

/* ---- the stub's side ----------------------------------------------------------------------- */

static int give_up(int sock, const char *what) {
        char text[256];
        int n = snprintf(text, sizeof(text), "%s: %s", what, strerror(errno));
        if (n > 0)
                (void) !send(sock, text, (size_t) n, MSG_NOSIGNAL);
        return 127;
}

static ssize_t receive(int sock, char *buf, size_t cap, int fds[STUB_FDS_MAX], size_t *ret_n) {
        struct iovec v = { buf, cap };
        union fd_control c = { .space = { 0 } };
        struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof(c) };
        ssize_t n;
        do
                n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
        while (n < 0 && errno == EINTR);
        if (n <= 0)
                return n;
        *ret_n = 0;
        for (struct cmsghdr *cm = CMSG_FIRSTHDR(&m); cm; cm = CMSG_NXTHDR(&m, cm)) {
                if (cm->cmsg_level != SOL_SOCKET || cm->cmsg_type != SCM_RIGHTS)
                        continue;
                *ret_n = (cm->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                memcpy(fds, CMSG_DATA(cm), *ret_n * sizeof(int));
        }
        if (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
                errno = EMSGSIZE;
                return -1;
        }
        return n;
}

/* Splits the strings into argv and env; -1 when they are not as many as said. */
static int split(char *p, size_t n, char **argv, size_t n_argv, char **env, size_t n_env) {
        for (size_t i = 0; i < n_argv + n_env; i++) {
                char *end = n > 0 ? memchr(p, '\0', n) : NULL;
                if (!end)
                        return -1;
                *(i < n_argv ? &argv[i] : &env[i - n_argv]) = p;
                n -= (size_t) (end + 1 - p);
                p = end + 1;
        }
        argv[n_argv] = env[n_env] = NULL;
        return n == 0 ? 0 : -1;
}

static int place(const struct header *h, const int *fds) {
        int parked[STUB_FDS_MAX];
        for (size_t i = 0; i < h->n_fds; i++) {
                parked[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, STUB_PARK);
                if (parked[i] < 0 || h->to[i] >= STUB_PARK || h->to[i] == STUB_FD)
                        return -1;
        }
        for (size_t i = 0; i < h->n_fds; i++)
                if (dup2(parked[i], (int) h->to[i]) < 0)
                        return -1;
        return 0;
}

int stub_main(int sock) {
        static char buf[STUB_MESSAGE_MAX];
        static char *argv[STUB_STRINGS_MAX + 1], *env[STUB_STRINGS_MAX + 1];
        struct header h;
        int fds[STUB_FDS_MAX];
        size_t n_fds = 0;
        (void) fcntl(sock, F_SETFD, FD_CLOEXEC);
        ssize_t n = receive(sock, buf, sizeof(buf), fds, &n_fds);
        if (n == 0)
                return 0; /* the warden went away: nothing to become */
        if (n < 0)
                return give_up(sock, "VM stub: no message");
        errno = EPROTO;
        if ((size_t) n < sizeof(h))
                return give_up(sock, "VM stub: short message");
        memcpy(&h, buf, sizeof(h));
        if (h.magic != STUB_MAGIC || h.n_fds != n_fds || h.n_argv == 0 || h.n_argv > STUB_STRINGS_MAX ||
            h.n_env > STUB_STRINGS_MAX - h.n_argv ||
            split(buf + sizeof(h), (size_t) n - sizeof(h), argv, h.n_argv, env, h.n_env) < 0)
                return give_up(sock, "VM stub: bad message");
        if (place(&h, fds) < 0)
                return give_up(sock, "VM stub: descriptors");
        if (confine_vm(NULL) < 0)
                return give_up(sock, "VM stub: confinement");
        execve(argv[0], argv, env);
        return give_up(sock, argv[0]);
}
