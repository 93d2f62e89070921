/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>

#include "setup.h"

struct service {
        const char *name;   /* of the program in the libexec folder */
        const char *unit;
        bool root;          /* else it runs as the user cspace */
        const char *socket; /* in the run folder; it accepts when the service is ready */
        int type;
};
extern const struct service services[SETUP_SERVICES];

int setup_options(struct setup *s, struct error *err); /* --data and --run, over what the file says */

/* The configuration a service was started with (setup_noted.c). */
int noted_write(const struct setup *s, const char *service, pid_t pid, uint64_t start, struct error *err);
/* Whether this process was started with another one; ret_keys: which keys, "" when that is not known. */
bool noted_changed(const struct setup *s, const char *service, pid_t pid, uint64_t start, char *ret_keys, size_t cap);
