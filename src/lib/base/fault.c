/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"

#ifndef NDEBUG
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"

static struct fault_block *block;
static const char *self;
static pid_t self_pid;

void fault_setup(const char *program) {
        const char *path = getenv("CSPACE_FAULT");
        if (!path)
                return;
        int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        struct stat st;
        if (fd < 0 || fstat(fd, &st) < 0 || st.st_size != sizeof *block) {
                log_warn("CSPACE_FAULT: %s is no block for faults", path);
                fd_close(fd);
                return;
        }
        void *p = mmap(NULL, sizeof *block, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        fd_close(fd);
        if (p == MAP_FAILED)
                return;
        block = p;
        self = program;
        self_pid = getpid();
}

void fault_begin(const char *kind) {
        if (block && atomic_load(&block->armed) && str_eq(block->program, self) && str_eq(block->kind, kind))
                atomic_store(&block->begun, 1);
}

void fault_point(const char *name) {
        if (!block || !atomic_load(&block->armed) || !str_eq(block->program, self) || (*block->kind && !atomic_load(&block->begun)))
                return;
        unsigned i = atomic_fetch_add(&block->n_log, 1);
        if (i < FAULT_LOG_MAX)
                (void) str_copy(block->log[i], sizeof block->log[i], name);
        if ((*block->match && !str_eq(block->match, name)) || atomic_fetch_add(&block->seen, 1) + 1 != block->at)
                return;
        log_warn("the chosen point: %s", name);
        atomic_store(&block->met, getpid());
        if (block->signal == SIGKILL && getpid() != self_pid)
                (void) kill(self_pid, SIGKILL);
        (void) kill(getpid(), (int) block->signal);
}
#endif
