/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/str.h"
#include "io/stream.h"
#include "jsonw.h"
#include "outlog.h"
#include "procs.h"
#include "timer.h"
#include "wire/attach.h"

#define STDIN_AHEAD (256u * 1024)   /* bytes a client may send before the command takes them */
#define STDIN_STEP (64u * 1024)     /* the window is announced in steps of this */
#define FRAME_MAX (64u * 1024)
#define LOG_SHARE (64u * 1024)      /* what every journal may keep when all together are full */

_Static_assert(STDIN_AHEAD <= ATTACH_STDIN_AHEAD, "clients keep no more than that");

struct sessions {
        struct agent *a;
        struct list all;
        uint64_t kept; /* by all journals */
};

struct session {
        struct list link;
        struct sessions *all;
        struct proc *p;
        struct proc_watch watch;
        struct outlog log;
        uint64_t sent; /* next offset for the attached client */
        struct stream *conn;
        struct attach_reader in;
        uint64_t stdin_got, stdin_given, stdin_window;
        bool stdin_closed; /* by the command: what comes is dropped */
        bool stdin_ended;  /* by the client */
        bool dropping, exit_sent, exit_seen;
        struct timer *timer; /* hold or expiry, whichever the state asks for */
};

static void detach(struct session *s);
static void pump(struct session *s);

/* --- table ---------------------------------------------------------------------------------- */

struct sessions *sessions_new(struct agent *a) {
        struct sessions *all = calloc(1, sizeof *all);
        if (!all)
                return NULL;
        all->a = a;
        list_init(&all->all);
        return all;
}

void sessions_forget(struct sessions *all) {
        LIST_FOREACH(it, &all->all)
                session_delete(CONTAINER_OF(it, struct session, link));
}

void sessions_free(struct sessions *all) {
        if (!all)
                return;
        sessions_forget(all);
        free(all);
}

struct session *session_by_id(struct sessions *all, const char *id) {
        LIST_FOREACH(it, &all->all) {
                struct session *s = CONTAINER_OF(it, struct session, link);
                if (str_eq(proc_id(s->p), id))
                        return s;
        }
        return NULL;
}

struct proc *session_proc(struct session *s) {
        return s->p;
}

/* The session alone; the command is returned. */
static struct proc *release(struct session *s) {
        struct proc *p = s->p;
        if (s->conn) {
                static const char gone[] = "{\"code\":\"deleted\",\"message\":\"the process was deleted\"}";
                _cleanup_buf_ struct buf b = BUF_INIT(0);
                if (attach_write(&b, ATTACH_ERROR, gone, sizeof gone - 1, NULL, 0) == 0)
                        (void) stream_write(s->conn, buf_data(&b), b.len);
        }
        detach(s);
        proc_watch_remove(&s->watch);
        list_remove(&s->link);
        s->all->kept -= outlog_kept(&s->log);
        outlog_done(&s->log);
        timer_free(s->timer);
        free(s);
        return p;
}

void session_delete(struct session *s) {
        procs_delete(release(s));
}

static void timer_over(void *arg) {
        struct session *s = arg;
        if (proc_state(s->p) == PROC_RUNNING) {
                s->dropping = true;
                proc_watch_release(&s->watch);
        } else if (proc_state(s->p) == PROC_PREPARED)
                session_delete(s);
        else
                proc_unpin(release(s)); /* what it left running goes on */
}

/* Sets the timer that the present state asks for. */
static void update_timer(struct session *s) {
        uint64_t ms = 0;
        if (s->conn)
                ms = 0;
        else if (proc_state(s->p) == PROC_PREPARED)
                ms = SESSION_PREPARED_MS;
        else if (proc_state(s->p) == PROC_ENDED)
                ms = s->exit_seen ? SESSION_SEEN_MS : SESSION_UNSEEN_MS;
        else if (s->watch.holding)
                ms = SESSION_HOLD_MS;
        if (ms == 0) {
                timer_free(s->timer);
                s->timer = NULL;
        } else if (s->timer || (s->timer = timer_new(s->all->a->loop, timer_over, s)))
                timer_start(s->timer, ms);
}

/* --- frames to the client ------------------------------------------------------------------- */

static void send_frame(struct session *s, enum attach_type type, const void *a, size_t an, const void *b,
                       size_t bn) {
        _cleanup_buf_ struct buf out = BUF_INIT(0);
        if (!s->conn)
                return;
        if (attach_write(&out, type, a, an, b, bn) < 0 || stream_write(s->conn, buf_data(&out), out.len) < 0) {
                stream_abort(s->conn); /* never a stream with a hole in it */
                s->conn = NULL;
                detach(s);
        }
}

static void send_u64(struct session *s, enum attach_type type, uint64_t v) {
        uint8_t p[8];
        attach_put_u64(p, v);
        send_frame(s, type, p, sizeof p, NULL, 0);
}

static void send_error(struct session *s, const char *code, const char *message) {
        _cleanup_buf_ struct buf b = BUF_INIT(0);
        if (buf_puts(&b, "{") < 0 || jsonw_member(&b, true, "code", code) < 0 ||
            jsonw_member(&b, false, "message", message) < 0 || buf_puts(&b, "}") < 0)
                return;
        send_frame(s, ATTACH_ERROR, buf_data(&b), b.len, NULL, 0);
}

static void send_started(struct session *s) {
        uint8_t p[20];
        uint32_t pid = (uint32_t) proc_pid(s->p);
        for (int i = 0; i < 4; i++)
                p[i] = (uint8_t) (pid >> (24 - 8 * i));
        attach_put_u64(p + 4, s->sent);
        attach_put_u64(p + 12, s->stdin_got);
        send_frame(s, ATTACH_STARTED, p, sizeof p, NULL, 0);
}

static void send_gap(struct session *s, uint64_t from) {
        uint8_t p[16];
        attach_put_u64(p, from);
        attach_put_u64(p + 8, s->log.base);
        send_frame(s, ATTACH_GAP, p, sizeof p, NULL, 0);
}

/* UINT64_MAX says that the command has closed its stdin: there is no use in sending more. */
static void send_window(struct session *s, bool always) {
        uint64_t window = s->stdin_closed ? UINT64_MAX : s->stdin_given + STDIN_AHEAD;
        if (!always && window != UINT64_MAX && window < s->stdin_window + STDIN_STEP)
                return;
        s->stdin_window = window;
        send_u64(s, ATTACH_STDIN_WINDOW, window);
}

static void send_exit(struct session *s) {
        static const char *const reasons[] = {
                [PROC_EXITED] = "exited", [PROC_SIGNALED] = "signaled", [PROC_TIMEOUT] = "timeout", [PROC_KILLED] = "killed"
        };
        char text[128], signal[48] = "";
        int sig = proc_exit_signal(s->p), code = sig ? 128 + sig : proc_exit_code(s->p);
        const char *abbrev = sig ? sigabbrev_np(sig) : NULL;
        if (sig)
                (void) snprintf(signal, sizeof signal, abbrev ? "\"signal\":\"SIG%.12s\"," : "\"signal\":\"%.12s%d\",",
                                abbrev ? abbrev : "", sig);
        int n = snprintf(text, sizeof text, "{\"exitCode\":%d,%s\"reason\":\"%s\"}", code, signal,
                         reasons[proc_reason(s->p)]);
        s->exit_sent = true;
        send_frame(s, ATTACH_EXIT, text, (size_t) n, NULL, 0);
}

/* Sends what the client has not got yet, as far as the connection takes it. */
static void pump(struct session *s) {
        static const enum attach_type types[] = {
                [PROC_STDOUT] = ATTACH_STDOUT, [PROC_STDERR] = ATTACH_STDERR, [PROC_PTY] = ATTACH_PTY
        };
        while (s->conn && stream_queued(s->conn) < STREAM_HIGH_WATER) {
                uint8_t channel = 0;
                const uint8_t *data = NULL;
                size_t n = outlog_peek(&s->log, s->sent, &channel, &data);
                if (n == 0)
                        break;
                if (n > FRAME_MAX)
                        n = FRAME_MAX;
                uint8_t off[8];
                attach_put_u64(off, s->sent);
                s->sent += n;
                send_frame(s, types[channel], off, sizeof off, data, n);
        }
        if (!s->conn || s->sent < s->log.end || proc_state(s->p) != PROC_ENDED || s->exit_sent)
                return;
        if (proc_start_failure(s->p) != PROC_START_OK) {
                s->exit_sent = s->exit_seen = true;
                send_error(s, proc_start_error_name(proc_start_failure(s->p)), proc_start_message(s->p));
        } else
                send_exit(s);
        if (s->conn) {
                s->exit_seen = true;
                (void) stream_shutdown(s->conn); /* the client closes when it has acknowledged */
        }
}

/* --- the command ---------------------------------------------------------------------------- */

static bool log_full(const struct session *s) {
        uint64_t kept = outlog_kept(&s->log);
        return kept >= OUTLOG_MAX || (s->all->kept >= SESSIONS_LOG_MAX && kept >= LOG_SHARE);
}

static void ack(struct session *s, uint64_t off) {
        s->all->kept -= outlog_kept(&s->log);
        outlog_ack(&s->log, off);
        s->all->kept += outlog_kept(&s->log);
        if (s->watch.holding && !log_full(s)) {
                proc_watch_release(&s->watch);
                update_timer(s);
        }
}

static void on_output(void *arg, enum proc_channel ch, const uint8_t *data, size_t n) {
        struct session *s = arg;
        if (s->dropping && log_full(s))
                ack(s, s->log.base + n);
        if (outlog_append(&s->log, (uint8_t) ch, data, n) < 0) {
                /* No memory: lost, but told. */
                uint64_t from = s->sent;
                s->all->kept -= outlog_kept(&s->log);
                outlog_done(&s->log);
                s->sent = s->log.base = s->log.end += n;
                send_gap(s, from);
                return;
        }
        s->all->kept += n;
        pump(s);
        if (!s->dropping && !s->watch.holding && log_full(s)) {
                proc_watch_hold(&s->watch);
                update_timer(s);
        }
}

static void on_end(void *arg) {
        struct session *s = arg;
        pump(s);
        update_timer(s);
}

static const struct proc_watch_ops watch_ops = { .on_output = on_output, .on_end = on_end };

int session_new(struct sessions *all, struct proc *p, struct session **ret) {
        struct session *s = calloc(1, sizeof *s);
        if (!s) {
                procs_delete(p);
                return -ENOMEM;
        }
        s->all = all;
        s->p = p;
        proc_pin(p);
        list_append(&all->all, &s->link);
        if (proc_state(p) != PROC_ENDED)
                proc_watch_add(p, &s->watch, &watch_ops, s);
        update_timer(s);
        *ret = s;
        return 0;
}

/* --- the client ----------------------------------------------------------------------------- */

static void stdin_written(void *arg, int err) {
        struct session *s = arg;
        if (err == -ECANCELED)
                return;
        if (err < 0)
                s->stdin_closed = true;
        s->stdin_given = s->stdin_got - proc_input_waiting(s->p);
        if (s->conn)
                send_window(s, false);
}

static void take_stdin(struct session *s, const uint8_t *data, size_t n) {
        if (!s->stdin_closed && s->stdin_got + n > s->stdin_window) {
                send_error(s, "stdin_window_exceeded", "more stdin was sent than the window allows");
                detach(s);
                return;
        }
        s->stdin_got += n;
        if (s->stdin_closed || s->stdin_ended || n == 0)
                return;
        int r = proc_input(s->p, data, n, stdin_written, s, NULL);
        if (r == -EPIPE) {
                s->stdin_closed = true;
                send_window(s, true);
        } else if (r < 0) {
                send_error(s, "limit_reached", "stdin cannot be buffered");
                detach(s);
        }
}

static void on_frame(struct session *s, uint8_t type, const uint8_t *data, size_t n) {
        switch (type) {
        case ATTACH_STDIN:
                take_stdin(s, data, n);
                break;
        case ATTACH_STDIN_EOF:
                if (!s->stdin_ended) {
                        s->stdin_ended = true;
                        (void) proc_input_end(s->p);
                }
                break;
        case ATTACH_RESIZE:
                if (n == 4)
                        (void) proc_resize(s->p, (uint16_t) (data[0] << 8 | data[1]),
                                           (uint16_t) (data[2] << 8 | data[3]));
                break;
        case ATTACH_SIGNAL:
                if (n == 1 && data[0] > 0 && data[0] < NSIG)
                        (void) proc_signal(s->p, data[0]);
                break;
        case ATTACH_ACK:
                if (n == 8) {
                        uint64_t off = attach_get_u64(data);
                        ack(s, off < s->sent ? off : s->sent);
                }
                break;
        case ATTACH_PING:
                send_frame(s, ATTACH_PONG, NULL, 0, NULL, 0);
                break;
        default: /* of a later version */
                break;
        }
}

static void conn_data(void *arg, const uint8_t *data, size_t n) {
        struct session *s = arg;
        uint8_t type;
        const uint8_t *payload;
        size_t len;
        int r = buf_append(&s->in.in, data, n);
        while (r == 0 && s->conn && (r = attach_reader_peek(&s->in, &type, &payload, &len)) == 1) {
                on_frame(s, type, payload, len);
                if (!s->conn)
                        return;
                attach_reader_next(&s->in);
                r = 0;
        }
        if (r < 0) {
                send_error(s, "protocol_error", "a frame is larger than the limit");
                detach(s);
        }
}

static void conn_lost(void *arg, int err) {
        (void) err;
        struct session *s = arg;
        stream_abort(s->conn);
        s->conn = NULL;
        detach(s);
}

static void conn_eof(void *arg) {
        detach(arg);
}

static void conn_drain(void *arg) {
        pump(arg);
}

static const struct stream_handler conn_handler = {
        .on_data = conn_data, .on_eof = conn_eof, .on_drain = conn_drain, .on_error = conn_lost
};

static void detach(struct session *s) {
        stream_close(s->conn);
        s->conn = NULL;
        buf_done(&s->in.in);
        update_timer(s);
}

int session_check_offset(const struct session *s, uint64_t offset) {
        return offset > s->log.end ? -ERANGE : 0;
}

void session_attach(struct session *s, struct stream *conn, uint64_t offset) {
        if (s->conn) {
                send_error(s, "taken_over", "another client has attached to this process");
                detach(s);
        }
        s->conn = conn;
        s->in = (struct attach_reader){ .in = BUF_INIT(ATTACH_PAYLOAD_MAX + ATTACH_HEAD + 2 * 128 * 1024) };
        s->exit_sent = false;
        s->dropping = false;
        stream_set_handler(conn, &conn_handler, s);
        if (proc_state(s->p) == PROC_PREPARED)
                (void) proc_start(s->p, NULL);
        if (proc_start_failure(s->p) == PROC_START_OK) {
                s->sent = offset > s->log.base ? offset : s->log.base;
                send_started(s);
                if (offset < s->log.base)
                        send_gap(s, offset);
                if (!proc_input_open(s->p) && !s->stdin_ended)
                        s->stdin_closed = true;
                send_window(s, true);
        }
        pump(s);
        update_timer(s);
        if (s->conn)
                stream_read_start(s->conn);
}
