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
