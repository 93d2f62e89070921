/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Each child is the leader of its own process group, so that running out of time ends it with all that it
 * started. What it writes is read through one pipe and cut into lines of at most LINE_MAX_ bytes.
 */
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "isolate.h"

#define LINE_MAX_ 2048
#define ENV_MAX 48

/* Fixed, so that nothing of the caller's environment gets into a template. apt takes its proxy from
 * these variables. */
static const char *const fixed_env[] = {
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME=/root",
        "LC_ALL=C.UTF-8",
        "TZ=UTC",
        "DEBIAN_FRONTEND=noninteractive",
        "DEBCONF_NONINTERACTIVE_SEEN=true",
        "PYTHONHASHSEED=0",
        "TMPDIR=/tmp",
};
static const char *const passed_env[] = { "http_proxy", "https_proxy", "no_proxy" };

static void child_env(const struct child *c, const char **env, char store[][512]) {
        size_t n = 0;

        for (size_t i = 0; i < ARRAY_SIZE(fixed_env); i++)
                env[n++] = fixed_env[i];
        for (size_t i = 0; i < ARRAY_SIZE(passed_env); i++) {
                const char *v = getenv(passed_env[i]);
                int len = v ? snprintf(store[i], sizeof store[i], "%s=%s", passed_env[i], v) : 0;
                if (len > 0 && (size_t) len < sizeof store[i])
                        env[n++] = store[i];
        }
        for (const char *const *p = c->env; p && *p && n < ENV_MAX; p++)
                env[n++] = *p;
        env[n] = NULL;
}

/* In the child. Only its pipe is left to complain on. */
static _Noreturn void child_exec(const struct child *c, int pipe_fd) {
        const char *env[ENV_MAX + 1];
        char store[ARRAY_SIZE(passed_env)][512];
        struct error e = ERROR_INIT;
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        int in = c->in_fd >= 0 ? c->in_fd : null, out = c->out_fd >= 0 ? c->out_fd : pipe_fd;

        if (setpgid(0, 0) < 0 || null < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(pipe_fd, 2) < 0)
                _exit(126);
        if (c->no_network && isolate_network(&e) < 0) {
                dprintf(2, "%s\n", e.msg);
                _exit(126);
        }
        if (c->root && (chroot(c->root) < 0 || chdir("/") < 0)) {
                dprintf(2, "cannot change the root to %s\n", c->root);
                _exit(126);
        }
        if (c->call)
                _exit(c->call(c->call_arg) & 0xff);
        child_env(c, env, store);
        char **argv = NULL, **envp = NULL;
        memcpy(&argv, &c->argv, sizeof argv); /* execvpe() takes away a const that it honours */
        const char **env_p = env;
        memcpy(&envp, &env_p, sizeof envp);
        execvpe(c->argv[0], argv, envp);
        dprintf(2, "cannot run %s: %s\n", c->argv[0], strerror(errno));
        _exit(127);
}

struct liner {
        struct build *b;
        const struct child *c;
        char line[LINE_MAX_];
        size_t n;
        char last[256]; /* last line that was not empty, for the error */
};

static void line_end(struct liner *l) {
        l->line[l->n] = '\0';
        if (l->c->unlogged && !str_has_prefix(l->line, l->c->unlogged)) {
                build_log(l->b, l->line, l->n);
                build_log(l->b, "\n", 1);
        }
        if (l->n > 0)
                (void) snprintf(l->last, sizeof l->last, "%.255s", l->line);
        if (l->c->on_line)
                l->c->on_line(l->c->line_arg, l->line);
        l->n = 0;
}

static void line_feed(struct liner *l, const char *data, size_t n) {
        if (!l->c->unlogged) /* else line by line */
                build_log(l->b, data, n);
        for (size_t i = 0; i < n; i++) {
                if (data[i] == '\n' || data[i] == '\r')
                        line_end(l);
                else if (l->n < sizeof l->line - 1)
                        l->line[l->n++] = data[i];
        }
}

/* Reads to the end of the pipe. */
static int child_drain(struct liner *l, int fd, struct error *err) {
        char chunk[16384];

        for (;;) {
                struct pollfd p = { .fd = fd, .events = POLLIN };
                int r = build_timed_out(l->b, err);
                if (r < 0)
                        return r;
                r = poll(&p, 1, 500);
                if (r == 0 || (r < 0 && errno == EINTR))
                        continue;
                if (r < 0)
                        return error_errno(err, errno, "cannot poll");
                ssize_t n = read(fd, chunk, sizeof chunk);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return error_errno(err, errno, "cannot read a tool's output");
                if (n == 0)
                        break;
                line_feed(l, chunk, (size_t) n);
        }
        if (l->n > 0)
                line_end(l);
        return 0;
}

static int child_wait(pid_t pid) {
        int st = 0;

        while (waitpid(pid, &st, 0) < 0 && errno == EINTR)
                ;
        return WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
}

static int child_start(struct liner *l, int *ret_status, struct error *err) {
        int p[2];

        if (pipe2(p, O_CLOEXEC) < 0)
                return error_errno(err, errno, "cannot make a pipe");
        _cleanup_fd_ int rd = p[0];
        _cleanup_fd_ int wr = p[1];
        pid_t pid = fork();
        if (pid < 0)
                return error_errno(err, errno, "cannot fork");
        if (pid == 0)
                child_exec(l->c, wr);
        wr = fd_close(wr);
        int r = child_drain(l, rd, err);
        if (r < 0) {
                (void) kill(-pid, SIGKILL);
                (void) kill(pid, SIGKILL);
        }
        *ret_status = child_wait(pid);
        return r;
}

static const char *child_name(const struct child *c) {
        return c->argv && c->argv[0] ? c->argv[0] : "a step";
}

static int status_error(struct build *b, const struct liner *l, int status, struct error *err) {
        if (strstr(l->last, "No space left on device"))
                return build_error(b, "no_space", err, -ENOSPC, "%s: no space left in the data folder", child_name(l->c));
        return error_set(err, -EIO, "%s failed with status %d%s%s", child_name(l->c), status, l->last[0] ? ": " : "",
                         l->last);
}

int child_run_status(struct build *b, const struct child *c, int *ret_status, struct error *err) {
        struct liner l = { .b = b, .c = c };

        return child_start(&l, ret_status, err);
}

int child_run(struct build *b, const struct child *c, struct error *err) {
        struct liner l = { .b = b, .c = c };
        int status = 0;

        int r = child_start(&l, &status, err);
        if (r < 0)
                return r;
        return status == 0 ? 0 : status_error(b, &l, status, err);
}

int child_output(struct build *b, const struct child *c, size_t max, char **ret, struct error *err) {
        _cleanup_fd_ int fd = memfd_create("output", MFD_CLOEXEC);
        struct child copy = *c;
        _cleanup_free_ char *text = NULL;

        if (fd < 0)
                return error_errno(err, errno, "cannot make a memory file");
        copy.out_fd = fd;
        int r = child_run(b, &copy, err);
        if (r < 0)
                return r;
        off_t size = lseek(fd, 0, SEEK_END);
        if (size < 0 || (size_t) size > max)
                return error_set(err, -EFBIG, "%s printed more than %zu bytes", child_name(c), max);
        text = malloc((size_t) size + 1);
        if (!text)
                return error_set(err, -ENOMEM, "out of memory");
        for (off_t got = 0; got < size;) {
                ssize_t n = pread(fd, text + got, (size_t) (size - got), got);
                if (n <= 0)
                        return error_set(err, -EIO, "cannot read what %s printed", child_name(c));
                got += n;
        }
        text[size] = '\0';
        *ret = STEAL(text);
        return 0;
}
