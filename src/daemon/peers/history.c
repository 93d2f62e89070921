/* SPDX-License-Identifier: Apache-2.0 */

/*
 *   SYNC   FSFREEZE on, then off: what the guest holds back is on its disk, and the journal is empty
 *   ASK    HISTORY to cspace-rootd; the answer has a descriptor
 *   LINES  of a diff all, of a file one
 *   BYTES  of the file. The last of them are held back until the end of file has come: a failure in their midst puts a
 *          line there, which must not pass for the file's end. A tree's length nobody knows before: its end is that of an archive
 */
#include "history.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "history_line.h"
#include "io/stream.h"
#include "manifest/variant.h"
#include "rootd.h"
#include "sandbox/sandbox.h"
#include "timer.h"
#include "warden.h"

#define ASK_TIMEOUT_MS 30000
#define TAR_BLOCK 512
#define TAR_END (2 * TAR_BLOCK) /* zeros */

enum step { STEP_SYNC, STEP_THAW, STEP_ASK, STEP_LINES, STEP_BYTES, STEP_OVER };

struct history {
        struct app *app;
        struct sandbox *s;
        struct history_question q;
        char path[LIMIT_PATH], cursor[HISTORY_CURSOR_MAX + 1];
        const struct history_handler *handler;
        void *arg;
        enum step step;
        bool synced, asked, freed;
        struct warden *warden;
        struct timer *timer;
        struct stream *stream;
        struct buf line;    /* LINES: what has no end yet; BYTES: what was not taken, or is held back */
        uint64_t left;      /* BYTES: that are to come */
        uint64_t seen;      /* of all lines */
        bool stopped, eof;
        json_t *end;
};

static void really_free(struct history *h) {
        sandbox_unref(h->s);
        free(h);
}

static void let_go(struct history *h) {
        struct warden *w = STEAL(h->warden);
        struct stream *s = STEAL(h->stream);
        warden_free(w);
        stream_abort(s);
        timer_cancel(h->timer);
        h->timer = NULL;
        buf_done(&h->line);
        json_decref(h->end);
        h->end = NULL;
        h->step = STEP_OVER;
}

void history_free(struct history *h) {
        if (!h || h->freed)
                return;
        let_go(h);
        h->freed = true;
        if (!h->asked) /* else its answer frees */
                really_free(h);
}

bool history_synced(const struct history *h) {
        return h->synced;
}

static void finish(struct history *h, int err, enum api_code code, const struct error *e) {
        _cleanup_json_ json_t *end = json_incref(h->end);
        const struct history_handler *handler = h->handler;
        void *arg = h->arg;
        let_go(h);
        handler->on_end(arg, err, code, e, end); /* h may be gone */
}

static void fail(struct history *h, enum api_code code, int err, const char *why) {
        struct error e = ERROR_INIT;
        (void) error_set(&e, err, "%s", why);
        finish(h, err, code, &e);
}

/* ---- what it writes -------------------------------------------------------------------------- */

static enum api_code code_of(const char *name) {
        static const struct {
                const char *name;
                enum api_code code;
        } all[] = {
                { "bad_argument", API_INVALID_ARGUMENT },
                { "not_found", API_NOT_FOUND },
                { "not_a_directory", API_NOT_FOUND },
                { "is_a_directory", API_INVALID_ARGUMENT },
                { "too_many_links", API_INVALID_ARGUMENT },
                { "path_too_long", API_INVALID_ARGUMENT },
                { "corrupt_filesystem", API_FILESYSTEM_UNREADABLE },
                { "unsupported_filesystem", API_FILESYSTEM_UNREADABLE },
                { "limit", API_HISTORY_LIMIT },
        };
        for (size_t i = 0; i < ARRAY_SIZE(all); i++)
                if (str_eq(name, all[i].name))
                        return all[i].code;
        return API_HISTORY_FAILED;
}

static void one_line(struct history *h, const void *data, size_t n) {
        _cleanup_json_ json_t *j = NULL;
        struct error e = ERROR_INIT;
        enum history_kind kind;
        h->seen += n;
        int r = history_line_read(data, n, &kind, &j, &e);
        if (r < 0) {
                log_warn("sandbox %s: %s", h->s->id, e.msg);
                finish(h, r, API_HISTORY_FAILED, &e);
        } else if (kind == HISTORY_ERROR) {
                fail(h, code_of(json_string_value(json_object_get(j, "code"))), -EIO,
                     json_string_value(json_object_get(j, "error")));
        } else if (h->seen > HISTORY_ANSWER_MAX) {
                fail(h, API_HISTORY_LIMIT, -EFBIG, "the answer is too long: ask for fewer changes at a time, or without patches");
        } else if (kind == HISTORY_FILE && !h->q.diff) {
                h->left = h->q.tree ? HISTORY_STREAM_MAX : (uint64_t) json_integer_value(json_object_get(j, "size"));
                h->step = STEP_BYTES;
                if (!h->q.tree && h->left > HISTORY_FILE_MAX)
                        fail(h, API_HISTORY_LIMIT, -EFBIG, "the file is too large");
                else
                        h->handler->on_file(h->arg, j, h->q.tree ? HISTORY_NO_SIZE : h->left);
        } else if (kind == HISTORY_CHANGE && h->q.diff && !h->end) {
                h->handler->on_change(h->arg, j);
        } else if (kind == HISTORY_END && h->q.diff && !h->end) {
                h->end = STEAL(j);
        } else {
                fail(h, API_HISTORY_FAILED, -EPROTO, "cspace-history wrote what was not asked for");
        }
}

static size_t held_back(const struct history *h) {
        if (h->eof)
                return 0;
        if (h->q.tree)
                return h->line.len < TAR_END ? h->line.len : TAR_END;
        return h->left == 0;
}

/* Gives what is there, but the last byte of a file, and what may be the end of an archive. */
static void give(struct history *h) {
        while (h->step == STEP_BYTES && h->line.len > 0) {
                size_t n = h->line.len - held_back(h);
                if (n == 0)
                        return;
                int r = h->handler->on_bytes(h->arg, buf_data(&h->line), n);
                if (h->step == STEP_BYTES && r != -ENOBUFS)
                        buf_consume(&h->line, n);
                if (h->step == STEP_BYTES && (r == -ENOBUFS || r == 1)) {
                        h->stopped = true;
                        stream_read_stop(h->stream);
                        return;
                }
        }
}

static size_t take_bytes(struct history *h, const uint8_t *data, size_t n) {
        if (n > h->left) {
                fail(h, h->q.tree ? API_HISTORY_LIMIT : API_HISTORY_FAILED, -EPROTO,
                     h->q.tree ? "the archive is too large" : "the file could not be read to its end");
                return 0;
        }
        h->left -= n;
        if (buf_append(&h->line, data, n) < 0) {
                fail(h, API_INTERNAL, -ENOMEM, "out of memory");
                return 0;
        }
        if (!h->stopped)
                give(h);
        return n;
}

static size_t take_line(struct history *h, const uint8_t *data, size_t n) {
        const uint8_t *stop = memchr(data, '\n', n);
        size_t part = stop ? (size_t) (stop - data) : n;
        if (buf_append(&h->line, data, part) < 0) {
                fail(h, API_HISTORY_FAILED, -EPROTO, "cspace-history wrote a line that is too long");
                return 0;
        }
        if (!stop)
                return n;
        struct buf line = h->line;
        h->line = BUF_INIT(HISTORY_LINE_MAX);
        one_line(h, buf_data(&line), line.len);
        buf_done(&line);
        return part + 1;
}

/* A handler may free h while it is told: the caller holds it by `asked`. */
static void release(struct history *h) {
        h->asked = false;
        if (h->freed)
                really_free(h);
}

static void on_data(void *arg, const uint8_t *data, size_t n) {
        struct history *h = arg;
        h->asked = true;
        while (n > 0 && (h->step == STEP_LINES || h->step == STEP_BYTES)) {
                size_t taken = h->step == STEP_LINES ? take_line(h, data, n) : take_bytes(h, data, n);
                data += taken;
                n -= taken;
        }
        release(h);
}

static bool is_complete(const struct history *h) {
        if (!h->q.tree)
                return h->left == 0;
        const uint8_t *end = buf_data(&h->line) + h->line.len;
        if (h->line.len < TAR_END || (HISTORY_STREAM_MAX - h->left) % TAR_BLOCK != 0)
                return false;
        for (const uint8_t *p = end - TAR_END; p < end; p++)
                if (*p)
                        return false;
        return true;
}

static void end_of_file(struct history *h) {
        if (h->step == STEP_LINES && h->end && h->line.len == 0) {
                finish(h, 0, API_INTERNAL, NULL);
        } else if (h->step == STEP_BYTES && is_complete(h)) {
                h->eof = true;
                if (!h->stopped)
                        give(h);
                if (h->step == STEP_BYTES && h->line.len == 0)
                        finish(h, 0, API_INTERNAL, NULL);
        } else if (h->step != STEP_OVER) {
                fail(h, API_HISTORY_FAILED, -EPIPE, "cspace-history ended before its answer was complete: a limit on its time or memory, perhaps");
        }
}

static void on_eof(void *arg) {
        struct history *h = arg;
        h->asked = true;
        end_of_file(h);
        release(h);
}

static void on_error(void *arg, int err) {
        (void) err;
        on_eof(arg);
}

void history_resume(struct history *h) {
        if (h->step != STEP_BYTES || !h->stopped)
                return;
        h->stopped = false;
        h->asked = true;
        give(h);
        if (h->step == STEP_BYTES && h->eof && h->line.len == 0)
                finish(h, 0, API_INTERNAL, NULL);
        else if (h->step == STEP_BYTES && !h->eof && !h->stopped)
                stream_read_start(h->stream);
        release(h);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static enum api_code code_of_errno(int err) {
        switch (err) {
        case -ENOENT:
                return API_CONFLICT;
        case -EALREADY:
        case -EAGAIN:
                return API_TOO_MANY;
        default:
                return api_code_from_errno(err);
        }
}

static void on_started(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        static const struct stream_handler handler = { .on_data = on_data, .on_eof = on_eof, .on_error = on_error };
        struct history *h = arg;
        struct error bad = ERROR_INIT;
        h->asked = false;
        if (h->freed) { /* the descriptor is closed with the packet */
                really_free(h);
                return;
        }
        if (err < 0) {
                if (err == -ENOENT)
                        fail(h, code_of_errno(err), err, "what was asked about is not there any more: the sandbox has changed meanwhile");
                else
                        finish(h, err, code_of_errno(err), e);
                return;
        }
        if (p->n_fds != 1 || stream_from_fd(h->app->loop, fd_steal(&p->fds[0]), &h->stream, &bad) < 0) {
                fail(h, API_INTERNAL, -EPROTO, bad.msg[0] ? bad.msg : "cspace-rootd sent no descriptor");
                return;
        }
        h->step = STEP_LINES;
        stream_set_handler(h->stream, &handler, h);
        stream_read_start(h->stream);
}

static int ask(struct history *h, struct error *err) {
        struct ipc_history m = { .count = h->q.limit, .patch = h->q.patch };
        uint8_t body[sizeof m + 128];
        size_t n;
        h->step = STEP_ASK;
        m.max_bytes = h->q.diff ? 0 : HISTORY_FILE_MAX;
        (void) str_copy(m.id, sizeof m.id, h->s->id);
        (void) str_copy(m.digest, sizeof m.digest, h->s->digest);
        (void) str_copy(m.verb, sizeof m.verb, h->q.diff ? "diff" : h->q.tree ? "extract" : "cat");
        (void) str_copy(m.from, sizeof m.from, h->q.from);
        (void) str_copy(m.to, sizeof m.to, h->q.to);
        (void) str_copy(m.path, sizeof m.path, h->path);
        (void) str_copy(m.cursor, sizeof m.cursor, h->cursor);
        variant_name(rootd_engine(h->app->rootd), h->s->memory_mb, h->s->cpus, m.variant);
        int r = ipc_history_encode(&m, body, sizeof body, &n);
        if (r >= 0)
                r = rootd_call(h->app->rootd, IPC_HISTORY, body, n, NULL, 0, ASK_TIMEOUT_MS, on_started, h, err);
        else
                (void) error_errno(err, r, "the question cannot be asked");
        h->asked = r >= 0;
        return r;
}

/* ---- the guest writes what it has ------------------------------------------------------------- */

static void go_on(struct history *h) {
        struct error e = ERROR_INIT;
        struct warden *w = STEAL(h->warden);
        warden_free(w);
        timer_cancel(h->timer);
        h->timer = NULL;
        int r = ask(h, &e);
        if (r < 0)
                finish(h, r, code_of_errno(r), &e);
}

static void on_sync_timeout(void *arg) {
        struct history *h = arg;
        h->timer = NULL;
        go_on(h);
}

static void on_frozen(void *arg, int err, const struct error *e, struct ipc_packet *p);

static int fsfreeze(struct history *h, bool on) {
        struct ipc_fsfreeze m = { .on = on };
        uint8_t body[16];
        size_t n;
        int r = ipc_fsfreeze_encode(&m, body, sizeof body, &n);
        return r < 0 ? r : warden_call(h->warden, IPC_FSFREEZE, body, n, HISTORY_SYNC_MS, on_frozen, h, NULL);
}

static void on_frozen(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        struct history *h = arg;
        (void) e;
        (void) p;
        if (err == -ECANCELED)
                return;
        if (h->step == STEP_SYNC && err >= 0) {
                h->synced = true;
                h->step = STEP_THAW;
                /* A checkpoint that has begun meanwhile needs it frozen, and lets it go on itself. */
                if (!h->s->life && fsfreeze(h, false) >= 0)
                        return;
        }
        go_on(h);
}

static void on_warden_event(void *arg, const struct ipc_warden_event *e) {
        (void) arg;
        (void) e;
}

static void on_warden_close(void *arg, int err) {
        (void) err;
        struct history *h = arg;
        if (h->step == STEP_SYNC || h->step == STEP_THAW)
                go_on(h);
}

static bool begin_sync(struct history *h) {
        static const struct warden_handler handler = { on_warden_event, on_warden_close };
        bool now = str_eq(h->q.from, "now") || str_eq(h->q.to, "now");
        bool image = str_eq(h->q.from, h->s->image) || str_eq(h->q.to, h->s->image); /* what `now` is without a VM */
        if ((now && h->s->state == SANDBOX_PAUSED) || (image && h->s->state == SANDBOX_SUSPENDED))
                h->synced = h->s->synced;
        if (!now || h->s->state != SANDBOX_RUNNING || h->s->life)
                return false;
        h->step = STEP_SYNC;
        if (warden_connect(h->app, h->s->id, &handler, h, &h->warden, NULL) < 0)
                return false;
        h->timer = timer_start(h->app->loop, HISTORY_SYNC_MS, on_sync_timeout, h);
        if (h->timer && fsfreeze(h, true) >= 0)
                return true;
        struct warden *w = STEAL(h->warden);
        warden_free(w);
        timer_cancel(STEAL(h->timer));
        return false;
}

int history_ask(struct app *app, struct sandbox *s, const struct history_question *q, const struct history_handler *handler,
                void *arg, struct history **ret, struct error *err) {
        struct history *h = calloc(1, sizeof *h);
        if (!h)
                return error_set(err, -ENOMEM, "out of memory");
        *h = (struct history){ .app = app, .s = sandbox_ref(s), .q = *q, .handler = handler, .arg = arg,
                               .line = BUF_INIT(HISTORY_LINE_MAX) };
        int r = str_copy(h->path, sizeof h->path, q->path) < 0 || str_copy(h->cursor, sizeof h->cursor, q->cursor) < 0
                        ? error_set(err, -EINVAL, "the path or the cursor is too long") : 0;
        if (r >= 0 && !begin_sync(h))
                r = ask(h, err);
        if (r < 0) {
                history_free(h);
                return r;
        }
        *ret = h;
        return 0;
}
