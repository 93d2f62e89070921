/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/process_stop.h"

/*
 * Threads are stopped with PTRACE_SEIZE and PTRACE_INTERRUPT, which no signal handler of theirs sees. What the kernel
 * keeps of a thread beside its registers it tells to those who may trace it, but for two things, which the thread is
 * made to ask for itself, in the place of the system call that it waits in: where its number is cleared at its end,
 * and the handlers of signals.
 */
#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"

#if defined(__x86_64__)

#define SIGSET_BYTES 8

/* The XSAVE area in its standard form (Intel SDM 1, 13.4), and where ptrace puts XCR0 in it (asm/user.h). */
#define XSTATE_MAX 16384
#define XSTATE_XCR0_AT 464
#define XSTATE_HEADER_AT 512
#define XSTATE_BEFORE_TILES 2696
#define XSTATE_TILES_AT 2752
#define XSTATE_TILES (3ull << 17)
_Static_assert(XSTATE_TILES_AT <= PROCIMAGE_XSTATE_MAX, "room for what is kept");

#define SCRATCH_BYTES 64
#define RED_ZONE 128    /* below the stack pointer (psABI 3.2.2) */
#define SYSCALL_BYTES 2
#define STOP_TIMEOUT_MS 5000
#define ROUNDS_MAX 16   /* over the list of threads, until it does not grow any more */

/* asm/errno of the kernel's inside: what an interrupted call has as its result. */
#define ERESTARTSYS 512
#define ERESTARTNOINTR 513
#define ERESTARTNOHAND 514
#define ERESTART_RESTARTBLOCK 516

struct rseq_configuration { /* PTRACE_GET_RSEQ_CONFIGURATION, Linux 5.13 */
        uint64_t pointer;
        uint32_t size, signature, flags, pad;
};
#define GET_RSEQ_CONFIGURATION 0x420f

/*
 * Waits for a stop of the thread. A taken-over process can see to it that one never stops (it made a child with CLONE_VFORK
 * that does not end), and a sandbox with an image in the making can be removed by nobody: there is an end to it. SIGCHLD is
 * blocked (process_stop()), so none is missed.
 */
static int wait_status(pid_t tid, int *ret, struct error *err) {
        const uint64_t end = clock_mono_us() + STOP_TIMEOUT_MS * 1000ull;
        sigset_t child;
        (void) sigemptyset(&child);
        (void) sigaddset(&child, SIGCHLD);
        for (;;) {
                pid_t r = waitpid(tid, ret, __WALL | WNOHANG);
                if (r < 0 && errno != EINTR)
                        return error_errno(err, errno, "thread %d of the VM cannot be waited for", tid);
                if (r > 0)
                        return 0;
                uint64_t now = clock_mono_us();
                if (now >= end)
                        return error_set(err, -ETIMEDOUT, "thread %d of the VM does not stop", tid);
                const struct timespec left = { .tv_sec = (time_t) ((end - now) / 1000000), .tv_nsec = (long) ((end - now) % 1000000) * 1000 };
                (void) sigtimedwait(&child, NULL, &left);
        }
}

/* A thread that was about to get a signal goes on without it, so it is sent again. */
static int wait_stop(pid_t tid, struct error *err) {
        int status = 0;
        int r = wait_status(tid, &status, err);
        if (r < 0)
                return r;
        if (!WIFSTOPPED(status))
                return error_set(err, -ESRCH, "the VM ended");
        const int sig = WSTOPSIG(status);
        if (status >> 16 == PTRACE_EVENT_STOP || sig == SIGTRAP)
                return 0;
        (void) syscall(SYS_tkill, tid, sig);
        return error_set(err, -EAGAIN, "thread %d of the VM gets signal %d", tid, sig);
}

/* ---- the list of threads ---------------------------------------------------------------------- */

static int parse_id(const char *name, pid_t *ret) {
        char *end;
        long v = strtol(name, &end, 10);
        if (end == name || *end || v <= 0 || v > INT32_MAX)
                return -EINVAL;
        *ret = (pid_t) v;
        return 0;
}

static bool among(const pid_t *tids, size_t n, pid_t tid) {
        for (size_t i = 0; i < n; i++)
                if (tids[i] == tid)
                        return true;
        return false;
}

/* Threads that stand still make no new ones: when a round finds none that runs, all do. */
static int stop_round(pid_t pid, pid_t *tids, size_t *n, bool *ret_more, struct error *err) {
        char path[40];
        (void) snprintf(path, sizeof path, "/proc/%d/task", pid);
        DIR *d = opendir(path);
        if (!d)
                return error_errno(err, errno, "the VM's process is gone");
        int r = 0;
        for (const struct dirent *e; r == 0 && (e = readdir(d));) {
                pid_t tid;
                if (parse_id(e->d_name, &tid) < 0 || among(tids, *n, tid))
                        continue;
                *ret_more = true;
                if (*n == PROCIMAGE_THREADS_MAX)
                        r = error_set(err, -E2BIG, "the VM has more than %d threads", PROCIMAGE_THREADS_MAX);
                else if (ptrace(PTRACE_SEIZE, tid, NULL, NULL) < 0) {
                        if (errno != ESRCH)
                                r = error_errno(err, errno, "thread %d of the VM cannot be traced", tid);
                } else if (ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) < 0)
                        r = error_errno(err, errno, "thread %d of the VM cannot be stopped", tid);
                else if ((r = wait_stop(tid, err)) == 0)
                        tids[(*n)++] = tid;
        }
        (void) closedir(d);
        return r;
}

/* The main one first. */
static int stop_all(pid_t pid, pid_t *tids, size_t *ret_n, struct error *err) {
        size_t n = 0;
        bool more = true;
        for (unsigned round = 0; more; round++) {
                more = false;
                if (round == ROUNDS_MAX)
                        return error_set(err, -EAGAIN, "the VM makes threads faster than they can be stopped");
                int r = stop_round(pid, tids, &n, &more, err);
                if (r < 0)
                        return r;
        }
        for (size_t i = 1; i < n; i++)
                if (tids[i] == pid) {
                        tids[i] = tids[0];
                        tids[0] = pid;
                }
        if (n == 0 || tids[0] != pid)
                return error_set(err, -ESRCH, "the VM's process is gone");
        *ret_n = n;
        return 0;
}

void process_continue(pid_t pid) {
        char path[40];
        (void) snprintf(path, sizeof path, "/proc/%d/task", pid);
        DIR *d = opendir(path);
        if (!d)
                return;
        for (const struct dirent *e; (e = readdir(d));) {
                pid_t tid;
                if (parse_id(e->d_name, &tid) == 0)
                        (void) ptrace(PTRACE_DETACH, tid, NULL, NULL);
        }
        (void) closedir(d);
}

/* ---- one thread ------------------------------------------------------------------------------ */

static int read_memory(pid_t pid, uint64_t at, void *data, size_t n) {
        struct iovec to = { data, n }, from = { (void *) (uintptr_t) at, n };
        return process_vm_readv(pid, &to, 1, &from, 1, 0) == (ssize_t) n ? 0 : -EFAULT;
}

static int write_memory(pid_t pid, uint64_t at, const void *data, size_t n) {
        struct iovec from = { (void *) (uintptr_t) data, n }, to = { (void *) (uintptr_t) at, n };
        return process_vm_writev(pid, &from, 1, &to, 1, 0) == (ssize_t) n ? 0 : -EFAULT;
}

/* The registers with which the call that was interrupted begins anew, as the kernel would do it for a
 * signal without a handler; one that counts down a time that is over in another life says EINTR. */
static int begin_call_again(struct user_regs_struct *u, pid_t tid, struct error *err) {
        if ((int64_t) u->orig_rax < 0)
                return error_set(err, -EAGAIN, "thread %d of the VM is at work", tid);
        switch (-(int64_t) u->rax) {
        case ERESTARTSYS:
        case ERESTARTNOINTR:
        case ERESTARTNOHAND:
                u->rax = u->orig_rax;
                u->rip -= SYSCALL_BYTES;
                return 0;
        case ERESTART_RESTARTBLOCK:
                u->rax = (uint64_t) -EINTR;
                return 0;
        default:
                return 0; /* the call has ended */
        }
}

static void keep_registers(const struct user_regs_struct *u, struct procimage_thread *t) {
        t->r8 = u->r8;
        t->r9 = u->r9;
        t->r10 = u->r10;
        t->r11 = u->r11;
        t->r12 = u->r12;
        t->r13 = u->r13;
        t->r14 = u->r14;
        t->r15 = u->r15;
        t->rdi = u->rdi;
        t->rsi = u->rsi;
        t->rbp = u->rbp;
        t->rbx = u->rbx;
        t->rdx = u->rdx;
        t->rax = u->rax;
        t->rcx = u->rcx;
        t->rsp = u->rsp;
        t->rip = u->rip;
        t->eflags = u->eflags;
        t->fs_base = u->fs_base;
        t->gs_base = u->gs_base;
}

/* One system call, in the place of the one that the thread waits in. */
static int inject(pid_t tid, const struct user_regs_struct *raw, uint64_t nr, uint64_t a, uint64_t b, uint64_t c, uint64_t d,
                  int64_t *ret, struct error *err) {
        struct user_regs_struct u = *raw;
        struct iovec v = { &u, sizeof u };
        u.rip -= SYSCALL_BYTES;
        u.rax = nr;
        u.orig_rax = (unsigned long long) -1;
        u.rdi = a;
        u.rsi = b;
        u.rdx = c;
        u.r10 = d;
        if (ptrace(PTRACE_SETREGSET, tid, NT_PRSTATUS, &v) < 0 || ptrace(PTRACE_SINGLESTEP, tid, NULL, NULL) < 0)
                return error_errno(err, errno, "the VM's process cannot be asked");
        int r = wait_stop(tid, err);
        if (r < 0)
                return r;
        if (ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &v) < 0)
                return error_errno(err, errno, "the VM's process cannot be asked");
        *ret = (int64_t) u.rax;
        return u.rip == raw->rip ? 0 : error_set(err, -EIO, "the VM's process went elsewhere than it was sent");
}

/* As it was, also if this program ends now: a thread that was sent one step would die of SIGTRAP then. It stops once more
 * before it gets anywhere, without. */
static int put_back(pid_t tid, const struct user_regs_struct *raw, struct error *err) {
        struct user_regs_struct back = *raw;
        struct iovec v = { &back, sizeof back };
        if (ptrace(PTRACE_SETREGSET, tid, NT_PRSTATUS, &v) < 0 || ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) < 0 ||
            ptrace(PTRACE_CONT, tid, NULL, NULL) < 0)
                return error_errno(err, errno, "thread %d of the VM cannot be put back", tid);
        return wait_stop(tid, err);
}

/* Room below what the thread has on its stack, for the kernel's answers. */
static uint64_t scratch(const struct user_regs_struct *u) {
        return (u->rsp - RED_ZONE - SCRATCH_BYTES) & ~15ull;
}

/* Where the kernel clears the thread's number when it ends, for those who wait for that (set_tid_address(2)). */
static int keep_clear_tid(pid_t pid, pid_t tid, const struct user_regs_struct *raw, struct procimage_thread *t, struct error *err) {
        uint64_t kept, at = scratch(raw);
        int64_t answer = 0;
        if (read_memory(pid, at, &kept, sizeof kept) < 0)
                return error_set(err, -EFAULT, "the stack of thread %d of the VM cannot be read", tid);
        int r = inject(tid, raw, SYS_prctl, PR_GET_TID_ADDRESS, at, 0, 0, &answer, err);
        if (r == 0 && (answer < 0 || read_memory(pid, at, &t->clear_tid, sizeof t->clear_tid) < 0))
                r = error_set(err, -EOPNOTSUPP, "this kernel does not tell where it clears a thread's number (CONFIG_CHECKPOINT_RESTORE)");
        if (write_memory(pid, at, &kept, sizeof kept) < 0 && r == 0)
                r = error_set(err, -EFAULT, "the stack of thread %d of the VM cannot be put back", tid);
        int back = put_back(tid, raw, r == 0 ? err : NULL);
        return r == 0 ? back : r;
}

/* Without AMX's tiles, which only a process that has asked for them has, and for which a signal frame has no room. */
static void keep_xstate(uint8_t *state, size_t n, struct procimage_thread *t) {
        static const size_t masks[] = { XSTATE_XCR0_AT, XSTATE_HEADER_AT };
        if (n > XSTATE_TILES_AT) {
                for (size_t i = 0; i < ARRAY_SIZE(masks); i++) {
                        uint64_t mask;
                        memcpy(&mask, state + masks[i], sizeof mask);
                        mask &= ~XSTATE_TILES;
                        memcpy(state + masks[i], &mask, sizeof mask);
                }
                n = XSTATE_BEFORE_TILES;
        }
        memcpy(t->xstate, state, n);
        t->xstate_size = n;
}

static int keep_thread(pid_t pid, pid_t tid, struct procimage_thread *t, struct user_regs_struct *ret_raw, struct error *err) {
        static uint8_t xstate[XSTATE_MAX];
        struct iovec regs = { ret_raw, sizeof *ret_raw }, x = { xstate, sizeof xstate };
        if (ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &regs) < 0 || ptrace(PTRACE_GETREGSET, tid, NT_X86_XSTATE, &x) < 0 ||
            ptrace(PTRACE_GETSIGMASK, tid, SIGSET_BYTES, &t->sigmask) < 0)
                return error_errno(err, errno, "thread %d of the VM cannot be read", tid);
        if (x.iov_len < XSTATE_HEADER_AT + sizeof(uint64_t))
                return error_set(err, -EOPNOTSUPP, "this CPU does not tell its extended registers");
        keep_xstate(xstate, x.iov_len, t);
        /* One that is about to run a handler has the number of the call that this came between, but is elsewhere. */
        static const uint8_t syscall_code[SYSCALL_BYTES] = { 0x0f, 0x05 };
        uint8_t code[SYSCALL_BYTES];
        struct user_regs_struct u = *ret_raw;
        if (read_memory(pid, u.rip - SYSCALL_BYTES, code, sizeof code) < 0 || memcmp(code, syscall_code, sizeof code) != 0)
                return error_set(err, -EAGAIN, "thread %d of the VM is not in a call", tid);
        int r = begin_call_again(&u, tid, err);
        if (r < 0)
                return r;
        keep_registers(&u, t);
        void *list = NULL;
        size_t len = 0;
        if (syscall(SYS_get_robust_list, tid, &list, &len) < 0)
                return error_errno(err, errno, "thread %d of the VM cannot be read", tid);
        t->robust_list = (uint64_t) (uintptr_t) list;
        t->robust_len = len;
        struct rseq_configuration rs = { 0 };
        if (ptrace((enum __ptrace_request) GET_RSEQ_CONFIGURATION, tid, sizeof rs, &rs) == (long) sizeof rs && rs.pointer) {
                t->rseq = rs.pointer;
                t->rseq_len = rs.size;
                t->rseq_sig = rs.signature;
        }
        return keep_clear_tid(pid, tid, ret_raw, t, err);
}

/* ---- handlers of signals ------------------------------------------------------------------------ */

static int signals_set(pid_t pid, uint64_t *ret, struct error *err) {
        char path[32], line[128];
        (void) snprintf(path, sizeof path, "/proc/%d/status", pid);
        FILE *f = fopen(path, "re");
        *ret = 0;
        while (f && fgets(line, sizeof line, f)) {
                unsigned long long v;
                if (sscanf(line, "SigIgn: %llx", &v) == 1 || sscanf(line, "SigCgt: %llx", &v) == 1)
                        *ret |= v;
        }
        if (!f)
                return error_errno(err, errno, "the VM's process is gone");
        (void) fclose(f);
        return 0;
}

static int ask_signals(pid_t pid, const struct user_regs_struct *raw, uint64_t at, uint64_t set, struct procimage_head *head,
                       struct error *err) {
        for (unsigned number = 1; number <= PROCIMAGE_SIGNALS_MAX; number++) {
                if (!(set & (1ull << (number - 1))))
                        continue;
                struct procimage_signal *s = &head->signals[head->n_signals];
                int64_t answer = 0;
                int r = inject(pid, raw, SYS_rt_sigaction, number, 0, at, SIGSET_BYTES, &answer, err);
                if (r < 0)
                        return r;
                if (answer < 0 || read_memory(pid, at, &s->handler, 4 * sizeof(uint64_t)) < 0)
                        return error_set(err, -EIO, "the VM's handler of signal %u cannot be read", number);
                s->number = number;
                head->n_signals++;
        }
        return 0;
}

static int keep_signals(pid_t pid, const struct user_regs_struct *raw, struct procimage_head *head, struct error *err) {
        uint64_t set, kept[4];
        const uint64_t at = scratch(raw);
        int r = signals_set(pid, &set, err);
        if (r < 0 || set == 0)
                return r;
        if (read_memory(pid, at, kept, sizeof kept) < 0)
                return error_set(err, -EFAULT, "the VM's stack cannot be read");
        r = ask_signals(pid, raw, at, set, head, err);
        if (write_memory(pid, at, kept, sizeof kept) < 0 && r == 0)
                r = error_set(err, -EFAULT, "the VM's stack cannot be put back");
        int back = put_back(pid, raw, r == 0 ? err : NULL);
        return r == 0 ? back : r;
}

/* ---- the heap ------------------------------------------------------------------------------------ */

/* Number 47 of /proc/PID/stat (proc(5)). What is in the parentheses can be anything. */
static int heap_start(pid_t pid, uint64_t *ret, struct error *err) {
        char path[32], text[2048];
        (void) snprintf(path, sizeof path, "/proc/%d/stat", pid);
        FILE *f = fopen(path, "re");
        size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
        if (f)
                (void) fclose(f);
        text[n] = '\0';
        const char *at = strrchr(text, ')');
        for (int field = 2; at && field < 47; field++)
                at = strchr(at + 1, ' ');
        if (!at)
                return error_set(err, -EIO, "cannot see where the VM's heap is");
        *ret = strtoull(at + 1, NULL, 10);
        return 0;
}

static int keep_heap(pid_t pid, const struct user_regs_struct *raw, struct procimage_head *head, struct error *err) {
        int64_t answer = 0;
        int r = heap_start(pid, &head->start_brk, err);
        if (r < 0)
                return r;
        r = inject(pid, raw, SYS_brk, 0, 0, 0, 0, &answer, err);
        head->brk = (uint64_t) answer;
        fault_point("stop:1"); /* the thread is not put back */
        int back = put_back(pid, raw, r == 0 ? err : NULL);
        return r == 0 ? back : r;
}

/* ---- all of it ----------------------------------------------------------------------------------- */

struct shield {
        sigset_t signals;
        int death;
        pid_t parent;
};

/* A thread that was sent elsewhere and not put back is the end of the VM: until that is done, nobody ends us by ending our
 * parent, or by another signal than SIGKILL. */
static void shield(struct shield *s) {
        sigset_t all;
        (void) sigfillset(&all);
        (void) sigprocmask(SIG_BLOCK, &all, &s->signals);
        s->death = 0;
        s->parent = getppid();
        (void) prctl(PR_GET_PDEATHSIG, &s->death, 0, 0, 0);
        (void) prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0);
}

static void unshield(const struct shield *s) {
        (void) prctl(PR_SET_PDEATHSIG, s->death, 0, 0, 0);
        if (s->death && getppid() != s->parent)
                (void) raise(s->death);
        (void) sigprocmask(SIG_SETMASK, &s->signals, NULL);
}

int process_stop(pid_t pid, struct procimage_head *head, struct error *err) {
        pid_t tids[PROCIMAGE_THREADS_MAX];
        struct user_regs_struct main_raw = { 0 }, raw;
        size_t n = 0;
        struct shield s;
        shield(&s);
        int r = stop_all(pid, tids, &n, err);
        for (size_t i = 0; r == 0 && i < n; i++) {
                r = keep_thread(pid, tids[i], &head->threads[i], &raw, err);
                if (i == 0)
                        main_raw = raw;
        }
        head->n_threads = (uint32_t) n;
        if (r == 0)
                r = keep_signals(pid, &main_raw, head, err);
        if (r == 0)
                r = keep_heap(pid, &main_raw, head, err);
        if (r < 0)
                process_continue(pid);
        unshield(&s);
        return r;
}

#else

int process_stop(pid_t pid, struct procimage_head *head, struct error *err) {
        (void) pid;
        (void) head;
        return error_set(err, -EOPNOTSUPP, "images of processes are written on x86-64 only");
}

void process_continue(pid_t pid) {
        (void) pid;
}

#endif
