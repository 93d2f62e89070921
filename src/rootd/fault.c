/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/fault.h"

#ifndef NDEBUG
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/str.h"

static char fault_what[32];
static uint64_t fault_step;
static pid_t fault_pid;

void fault_setup(void) {
        const char *s = getenv("CSPACE_FAULT");
        const char *colon = s ? strchr(s, ':') : NULL;
        if (!colon || (size_t) (colon - s) >= sizeof fault_what ||
            str_to_u64(colon + 1, 1000, &fault_step) < 0)
                return;
        memcpy(fault_what, s, (size_t) (colon - s));
        fault_pid = getpid();
        log_warn("will end at step %llu of %s", (unsigned long long) fault_step, fault_what);
}

void fault_point(const char *what, unsigned step) {
        if (fault_step != step || strcmp(what, fault_what) != 0)
                return;
        if (getpid() != fault_pid) /* in a job: the daemon ends, and takes the job along */
                (void) kill(fault_pid, SIGKILL);
        _exit(86);
}
#endif
