/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/qmp.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"

/*
 * Answers come in the order of the commands, so a ring of callbacks is all the bookkeeping. Commands
 * are as short as can be and carry no id: QEMU takes them off the socket one byte at a time, with a
 * turn of its loop for each.
 */

struct command {
        qmp_cb cb;
        void *arg;
};

struct qmp {
        struct stream *s;
        int fd; /* of s, which owns it */
        const struct qmp_handler *h;
        void *arg;
        struct buf in;
        struct command ring[QMP_COMMANDS_MAX];
        unsigned first, next; /* sent and not answered: [first, next), modulo nothing */
        bool greeted, dead;
        bool *gone;
};

static void fail_commands(struct qmp *q, int err, const char *why) {
        struct error e = ERROR_INIT;
        error_set(&e, err, "%s", why);
        while (q->first != q->next) {
                struct command c = q->ring[q->first++ % QMP_COMMANDS_MAX];
                if (c.cb)
                        c.cb(c.arg, err, &e, NULL);
        }
}

static void fail(struct qmp *q, int err, const char *why) {
        if (q->dead)
                return;
        q->dead = true;
        bool gone = false, *outer = q->gone;
        q->gone = &gone;
        fail_commands(q, err, why);
        if (gone) {
                if (outer)
                        *outer = true;
                return;
        }
        q->gone = outer;
        q->h->on_close(q->arg, err, why);
}

static void answered(struct qmp *q, const json_t *result, const json_t *error) {
        if (q->first == q->next)
                return fail(q, -EPROTO, "an answer that nothing was asked for");
        struct command c = q->ring[q->first++ % QMP_COMMANDS_MAX];
        if (!c.cb)
                return;
        if (!error)
                return c.cb(c.arg, 0, NULL, result);
        struct error e = ERROR_INIT;
        const char *desc = json_string_value(json_object_get(error, "desc"));
        int r = error_set(&e, -EIO, "%s", desc ? desc : "unnamed error");
        c.cb(c.arg, r, &e, NULL);
}

static void on_line(struct qmp *q, const char *line, size_t n) {
        _cleanup_json_ json_t *o = NULL;
        if (json_parse(line, n, QMP_LINE_MAX, &o, NULL) < 0 || !json_is_object(o))
                return fail(q, -EPROTO, "no JSON object");
        const json_t *result = json_object_get(o, "return"), *error = json_object_get(o, "error");
        const char *event = json_string_value(json_object_get(o, "event"));
        if (event)
                q->h->on_event(q->arg, event, json_object_get(o, "data"));
        else if (result || error)
                answered(q, result, error);
        else if (json_object_get(o, "QMP") && !q->greeted)
                q->greeted = true; /* says little: it comes from a thread of its own while QEMU is being set up */
        else
                fail(q, -EPROTO, "neither answer nor event");
}

static void on_data(void *arg, const uint8_t *data, size_t n) {
        struct qmp *q = arg;
        if (buf_append(&q->in, data, n) < 0)
                return fail(q, -EPROTO, "a line that does not end");
        bool gone = false;
        q->gone = &gone;
        for (;;) {
                const char *p = (const char *) buf_data(&q->in), *nl = memchr(p, '\n', q->in.len);
                if (!nl)
                        break;
                size_t len = (size_t) (nl - p);
                _cleanup_free_ char *line = strndup(p, len);
                buf_consume(&q->in, len + 1);
                if (!line)
                        fail(q, -ENOMEM, "out of memory");
                else if (line[strspn(line, " \r\t")] != '\0')
                        on_line(q, line, len);
                if (gone)
                        return;
                if (q->dead)
                        break;
        }
        q->gone = NULL;
        if (q->in.len == 0)
                buf_done(&q->in);
}

static void on_eof(void *arg) {
        fail(arg, -ECONNRESET, "the VM is gone");
}

static void on_error(void *arg, int err) {
        fail(arg, err, "the VM is gone");
}

static const struct stream_handler stream_handler = { .on_data = on_data, .on_eof = on_eof, .on_error = on_error };

static int open_socket(const char *path, int *ret, struct error *err) {
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        if (str_copy(a.sun_path, sizeof(a.sun_path), path) < 0)
                return error_set(err, -ENAMETOOLONG, "socket name \"%s\" is too long", path);
        _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || connect(fd, (const struct sockaddr *) &a, sizeof(a)) < 0)
                return error_errno(err, errno, "cannot connect to \"%s\"", path);
        *ret = fd_steal(&fd);
        return 0;
}

int qmp_connect(uv_loop_t *loop, const char *path, const struct qmp_handler *h, void *arg, struct qmp **ret,
                struct error *err) {
        int fd = -EBADF;
        struct stream *s;
        int r = open_socket(path, &fd, err);
        if (r >= 0)
                r = stream_from_fd(loop, fd, &s, err);
        if (r < 0)
                return r;
        struct qmp *q = calloc(1, sizeof(*q));
        if (!q) {
                stream_abort(s);
                return error_set(err, -ENOMEM, "out of memory");
        }
        *q = (struct qmp){ .s = s, .fd = fd, .h = h, .arg = arg, .in = BUF_INIT(QMP_LINE_MAX) };
        stream_set_handler(s, &stream_handler, q);
        stream_read_start(s);
        *ret = q;
        return 0;
}

void qmp_free(struct qmp *q) {
        if (!q)
                return;
        if (q->gone)
                *q->gone = true;
        q->dead = true;
        fail_commands(q, -ECANCELED, "cancelled");
        stream_close(q->s);
        buf_done(&q->in);
        free(q);
}

static char *compose(const char *command, json_t *args) {
        _cleanup_json_ json_t *o = json_pack("{s:s}", "execute", command);
        if (o && args)
                json_object_set(o, "arguments", args);
        char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
        size_t n = text ? strlen(text) : 0;
        char *line = text ? realloc(text, n + 2) : NULL;
        if (!line) {
                free(text);
                return NULL;
        }
        memcpy(line + n, "\n", 2);
        return line;
}

static bool usable(const struct qmp *q) {
        return q && !q->dead && q->next - q->first < QMP_COMMANDS_MAX;
}

static void sent(struct qmp *q, bool ok, qmp_cb cb, void *arg, const char *command) {
        if (ok) {
                q->ring[q->next++ % QMP_COMMANDS_MAX] = (struct command){ cb, arg };
                return;
        }
        struct error e = ERROR_INIT;
        error_set(&e, -EIO, "\"%s\" cannot be sent to the VM: it has ended, or takes no more commands", command);
        if (cb)
                cb(arg, -EIO, &e, NULL);
}

void qmp_send(struct qmp *q, qmp_cb cb, void *arg, const char *command, const char *fmt, ...) {
        _cleanup_json_ json_t *args = NULL;
        if (fmt) {
                va_list ap;
                va_start(ap, fmt);
                args = json_vpack_ex(NULL, 0, fmt, ap);
                va_end(ap);
        }
        _cleanup_free_ char *line = usable(q) && (args || !fmt) ? compose(command, args) : NULL;
        sent(q, line && stream_write(q->s, line, strlen(line)) == 0, cb, arg, command);
}

/* A descriptor travels beside bytes, which the stream interface does not know; so these go to the
 * socket directly, which is right as long as nothing is queued before them. */
static void send_with_fd(struct qmp *q, qmp_cb cb, void *arg, int fd, const char *command, json_t *args) {
        _cleanup_free_ char *line = usable(q) && args && stream_queued(q->s) == 0 ? compose(command, args) : NULL;
        bool ok = false;
        if (line) {
                union {
                        struct cmsghdr align;
                        char space[CMSG_SPACE(sizeof(int))];
                } c = { .space = { 0 } };
                struct iovec v = { line, strlen(line) };
                struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof(c) };
                struct cmsghdr *cm = CMSG_FIRSTHDR(&m);
                cm->cmsg_level = SOL_SOCKET;
                cm->cmsg_type = SCM_RIGHTS;
                cm->cmsg_len = CMSG_LEN(sizeof(int));
                memcpy(CMSG_DATA(cm), &fd, sizeof(int));
                ok = sendmsg(q->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t) v.iov_len;
        }
        sent(q, ok, cb, arg, command);
}

void qmp_send_fd(struct qmp *q, qmp_cb cb, void *arg, int fd, const char *name) {
        _cleanup_json_ json_t *args = json_pack("{s:s}", "fdname", name);
        send_with_fd(q, cb, arg, fd, "getfd", args);
}

void qmp_add_fd(struct qmp *q, qmp_cb cb, void *arg, int fd, int set) {
        _cleanup_json_ json_t *args = json_pack("{s:i}", "fdset-id", set);
        send_with_fd(q, cb, arg, fd, "add-fd", args);
}
