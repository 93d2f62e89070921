/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Ends the program on the spot at a chosen step, as `kill -9` would: CSPACE_FAULT=place:3 at the
 * third step of PLACE. The tests walk every step and hold what is left afterwards against nothing.
 * Compiled out with NDEBUG.
 */
#ifdef NDEBUG
static inline void fault_setup(void) {
}
static inline void fault_point(const char *what, unsigned step) {
        (void) what;
        (void) step;
}
#else
void fault_setup(void);
void fault_point(const char *what, unsigned step);
#endif
