/* SPDX-License-Identifier: Apache-2.0 */

/* The control service: what the host tells the guest. Only the warden reaches it. */
#include "control.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "api.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/str.h"
#include "boot.h"
#include "cgroup.h"
#include "conns.h"
#include "gate.h"
#include "grow.h"
#include "metrics.h"
#include "procs.h"
#include "rpc_watch.h"
#include "session.h"
#include "timer.h"
#include "trim.h"

#define QUIESCE_KILL_MS 10000
#define STOP_TERM_DEFAULT_MS 5000
#define STOP_TERM_MAX_MS 600000
#define STOP_KILL_MS 3000
#define POWER_OFF_DELAY_MS 50
#define FS_FROZEN_MS 5000

static void init(void *arg, struct http_x *x, struct buf *body) {
        struct agent *a = arg;
        struct error e = ERROR_INIT;
        _cleanup_json_ json_t *req = NULL;
        uint64_t disk_bytes = 0;
        if (json_parse(buf_data(body), body->len, LIMIT_IDENTITY_JSON, &req, &e) < 0 ||
            json_read_u64(req, "diskBytes", false, 1, INT64_MAX, &disk_bytes, &e) < 0) {
                api_fail(x, 400, "invalid_argument", "%s", e.msg);
                return;
        }
        if (disk_bytes && a->identity.owns_machine && grow_root(disk_bytes, &e) < 0) {
                api_fail(x, 500, "disk_not_grown", "%s", e.msg);
                return;
        }
        bool before = a->identity.ready; /* it was in use when it was saved; else a template's, and nothing is connected */
        if (identity_apply(&a->identity, req, &e) < 0) {
                api_fail(x, 400, "invalid_argument", "%s", e.msg);
                return;
        }
        if (before && a->identity.owns_machine && conns_probe(&e) < 0)
                log_warn("init: %s", e.msg);
        if (a->identity.warning.code)
                log_warn("init: %s", a->identity.warning.msg);
        a->stopping = a->identity.saved = false;
        (void) cgroups_freeze(a->cgroups, false); /* a restored sandbox was stopped before it was saved */
        gate_open(a->gate);
        api_json(x, 200, json_pack("{s:s,s:s}", "bootId", a->identity.boot_id, "agentVersion", CSPACE_VERSION));
}

/* An answer that waits for all processes to end. */
struct ending {
        struct agent *a;
        struct http_x *x; /* NULL: the asker is gone */
        bool power_off;
};

static void ending_gone(void *arg) {
        struct ending *e = arg;
        e->x = NULL;
}

static void power_off(void *arg) {
        (void) arg;
        boot_power_off();
}

/* The answer is queued on the link; it leaves with the next turns of the loop. */
static void ending_sent(void *arg) {
        struct ending *e = arg;
        struct timer *t = e->power_off ? timer_new(e->a->loop, power_off, NULL) : NULL;
        if (t)
                timer_start(t, POWER_OFF_DELAY_MS);
        else if (e->power_off)
                boot_power_off();
        free(e);
}

static const struct http_x_ops no_ops = { 0 };
static const struct http_x_ops waiting_ops = { .on_abort = ending_gone, .on_done = ending_gone };
static const struct http_x_ops sent_ops = { .on_abort = ending_sent, .on_done = ending_sent };

static void quiesced(void *arg, int err) {
        struct ending *e = arg;
        struct agent *a = e->a;
        struct http_x *x = e->x;
        procs_forget_ended(a->procs);
        identity_forget(&a->identity);
        a->stopping = false;
        sync();
        if (a->trim)
                trim_note(a->trim);
        /* The heap stays as it is: what is in a template costs its clones nothing, and taking pages
         * back from the kernel would cost each of them its first moments. */
        if (x) {
                http_x_set_ops(x, &sent_ops, e);
                if (err < 0)
                        api_fail(x, 500, "busy", "processes are left that do not end");
                else
                        api_json(x, 200, json_object());
        } else
                free(e);
}

static void stopped(void *arg, int err) {
        struct ending *e = arg;
        (void) err; /* what did not end in time loses what it has not written */
        identity_settle(&e->a->identity);
        sync();
        e->power_off = e->a->pid1;
        if (e->x) {
                http_x_set_ops(e->x, &sent_ops, e);
                api_json(e->x, 200, json_object());
        } else
                ending_sent(e);
        if (!e->a->pid1)
                uv_stop(e->a->loop);
}

static void end_all(struct agent *a, struct http_x *x, unsigned term_ms, unsigned kill_ms,
                    void (*done)(void *arg, int err)) {
        struct ending *e = calloc(1, sizeof *e);
        if (!e) {
                api_fail(x, 500, "internal", "out of memory");
                return;
        }
        e->a = a;
        e->x = x;
        a->stopping = true;
        (void) cgroups_freeze(a->cgroups, false);
        polled_watchers_forget(a->polled);
        if (term_ms == 0)
                sessions_forget(a->sessions);
        http_x_set_ops(x, &waiting_ops, e); /* done may be called at once */
        if (procs_stop_all(a->procs, term_ms, kill_ms, true, done, e) < 0) {
                http_x_set_ops(x, &no_ops, NULL);
                free(e);
                api_fail(x, 409, "already_stopping", "the sandbox is already stopping");
        }
}

static void stop(void *arg, struct http_x *x, struct buf *body) {
        struct error e = ERROR_INIT;
        _cleanup_json_ json_t *req = NULL;
        uint64_t ms = STOP_TERM_DEFAULT_MS;
        if (body->len > 0 && (json_parse(buf_data(body), body->len, 4096, &req, &e) < 0 ||
                              json_read_u64(req, "timeoutMs", false, 0, STOP_TERM_MAX_MS, &ms, &e) < 0)) {
                api_fail(x, 400, "invalid_argument", "%s", e.msg);
                return;
        }
        end_all(arg, x, (unsigned) ms, STOP_KILL_MS, stopped);
}

static void quiesce(void *arg, struct http_x *x, struct buf *body) {
        (void) body;
        end_all(arg, x, 0, QUIESCE_KILL_MS, quiesced);
}

static void fs_goes_on(struct agent *a);

/* Before the VM is paused or saved: nothing of the user's runs again until the clock is right. Nobody copies the disk
 * then, and a filesystem that was kept frozen would be when it goes on. */
static void freeze(void *arg, struct http_x *x, struct buf *body) {
        struct agent *a = arg;
        (void) body;
        fs_goes_on(a);
        a->identity.saved = true;
        int r = cgroups_freeze(a->cgroups, true);
        if (r < 0)
                api_fail(x, 500, "not_supported", "the commands cannot be frozen: %s", strerror(-r));
        else
                api_json(x, 200, json_object());
}

static void thaw(void *arg, struct http_x *x, struct buf *body) {
        struct agent *a = arg;
        struct error e = ERROR_INIT;
        _cleanup_json_ json_t *req = NULL;
        int r = body->len == 0 ? 0 : json_parse(buf_data(body), body->len, 4096, &req, &e);
        if (r >= 0 && req)
                r = identity_resync(&a->identity, req, &e);
        /* What is wrong with the request is no reason to leave the commands frozen. */
        (void) cgroups_freeze(a->cgroups, false);
        a->identity.saved = false;
        if (r < 0)
                api_fail(x, 400, "invalid_argument", "%s", e.msg);
        else
                api_json(x, 200, json_pack("{s:b}", "identified", a->identity.ready));
}

/*
 * Freezing the root filesystem, for a copy of the disk that needs no repair. While it lasts, whoever writes waits; so
 * it ends by itself, should the host forget. Of the agent nothing is on that filesystem.
 */
static int freeze_fs(unsigned long request) {
        _cleanup_fd_ int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        if (request == FIFREEZE)
                (void) syncfs(fd); /* most of the writing, while others may still write */
        return ioctl(fd, request, 0) < 0 ? -errno : 0;
}

static void fs_goes_on(struct agent *a) {
        if (!a->fs_timer)
                return;
        timer_free(a->fs_timer);
        a->fs_timer = NULL;
        int r = freeze_fs(FITHAW);
        if (r < 0)
                log_warn("the filesystem could not be thawed: %s", strerror(-r));
}

static void on_fs_timeout(void *arg) {
        fs_goes_on(arg);
}

static void fsfreeze(void *arg, struct http_x *x, struct buf *body) {
        struct agent *a = arg;
        (void) body;
        if (!a->pid1) {
                api_fail(x, 500, "not_supported", "the machine is not the agent's");
                return;
        }
        if (!a->fs_timer) {
                struct timer *t = timer_new(a->loop, on_fs_timeout, a);
                identity_settle(&a->identity);
                int r = t ? freeze_fs(FIFREEZE) : -ENOMEM;
                if (r < 0) {
                        timer_free(t);
                        api_fail(x, 500, "not_supported", "the filesystem cannot be frozen: %s", strerror(-r));
                        return;
                }
                a->fs_timer = t;
        }
        timer_start(a->fs_timer, FS_FROZEN_MS);
        api_json(x, 200, json_object());
}

static void fsthaw(void *arg, struct http_x *x, struct buf *body) {
        (void) body;
        fs_goes_on(arg);
        api_json(x, 200, json_object());
}

/* What is held back is written; whoever writes goes on. */
static void fssync(void *arg, struct http_x *x, struct buf *body) {
        struct agent *a = arg;
        (void) body;
        if (!a->pid1) {
                api_fail(x, 500, "not_supported", "the machine is not the agent's");
                return;
        }
        identity_settle(&a->identity);
        _cleanup_fd_ int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 || syncfs(fd) < 0)
                api_fail(x, 500, "not_written", "the filesystem could not be written: %s", strerror(errno));
        else
                api_json(x, 200, json_object());
}

static json_t *stats(struct agent *a) {
        json_t *j = metrics_read();
        if (j)
                (void) json_object_set_new(j, "identified", json_boolean(a->identity.ready && !a->identity.saved));
        return j;
}

void control_on_request(void *arg, struct http_x *x) {
        static const struct {
                const char *path;
                size_t max;
                void (*call)(void *arg, struct http_x *x, struct buf *body);
        } posts[] = {
                { "/control/init", LIMIT_IDENTITY_JSON, init },
                { "/control/quiesce", 4096, quiesce },
                { "/control/stop", 4096, stop },
                { "/control/freeze", 4096, freeze },
                { "/control/thaw", 4096, thaw },
                { "/control/fsfreeze", 4096, fsfreeze },
                { "/control/fsthaw", 4096, fsthaw },
                { "/control/fssync", 4096, fssync },
        };
        struct agent *a = arg;
        const struct http1_head *h = http_x_head(x);
        if (str_eq(h->target, "/control/stats") && str_eq(h->method, "GET")) {
                api_json(x, 200, stats(a));
                return;
        }
        for (size_t i = 0; i < ARRAY_SIZE(posts); i++)
                if (str_eq(h->target, posts[i].path) && str_eq(h->method, "POST")) {
                        (void) api_collect(x, posts[i].max, posts[i].call, NULL, a);
                        return;
                }
        api_fail(x, 404, "not_found", "there is no %s %s", h->method, h->target);
}
