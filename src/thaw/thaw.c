/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cspace-thaw becomes the process whose image (procimage/format.h) is at descriptor 15.
 *
 * A VM under software emulation has translated its guest's code into the host's. That is the larger part of what
 * a start costs, and no snapshot of a VM has it: only the process does. So the process is what is brought
 * back: this program throws away everything it has mapped but itself, maps the image in its place, makes
 * descriptors, signal handlers and threads as they were, and returns into each thread as from a signal.
 *
 * It runs with a VM's few rights, opens nothing, and has no C library, whose own state would be in the way: it
 * is linked to where nothing else is, and stays mapped, as some pages that nobody calls any more.
 *
 *   head mapped -> own stack -> vDSO put aside -> all else unmapped -> image mapped -> vDSO in its place
 *     -> descriptors -> signals -> filter -> threads -> main thread
 */

#include <asm/prctl.h>
#include <asm/sigcontext.h>
#include <linux/signal.h>
#include <asm/ucontext.h>
#include <asm/unistd.h>
#include <elf.h>
#include <linux/audit.h>
#include <linux/eventpoll.h>
#include <linux/fcntl.h>
#include <linux/filter.h>
#include <linux/if_tun.h>
#include <linux/ioctl.h>
#include <linux/mman.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "procimage/format.h"

#define IMAGE_FD 15        /* QEMU_FD_STATE of the warden's qemu_args.h */
#define BASE_FD 16         /* QEMU_FD_KERNEL, if the image has a base */
#define DELTA_FD 17        /* QEMU_FD_INITRD: the memory beside the image, if it has a base */
#define FIRST_GIVEN 10     /* QEMU_FD_QMP; those in between are a VM's too */
#define IMAGE_FD_PARKED 600 /* out of the way of the image's own */
#define BASE_FD_PARKED 601
#define DELTA_FD_PARKED 602
#define SPECIALS_AT (PROCIMAGE_STUB_START + 0x8000000)
#define TASK_END 0x7ffffffff000ull
#define STACK_BYTES 16384
#define FRAME_BYTES 8192 /* a thread's, to return through, and above it its stack until then */
#define SIGSET_BYTES 8
#define EFD_FLAGS_NONBLOCK 04000
#define EFD_FLAGS_CLOEXEC 02000000
#define TIMER_SLACK_NS 1 /* as QEMU sets it, for all its threads */
#define XSTATE_MAGIC1 0x46505853u
#define XSTATE_MAGIC2 0x46505845u
#define X32_BIT 0x40000000u

struct frame {
        uint8_t xstate[PROCIMAGE_XSTATE_MAX + 64] __attribute__((aligned(64)));
        char *restorer; /* what the stack pointer of a handler that returns is 8 above of */
        struct ucontext uc;
        uint8_t room[1024];
} __attribute__((aligned(64)));

static uint8_t stack[STACK_BYTES] __attribute__((aligned(64)));
static struct frame frames[PROCIMAGE_THREADS_MAX];
static uint8_t thread_stacks[PROCIMAGE_THREADS_MAX][1024] __attribute__((aligned(64)));
static const struct procimage_head *head;
static uint64_t own_vdso;
static bool has_base;

void start_c(uint64_t *sp) __attribute__((noreturn, used));
void thread_c(uint64_t i) __attribute__((noreturn, used));
void become(void) __attribute__((noreturn, used));

/* ---- without a C library ------------------------------------------------------------------- */

__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall start_c\n\thlt\n");

static inline long call6(long nr, long a, long b, long c, long d, long e, long f) {
        long r;
        register long r10 __asm__("r10") = d;
        register long r8 __asm__("r8") = e;
        register long r9 __asm__("r9") = f;
        __asm__ volatile("syscall" : "=a"(r) : "0"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                         : "rcx", "r11", "memory");
        return r;
}

#define L(x) ((long) (x))
#define SYS1(nr, a) call6(__NR_##nr, L(a), 0, 0, 0, 0, 0)
#define SYS2(nr, a, b) call6(__NR_##nr, L(a), L(b), 0, 0, 0, 0)
#define SYS3(nr, a, b, c) call6(__NR_##nr, L(a), L(b), L(c), 0, 0, 0)
#define SYS4(nr, a, b, c, d) call6(__NR_##nr, L(a), L(b), L(c), L(d), 0, 0)
#define SYS5(nr, a, b, c, d, e) call6(__NR_##nr, L(a), L(b), L(c), L(d), L(e), 0)
#define SYS6(nr, a, b, c, d, e, f) call6(__NR_##nr, L(a), L(b), L(c), L(d), L(e), L(f))

void *memcpy(void *to, const void *from, size_t n);
void *memcpy(void *to, const void *from, size_t n) {
        void *r = to;
        __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
        return r;
}

void *memset(void *to, int c, size_t n);
void *memset(void *to, int c, size_t n) {
        void *r = to;
        __asm__ volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(c) : "memory");
        return r;
}

static void die(const char *what, long err) __attribute__((noreturn));
static void die(const char *what, long err) {
        char text[128] = "cspace-thaw: ", digits[8] = "";
        size_t n = 13, d = 0;
        for (; *what && n < 100; what++)
                text[n++] = *what;
        text[n++] = ' ';
        for (unsigned long e = (unsigned long) -err & 0xfff; d == 0 || (e && d < sizeof digits); e /= 10)
                digits[d++] = (char) ('0' + e % 10);
        while (d > 0)
                text[n++] = digits[--d];
        text[n++] = '\n';
        (void) SYS3(write, 2, text, n);
        for (;;)
                (void) SYS1(exit_group, 127);
}

static long must(const char *what, long r) {
        if (r < 0 && r > -4096)
                die(what, r);
        return r;
}

/* ---- memory -------------------------------------------------------------------------------- */

static void unmap(uint64_t from, uint64_t to) {
        (void) must("munmap", SYS2(munmap, from, to - from));
}

static void move_special(uint64_t from, uint64_t to, uint64_t bytes) {
        if (from != to)
                (void) must("mremap of the vDSO", SYS5(mremap, from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to));
}

static long file_of(const struct procimage_map *m) {
        if (m->kind == PROCIMAGE_MAP_MEMORY)
                return (long) head->memory_fd;
        return has_base && m->offset < head->base.bytes ? BASE_FD_PARKED : IMAGE_FD_PARKED;
}

static void map_one(const struct procimage_map *m) {
        static const uint32_t fixed = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
        uint64_t bytes = m->end - m->start;
        if (m->kind == PROCIMAGE_MAP_ZERO)
                (void) must("mmap", SYS6(mmap, m->start, bytes, m->prot, fixed | MAP_ANONYMOUS, -1, 0));
        else
                (void) must("mmap", SYS6(mmap, m->start, bytes, m->prot, fixed, file_of(m), m->offset));
}

/*
 * The kernel knows where brk(2) has the heap, and so does the C library in the image: were these two of different minds,
 * the one would make the heap of this program larger, and the other take a failed shrinking for an enormous one.
 * The rest is this program's, or nowhere.
 */
static void set_heap(void) {
        const uint64_t at = PROCIMAGE_STUB_START;
        struct prctl_mm_map m = {
                .start_code = at, .end_code = at + 1, .start_data = at, .end_data = at, .start_brk = head->start_brk, .brk = head->brk,
                .start_stack = at, .arg_start = at, .arg_end = at, .env_start = at, .env_end = at, .exe_fd = (uint32_t) -1,
        };
        (void) must("PR_SET_MM_MAP", SYS5(prctl, PR_SET_MM, PR_SET_MM_MAP, &m, sizeof m, 0));
}

/* Over a base: it is not worth a mapping for each run of a few pages. */
static void apply_delta(const struct procimage_delta *d) {
        long fd = d->in_memory ? DELTA_FD_PARKED : IMAGE_FD_PARKED;
        if (!(d->prot & PROT_WRITE)) {
                (void) must("mmap", SYS6(mmap, d->address, d->bytes, d->prot, MAP_PRIVATE | MAP_FIXED, fd, d->offset));
                return;
        }
        for (uint64_t done = 0; done < d->bytes;) {
                long n = must("cannot read the image", SYS4(pread64, fd, d->address + done, d->bytes - done, d->offset + done));
                if (n == 0)
                        die("the image is too short", 0);
                done += (uint64_t) n;
        }
}

static void map_image(void) {
        uint64_t parked[PROCIMAGE_SPECIALS_MAX], at = SPECIALS_AT;
        for (uint32_t i = 0; i < head->n_specials; i++) {
                const struct procimage_special *s = &head->specials[i];
                parked[i] = at;
                move_special(own_vdso + (uint64_t) s->from_vdso, at, s->bytes);
                at += s->bytes;
        }
        unmap(0, PROCIMAGE_STUB_START);
        unmap(PROCIMAGE_STUB_END, TASK_END);
        for (uint32_t i = 0; i < head->n_maps; i++)
                map_one(&head->maps[i]);
        for (uint32_t i = 0; has_base && i < head->n_deltas; i++)
                apply_delta(&head->deltas[i]);
        for (uint32_t i = 0; i < head->n_specials; i++)
                move_special(parked[i], head->specials[i].start, head->specials[i].bytes);
}

/* ---- descriptors --------------------------------------------------------------------------- */

static void make_fd(const struct procimage_fd *f) {
        long fd = -1;
        int flags = (f->nonblocking ? EFD_FLAGS_NONBLOCK : 0) | (f->cloexec ? EFD_FLAGS_CLOEXEC : 0);
        switch (f->kind) {
        case PROCIMAGE_FD_INHERITED:
                if (f->nonblocking) {
                        long now = must("F_GETFL", SYS2(fcntl, f->number, F_GETFL));
                        (void) must("F_SETFL", SYS3(fcntl, f->number, F_SETFL, now | O_NONBLOCK));
                }
                (void) must("F_SETFD", SYS3(fcntl, f->number, F_SETFD, f->cloexec ? FD_CLOEXEC : 0));
                return;
        case PROCIMAGE_FD_COPY:
                (void) must("dup3", SYS3(dup3, f->value, f->number, f->cloexec ? O_CLOEXEC : 0));
                return;
        case PROCIMAGE_FD_EVENTFD:
                fd = must("eventfd", SYS2(eventfd2, f->value, flags));
                break;
        case PROCIMAGE_FD_SIGNALFD:
                fd = must("signalfd", SYS4(signalfd4, -1, &f->value, SIGSET_BYTES, flags));
                break;
        case PROCIMAGE_FD_EPOLL:
                fd = must("epoll_create1", SYS1(epoll_create1, f->cloexec ? O_CLOEXEC : 0));
                break;
        default:
                die("unknown descriptor", 0);
        }
        if (fd == f->number)
                return;
        (void) must("dup3", SYS3(dup3, fd, f->number, f->cloexec ? O_CLOEXEC : 0));
        (void) SYS1(close, fd);
}

static bool is_kept(int fd) {
        for (uint32_t i = 0; i < head->n_fds; i++)
                if (head->fds[i].number == fd)
                        return true;
        return false;
}

static void make_fds(void) {
        for (uint32_t i = 0; i < head->n_fds; i++)
                make_fd(&head->fds[i]);
        for (uint32_t i = 0; i < head->n_events; i++) {
                const struct procimage_event *e = &head->events[i];
                struct epoll_event ev = { .events = e->events, .data = e->data };
                (void) must("epoll_ctl", SYS4(epoll_ctl, e->epoll, EPOLL_CTL_ADD, e->fd, &ev));
        }
        if (head->tap_fd) {
                int bytes = (int) head->vnet_header_bytes;
                (void) must("TUNSETVNETHDRSZ", SYS3(ioctl, head->tap_fd, TUNSETVNETHDRSZ, &bytes));
                (void) must("TUNSETOFFLOAD", SYS3(ioctl, head->tap_fd, TUNSETOFFLOAD, head->tap_offload));
        }
        for (int fd = FIRST_GIVEN; fd < IMAGE_FD; fd++)
                if (!is_kept(fd))
                        (void) SYS1(close, fd);
        for (int fd = IMAGE_FD_PARKED; fd <= DELTA_FD_PARKED; fd++)
                (void) SYS1(close, fd);
}

/* ---- signals, filter, threads -------------------------------------------------------------- */

static void set_signals(void) {
        for (uint32_t i = 0; i < head->n_signals; i++) {
                const struct procimage_signal *s = &head->signals[i];
                (void) must("rt_sigaction", SYS4(rt_sigaction, s->number, &s->handler, 0, SIGSET_BYTES));
        }
}

/* What QEMU's own sandbox denies it beyond what it was started with (the warden's confine_vm()). */
static void set_filter(void) {
#define DENY(nr) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_##nr, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1)
        static const struct sock_filter code[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, X32_BIT, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
                DENY(execve),
                DENY(execveat),
                DENY(setpriority),
                DENY(sched_setparam),
                DENY(sched_setscheduler),
                DENY(sched_setaffinity),
                DENY(sched_setattr),
                DENY(ioprio_set),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        const struct sock_fprog prog = { sizeof code / sizeof code[0], (struct sock_filter *) (uintptr_t) code };
        (void) must("seccomp", SYS3(seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog));
}

static void make_frame(struct frame *f, const struct procimage_thread *t) {
        struct sigcontext *sc = &f->uc.uc_mcontext;
        memcpy(f->xstate, t->xstate, t->xstate_size);
        struct _fpx_sw_bytes *sw = (struct _fpx_sw_bytes *) (void *) (f->xstate + 464);
        uint64_t features;
        memcpy(&features, t->xstate + 464, sizeof features); /* XCR0, where ptrace puts it */
        *sw = (struct _fpx_sw_bytes){ .magic1 = XSTATE_MAGIC1,
                                      .extended_size = (uint32_t) t->xstate_size + 4,
                                      .xfeatures = features,
                                      .xstate_size = (uint32_t) t->xstate_size };
        static const uint32_t magic2 = XSTATE_MAGIC2;
        memcpy(f->xstate + t->xstate_size, &magic2, sizeof magic2);
        f->uc.uc_flags = UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS;
        f->uc.uc_stack.ss_flags = SS_DISABLE;
        memcpy(&f->uc.uc_sigmask, &t->sigmask, sizeof t->sigmask);
        *sc = (struct sigcontext){
                .r8 = t->r8,   .r9 = t->r9,   .r10 = t->r10, .r11 = t->r11, .r12 = t->r12, .r13 = t->r13, .r14 = t->r14,
                .r15 = t->r15, .rdi = t->rdi, .rsi = t->rsi, .rbp = t->rbp, .rbx = t->rbx, .rdx = t->rdx, .rax = t->rax,
                .rcx = t->rcx, .rsp = t->rsp, .rip = t->rip, .eflags = t->eflags, .cs = 0x33, .ss = 0x2b,
                .fpstate = (void *) f->xstate,
        };
}

/* In the thread itself. */
static void enter(const struct procimage_thread *t, struct frame *f) __attribute__((noreturn));
static void enter(const struct procimage_thread *t, struct frame *f) {
        if (t->robust_list)
                (void) SYS2(set_robust_list, t->robust_list, t->robust_len);
        if (t->rseq)
                (void) SYS4(rseq, t->rseq, t->rseq_len, 0, t->rseq_sig);
        if (t->gs_base)
                (void) SYS2(arch_prctl, ARCH_SET_GS, t->gs_base);
        __asm__ volatile("mov %0, %%rsp\n\tmov %1, %%eax\n\tsyscall\n\thlt" : : "r"(&f->uc), "i"(__NR_rt_sigreturn) : "memory");
        __builtin_unreachable();
}

void thread_c(uint64_t i) {
        enter(&head->threads[i], &frames[i]);
}

static void start_thread(uint32_t i) {
        static const unsigned long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                                           CLONE_SETTLS | CLONE_CHILD_CLEARTID;
        const struct procimage_thread *t = &head->threads[i];
        uint64_t *top = (uint64_t *) (void *) &thread_stacks[i][sizeof thread_stacks[i]];
        *--top = i;
        long r;
        const uint64_t clear_tid = t->clear_tid, tls = t->fs_base;
        register uint64_t r10 __asm__("r10") = clear_tid;
        register uint64_t r8 __asm__("r8") = tls;
        __asm__ volatile("syscall\n\ttest %%rax, %%rax\n\tjnz 1f\n\txor %%ebp, %%ebp\n\tpop %%rdi\n\tcall thread_c\n1:"
                         : "=a"(r)
                         : "0"((long) __NR_clone), "D"(flags), "S"(top), "d"(0L), "r"(r10), "r"(r8)
                         : "rcx", "r11", "memory");
        (void) must("clone", r);
}

void become(void) {
        map_image();
        set_heap();
        make_fds();
        set_signals();
        (void) must("prctl", SYS2(prctl, PR_SET_TIMERSLACK, TIMER_SLACK_NS));
        (void) must("prctl", SYS2(prctl, PR_SET_NAME, head->name));
        /* No handler runs before its thread is what it was. */
        static const uint64_t all = ~0ull;
        (void) must("rt_sigprocmask", SYS4(rt_sigprocmask, SIG_SETMASK, &all, 0, SIGSET_BYTES));
        set_filter();
        for (uint32_t i = 0; i < head->n_threads; i++)
                make_frame(&frames[i], &head->threads[i]);
        const struct procimage_thread *t = &head->threads[0];
        (void) must("arch_prctl", SYS2(arch_prctl, ARCH_SET_FS, t->fs_base));
        if (t->clear_tid)
                (void) SYS1(set_tid_address, t->clear_tid);
        for (uint32_t i = 1; i < head->n_threads; i++)
                start_thread(i);
        enter(t, &frames[0]);
}

void start_c(uint64_t *sp) {
        uint64_t *p = sp + 1 + *sp + 1; /* argc, argv, NULL */
        while (*p++)
                ; /* environment, NULL */
        for (const Elf64_auxv_t *a = (const Elf64_auxv_t *) (const void *) p; a->a_type != AT_NULL; a++)
                if (a->a_type == AT_SYSINFO_EHDR)
                        own_vdso = a->a_un.a_val;
        (void) must("no image", SYS3(dup3, IMAGE_FD, IMAGE_FD_PARKED, O_CLOEXEC));
        (void) SYS1(close, IMAGE_FD);
        has_base = SYS3(dup3, BASE_FD, BASE_FD_PARKED, O_CLOEXEC) >= 0 && SYS3(dup3, DELTA_FD, DELTA_FD_PARKED, O_CLOEXEC) >= 0;
        if (has_base) {
                (void) SYS1(close, BASE_FD);
                (void) SYS1(close, DELTA_FD);
                (void) must("cannot map the base", SYS6(mmap, PROCIMAGE_BASE_AT, PROCIMAGE_PAGE, PROT_READ,
                                                       MAP_PRIVATE | MAP_FIXED_NOREPLACE, BASE_FD_PARKED, 0));
        }
        long r = must("cannot map the image", SYS6(mmap, PROCIMAGE_HEAD_AT, PROCIMAGE_HEAD, PROT_READ, MAP_PRIVATE | MAP_FIXED_NOREPLACE,
                                                  IMAGE_FD_PARKED, 0));
        head = (const struct procimage_head *) r;
        if (head->magic != PROCIMAGE_MAGIC || head->n_threads == 0 || head->n_threads > PROCIMAGE_THREADS_MAX ||
            head->n_maps > PROCIMAGE_MAPS_MAX || head->n_fds > PROCIMAGE_FDS_MAX || head->n_events > PROCIMAGE_EVENTS_MAX ||
            head->n_signals > PROCIMAGE_SIGNALS_MAX || head->n_specials > PROCIMAGE_SPECIALS_MAX ||
            head->n_deltas > PROCIMAGE_DELTAS_MAX || !own_vdso)
                die("this is not the image of a process", 0);
        if (head->sum != procimage_sum(head))
                die("the image's head is damaged", 0);
        __asm__ volatile("mov %0, %%rsp\n\tcall become\n\thlt" : : "r"(stack + sizeof stack) : "memory");
        __builtin_unreachable();
}
