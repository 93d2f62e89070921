/* SPDX-License-Identifier: Apache-2.0 */
#include "token_fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "app.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "credential.h"
#include "io/stream.h"
#include "ipc/messages.h"
#include "peers/rootd.h"
#include "token_answer.h"

#define ASK_TIMEOUT_MS 30000

struct token_fetch {
        struct app *app;
        token_fetch_cb cb;
        void *arg;
        bool asked, freed;
        struct stream *stream;
        struct buf answer;
};

static void wipe(struct buf *b) {
        if (b->data)
                explicit_bzero(b->data, b->cap);
        buf_done(b);
}

void token_fetch_free(struct token_fetch *f) {
        if (!f)
                return;
        struct stream *s = STEAL(f->stream);
        stream_abort(s);
        wipe(&f->answer);
        f->freed = true;
        if (!f->asked) /* else its answer frees */
                free(f);
}

static void finish(struct token_fetch *f, int err, const struct error *e) {
        char secret[BINDING_SECRET_MAX + 1] = "";
        uint64_t seconds = 0;
        struct error why = e ? *e : ERROR_INIT;
        token_fetch_cb cb = f->cb;
        void *arg = f->arg;
        if (err == 0)
                err = token_answer_read(buf_data(&f->answer), f->answer.len, secret, &seconds, &why);
        token_fetch_free(f);
        cb(arg, err, &why, secret, seconds);
        explicit_bzero(secret, sizeof secret);
}

static void on_data(void *arg, const uint8_t *data, size_t n) {
        struct token_fetch *f = arg;
        struct error e = ERROR_INIT;
        if (buf_append(&f->answer, data, n) < 0)
                finish(f, error_set(&e, -EPROTO, "cspace-token wrote too much"), &e);
}

static void on_eof(void *arg) {
        finish(arg, 0, NULL);
}

static void on_error(void *arg, int err) {
        (void) err;
        on_eof(arg);
}

static void on_started(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        static const struct stream_handler handler = { .on_data = on_data, .on_eof = on_eof, .on_error = on_error };
        struct token_fetch *f = arg;
        struct error bad = ERROR_INIT;
        uint8_t *room;
        f->asked = false;
        if (f->freed) {
                free(f);
                return;
        }
        if (err >= 0 && (p->n_fds != 1 || stream_from_fd(f->app->loop, fd_steal(&p->fds[0]), &f->stream, &bad) < 0))
                err = error_set(&bad, -EPROTO, "cspace-rootd sent no descriptor");
        /* Once, so that growing leaves no copy behind. */
        if (err >= 0 && buf_reserve(&f->answer, TOKEN_ANSWER_MAX, &room) < 0)
                err = error_set(&bad, -ENOMEM, "out of memory");
        if (err < 0) {
                finish(f, err, bad.code ? &bad : e);
                return;
        }
        stream_set_handler(f->stream, &handler, f);
        stream_read_start(f->stream);
}

/* ---- the request ---------------------------------------------------------------------------- */

/* The settings are an object of strings; the secret is not put into a json_t, whose memory cannot be wiped. */
static int write_request(struct app *app, const struct credential *c, struct buf *out) {
        char secret[BINDING_SECRET_MAX + 1];
        _cleanup_free_ char *rest = json_to_str(credential_settings(c));
        uint8_t *room;
        if (!rest)
                return -ENOMEM;
        int r = buf_reserve(out, strlen(rest) + 6 * sizeof secret + 64, &room);
        if (r >= 0)
                r = credential_open_own(app, c, secret);
        if (r >= 0)
                r = buf_puts(out, "{\"secret\":");
        if (r >= 0)
                r = json_put_str(out, secret);
        if (r >= 0)
                r = buf_printf(out, "%s%s", rest[1] == '}' ? "" : ",", rest + 1);
        explicit_bzero(secret, sizeof secret);
        return r;
}

static int request_fd(struct app *app, const struct credential *c, int *ret, struct error *err) {
        struct buf text = BUF_INIT(0);
        _cleanup_fd_ int fd = memfd_create("token", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        int r = fd < 0 ? -errno : write_request(app, c, &text);
        if (r >= 0)
                r = fd_write_all(fd, buf_data(&text), text.len, NULL);
        if (r >= 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
                r = -errno;
        wipe(&text);
        if (r == -EBADMSG)
                return error_set(err, r, "its secret cannot be opened: it was sealed with another key");
        if (r < 0)
                return error_errno(err, r, "the request cannot be made");
        *ret = fd_steal(&fd);
        return 0;
}

int token_fetch_start(struct app *app, const struct credential *c, token_fetch_cb cb, void *arg, struct token_fetch **ret,
                      struct error *err) {
        struct ipc_token m = { .credential = "" };
        uint8_t body[sizeof m + 64];
        size_t n;
        _cleanup_fd_ int fd = -EBADF;
        bool command = credential_provider(c) == CREDENTIAL_COMMAND;
        struct token_fetch *f = calloc(1, sizeof *f);
        int r = f ? 0 : error_set(err, -ENOMEM, "out of memory");
        if (r >= 0)
                *f = (struct token_fetch){ .app = app, .cb = cb, .arg = arg, .answer = BUF_INIT(TOKEN_ANSWER_MAX) };
        if (r >= 0 && !command)
                r = request_fd(app, c, &fd, err);
        (void) str_copy(m.credential, sizeof m.credential, credential_name(c));
        (void) str_copy(m.provider, sizeof m.provider, command ? "command" : "oauth2");
        if (command)
                (void) str_copy(m.command, sizeof m.command, json_string_value(json_object_get(credential_settings(c), "command")));
        if (r >= 0 && (r = ipc_token_encode(&m, body, sizeof body, &n)) < 0)
                (void) error_errno(err, r, "the question cannot be asked");
        if (r >= 0)
                r = rootd_call(app->rootd, IPC_TOKEN, body, n, &fd, fd >= 0, ASK_TIMEOUT_MS, on_started, f, err);
        if (r < 0) {
                free(f);
                return r;
        }
        f->asked = true;
        *ret = f;
        return 0;
}
