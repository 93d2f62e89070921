/* SPDX-License-Identifier: Apache-2.0 */
#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"

static _Noreturn void become(const char *path, int out) {
        char *const argv[] = { (char *) (uintptr_t) path, NULL };
        (void) setsid();
        if (dup2(out, STDOUT_FILENO) < 0)
                _exit(127);
        (void) execve(path, argv, environ);
        _exit(127);
}

/* 1: more may come, 0: the end. */
static int read_some(int fd, struct buf *out, struct error *err) {
        uint8_t *room;
        int r = buf_reserve(out, 4096, &room);
        if (r < 0)
                return error_set(err, -EPROTO, "the command wrote more than %d bytes", REPLY_MAX);
        ssize_t n = read(fd, room, 4096);
        if (n < 0)
                return errno == EAGAIN || errno == EINTR ? 1 : error_errno(err, errno, "the command's output cannot be read");
        buf_commit(out, (size_t) n);
        if (out->len > REPLY_MAX)
                return error_set(err, -EPROTO, "the command wrote more than %d bytes", REPLY_MAX);
        return n > 0;
}

/* Until the command has ended; what it wrote before is in the pipe then. */
static int collect(int fd, int pidfd, uint64_t until_ms, struct buf *out, struct error *err) {
        bool open = true;
        for (;;) {
                uint64_t now = clock_mono_ms();
                struct pollfd p[] = { { .fd = open ? fd : -1, .events = POLLIN }, { .fd = pidfd, .events = POLLIN } };
                int n = now >= until_ms ? 0 : poll(p, 2, (int) (until_ms - now));
                if (n == 0)
                        return error_set(err, -ETIMEDOUT, "the command did not end in time");
                if (n < 0 && errno != EINTR)
                        return error_errno(err, errno, "cannot wait for the command");
                if (n < 0)
                        continue;
                int r = p[0].revents ? read_some(fd, out, err) : 1;
                if (r < 0)
                        return r;
                open = open && r > 0;
                if (p[1].revents && !(p[0].revents & POLLIN))
                        return 0;
        }
}

int command_run(const struct options *o, struct token *ret, struct error *err) {
        uint64_t until_ms = clock_mono_ms() + o->timeout_s * 1000;
        _cleanup_buf_ struct buf out = BUF_INIT(REPLY_MAX + 4096);
        int pipes[2], status = 0;
        if (pipe2(pipes, O_CLOEXEC) < 0)
                return error_errno(err, errno, "cannot make a pipe");
        _cleanup_fd_ int in = pipes[0], writer = pipes[1];
        if (fd_nonblock(in, err) < 0)
                return err->code;
        pid_t pid = fork();
        if (pid < 0)
                return error_errno(err, errno, "cannot start a process");
        if (pid == 0)
                become(o->command, writer);
        writer = fd_close(writer);
        _cleanup_fd_ int pidfd = (int) syscall(SYS_pidfd_open, pid, 0);
        int r = pidfd < 0 ? error_errno(err, errno, "cannot watch the command") : collect(in, pidfd, until_ms, &out, err);
        if (r < 0)
                (void) kill(pid, SIGKILL);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
                ;
        if (r < 0)
                return r;
        if (WIFSIGNALED(status))
                return error_set(err, -EIO, "the command was ended by signal %d", WTERMSIG(status));
        if (WEXITSTATUS(status) == 127)
                return error_set(err, -EIO, "the command could not be executed (status 127)");
        if (WEXITSTATUS(status) != 0)
                return error_set(err, -EIO, "the command failed with status %d", WEXITSTATUS(status));
        r = reply_read_command(buf_data(&out), out.len, ret, err);
        return r < 0 ? error_wrap(err, "what the command wrote cannot be used") : 0;
}
