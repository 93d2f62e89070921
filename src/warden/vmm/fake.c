/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/vmm.h"

/*
 * No VM: a guest inside this process, on the other end of a socket pair, for tests of everything
 * around a VM. Its agent answers the control service and knows a few ports:
 *
 *   7   sends back what it gets
 *   13  says "fake\n" and ends
 *   14  sends without end
 *   19  resets the stream at the first byte
 *   99  is what ends the VM, as a guest that powers off (the byte 'p') or crashes (any other)
 *
 * All others are closed.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "io/http_server.h"
#include "link/link.h"

enum fake_next { FAKE_NOTHING, FAKE_LOADED, FAKE_RUNNING, FAKE_POWEROFF, FAKE_CRASH };

struct fake_stream {
        LIST_ENTRY(fake_stream) entry;
        struct fake *f;
        struct stream *s;
        unsigned port;
};

struct fake {
        struct vmm base; /* first */
        uv_timer_t later; /* what a VM does some time after it was asked to */
        enum fake_next next;
        struct link *link;
        struct http_server *control;
        LIST_HEAD(, fake_stream) streams;
        struct {
                stream_connect_cb cb;
                void *arg;
                int fd;
        } connect;
        uv_timer_t connecting;
        unsigned handles;
        bool ended, identified;
};

static struct fake *of(struct vmm *v) {
        return (struct fake *) v;
}

/* ---- the guest's ports --------------------------------------------------------------------- */

static void fill(struct fake_stream *fs) {
        static const char block[16384];
        while (fs->port == 14 && stream_queued(fs->s) < STREAM_HIGH_WATER &&
               stream_write(fs->s, block, sizeof(block)) == 0)
                ;
}

static void drop_stream(struct fake_stream *fs, bool abort) {
        LIST_REMOVE(fs, entry);
        if (abort)
                stream_abort(fs->s);
        else
                stream_close(fs->s);
        free(fs);
}

static void later(struct fake *f, enum fake_next what);

static void port_data(void *arg, const uint8_t *data, size_t n) {
        struct fake_stream *fs = arg;
        if (fs->port == 19)
                return drop_stream(fs, true);
        if (fs->port == 99)
                return later(fs->f, data[0] == 'p' ? FAKE_POWEROFF : FAKE_CRASH);
        if (fs->port != 7)
                return;
        (void) stream_write(fs->s, data, n);
        if (stream_queued(fs->s) > STREAM_HIGH_WATER)
                stream_read_stop(fs->s);
}

static void port_eof(void *arg) {
        struct fake_stream *fs = arg;
        if (fs->port != 14)
                drop_stream(fs, false);
}

static void port_drain(void *arg) {
        struct fake_stream *fs = arg;
        stream_read_start(fs->s);
        fill(fs);
}

static void port_error(void *arg, int err) {
        (void) err;
        drop_stream(arg, true);
}

static const struct stream_handler port_handler = {
        .on_data = port_data,
        .on_eof = port_eof,
        .on_drain = port_drain,
        .on_error = port_error,
};

static void open_port(struct fake *f, struct link *l, int32_t id, unsigned port) {
        struct fake_stream *fs = calloc(1, sizeof(*fs));
        if (!fs || link_accept(l, id, &fs->s) < 0)
                return free(fs);
        fs->f = f;
        fs->port = port;
        LIST_INSERT_HEAD(&f->streams, fs, entry);
        stream_set_handler(fs->s, &port_handler, fs);
        if (port == 13) {
                stream_write(fs->s, "fake\n", 5);
                stream_shutdown(fs->s);
        }
        fill(fs);
        stream_read_start(fs->s);
}

/* ---- the guest's agent --------------------------------------------------------------------- */

static void on_request(void *arg, struct http_x *x) {
        struct fake *f = arg;
        const char *target = http_x_head(x)->target, *body = "{}";
        if (str_eq(target, "/control/init")) {
                f->identified = true;
                body = "{\"bootId\":\"fake\",\"agentVersion\":\"fake\"}";
        } else if (str_eq(target, "/control/stats")) {
                body = f->identified ? "{\"identified\":true}" : "{\"identified\":false}";
        } else if (str_eq(target, "/control/stop")) {
                later(f, FAKE_POWEROFF);
        } else if (!str_eq(target, "/control/quiesce") && !str_eq(target, "/control/freeze") &&
                   !str_eq(target, "/control/thaw") && !str_eq(target, "/control/fsfreeze") &&
                   !str_eq(target, "/control/fsthaw") && !str_eq(target, "/control/fssync")) {
                http_x_respond(x, 404, NULL, 0, NULL, 0);
                return;
        }
        http_x_respond(x, 200, NULL, 0, body, strlen(body));
}

static void on_open(void *arg, struct link *l, int32_t id, const char *authority) {
        struct fake *f = arg;
        struct stream *s;
        uint64_t port = 0;
        if (str_eq(authority, "control")) {
                if (link_accept(l, id, &s) == 0)
                        (void) http_server_add(f->control, s, NULL);
                return;
        }
        if (str_has_prefix(authority, "127.0.0.1:"))
                (void) str_to_u64(authority + 10, 65535, &port);
        if (port == 7 || port == 13 || port == 14 || port == 19 || port == 99)
                open_port(f, l, id, (unsigned) port);
        else
                link_refuse(l, id, 502);
}

static void on_link_close(void *arg, int err, const char *why) {
        struct fake *f = arg;
        (void) err;
        (void) why;
        link_free(STEAL(f->link));
}

static const struct link_handler link_handler = { .on_open = on_open, .on_close = on_link_close };

/* ---- the VM -------------------------------------------------------------------------------- */

static void end(struct fake *f, enum vmm_end how, const char *reason) {
        if (f->ended)
                return;
        f->ended = true;
        link_free(STEAL(f->link));
        f->base.handler->on_end(f->base.arg, how, reason);
}

static void on_later(uv_timer_t *t) {
        struct fake *f = t->data;
        switch (f->next) {
        case FAKE_LOADED:
                return f->base.handler->on_loaded(f->base.arg);
        case FAKE_RUNNING:
                return f->base.handler->on_running(f->base.arg);
        case FAKE_POWEROFF:
                return end(f, VMM_EXITED, "the guest powered off");
        case FAKE_CRASH:
                return end(f, VMM_FAILED, "the fake VM crashed");
        case FAKE_NOTHING:
        default:
                return;
        }
}

static void later(struct fake *f, enum fake_next what) {
        f->next = what;
        uv_timer_start(&f->later, on_later, what == FAKE_POWEROFF ? 20 : 1, 0);
}

static int init(struct fake *f, struct error *err) {
        const struct http_server_config cfg = { .on_request = on_request, .arg = f };
        uv_timer_init(f->base.loop, &f->later);
        uv_timer_init(f->base.loop, &f->connecting);
        f->later.data = f->connecting.data = f;
        f->handles = 2;
        return http_server_new(f->base.loop, &cfg, &f->control, err);
}

static int op_boot(struct vmm *v, struct error *err) {
        int r = init(of(v), err);
        if (r >= 0)
                later(of(v), FAKE_RUNNING);
        return r;
}

static int op_restore(struct vmm *v, struct error *err) {
        int r = init(of(v), err);
        if (r >= 0)
                later(of(v), FAKE_LOADED);
        return r;
}

static int op_adopt(struct vmm *v, struct error *err) {
        (void) v;
        return error_set(err, -ESRCH, "a fake VM lives in its warden and dies with it");
}

static void op_run(struct vmm *v) {
        later(of(v), FAKE_RUNNING);
}

static void op_nothing(struct vmm *v, vmm_done cb, void *arg) {
        (void) v;
        cb(arg, 0, NULL);
}

static void op_snapshot(struct vmm *v, vmm_done cb, void *arg) {
        of(v)->ended = true;
        cb(arg, 0, NULL);
}

static void op_save(struct vmm *v, int fd, vmm_done cb, void *arg) {
        struct error e = ERROR_INIT;
        (void) v;
        if (write(fd, "fake state", 10) != 10)
                error_errno(&e, errno, "fake state");
        cb(arg, e.code, e.code < 0 ? &e : NULL);
}

static void op_stop(struct vmm *v) {
        later(of(v), FAKE_POWEROFF);
}

static void op_stats(struct vmm *v, vmm_stats_cb cb, void *arg) {
        const struct vmm_stats st = { 0 };
        (void) v;
        cb(arg, 0, &st);
}

static void op_times(struct vmm *v, uint64_t *ret_spawn_us, uint64_t *ret_load_us) {
        (void) v;
        *ret_spawn_us = *ret_load_us = 1;
}

static void on_connecting(uv_timer_t *t) {
        struct fake *f = t->data;
        struct stream *s = NULL;
        int fd = f->connect.fd;
        stream_connect_cb cb = STEAL(f->connect.cb);
        f->connect.fd = -EBADF;
        int r = stream_from_fd(f->base.loop, fd, &s, NULL);
        cb(f->connect.arg, r, s);
}

static int op_open_stream(struct vmm *v, stream_connect_cb cb, void *arg, struct error *err) {
        struct fake *f = of(v);
        struct stream *s;
        int p[2];
        if (f->ended || f->link || f->connect.cb)
                return error_set(err, -ECONNREFUSED, "the port is taken or the VM has ended");
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, p) < 0)
                return error_errno(err, errno, "socketpair");
        int r = stream_from_fd(v->loop, p[1], &s, err);
        if (r >= 0)
                r = link_new(v->loop, LINK_GUEST, s, &link_handler, f, &f->link, err);
        if (r < 0) {
                close(p[0]);
                return r;
        }
        f->connect.cb = cb;
        f->connect.arg = arg;
        f->connect.fd = p[0];
        uv_timer_start(&f->connecting, on_connecting, 0, 0);
        return 0;
}

static const char *op_last_words(struct vmm *v) {
        (void) v;
        return "";
}

static void on_handle_closed(uv_handle_t *h) {
        struct fake *f = h->data;
        if (--f->handles == 0)
                free(f);
}

static void op_free(struct vmm *v) {
        struct fake *f = of(v);
        f->ended = true;
        link_free(STEAL(f->link));
        struct fake_stream *fs;
        while ((fs = LIST_FIRST(&f->streams)))
                drop_stream(fs, true);
        http_server_free(f->control);
        if (f->handles == 0)
                return free(f);
        if (f->connect.cb) {
                uv_timer_stop(&f->connecting);
                close(f->connect.fd);
                f->connect.cb(f->connect.arg, -ECANCELED, NULL);
        }
        uv_close((uv_handle_t *) &f->later, on_handle_closed);
        uv_close((uv_handle_t *) &f->connecting, on_handle_closed);
}

static const struct vmm_ops fake_ops = {
        .name = "fake",
        .boot = op_boot,
        .restore = op_restore,
        .adopt = op_adopt,
        .run = op_run,
        .pause = op_nothing,
        .resume = op_nothing,
        .reset = op_nothing,
        .snapshot = op_snapshot,
        .save = op_save,
        .stop = op_stop,
        .stats = op_stats,
        .times = op_times,
        .open_stream = op_open_stream,
        .last_words = op_last_words,
        .free = op_free,
};

int vmm_fake_new(struct vmm_config *cfg, struct vmm **ret, struct error *err) {
        (void) cfg;
        struct fake *f = calloc(1, sizeof(*f));
        if (!f)
                return error_set(err, -ENOMEM, "out of memory");
        f->base.ops = &fake_ops;
        f->base.caps = VMM_CAP_PAUSE | VMM_CAP_SNAPSHOT | VMM_CAP_RESET | VMM_CAP_SAVE;
        f->connect.fd = -EBADF;
        LIST_INIT(&f->streams);
        *ret = &f->base;
        return 0;
}
