/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Signals on the loop, and their names as the agent writes them. */

#include <stdbool.h>
#include <uv.h>

/* Those that a command in a sandbox gets when cspace gets them. */
#define SIGNALS_FORWARDED                                                                                    \
        { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 }

struct signals;
typedef void (*signals_cb)(void *arg, int signum);

/* list ends with 0. */
struct signals *signals_new(uv_loop_t *loop, const int *list, signals_cb cb, void *arg);
void signals_free(struct signals *s); /* back to what the signals did before; NULL is fine */

int signals_number(const char *name); /* "SIGTERM", "TERM"; -1: not one */
bool signals_ends(int signum);        /* INT, TERM, HUP, QUIT: somebody wants an end */
