/* SPDX-License-Identifier: Apache-2.0 */
#include "work.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

struct work {
        uv_work_t req;
        void (*run)(void *arg);
        void (*done)(void *arg);
        void *arg;
        bool switch_user;
        uid_t uid;
        gid_t gid;
        size_t n_groups;
        gid_t groups[];
};

/* The system calls themselves act on this thread alone, glibc's wrapper of setgroups on all. */
static void become(uid_t uid, gid_t gid, size_t n, const gid_t *groups) {
        (void) syscall(SYS_setgroups, n, groups);
        (void) setfsgid(gid);
        (void) setfsuid(uid);
}

static void on_thread(uv_work_t *req) {
        struct work *w = req->data;
        if (w->switch_user)
                become(w->uid, w->gid, w->n_groups, w->groups);
        w->run(w->arg);
        if (w->switch_user) {
                (void) setfsuid(0);
                (void) setfsgid(0);
                (void) syscall(SYS_setgroups, 0, NULL);
        }
}

static void on_loop(uv_work_t *req, int status) {
        struct work *w = req->data;
        void (*done)(void *arg) = w->done;
        void *arg = w->arg;
        (void) status;
        free(w);
        done(arg);
}

int work_start(uv_loop_t *loop, const struct user *as, void (*run)(void *arg), void (*done)(void *arg), void *arg) {
        bool switch_user = as && as->uid != 0 && geteuid() == 0;
        size_t n = switch_user ? as->n_groups : 0;
        struct work *w = calloc(1, sizeof *w + n * sizeof(gid_t));
        if (!w)
                return -ENOMEM;
        w->req.data = w;
        w->run = run;
        w->done = done;
        w->arg = arg;
        w->switch_user = switch_user;
        if (switch_user) {
                w->uid = as->uid;
                w->gid = as->gid;
                w->n_groups = n;
                memcpy(w->groups, as->groups, n * sizeof(gid_t));
        }
        int r = uv_queue_work(loop, &w->req, on_thread, on_loop);
        if (r < 0)
                free(w);
        return r;
}
