/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/reap.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"

#define STEP_MAX_MS 20

struct reap {
        uv_timer_t timer;
        struct rootd *rootd;
        struct reap_target target;
        uint64_t deadline, step;
        reap_cb cb;
        void *arg;
        struct reap *next;
};

/*
 * Kills all processes of a uid, from inside the uid: kill(-1) then reaches exactly its processes, and
 * no fork runs away from it as it could from a walk over /proc.
 */
static void kill_uid(uid_t uid) {
        pid_t pid = fork();
        if (pid == 0) {
                if (syscall(SYS_setresgid, uid, uid, uid) < 0 || syscall(SYS_setresuid, uid, uid, uid) < 0)
                        _exit(1);
                _exit(kill(-1, SIGKILL) < 0);
        }
        while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
                ;
}

/* Reads the status file, not the owner of the folder: of a process that is not dumpable that is root. */
static bool process_has_uid(const char *pid, uid_t uid) {
        char path[32];
        _cleanup_free_ char *text = NULL;
        unsigned real = 0;
        (void) snprintf(path, sizeof path, "/proc/%.10s/status", pid);
        if (fd_read_file_at(AT_FDCWD, path, 16384, &text, NULL, NULL) < 0)
                return false;
        const char *state = strstr(text, "\nState:\t"), *line = strstr(text, "\nUid:\t");
        return state && line && state[8] != 'Z' && sscanf(line + 6, "%u", &real) == 1 && real == uid;
}

static bool uid_lives(uid_t uid) {
        DIR *d = opendir("/proc");
        bool found = false;
        if (!d)
                return true;
        for (const struct dirent *e; !found && (e = readdir(d));)
                found = e->d_name[0] >= '1' && e->d_name[0] <= '9' && process_has_uid(e->d_name, uid);
        (void) closedir(d);
        return found;
}

static bool all_gone(const struct rootd *r, const struct reap_target *t) {
        cgroup_kill(&r->cgroups, t->leaf);
        bool gone = cgroup_empty(&r->cgroups, t->leaf);
        for (size_t i = 0; i < REAP_PROCS_MAX; i++)
                if (t->procs[i] && t->procs[i]->pid && !t->procs[i]->gone) {
                        proc_kill(t->procs[i]);
                        gone = false;
                }
        if (str_eq(r->cgroups.version, "none"))
                for (size_t i = 0; i < REAP_UIDS_MAX; i++)
                        if (t->uids[i]) {
                                kill_uid(t->uids[i]);
                                gone = gone && !uid_lives(t->uids[i]);
                        }
        return gone;
}

static void on_closed(uv_handle_t *h) {
        free(h->data);
}

static void on_timer(uv_timer_t *timer) {
        struct reap *w = timer->data;
        struct error e = ERROR_INIT;
        bool gone = all_gone(w->rootd, &w->target);
        if (!gone && clock_mono_ms() < w->deadline) {
                w->step = w->step * 2 > STEP_MAX_MS ? STEP_MAX_MS : w->step * 2;
                (void) uv_timer_start(timer, on_timer, w->step, 0);
                return;
        }
        if (!gone)
                (void) error_set(&e, -ETIMEDOUT, "processes in cgroup \"%s\" do not end within %d s",
                                 w->target.leaf, REAP_TIMEOUT_MS / 1000);
        reap_cb cb = w->cb;
        void *arg = w->arg;
        for (struct reap **at = &w->rootd->reaps; *at; at = &(*at)->next)
                if (*at == w) {
                        *at = w->next;
                        break;
                }
        uv_close((uv_handle_t *) timer, on_closed);
        cb(arg, gone ? NULL : &e);
}

int reap_start(struct rootd *r, const struct reap_target *t, reap_cb cb, void *arg, struct error *err) {
        struct reap *w = calloc(1, sizeof *w);
        if (!w)
                return error_set(err, -ENOMEM, "out of memory");
        *w = (struct reap){ .rootd = r, .target = *t, .step = 1, .cb = cb, .arg = arg };
        w->deadline = clock_mono_ms() + REAP_TIMEOUT_MS;
        (void) uv_timer_init(r->loop, &w->timer);
        w->timer.data = w;
        w->next = r->reaps;
        r->reaps = w;
        (void) all_gone(r, t); /* dying takes a moment: begin at once, look later */
        (void) uv_timer_start(&w->timer, on_timer, 1, 0);
        return 0;
}

void reap_poke(struct rootd *r) {
        for (struct reap *w = r->reaps; w; w = w->next)
                (void) uv_timer_start(&w->timer, on_timer, 0, 0);
}

int reap_wait(const struct rootd *r, const struct reap_target *t, struct error *err) {
        uint64_t deadline = clock_mono_ms() + REAP_TIMEOUT_MS;
        while (!all_gone(r, t)) {
                if (clock_mono_ms() > deadline)
                        return error_set(err, -ETIMEDOUT, "processes in cgroup \"%s\" do not end", t->leaf);
                (void) usleep(2000);
        }
        return 0;
}
