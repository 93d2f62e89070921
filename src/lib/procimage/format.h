/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The image of a process: what rootd writes of a VM whose vCPUs stand still, and cspace-thaw becomes.
 *
 *   0                  struct procimage_head, as it is in memory
 *   PROCIMAGE_HEAD     pages, at the offsets that the mappings name; a hole reads as zeros
 *
 * It is good for the host it was made on (`host`): it holds addresses in the kernel's vDSO, pointers that
 * the loader picked for this CPU, and code that was translated for it. Memory of the guest is not in it, but in a
 * file of its own that is mapped privately, as is all of this: what a hundred VMs have in common is there once.
 *
 * x86-64 Linux. Numbers as the kernel has them (mman.h, signal.h, uapi/asm/sigcontext.h).
 */

#include <stdint.h>

#define PROCIMAGE_MAGIC 0x3530474d49435343ull /* "CSCIMG05": another number for every change of this file */
#define PROCIMAGE_PAGE 4096u
#define PROCIMAGE_HEAD (2u << 20) /* bytes, and where the pages begin */
#define PROCIMAGE_MAPS_MAX 4096
#define PROCIMAGE_THREADS_MAX 128
#define PROCIMAGE_FDS_MAX 64
#define PROCIMAGE_EVENTS_MAX 64 /* registrations of all epoll instances */
#define PROCIMAGE_SIGNALS_MAX 64
#define PROCIMAGE_SPECIALS_MAX 4
#define PROCIMAGE_XSTATE_MAX 4096
#define PROCIMAGE_BYTES_MAX (2ull << 30) /* the image's file, and what is written for one */
#define PROCIMAGE_SPAN_MAX (1ull << 36)  /* addresses of all anonymous mappings */
#define PROCIMAGE_DELTAS_MAX 16384
#define PROCIMAGE_DELTA_BYTES (16ull << 20) /* of all: each process gets a copy; more than that is better shared */

/* cspace-thaw lives here while it works: outside of where the kernel puts anything by itself. */
#define PROCIMAGE_STUB_START 0x100000000000ull
#define PROCIMAGE_STUB_END 0x100010000000ull
#define PROCIMAGE_HEAD_AT (PROCIMAGE_STUB_START + 0x4000000) /* the image's head stays mapped here, */
#define PROCIMAGE_BASE_AT (PROCIMAGE_STUB_START + 0x6000000) /* and the first page of its base */

enum procimage_map_kind {
        PROCIMAGE_MAP_IMAGE, /* private mapping of the image at `offset` */
        PROCIMAGE_MAP_ZERO,  /* private, anonymous */
        PROCIMAGE_MAP_MEMORY /* private mapping of the guest's memory at `offset` */
};

struct procimage_map {
        uint64_t start, end, offset;
        uint32_t prot, kind;
};

enum procimage_fd_kind {
        PROCIMAGE_FD_INHERITED, /* given to cspace-thaw at this number */
        PROCIMAGE_FD_COPY,      /* of the inherited one `value` */
        PROCIMAGE_FD_EVENTFD,   /* with `value` in it */
        PROCIMAGE_FD_SIGNALFD,  /* mask `value` */
        PROCIMAGE_FD_EPOLL
};

struct procimage_fd {
        int32_t number;
        uint32_t kind;
        uint32_t nonblocking, cloexec;
        uint64_t value;
};

struct procimage_event {
        int32_t epoll, fd;
        uint32_t events, pad;
        uint64_t data;
};

struct procimage_signal {
        uint64_t number;
        uint64_t handler, flags, restorer, mask; /* struct kernel_sigaction */
};

/* Where a system call was interrupted it is begun again: that is in the registers. */
struct procimage_thread {
        uint64_t r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, eflags;
        uint64_t fs_base, gs_base, sigmask;
        uint64_t robust_list, robust_len; /* set_robust_list(2) */
        uint64_t clear_tid;               /* set_tid_address(2); 0 none */
        uint64_t rseq, rseq_len, rseq_sig; /* rseq(2); 0 none */
        uint64_t xstate_size;
        uint8_t xstate[PROCIMAGE_XSTATE_MAX] __attribute__((aligned(64))); /* XSAVE, standard form */
};

/*
 * What distinguishes an image from the older one that its process was made of, its base. Both files are whole, the later one
 * by reflink; but of the base others have the pages in memory already, so that it is quicker, and shared, to map the base and
 * to copy the differences over it. Good for as long as the base is there, unchanged: otherwise the image is mapped itself.
 */
struct procimage_file {
        uint64_t inode, bytes, mtime_s, mtime_ns;
};

struct procimage_delta {
        uint64_t address, offset, bytes; /* offset: in this image, or in its memory file */
        uint32_t in_memory, prot;        /* prot: of the mapping; one without PROT_WRITE is mapped, not copied */
};

/* A mapping of the kernel's own, by its distance from the vDSO's ELF header. */
struct procimage_special {
        uint64_t start, bytes;
        int64_t from_vdso;
};

struct procimage_head {
        uint64_t magic;
        char host[72]; /* NUL-terminated; which host it is good for */
        uint64_t bytes; /* of the whole file */
        uint64_t sum;   /* procimage_sum() */
        char name[16]; /* of the process */
        uint64_t vdso;
        uint64_t memory_bytes;
        uint64_t start_brk, brk; /* the heap that brk(2) makes larger and smaller */
        uint32_t memory_fd, vnet_header_bytes, tap_fd, tap_offload; /* TUNSETVNETHDRSZ, TUNSETOFFLOAD of tap_fd */
        uint32_t n_maps, n_threads, n_fds, n_events, n_signals, n_specials, n_deltas, pad;
        struct procimage_file base, base_memory; /* inode 0: none */
        struct procimage_special specials[PROCIMAGE_SPECIALS_MAX];
        struct procimage_fd fds[PROCIMAGE_FDS_MAX];
        struct procimage_event events[PROCIMAGE_EVENTS_MAX];
        struct procimage_signal signals[PROCIMAGE_SIGNALS_MAX];
        struct procimage_map maps[PROCIMAGE_MAPS_MAX];
        struct procimage_delta deltas[PROCIMAGE_DELTAS_MAX];
        struct procimage_thread threads[PROCIMAGE_THREADS_MAX]; /* [0] is the main one */
};

_Static_assert(sizeof(struct procimage_head) <= PROCIMAGE_HEAD, "the head's room");

/*
 * Of all that is used of the head behind `sum`: registers, mappings, descriptors, which pages are where. Not of the pages, which would
 * have to be read (docs/architecture.md). Tells damage, resists nobody. The numbers of h are within their limits.
 */
static inline uint64_t procimage_mix(uint64_t sum, const void *from, const void *to) {
        for (const uint64_t *p = (const uint64_t *) from; p < (const uint64_t *) to; p++) {
                sum = (sum ^ *p) * 0x9e3779b97f4a7c15ull;
                sum ^= sum >> 32;
        }
        return sum;
}

static inline uint64_t procimage_sum(const struct procimage_head *h) {
        uint64_t sum = procimage_mix(PROCIMAGE_MAGIC, h->name, h->maps);
        sum = procimage_mix(sum, h->maps, h->maps + h->n_maps);
        sum = procimage_mix(sum, h->deltas, h->deltas + h->n_deltas);
        return procimage_mix(sum, h->threads, h->threads + h->n_threads);
}

#define PROCIMAGE_WHOLE(what) _Static_assert((what) % sizeof(uint64_t) == 0, "summed in whole words")
PROCIMAGE_WHOLE(__builtin_offsetof(struct procimage_head, name));
PROCIMAGE_WHOLE(__builtin_offsetof(struct procimage_head, maps));
PROCIMAGE_WHOLE(sizeof(struct procimage_map));
PROCIMAGE_WHOLE(sizeof(struct procimage_delta));
PROCIMAGE_WHOLE(sizeof(struct procimage_thread));
