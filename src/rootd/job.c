/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/job.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/fd.h"
#include "rootd/confine.h"
#include "rootd/egress.h"
#include "rootd/placement.h"
#include "rootd/pool.h"
#include "rootd/watch.h"

struct job {
        struct proc proc;
        int report;
        job_done done;
        void *arg;
};

static void on_exit_of_job(struct proc *p) {
        struct job *j = p->owner;
        struct error e = ERROR_INIT;
        ssize_t n = read(j->report, &e, sizeof e);
        if (n != (ssize_t) sizeof e)
                (void) error_set(&e, -ECHILD, "the child that did it died");
        (void) fd_close(j->report);
        job_done done = j->done;
        void *arg = j->arg;
        proc_done(p);
        free(j);
        done(arg, e.code < 0 ? &e : NULL);
}

/* A job may take longer than a gateway lives, or its VM: the sockets of neither are to be there for longer. */
static void close_copies(const struct rootd *r) {
        for (const struct placement *p = r->placements; p; p = p->next) {
                place_close_copies(p);
                egress_close_copies(p);
        }
        pool_close_copies(r->pool);
}

static _Noreturn void child(struct rootd *r, job_work work, void *arg, int report, pid_t parent) {
        struct error e = ERROR_INIT;
        confine_signals();
        (void) prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        if (getppid() != parent)
                _exit(1);
        close_copies(r);
        int res = work(r, arg, &e);
        if (res < 0 && e.code == 0)
                e.code = res;
        if (res >= 0)
                e = ERROR_INIT;
        (void) fd_write_all(report, &e, sizeof e, NULL);
        _exit(0);
}

int job_start(struct rootd *r, job_work work, job_done done, void *arg, struct error *err) {
        int p[2], pidfd = -EBADF;
        struct job *j = calloc(1, sizeof *j);
        if (!j)
                return error_set(err, -ENOMEM, "out of memory");
        if (pipe2(p, O_CLOEXEC) < 0) {
                free(j);
                return error_errno(err, errno, "cannot make a pipe");
        }
        pid_t parent = getpid();
        pid_t pid = confine_clone(0, -EBADF, &pidfd);
        if (pid == 0)
                child(r, work, arg, p[1], parent);
        (void) fd_close(p[1]);
        *j = (struct job){ .report = p[0], .done = done, .arg = arg };
        int res = pid < 0 ? error_errno(err, pid, "cannot start a child")
                          : proc_watch(&j->proc, r->loop, pid, pidfd, on_exit_of_job, j, err);
        if (res < 0) {
                (void) fd_close(p[0]);
                free(j);
        }
        return res;
}

void *job_shared_new(size_t n) {
        void *shared = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        return shared == MAP_FAILED ? NULL : shared;
}

void job_shared_free(void *shared, size_t n) {
        if (shared)
                (void) munmap(shared, n);
}
