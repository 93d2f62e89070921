/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The terminal in raw mode, or without echo, and back: at exit, at a fatal signal, around a stop by job control. */

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* Nothing when stdin is no terminal. */
int terminal_raw(struct error *err);
/* What is typed is not shown until terminal_restore(); signals that end the program restore it too. */
int terminal_hide(struct error *err);
void terminal_restore(void); /* safe to call at any time, also from a signal handler */
bool terminal_is_raw(void);

/* Size of the terminal on stdin, stdout or stderr; 80x24 when there is none. */
void terminal_size(uint16_t *ret_cols, uint16_t *ret_rows);
