/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Stops or ends a program at a chosen step, so that tests can walk all steps of all operations and end there whatever runs. A step
 * ("point") is where another program or a restart could see a difference: before and after a request, a transaction, a rename.
 *
 * A test makes a file of sizeof (struct fault_block) and names it in CSPACE_FAULT; each program started with that maps it, and
 * its forks share it. The test writes what it wants while they run, `armed` last, and reads what was met. Nothing is in it
 * that is not in the same order in tests/lib/fault.py. Compiled out with NDEBUG.
 */
#include <stdatomic.h>
#include <stdint.h>

enum {
        FAULT_NAME_MAX = 32,  /* with its end */
        FAULT_LOG_MAX = 256,  /* points that are kept by name */
};

struct fault_block {
        atomic_uint armed;              /* 0: points are passed over */
        uint32_t signal;                /* what the process gets that meets it: SIGSTOP or SIGKILL */
        uint64_t at;                    /* the how manieth of those that match; 0: none, they are only logged */
        atomic_uint_fast64_t seen;      /* those that matched, from 1 */
        atomic_uint n_log;              /* points of the program since it was armed; may exceed FAULT_LOG_MAX */
        atomic_uint begun;              /* fault_begin was called with `kind` */
        atomic_int met;                 /* pid of the process that met it */
        uint32_t reserved;
        char program[FAULT_NAME_MAX];   /* whose points count, as in fault_setup */
        char kind[FAULT_NAME_MAX];      /* they count once such an operation was begun; empty: from the arming */
        char match[FAULT_NAME_MAX];     /* only points of this name; empty: all */
        char log[FAULT_LOG_MAX][FAULT_NAME_MAX];
};

#ifdef NDEBUG
static inline void fault_setup(const char *program) {
        (void) program;
}
static inline void fault_begin(const char *kind) {
        (void) kind;
}
static inline void fault_point(const char *name) {
        (void) name;
}
#else
void fault_setup(const char *program);
void fault_begin(const char *kind); /* such an operation was made */
/* Of any thread and, in the program's forks, of any process; with SIGKILL the program ends and its fork, too. */
void fault_point(const char *name);
#endif
