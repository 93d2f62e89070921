/* SPDX-License-Identifier: Apache-2.0 */

/* Preloaded into a program whose wall clock a test sets: the file that CLOCKSHIFT names holds the seconds it is off by, a long. */
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile long *shift;

__attribute__((constructor)) static void begin(void) {
        const char *path = getenv("CLOCKSHIFT");
        int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *m = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, fd, 0);
        if (m != MAP_FAILED)
                shift = m;
        if (fd >= 0)
                (void) close(fd);
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *t) {
        int r = (int) syscall(SYS_clock_gettime, clock, t);
        if (r == 0 && shift && clock == CLOCK_REALTIME)
                t->tv_sec += *shift;
        return r;
}
