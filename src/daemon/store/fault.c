/* SPDX-License-Identifier: Apache-2.0 */
#include "fault.h"

#ifndef NDEBUG
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/str.h"

static char fault_kind[16];
static uint64_t fault_at;
static bool fault_stop;
static atomic_bool begun;
static atomic_uint_fast64_t seen;

void fault_setup(void) {
        char text[64], *save = NULL;
        const char *s = getenv("CSPACE_FAULT");
        if (!s || str_copy(text, sizeof text, s) < 0)
                return;
        const char *kind = strtok_r(text, ":", &save), *at = strtok_r(NULL, ":", &save), *how = strtok_r(NULL, ":", &save);
        if (!kind || !at || str_copy(fault_kind, sizeof fault_kind, kind) < 0 || str_to_u64(at, 10000, &fault_at) < 0)
                fault_at = 0;
        fault_stop = how && str_eq(how, "stop");
        if (fault_at)
                log_warn("will end at boundary %llu of %s", (unsigned long long) fault_at, fault_kind);
}

void fault_begin(enum op_kind kind) {
        if (fault_at && str_eq(op_kind_name(kind), fault_kind))
                atomic_store(&begun, true);
}

void fault_end(void) {
        if (fault_at)
                log_info("%llu boundaries of %s", (unsigned long long) atomic_load(&seen), fault_kind);
}

void fault_point(const char *what) {
        if (!fault_at || !atomic_load(&begun) || atomic_fetch_add(&seen, 1) + 1 != fault_at)
                return;
        log_warn("boundary %llu of %s: %s", (unsigned long long) fault_at, fault_kind, what);
        (void) kill(getpid(), fault_stop ? SIGSTOP : SIGKILL);
}
#endif
