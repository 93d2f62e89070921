/* SPDX-License-Identifier: Apache-2.0 */
#include "setup.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli.h"
#include "mem.h"
#include "setup_internal.h"
#include "text.h"

#define SERVICES_DIR "services"
#define EXEC_OUTPUT_MAX 4096

bool setup_quiet;
static int held_lock = -EBADF; /* of setup_lock() */

void setup_say(const char *fmt, ...) {
        va_list ap;

        if (setup_quiet || cli()->json)
                return;
        va_start(ap, fmt);
        _cleanup_free_ char *text = mem_vprintf(fmt, ap);
        va_end(ap);
        text_put(stdout, text);
        putchar('\n');
        fflush(stdout);
}

int setup_options(struct setup *s, struct error *err) {
        int r = 0;

        if (s->data)
                r = conf_set(&s->conf, "paths", "data", s->data, err);
        if (r == 0 && s->run)
                r = conf_set(&s->conf, "paths", "run", s->run, err);
        if (s->config || s->data || s->run)
                s->plain = true;
        return r;
}

int setup_load(struct setup *s, struct error *err) {
        s->config = cli()->config;
        int r = conf_load(&s->conf, s->config, err);
        return r < 0 ? r : setup_options(s, err);
}

int setup_lock(struct setup *s, struct error *err) {
        struct stat st;

        int r = fd_mkdir_p_at(AT_FDCWD, s->conf.run, 0755, err);
        if (r < 0)
                return r;
        _cleanup_fd_ int run = open(s->conf.run, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (run < 0)
                return error_errno(err, errno, "cannot open %s", s->conf.run);
        /* cspaced's group may write in the run folder: what lies there is root's only if it says so. */
        if (mkdirat(run, SERVICES_DIR, 0700) < 0 && errno != EEXIST)
                return error_errno(err, errno, "cannot make %s/" SERVICES_DIR, s->conf.run);
        _cleanup_fd_ int dir = openat(run, SERVICES_DIR, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (dir < 0 || fstat(dir, &st) < 0)
                return error_errno(err, errno, "cannot open %s/" SERVICES_DIR, s->conf.run);
        if (st.st_uid != 0 || (st.st_mode & 077) != 0)
                return error_set(err, -EPERM, "%s/" SERVICES_DIR " is not root's alone: remove it", s->conf.run);
        if (flock(dir, LOCK_EX | LOCK_NB) < 0) {
                if (errno != EWOULDBLOCK)
                        return error_errno(err, errno, "cannot lock %s/" SERVICES_DIR, s->conf.run);
                setup_say("waiting for another cspace up or down");
                while (flock(dir, LOCK_EX) < 0)
                        if (errno != EINTR)
                                return error_errno(err, errno, "cannot lock %s/" SERVICES_DIR, s->conf.run);
        }
        s->lock = held_lock = fd_steal(&dir);
        return 0;
}

void setup_done(struct setup *s) {
        held_lock = -EBADF;
        s->lock = fd_close(s->lock);
}

/* ---- tools ----------------------------------------------------------------------------------- */

static const char *const tool_env[] = { "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8",
                                        NULL };

/*
 * A tool must not outlive us: a mkfs that went on after `up` was killed would write into the image that the next
 * `up` makes. It ends with us, and holds our lock until it has ended.
 */
static pid_t tool_start(const char *const *argv, int out) {
        pid_t us = getpid(), pid = fork();

        if (pid != 0)
                return pid;
        (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != us)
                _exit(126);
        if (held_lock >= 0)
                (void) fd_cloexec(held_lock, 0, NULL);
        int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (null < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
                _exit(126);
        char **args = NULL, **env = NULL;
        const char *const *env_p = tool_env;
        memcpy(&args, &argv, sizeof args); /* execvpe() honours the const that its type lacks */
        memcpy(&env, &env_p, sizeof env);
        execvpe(argv[0], args, env);
        dprintf(2, "%s: %s\n", argv[0], strerror(errno));
        _exit(127);
}

/* Reads the start of what it printed. */
static void read_output(int fd, char *out, size_t cap) {
        ssize_t n = pread(fd, out, cap - 1, 0);

        out[n > 0 ? n : 0] = '\0';
}

static int tool_run(const char *const *argv, char *output, size_t cap, struct error *err) {
        _cleanup_fd_ int fd = memfd_create("output", MFD_CLOEXEC);
        int status = 0;

        if (fd < 0)
                return error_errno(err, errno, "cannot make a memory file");
        pid_t pid = tool_start(argv, fd);
        if (pid < 0)
                return error_errno(err, errno, "cannot start %s", argv[0]);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
                ;
        read_output(fd, output, cap);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
                return 0;
        size_t n = strlen(output);
        while (n > 0 && output[n - 1] == '\n')
                output[--n] = '\0';
        return error_set(err, -EIO, "%s failed%s%s", argv[0], n > 0 ? ": " : "", output);
}

int setup_exec(const char *const *argv, struct error *err) {
        char output[EXEC_OUTPUT_MAX];

        return tool_run(argv, output, sizeof output, err);
}

int setup_exec_text(const char *const *argv, char *out, size_t cap, struct error *err) {
        return tool_run(argv, out, cap, err);
}

int setup_exec_line(const char *const *argv, char *out, size_t cap, struct error *err) {
        char output[EXEC_OUTPUT_MAX];

        int r = tool_run(argv, output, sizeof output, err);
        if (r < 0)
                return r;
        output[strcspn(output, "\n")] = '\0';
        (void) snprintf(out, cap, "%.*s", (int) cap - 1, output);
        return 0;
}
