/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/vmm.h"

/*
 * QEMU: microvm machine, KVM or TCG.
 *
 * The VM is not our child (rootd started the stub that becomes it) and may outlive us, so that the
 * only signs of life are its sockets. QMP is connected to before the VM runs: the connection waits
 * in the backlog of a listening socket that only the VM holds, becomes the greeting when QEMU is up,
 * or is reset when it dies. There is nothing to poll and no race.
 *
 *   boot     stub -> greeting -> running
 *   restore  stub -> greeting -> migrate-incoming -> MIGRATION completed: loaded; run: cont -> running
 *            stub -> cspace-thaw -> greeting: loaded, as it was when the image of its process was made
 *   adopt    greeting -> query-status -> running, or loaded when paused or out of room
 *   snapshot stop -> migrate -> MIGRATION completed -> quit -> QMP closed -> fsync of the files
 *   save     xen-save-devices-state, which is what it says on every accelerator: devices without memory
 *
 * The commands of a chain are sent in one go where QEMU runs them in order anyway.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "stub.h"
#include "tail.h"
#include "vmm/qemu_args.h"
#include "vmm/qmp.h"

#define QEMU_QMP_PATH "qmp.sock"
#define QEMU_PORT_PATH "port.sock"
#define QEMU_STDERR_KEEP 1024
#define QEMU_CONSOLE_KEEP 8192
#define REASON_MAX (ERROR_MSG_MAX - 1)

enum mode { MODE_BOOT, MODE_RESTORE, MODE_ADOPT };

struct qemu {
        struct vmm base; /* first */
        struct vmm_config cfg;
        enum mode mode;

        uv_poll_t stub_poll;
        bool stub_polled;
        struct qmp *qmp;
        struct tail *errors, *console;
        char words[QEMU_CONSOLE_KEEP + QEMU_STDERR_KEEP + 64];

        uint64_t start_us, answered_us, loaded_us;
        bool loading, loaded, running, ended, freed, let_go;
        char shutdown[64]; /* reason of a SHUTDOWN event; "" none came */

        struct {
                vmm_done cb;
                void *arg;
                bool migrated, syncing;
                int step;
                uv_fs_t fs;
        } snap;
};

static struct qemu *of(struct vmm *v) {
        return (struct qemu *) v;
}

/* ---- end ----------------------------------------------------------------------------------- */

static void close_channels(struct qemu *q) {
        qmp_free(STEAL(q->qmp));
}

static void end(struct qemu *q, enum vmm_end how, const char *reason) {
        if (q->ended)
                return;
        q->ended = true;
        char text[REASON_MAX + 1];
        tail_drain(q->errors);
        const char *said = tail_text(q->errors);
        if (how == VMM_FAILED && *said)
                snprintf(text, sizeof(text), "%s (%.*s)", reason, (int) strcspn(said, "\n"), said);
        else
                snprintf(text, sizeof(text), "%s", reason);
        close_channels(q);
        if (q->snap.cb) {
                struct error e = ERROR_INIT;
                int r = error_set(&e, -EIO, "the VM ended before its snapshot was written: %s", text);
                vmm_done cb = STEAL(q->snap.cb);
                cb(q->snap.arg, r, &e);
        }
        q->base.handler->on_end(q->base.arg, how, text);
}

static void end_failed(struct qemu *q, const struct error *e, const char *what) {
        char text[REASON_MAX + 1];
        snprintf(text, sizeof(text), "%s: %s", what, e ? e->msg : "unknown error");
        end(q, VMM_FAILED, text);
}

static void release(struct qemu *q) {
        if (q->stub_polled || q->snap.syncing)
                return;
        vmm_config_close(&q->cfg);
        free(q);
}

/* ---- snapshot ------------------------------------------------------------------------------ */

static void snapshot_done(struct qemu *q, const struct error *e) {
        vmm_done cb = STEAL(q->snap.cb);
        if (e)
                return cb(q->snap.arg, e->code, e);
        q->ended = true; /* as was wanted: on_end says nothing about it */
        close_channels(q);
        cb(q->snap.arg, 0, NULL);
}

static void fsync_next(struct qemu *q);

static void on_fsynced(uv_fs_t *req) {
        struct qemu *q = CONTAINER_OF(req, struct qemu, snap.fs);
        ssize_t r = req->result;
        uv_fs_req_cleanup(req);
        q->snap.syncing = false;
        if (q->freed)
                return release(q);
        if (r < 0) {
                struct error e = ERROR_INIT;
                error_errno(&e, (int) r, "cannot make the snapshot durable");
                return snapshot_done(q, &e);
        }
        q->snap.step++;
        fsync_next(q);
}

static void fsync_next(struct qemu *q) {
        const int fds[] = { q->cfg.mem, q->cfg.state, q->cfg.disk };
        if (q->snap.step == (int) ARRAY_SIZE(fds))
                return snapshot_done(q, NULL);
        int r = uv_fs_fsync(q->base.loop, &q->snap.fs, fds[q->snap.step], on_fsynced);
        if (r < 0) {
                struct error e = ERROR_INIT;
                error_errno(&e, r, "cannot make the snapshot durable");
                return snapshot_done(q, &e);
        }
        q->snap.syncing = true;
}

static void on_snapshot_command(void *arg, int err, const struct error *e, const json_t *ret) {
        struct qemu *q = arg;
        (void) ret;
        if (err == 0 || !q->snap.cb || q->snap.migrated)
                return;
        snapshot_done(q, e);
}

static void snapshot_migrated(struct qemu *q, const char *status) {
        if (!str_eq(status, "completed")) {
                struct error e = ERROR_INIT;
                error_set(&e, -EIO, "QEMU could not write the VM's state");
                return snapshot_done(q, &e);
        }
        q->snap.migrated = true;
        qmp_send(q->qmp, on_snapshot_command, q, "quit", NULL); /* its socket's end is the next step */
}

/* Guest memory is in a file that is mapped, not in the stream of the state. */
static void leave_memory_out(struct qemu *q, qmp_cb cb) {
        qmp_send(q->qmp, cb, q, "migrate-set-capabilities", "{s:[{s:s,s:b}]}", "capabilities", "capability",
                 "x-ignore-shared", "state", 1);
}

static void op_snapshot(struct vmm *v, vmm_done cb, void *arg) {
        struct qemu *q = of(v);
        struct error e = ERROR_INIT;
        if (q->mode != MODE_BOOT || q->cfg.state < 0 || q->cfg.mem < 0)
                error_set(&e, -ENOTSUP, "this VM was not started to be snapshotted");
        else if (q->snap.cb || q->ended || !q->qmp)
                error_set(&e, -EBUSY, "the VM is being snapshotted or has ended");
        if (e.code < 0)
                return cb(arg, e.code, &e);
        q->snap.cb = cb;
        q->snap.arg = arg;
        qmp_send(q->qmp, on_snapshot_command, q, "stop", NULL);
        leave_memory_out(q, on_snapshot_command);
        qmp_send_fd(q->qmp, on_snapshot_command, q, q->cfg.state, "state");
        qmp_send(q->qmp, on_snapshot_command, q, "migrate", "{s:s}", "uri", "fd:state");
}

/* ---- QMP ----------------------------------------------------------------------------------- */

static void is_running(struct qemu *q) {
        if (q->running || q->ended)
                return;
        q->running = true;
        q->base.handler->on_running(q->base.arg);
}

static void on_start_command(void *arg, int err, const struct error *e, const json_t *ret);

/* The guest knows the size that the disk had when its state was written. QEMU has opened the larger file, and tells
 * the guest when it is "resized" to what it is. It runs in order, so before the guest does. */
static void tell_disk_size(struct qemu *q) {
        if (q->cfg.disk_bytes)
                qmp_send(q->qmp, on_start_command, q, "block_resize", "{s:s,s:I}", "node-name", "disk", "size",
                         (json_int_t) q->cfg.disk_bytes);
}

static void is_loaded(struct qemu *q) {
        tell_disk_size(q);
        q->loading = false;
        q->loaded = true;
        q->loaded_us = clock_mono_us();
        q->base.handler->on_loaded(q->base.arg);
}

static void on_migration(struct qemu *q, const char *status) {
        if (q->snap.cb) {
                if (!q->snap.migrated && (str_eq(status, "completed") || str_eq(status, "failed")))
                        snapshot_migrated(q, status);
        } else if (q->loading && str_eq(status, "completed")) {
                is_loaded(q);
        } else if (q->loading && str_eq(status, "failed")) {
                end(q, VMM_FAILED, "the snapshot cannot be loaded");
        }
}

static void on_event(void *arg, const char *name, const json_t *data) {
        struct qemu *q = arg;
        if (str_eq(name, "MIGRATION")) {
                const char *status = json_string_value(json_object_get(data, "status"));
                on_migration(q, status ? status : "");
        } else if (str_eq(name, "VSERPORT_CHANGE")) {
                if (json_is_false(json_object_get(data, "open")) && q->base.handler->on_port_closed)
                        q->base.handler->on_port_closed(q->base.arg);
        } else if (str_eq(name, "BLOCK_IO_ERROR")) {
                if (json_is_true(json_object_get(data, "nospace")) && str_eq(json_string_value(json_object_get(data, "action")), "stop"))
                        q->base.handler->on_no_room(q->base.arg);
        } else if (str_eq(name, "SHUTDOWN")) {
                const char *why = json_string_value(json_object_get(data, "reason"));
                snprintf(q->shutdown, sizeof(q->shutdown), "%s", why ? why : "unknown");
        }
}

static const char *shutdown_text(const char *reason) {
        static const struct {
                const char *reason, *text;
        } known[] = {
                { "guest-shutdown", "the guest powered off" },
                { "guest-reset", "the guest rebooted" },
                { "guest-panic", "the guest's kernel panicked" },
                { "host-qmp-quit", "stopped" },
                { "host-signal", "ended by a signal" },
        };
        for (size_t i = 0; i < ARRAY_SIZE(known); i++)
                if (str_eq(reason, known[i].reason))
                        return known[i].text;
        return NULL;
}

static void on_qmp_close(void *arg, int err, const char *why) {
        struct qemu *q = arg;
        if (q->snap.cb && q->snap.migrated) {
                q->snap.step = 0;
                return fsync_next(q);
        }
        const char *text = shutdown_text(q->shutdown);
        char failure[128];
        if (text)
                return end(q, VMM_EXITED, text);
        if (err == -EPROTO)
                snprintf(failure, sizeof(failure), "QEMU does not keep to its protocol: %s", why);
        else
                snprintf(failure, sizeof(failure), "QEMU ended unexpectedly");
        end(q, VMM_FAILED, failure);
}

static const struct qmp_handler qmp_handler = {
        .on_event = on_event,
        .on_close = on_qmp_close,
};

static void on_start_command(void *arg, int err, const struct error *e, const json_t *ret) {
        (void) ret;
        if (err < 0 && err != -ECANCELED && err != -ECONNRESET)
                end_failed(arg, e, "QEMU refused a command");
}

/* The first command is answered: from here on QEMU does what it is told. */
static void on_capabilities(void *arg, int err, const struct error *e, const json_t *ret) {
        struct qemu *q = arg;
        on_start_command(q, err, e, ret);
        q->answered_us = clock_mono_us();
        if (err < 0)
                return;
        if (q->mode == MODE_BOOT) {
                q->loaded_us = q->answered_us;
                is_running(q);
        } else if (q->mode == MODE_RESTORE && q->cfg.thaw)
                is_loaded(q);
}

static void on_adopted(void *arg, int err, const struct error *e, const json_t *ret) {
        struct qemu *q = arg;
        on_start_command(q, err, e, ret);
        if (err < 0)
                return;
        const char *status = json_string_value(json_object_get(ret, "status"));
        q->loaded_us = clock_mono_us();
        if (str_eq(status, "running"))
                is_running(q);
        else if (str_eq(status, "paused") || str_eq(status, "io-error")) { /* which one that was paused meanwhile still is */
                tell_disk_size(q); /* the warden before may not have come to it */
                q->base.handler->on_loaded(q->base.arg);
        }
        else
                end(q, VMM_FAILED, "the VM that was left is in no state to be taken over");
}

/* The socket waits in the backlog until QEMU is up; so do the commands. */
static int connect_qmp(struct qemu *q, struct error *err) {
        int r = qmp_connect(q->base.loop, QEMU_QMP_PATH, &qmp_handler, q, &q->qmp, err);
        if (r < 0)
                return error_wrap(err, "VM");
        qmp_send(q->qmp, on_capabilities, q, "qmp_capabilities", NULL);
        if (q->mode == MODE_ADOPT) {
                qmp_send(q->qmp, on_adopted, q, "query-status", NULL);
        } else if (q->mode == MODE_RESTORE && !q->cfg.thaw) {
                char uri[16];
                snprintf(uri, sizeof(uri), "fd:%d", QEMU_FD_STATE);
                q->loading = true;
                leave_memory_out(q, on_start_command);
                /* Nobody on the wire has to learn where the guest is now. */
                qmp_send(q->qmp, on_start_command, q, "migrate-set-parameters", "{s:i}", "announce-rounds", 0);
                qmp_send(q->qmp, on_start_command, q, "migrate-incoming", "{s:s}", "uri", uri);
        }
        return 0;
}

/* ---- start --------------------------------------------------------------------------------- */

/* The stub answers only to say why it could not exec; its end closes on a successful one. */
static void on_stub(uv_poll_t *h, int status, int events) {
        struct qemu *q = h->data;
        (void) events;
        char text[256];
        ssize_t n = status < 0 ? 0 : recv(q->cfg.stub, text, sizeof(text) - 1, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
                return;
        uv_poll_stop(h);
        q->cfg.stub = fd_close(q->cfg.stub);
        if (n <= 0)
                return;
        text[n] = '\0';
        struct error e = ERROR_INIT;
        error_set(&e, -EIO, "%s", text);
        end_failed(q, &e, "the VM could not be started");
}

static int watch_stub(struct qemu *q, struct error *err) {
        int r = uv_poll_init(q->base.loop, &q->stub_poll, q->cfg.stub);
        if (r < 0)
                return error_errno(err, r, "VM stub");
        q->stub_poll.data = q;
        q->stub_polled = true;
        uv_poll_start(&q->stub_poll, UV_READABLE, on_stub);
        return 0;
}

static int make_tails(struct qemu *q, int *ret_stderr, int *ret_console, struct error *err) {
        _cleanup_fd_ int console = -EBADF, errors = -EBADF;
        int p[2], r;
        if (pipe2(p, O_CLOEXEC) < 0)
                return error_errno(err, errno, "pipe");
        errors = p[1];
        r = tail_new(q->base.loop, p[0], QEMU_STDERR_KEEP, &q->errors, err);
        if (r < 0)
                return r;
        if (q->mode == MODE_BOOT) {
                if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, p) < 0)
                        return error_errno(err, errno, "socketpair");
                console = p[1];
                r = tail_new(q->base.loop, p[0], QEMU_CONSOLE_KEEP, &q->console, err);
                if (r < 0)
                        return r;
        }
        *ret_stderr = fd_steal(&errors);
        *ret_console = fd_steal(&console);
        return 0;
}

static int send_to_stub(struct qemu *q, int errors, int console, struct error *err) {
        const struct vmm_config *c = &q->cfg;
        bool boot = q->mode == MODE_BOOT;
        _cleanup_buf_ struct buf strings = BUF_INIT(STUB_MESSAGE_MAX);
        size_t n_argv, n_env;
        int r = qemu_args(c, boot, boot ? tsc_khz() : 0, &strings, &n_argv, err);
        if (r >= 0)
                r = qemu_env(c, &strings, &n_env, err);
        if (r < 0)
                return r;
        const struct stub_fd all[] = {
                { errors, STDERR_FILENO },
                { c->qmp_listen, QEMU_FD_QMP },
                { c->port_listen, QEMU_FD_PORT },
                { c->tap, QEMU_FD_TAP },
                { c->disk, QEMU_FD_DISK },
                { c->mem, QEMU_FD_MEM },
                { c->state, QEMU_FD_STATE },
                { boot || c->thaw ? c->kernel : -EBADF, QEMU_FD_KERNEL },
                { boot || c->thaw ? c->initrd : -EBADF, QEMU_FD_INITRD },
                { console, QEMU_FD_CONSOLE },
        };
        struct stub_fd fds[ARRAY_SIZE(all)];
        size_t n = 0;
        for (size_t i = 0; i < ARRAY_SIZE(all); i++)
                if (all[i].from >= 0)
                        fds[n++] = all[i];
        return stub_send(c->stub, buf_data(&strings), strings.len, n_argv, n_env, fds, n, err);
}

static int start(struct qemu *q, enum mode mode, struct error *err) {
        struct vmm_config *c = &q->cfg;
        bool boot = mode == MODE_BOOT;
        q->mode = mode;
        if (c->stub < 0 || c->disk < 0 || c->mem < 0 || (c->state < 0 && !c->keep) || c->qmp_listen < 0 || c->port_listen < 0 ||
            (boot && (c->kernel < 0 || c->initrd < 0)))
                return error_set(err, -EBADF, "a descriptor that a VM needs is missing");
        _cleanup_fd_ int errors = -EBADF, console = -EBADF;
        q->start_us = clock_mono_us();
        int r = connect_qmp(q, err);
        if (r >= 0)
                r = make_tails(q, &errors, &console, err);
        if (r >= 0)
                r = send_to_stub(q, errors, console, err);
        if (r >= 0)
                r = watch_stub(q, err);
        if (r < 0)
                return r;
        /* What only the VM shall hold from here on. A snapshot still needs its files. */
        c->qmp_listen = fd_close(c->qmp_listen);
        c->port_listen = fd_close(c->port_listen);
        c->tap = fd_close(c->tap);
        c->kernel = fd_close(c->kernel);
        c->initrd = fd_close(c->initrd);
        if (!boot || c->keep) {
                c->disk = fd_close(c->disk);
                c->mem = fd_close(c->mem);
                c->state = fd_close(c->state);
        }
        return 0;
}

static int op_boot(struct vmm *v, struct error *err) {
        return start(of(v), MODE_BOOT, err);
}

static int op_restore(struct vmm *v, struct error *err) {
        return start(of(v), MODE_RESTORE, err);
}

static int op_adopt(struct vmm *v, struct error *err) {
        struct qemu *q = of(v);
        q->mode = MODE_ADOPT;
        q->start_us = clock_mono_us();
        return connect_qmp(q, err);
}

/* ---- the rest of the table ----------------------------------------------------------------- */

static void on_cont(void *arg, int err, const struct error *e, const json_t *ret) {
        on_start_command(arg, err, e, ret);
        if (err == 0)
                is_running(arg);
}

static void on_back(void *arg, int err, const struct error *e, const json_t *ret) {
        on_start_command(arg, err, e, ret);
}

/* Whether commands can be sent; takes hold again of a VM that was let go. */
static bool holds(struct qemu *q) {
        if (q->qmp || q->ended || !q->let_go)
                return q->qmp && !q->ended;
        if (qmp_connect(q->base.loop, QEMU_QMP_PATH, &qmp_handler, q, &q->qmp, NULL) < 0)
                return false;
        q->let_go = false;
        qmp_send(q->qmp, on_back, q, "qmp_capabilities", NULL);
        return true;
}

static void op_run(struct vmm *v) {
        struct qemu *q = of(v);
        if (holds(q))
                qmp_send(q->qmp, on_cont, q, "cont", NULL);
}

static void op_let_go(struct vmm *v) {
        struct qemu *q = of(v);
        if (!q->qmp || q->ended)
                return;
        close_channels(q);
        q->let_go = true;
}

struct call {
        vmm_done cb;
        void *arg;
        vmm_stats_cb stats_cb;
};

static void on_called(void *arg, int err, const struct error *e, const json_t *ret) {
        _cleanup_free_ struct call *c = arg;
        (void) ret;
        c->cb(c->arg, err, e);
}

static void call(struct vmm *v, const char *command, vmm_done cb, void *arg) {
        struct qemu *q = of(v);
        struct error e = ERROR_INIT;
        struct call *c = holds(q) ? malloc(sizeof(*c)) : NULL;
        if (!c) {
                error_set(&e, -ENOTCONN, "there is no VM to talk to");
                return cb(arg, e.code, &e);
        }
        *c = (struct call){ .cb = cb, .arg = arg };
        qmp_send(q->qmp, on_called, c, command, NULL);
}

static void op_pause(struct vmm *v, vmm_done cb, void *arg) {
        call(v, "stop", cb, arg);
}

static void op_resume(struct vmm *v, vmm_done cb, void *arg) {
        call(v, "cont", cb, arg);
}

/*
 * Saving. The file begins as one of "migrate" does, with what that writes and xen-save-devices-state
 * leaves out: the section that names the machine. So one way of loading is enough for both.
 *
 *   "QEVM", version 3 | 07 = configuration, the machine's name | 05 = subsection: one capability | devices
 *
 * QEMU writes its own "QEVM" and version where they end right before the devices; then this goes over them.
 */
static const char state_head[] = "QEVM\0\0\0\3"
                                 "\7\0\0\0\7microvm"
                                 "\5\32configuration/capabilities\0\0\0\1\0\0\0\1"
                                 "\17x-ignore-shared";
#define STATE_HEAD (sizeof(state_head) - 1)
#define STATE_HEAD_OF_QEMU 8
#define SAVE_FDSET 9000
#define ROOM_TRIED (256 * 1024) /* bytes; a few may still find a place where no block does */

struct save {
        struct qemu *q;
        int fd;
        vmm_done cb;
        void *arg;
};

static int write_state_head(int fd, struct error *err) {
        if (lseek(fd, 0, SEEK_SET) < 0)
                return error_errno(err, errno, "cannot write the VM's state");
        return fd_write_all(fd, state_head, STATE_HEAD, err);
}

/* QEMU tells every failed writing as the same error; whether there is no room is tried. What is written is thrown away with the rest. */
static int why_unwritten(int fd, int err) {
        static const uint8_t nothing[4096];
        int r = lseek(fd, 0, SEEK_END) < 0 ? -errno : 0;
        for (size_t n = 0; r == 0 && n < ROOM_TRIED; n += sizeof(nothing))
                r = fd_write_all(fd, nothing, sizeof(nothing), NULL);
        return r == -ENOSPC || r == -EDQUOT ? r : err;
}

static void on_saved(void *arg, int err, const struct error *e, const json_t *ret) {
        _cleanup_free_ struct save *s = arg;
        struct error own = ERROR_INIT;
        (void) ret;
        if (err < 0) {
                err = why_unwritten(s->fd, err);
                error_set(&own, err, "QEMU could not write the VM's state: %s",
                          err == -ENOSPC || err == -EDQUOT ? "there is no room for it" : e->msg);
        } else {
                write_state_head(s->fd, &own);
        }
        s->cb(s->arg, own.code, own.code < 0 ? &own : NULL);
}

static void op_save(struct vmm *v, int fd, vmm_done cb, void *arg) {
        struct qemu *q = of(v);
        struct error e = ERROR_INIT;
        struct save *s = holds(q) ? malloc(sizeof(*s)) : NULL;
        char path[32];
        if (!s)
                error_set(&e, -ENOTCONN, "there is no VM to talk to");
        else if (lseek(fd, STATE_HEAD - STATE_HEAD_OF_QEMU, SEEK_SET) < 0)
                error_errno(&e, errno, "cannot write the VM's state");
        if (e.code < 0) {
                free(s);
                return cb(arg, e.code, &e);
        }
        *s = (struct save){ .q = q, .fd = fd, .cb = cb, .arg = arg };
        snprintf(path, sizeof(path), "/dev/fdset/%d", SAVE_FDSET);
        qmp_add_fd(q->qmp, NULL, NULL, fd, SAVE_FDSET);
        /* live: false, or QEMU gives up its disk, for another to take it over. */
        qmp_send(q->qmp, on_saved, s, "xen-save-devices-state", "{s:s,s:b}", "filename", path, "live", 0);
        qmp_send(q->qmp, NULL, NULL, "remove-fd", "{s:i}", "fdset-id", SAVE_FDSET);
}

/* -no-reboot makes an end of every reset, also of this one, while it is in force. */
static void op_reset(struct vmm *v, vmm_done cb, void *arg) {
        struct qemu *q = of(v);
        if (q->qmp && !q->ended)
                qmp_send(q->qmp, NULL, NULL, "set-action", "{s:s}", "reboot", "reset");
        call(v, "system_reset", cb, arg);
        if (q->qmp && !q->ended)
                qmp_send(q->qmp, NULL, NULL, "set-action", "{s:s}", "reboot", "shutdown");
}

static void op_stop(struct vmm *v) {
        struct qemu *q = of(v);
        if (holds(q))
                qmp_send(q->qmp, NULL, NULL, "quit", NULL);
}

static void on_stats(void *arg, int err, const struct error *e, const json_t *ret) {
        _cleanup_free_ struct call *c = arg;
        (void) e;
        const json_t *disk = json_object_get(json_array_get(ret, 0), "stats");
        struct vmm_stats st = {
                .disk_read = (uint64_t) json_integer_value(json_object_get(disk, "rd_bytes")),
                .disk_written = (uint64_t) json_integer_value(json_object_get(disk, "wr_bytes")),
        };
        c->stats_cb(c->arg, err, &st);
}

static void op_stats(struct vmm *v, vmm_stats_cb cb, void *arg) {
        struct qemu *q = of(v);
        struct vmm_stats none = { 0 };
        struct call *c = q->qmp && !q->ended ? malloc(sizeof(*c)) : NULL;
        if (!c)
                return cb(arg, -ENOTCONN, &none);
        *c = (struct call){ .arg = arg, .stats_cb = cb };
        qmp_send(q->qmp, on_stats, c, "query-blockstats", NULL);
}

static void op_times(struct vmm *v, uint64_t *ret_spawn_us, uint64_t *ret_load_us) {
        struct qemu *q = of(v);
        *ret_spawn_us = q->answered_us > q->start_us ? q->answered_us - q->start_us : 0;
        *ret_load_us = q->loaded_us > q->answered_us ? q->loaded_us - q->answered_us : 0;
}

static int op_open_stream(struct vmm *v, stream_connect_cb cb, void *arg, struct error *err) {
        struct stream_connect *c;
        return stream_connect_unix(v->loop, QEMU_PORT_PATH, cb, arg, &c, err);
}

static const char *op_last_words(struct vmm *v) {
        struct qemu *q = of(v);
        tail_drain(q->errors);
        tail_drain(q->console);
        snprintf(q->words, sizeof(q->words), "%s%s", tail_text(q->errors), tail_text(q->console));
        return q->words;
}

static void on_stub_closed(uv_handle_t *h) {
        struct qemu *q = h->data;
        q->stub_polled = false;
        release(q);
}

static void op_free(struct vmm *v) {
        struct qemu *q = of(v);
        q->ended = q->freed = true;
        q->snap.cb = NULL;
        close_channels(q);
        tail_free(q->errors);
        tail_free(q->console);
        if (!q->stub_polled)
                return release(q);
        uv_poll_stop(&q->stub_poll);
        q->cfg.stub = fd_close(q->cfg.stub);
        uv_close((uv_handle_t *) &q->stub_poll, on_stub_closed);
}

static const struct vmm_ops qemu_ops = {
        .name = "qemu",
        .boot = op_boot,
        .restore = op_restore,
        .adopt = op_adopt,
        .run = op_run,
        .pause = op_pause,
        .resume = op_resume,
        .reset = op_reset,
        .snapshot = op_snapshot,
        .save = op_save,
        .let_go = op_let_go,
        .stop = op_stop,
        .stats = op_stats,
        .times = op_times,
        .open_stream = op_open_stream,
        .last_words = op_last_words,
        .free = op_free,
};

int vmm_qemu_new(struct vmm_config *cfg, struct vmm **ret, struct error *err) {
        struct qemu *q = calloc(1, sizeof(*q));
        if (!q)
                return error_set(err, -ENOMEM, "out of memory");
        q->base.ops = &qemu_ops;
        q->base.caps = VMM_CAP_PAUSE | VMM_CAP_SNAPSHOT | VMM_CAP_RESET | VMM_CAP_ADOPT | VMM_CAP_SAVE;
        q->cfg = *cfg;
        struct vmm_config none = *cfg;
        none.stub = none.tap = none.disk = none.mem = none.state = -EBADF;
        none.kernel = none.initrd = none.qmp_listen = none.port_listen = -EBADF;
        *cfg = none;
        *ret = &q->base;
        return 0;
}
