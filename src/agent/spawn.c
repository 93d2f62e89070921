/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The child runs on a stack of its own in the parent's memory, while the parent's thread is
 * suspended (CLONE_VFORK), and reports an error by writing it there. So all that may allocate is
 * done before: the list of paths to try and the argument vector for a script without "#!".
 *
 * clone3 is used where it can be (x86-64), because CLONE_INTO_CGROUP costs nothing, while moving
 * a process into a cgroup waits for an RCU grace period. Its raw call needs a line of assembler:
 * the child returns on another stack. Elsewhere clone() is used and the child moves itself.
 */
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_UNPOISON_MEMORY_REGION(addr, size) ((void) (addr), (void) (size))
#endif

#define STACK_SIZE (64 * 1024)
#define FALLBACK_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define CANDIDATES_MAX 64
#define CHILD_NOFILE 1024 /* soft limit of Debian's own services; programs use select() */

struct child {
        const struct spawn *s;
        char *paths[CANDIDATES_MAX + 1];
        char **script_argv; /* "/bin/sh", path, args...; path is filled in by the child */
        volatile int error;
        volatile enum spawn_stage stage;
};

/* --- in the child --------------------------------------------------------------------------- */

/* No handler of the agent may run in the child once signals are let in. clone3 has cleared them
 * (CLONE_CLEAR_SIGHAND); what is ignored stays so, and that is SIGPIPE alone (main.c). */
static void reset_signals(void) {
        struct sigaction dfl = { .sa_handler = SIG_DFL };
        (void) sigaction(SIGPIPE, &dfl, NULL);
#ifndef __x86_64__
        for (int sig = 1; sig < NSIG; sig++)
                if (sig != SIGKILL && sig != SIGSTOP)
                        (void) sigaction(sig, &dfl, NULL);
#endif
}

/* fds[i] may itself be 0..2, so all are moved out of the way first. */
static int place_fds(const int fds[3]) {
        int high[3];
        for (int i = 0; i < 3; i++) {
                high[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
                if (high[i] < 0)
                        return -errno;
        }
        for (int i = 0; i < 3; i++)
                if (dup2(high[i], i) < 0)
                        return -errno;
        (void) syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
        return 0;
}

/* The system calls themselves: glibc's wrappers would make every thread of the agent follow. */
static int become(const struct user *u) {
        if (syscall(SYS_setgroups, u->n_groups, u->groups) < 0 ||
            syscall(SYS_setresgid, u->gid, u->gid, u->gid) < 0 ||
            syscall(SYS_setresuid, u->uid, u->uid, u->uid) < 0)
                return -errno;
        return 0;
}

static void reset_oom(void) {
        int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
        if (fd >= 0) {
                (void) !write(fd, "0", 1);
                close(fd);
        }
}

static int setup(const struct spawn *s) {
        reset_signals();
        if (setsid() < 0)
                return -errno;
        if (s->tty && ioctl(s->fds[0], TIOCSCTTY, 0) < 0)
                return -errno;
        if (s->reset_oom)
                reset_oom();
        int r = place_fds(s->fds);
        if (r < 0)
                return r;
        struct rlimit nofile;
        if (getrlimit(RLIMIT_NOFILE, &nofile) == 0 && nofile.rlim_cur != CHILD_NOFILE) {
                nofile.rlim_cur = nofile.rlim_max < CHILD_NOFILE ? nofile.rlim_max : CHILD_NOFILE;
                (void) syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &nofile, NULL);
        }
        umask(022);
        return s->set_user ? become(s->user) : 0;
}

static int exec_first(struct child *c) {
        int worst = -ENOENT;
        for (char **p = c->paths; *p; p++) {
                (void) execve(*p, c->s->argv, c->s->envp);
                int e = errno;
                if (e == ENOEXEC && c->script_argv) {
                        c->script_argv[1] = *p;
                        (void) execve(c->script_argv[0], c->script_argv, c->s->envp);
                        return -errno;
                }
                if (e == EACCES)
                        worst = -EACCES;
                else if (e != ENOENT && e != ENOTDIR)
                        return -e;
        }
        return worst;
}

static int child_main(void *arg) {
        struct child *c = arg;
        c->stage = SPAWN_STAGE_SETUP;
        int r = setup(c->s);
        if (r == 0) {
                c->stage = SPAWN_STAGE_CWD;
                r = chdir(c->s->cwd) < 0 ? -errno : 0;
        }
        if (r == 0) {
                sigset_t none;
                sigemptyset(&none);
                (void) sigprocmask(SIG_SETMASK, &none, NULL);
                c->stage = SPAWN_STAGE_EXEC;
                r = exec_first(c);
        }
        c->error = r;
        _exit(127);
}

/* --- in the parent -------------------------------------------------------------------------- */

static int candidates(struct child *c) {
        const struct spawn *s = c->s;
        size_t n = 0;
        if (strchr(s->file, '/')) {
                c->paths[0] = strdup(s->file);
                return c->paths[0] ? 0 : -ENOMEM;
        }
        const char *path = s->search_path && *s->search_path ? s->search_path : FALLBACK_PATH;
        while (n < CANDIDATES_MAX) {
                size_t part = strcspn(path, ":");
                int dir = (int) (part > 4096 ? 4096 : part);
                if (asprintf(&c->paths[n], "%.*s%s%s", dir, path, part ? "/" : "./", s->file) < 0) {
                        c->paths[n] = NULL;
                        return -ENOMEM;
                }
                n++;
                if (!path[part])
                        break;
                path += part + 1;
        }
        return 0;
}

static int script_argv(struct child *c) {
        size_t n = 0;
        while (c->s->argv[n])
                n++;
        c->script_argv = calloc(n + 3, sizeof(char *));
        if (!c->script_argv)
                return -ENOMEM;
        static char shell[] = "/bin/sh";
        c->script_argv[0] = shell;
        for (size_t i = 1; i < n; i++)
                c->script_argv[i + 1] = c->s->argv[i];
        return 0;
}

#ifdef __x86_64__
static long clone3_on(struct clone_args *args, int (*fn)(void *), void *arg) {
        register long ret __asm__("rax") = SYS_clone3;
        register struct clone_args *a0 __asm__("rdi") = args;
        register size_t a1 __asm__("rsi") = sizeof *args;
        register int (*r_fn)(void *) __asm__("r12") = fn;
        register void *r_arg __asm__("r13") = arg;
        __asm__ volatile("syscall\n\t"
                         "test %%rax, %%rax\n\t"
                         "jnz 1f\n\t"
                         "xor %%ebp, %%ebp\n\t"
                         "mov %%r13, %%rdi\n\t"
                         "call *%%r12\n\t"
                         "hlt\n"
                         "1:"
                         : "+r"(ret)
                         : "r"(a0), "r"(a1), "r"(r_fn), "r"(r_arg)
                         : "rcx", "r11", "memory");
        return ret;
}

static long clone_child(struct child *c, void *stack) {
        struct clone_args args = {
                .flags = CLONE_VM | CLONE_VFORK | CLONE_CLEAR_SIGHAND,
                .exit_signal = SIGCHLD,
                .stack = (uint64_t) (uintptr_t) stack,
                .stack_size = STACK_SIZE,
        };
        if (c->s->cgroup_fd >= 0) {
                args.flags |= CLONE_INTO_CGROUP;
                args.cgroup = (unsigned) c->s->cgroup_fd;
        }
        return clone3_on(&args, child_main, c);
}
#else
static int child_in_cgroup(void *arg) {
        struct child *c = arg;
        int fd = openat(c->s->cgroup_fd, "cgroup.procs", O_WRONLY | O_CLOEXEC);
        if (fd >= 0)
                (void) !write(fd, "0", 1);
        return child_main(arg);
}

static long clone_child(struct child *c, void *stack) {
        int pid = clone(c->s->cgroup_fd >= 0 ? child_in_cgroup : child_main, (char *) stack + STACK_SIZE,
                        CLONE_VM | CLONE_VFORK | SIGCHLD, c);
        return pid < 0 ? -errno : pid;
}
#endif

static void free_child(struct child *c) {
        for (char **p = c->paths; *p; p++)
                free(*p);
        free(c->script_argv);
}

int spawn_process(const struct spawn *s, pid_t *ret_pid, enum spawn_stage *ret_stage) {
        static void *stack;
        struct child c = { .s = s, .stage = SPAWN_STAGE_CLONE };
        *ret_stage = SPAWN_STAGE_CLONE;
        if (!stack) {
                void *m = mmap(NULL, STACK_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK,
                               -1, 0);
                if (m == MAP_FAILED)
                        return -errno;
                stack = m;
        }
        int r = candidates(&c);
        if (r == 0)
                r = script_argv(&c);
        if (r < 0) {
                free_child(&c);
                return r;
        }
        /* No handler of the agent may run in the child while it shares the agent's memory. */
        sigset_t all, old;
        sigfillset(&all);
        (void) pthread_sigmask(SIG_SETMASK, &all, &old);
        /* The last child left its frames by exec, never by returning. */
        ASAN_UNPOISON_MEMORY_REGION(stack, STACK_SIZE);
        long pid = clone_child(&c, stack);
        (void) pthread_sigmask(SIG_SETMASK, &old, NULL);
        free_child(&c);
        if (pid < 0)
                return (int) pid;
        if (c.error) {
                /* The exit of this child is reaped by whoever reaps; it has no owner. */
                *ret_stage = c.stage;
                return c.error;
        }
        *ret_pid = (pid_t) pid;
        return 0;
}
