/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "options.h"
#include "reply.h"

/* Runs the operator's program, without a shell, arguments or input, and reads what it writes. It has until the time is up; what
 * it leaves running ends with this program, which is the first of its pid namespace. */
int command_run(const struct options *o, struct token *ret, struct error *err);
