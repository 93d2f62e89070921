/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "op.h"

/*
 * Ends cspaced on the spot, as `kill -9` would, at a chosen boundary of an operation: CSPACE_FAULT=suspend:3 at the third
 * after an operation of that kind was made. Boundaries are where another program or a restart could see a difference:
 * before and after each request to cspace-rootd or a warden, and before and after each transaction of the database. So the tests
 * walk all steps of all operations by counting up until nothing happens any more, whatever steps there are.
 * With CSPACE_FAULT=suspend:3:stop it stops there instead (SIGSTOP), so that something else can be ended.
 * Compiled out with NDEBUG.
 */
#ifdef NDEBUG
static inline void fault_setup(void) {
}
static inline void fault_begin(enum op_kind kind) {
        (void) kind;
}
static inline void fault_point(const char *what) {
        (void) what;
}
static inline void fault_end(void) {
}
#else
void fault_setup(void);
void fault_begin(enum op_kind kind); /* such an operation was made */
void fault_point(const char *what);  /* of any thread */
void fault_end(void);                /* tells how many there were */
#endif
