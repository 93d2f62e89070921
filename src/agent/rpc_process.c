/* SPDX-License-Identifier: Apache-2.0 */

/*
 * E2B's process service. Start and Connect are streams over a command that is no part of them: the
 * command goes on when its streams are lost, and output that nobody streams is read and dropped.
 *
 * Deadline of Start. The client's deadline is meant for the command, which is killed when it
 * comes. But a client that has left long before does not wait for the command any more, it wants
 * to come back to it later: then the deadline falls. A client at its own deadline leaves a moment
 * before the agent's timer fires; DETACH_MARGIN_MS tells the two apart.
 */
#include "rpc_process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/str.h"
#include "jsonw.h"
#include "proc.h"
#include "procs.h"
#include "timer.h"

#define DETACH_MARGIN_MS 5000

/* --- output streams ------------------------------------------------------------------------- */

struct stream_call {
        struct rpc *r;
        struct proc *p;
        struct proc_watch watch;
        struct timer *keepalive, *deadline;
        uint64_t kill_at_ms; /* Start with a deadline; 0: none */
};

static void stream_free(struct stream_call *c) {
        proc_watch_remove(&c->watch);
        timer_free(c->keepalive);
        timer_free(c->deadline);
        free(c);
}

static void restart_keepalive(struct stream_call *c) {
        if (c->keepalive)
                timer_start(c->keepalive, rpc_keepalive_ms(c->r));
}

static void send_keepalive(void *arg) {
        static const char msg[] = "{\"event\":{\"keepalive\":{}}}";
        struct stream_call *c = arg;
        rpc_send(c->r, msg, sizeof msg - 1);
        restart_keepalive(c);
}

static void stream_output(void *arg, enum proc_channel ch, const uint8_t *data, size_t n) {
        static const char *const names[] = { [PROC_STDOUT] = "stdout", [PROC_STDERR] = "stderr", [PROC_PTY] = "pty" };
        struct stream_call *c = arg;
        _cleanup_buf_ struct buf b = BUF_INIT(0);
        if (buf_printf(&b, "{\"event\":{\"data\":{\"%s\":", names[ch]) == 0 && jsonw_base64(&b, data, n) == 0 &&
            buf_puts(&b, "}}}") == 0)
                rpc_send(c->r, buf_data(&b), b.len);
        if (rpc_queued(c->r) > STREAM_HIGH_WATER)
                proc_watch_hold(&c->watch);
        restart_keepalive(c);
}

static void send_end(struct rpc *r, const struct proc *p) {
        char status[64];
        int sig = proc_exit_signal(p), code = proc_exit_code(p);
        if (sig) {
                char name[32];
                const char *text = strsignal(sig);
                (void) snprintf(name, sizeof name, "%s", text ? text : "unknown");
                for (char *q = name; *q; q++)
                        *q = (char) (*q >= 'A' && *q <= 'Z' ? *q + 32 : *q);
                (void) snprintf(status, sizeof status, "signal: %s", name);
        } else
                (void) snprintf(status, sizeof status, "exit status %d", code);
        _cleanup_buf_ struct buf b = BUF_INIT(0);
        (void) buf_puts(&b, "{\"event\":{\"end\":{");
        if (code != 0)
                (void) buf_printf(&b, "\"exitCode\":%d,", code);
        if (!sig)
                (void) buf_puts(&b, "\"exited\":true,");
        (void) buf_printf(&b, "\"status\":\"%s\"", status);
        if (sig || code != 0)
                (void) buf_printf(&b, ",\"error\":\"%s\"", status);
        (void) buf_puts(&b, "}}}");
        rpc_send(r, buf_data(&b), b.len);
}

static void stream_end(void *arg) {
        struct stream_call *c = arg;
        struct rpc *r = c->r;
        struct proc *p = c->p;
        stream_free(c);
        if (proc_reason(p) == PROC_TIMEOUT) {
                rpc_error(r, CONNECT_DEADLINE_EXCEEDED, "the command was killed at its deadline");
                return;
        }
        send_end(r, p);
        rpc_finish(r);
}

static void stream_gone(void *arg) {
        struct stream_call *c = arg;
        if (c->kill_at_ms && c->watch.proc && c->kill_at_ms > clock_mono_ms() + DETACH_MARGIN_MS)
                proc_set_timeout(c->p, 0);
        stream_free(c);
}

static void stream_drain(void *arg) {
        struct stream_call *c = arg;
        proc_watch_release(&c->watch);
}

static void connect_deadline(void *arg) {
        struct stream_call *c = arg;
        struct rpc *r = c->r;
        stream_free(c);
        rpc_error(r, CONNECT_DEADLINE_EXCEEDED, "the stream's deadline has come; the command goes on");
}

static const struct proc_watch_ops stream_watch_ops = { .on_output = stream_output, .on_end = stream_end };
static const struct rpc_ops stream_ops = { .on_gone = stream_gone, .on_drain = stream_drain };

static struct stream_call *stream_new(struct rpc *r, struct proc *p) {
        struct stream_call *c = calloc(1, sizeof *c);
        if (!c)
                return NULL;
        c->r = r;
        c->p = p;
        c->keepalive = timer_new(rpc_agent(r)->loop, send_keepalive, c);
        return c;
}

/* The process runs: the start event, then its output. */
static void stream_begin(struct stream_call *c) {
        char event[64];
        int n = snprintf(event, sizeof event, "{\"event\":{\"start\":{\"pid\":%d}}}", (int) proc_pid(c->p));
        rpc_set_ops(c->r, &stream_ops, c);
        rpc_send(c->r, event, (size_t) n);
        restart_keepalive(c);
        if (proc_state(c->p) == PROC_ENDED)
                stream_end(c);
        else
                proc_watch_add(c->p, &c->watch, &stream_watch_ops, c);
}

/* --- Start ---------------------------------------------------------------------------------- */

static int read_start(struct rpc *r, const json_t *req, struct proc_spec *spec, struct error *err) {
        json_t *process = rpc_member(req, "process"), *pty = rpc_member(req, "pty"), *size = NULL;
        const char *tag = NULL;
        if (!json_is_object(process))
                return error_set(err, -EINVAL, "process is missing");
        int e = proc_spec_command(spec, process, "envs", err);
        if (e == 0)
                e = json_read_str(req, "tag", false, PROC_TAG_MAX, &tag, err);
        bool with_stdin = true; /* clients older than the flag rely on it */
        if (e == 0)
                e = json_read_bool(req, "stdin", false, &with_stdin, err);
        if (e == 0 && pty) {
                spec->pty = true;
                spec->cols = 80;
                spec->rows = 24;
                size = rpc_member(pty, "size");
                if (size)
                        e = proc_spec_size(size, &spec->cols, &spec->rows, err);
        }
        if (e < 0)
                return e;
        spec->stdin_open = with_stdin;
        spec->timeout_ms = rpc_timeout_ms(r);
        if ((tag && *tag && !(spec->tag = strdup(tag))) || (*rpc_user(r) && !(spec->user = strdup(rpc_user(r)))))
                return error_set(err, -ENOMEM, "out of memory");
        return 0;
}

static void start_failed(struct rpc *r, struct proc *p) {
        enum connect_code code = CONNECT_INTERNAL;
        switch (proc_start_failure(p)) {
        case PROC_START_USER:
                rpc_error(r, CONNECT_UNAUTHENTICATED, "invalid username: '%s'", rpc_user(r));
                return;
        case PROC_START_CWD:
        case PROC_START_COMMAND:
        case PROC_START_EXEC:
        case PROC_START_ARGS:
                code = CONNECT_INVALID_ARGUMENT;
                break;
        case PROC_START_LIMIT:
                code = CONNECT_RESOURCE_EXHAUSTED;
                break;
        case PROC_START_OK:
        case PROC_START_INTERNAL:
                break;
        }
        rpc_error(r, code, "%s", proc_start_message(p));
}

static void start(struct rpc *r, json_t *req) {
        struct procs *procs = rpc_agent(r)->procs;
        struct proc_spec spec = { 0 };
        struct error e = ERROR_INIT;
        struct proc *p = NULL;
        if (read_start(r, req, &spec, &e) < 0) {
                proc_spec_done(&spec);
                rpc_error(r, CONNECT_INVALID_ARGUMENT, "%s", e.msg);
                return;
        }
        if (procs_create(procs, &spec, &p, &e) < 0) {
                rpc_error(r, CONNECT_RESOURCE_EXHAUSTED, "%s", e.msg);
                return;
        }
        struct stream_call *c = stream_new(r, p);
        if (!c) {
                procs_delete(p);
                rpc_error(r, CONNECT_RESOURCE_EXHAUSTED, "out of memory");
                return;
        }
        if (proc_start(p, &e) < 0) {
                stream_free(c);
                start_failed(r, p);
                procs_delete(p);
                return;
        }
        if (rpc_timeout_ms(r))
                c->kill_at_ms = clock_mono_ms() + rpc_timeout_ms(r);
        stream_begin(c);
}

/* --- the selector {"process":{"pid":N}} or {"process":{"tag":"..."}} -------------------------- */

static struct proc *select_proc(struct rpc *r, const json_t *req) {
        const json_t *sel = rpc_member(req, "process");
        struct procs *procs = rpc_agent(r)->procs;
        const char *tag = json_string_value(json_object_get(sel, "tag"));
        if (tag) {
                struct proc *p = procs_by_tag(procs, tag);
                if (!p)
                        rpc_error(r, CONNECT_NOT_FOUND, "process with tag %.256s not found", tag);
                return p;
        }
        const json_t *pid = json_object_get(sel, "pid");
        uint64_t n = 0;
        if (json_is_integer(pid) && json_integer_value(pid) > 0 && json_integer_value(pid) <= INT32_MAX)
                n = (uint64_t) json_integer_value(pid);
        else if (!json_is_string(pid) || str_to_u64(json_string_value(pid), INT32_MAX, &n) < 0) {
                rpc_error(r, CONNECT_INVALID_ARGUMENT, "process must have a pid or a tag");
                return NULL;
        }
        struct proc *p = procs_by_pid(procs, (pid_t) n);
        if (!p)
                rpc_error(r, CONNECT_NOT_FOUND, "process with pid %llu not found", (unsigned long long) n);
        return p;
}

static struct proc *select_running(struct rpc *r, const json_t *req) {
        struct proc *p = select_proc(r, req);
        if (!p || proc_state(p) == PROC_RUNNING)
                return p;
        rpc_error(r, CONNECT_NOT_FOUND, "process with pid %d not found: it has ended", (int) proc_pid(p));
        return NULL;
}

/* --- the other methods ---------------------------------------------------------------------- */

static void connect_call(struct rpc *r, json_t *req) {
        struct proc *p = select_proc(r, req);
        if (!p)
                return;
        struct stream_call *c = stream_new(r, p);
        if (!c) {
                rpc_error(r, CONNECT_RESOURCE_EXHAUSTED, "out of memory");
                return;
        }
        if (rpc_timeout_ms(r) && (c->deadline = timer_new(rpc_agent(r)->loop, connect_deadline, c)))
                timer_start(c->deadline, rpc_timeout_ms(r));
        stream_begin(c);
}

static void list_one(void *arg, struct proc *p) {
        if (proc_state(p) != PROC_RUNNING)
                return;
        const struct proc_spec *s = proc_spec(p);
        json_t *args = json_array(), *config, *item;
        for (char **a = s->argv + 1; *a; a++)
                (void) json_array_append_new(args, json_string(*a));
        config = json_pack("{s:s,s:o*,s:O*,s:s*}", "cmd", s->argv[0], "args", args, "envs", s->envs, "cwd", s->cwd);
        item = json_pack("{s:i,s:s*,s:o*}", "pid", (int) proc_pid(p), "tag", s->tag, "config", config);
        if (item)
                (void) json_array_append_new(arg, item);
}

static void list(struct rpc *r, json_t *req) {
        (void) req;
        json_t *all = json_array();
        procs_each(rpc_agent(r)->procs, list_one, all);
        rpc_reply(r, json_pack("{s:o}", "processes", all));
}

struct input_call {
        struct rpc *r;
        struct proc_input *in;
};

static void input_done(void *arg, int err) {
        struct input_call *c = arg;
        struct rpc *r = c->r;
        free(c);
        if (err < 0)
                rpc_error(r, CONNECT_FAILED_PRECONDITION, "broken pipe: the process does not read its input any more");
        else
                rpc_reply(r, json_object());
}

static void input_gone(void *arg) {
        struct input_call *c = arg;
        proc_input_cancel(c->in);
        free(c);
}

static void send_input(struct rpc *r, json_t *req) {
        static const struct rpc_ops ops = { .on_gone = input_gone };
        const json_t *input = rpc_member(req, "input");
        const json_t *text = json_object_get(input, "pty");
        bool pty = text != NULL;
        if (!text)
                text = json_object_get(input, "stdin");
        if (!json_is_string(text)) {
                rpc_error(r, CONNECT_INVALID_ARGUMENT, "input must have stdin or pty");
                return;
        }
        struct proc *p = select_running(r, req);
        if (!p)
                return;
        if (pty != proc_spec(p)->pty) {
                rpc_error(r, CONNECT_FAILED_PRECONDITION,
                          pty ? "the process has no pty" : "the process has a pty; send the input as pty");
                return;
        }
        size_t n = json_string_length(text);
        _cleanup_free_ uint8_t *raw = malloc(n + 4);
        struct input_call *c = calloc(1, sizeof *c);
        ssize_t len = raw && c ? base64_decode(json_string_value(text), n, raw) : -ENOMEM;
        int e = len < 0 ? (int) len : 0;
        if (e == 0) {
                c->r = r;
                e = proc_input(p, raw, (size_t) len, input_done, c, &c->in);
        }
        if (e == 0) {
                rpc_set_ops(r, &ops, c);
                return;
        }
        free(c);
        if (e == -EPIPE)
                rpc_error(r, CONNECT_FAILED_PRECONDITION, "broken pipe: stdin of the process is not enabled or closed");
        else if (e == -ENOBUFS)
                rpc_error(r, CONNECT_RESOURCE_EXHAUSTED, "%u bytes of input are waiting already, which is the limit",
                          PROC_INPUT_MAX);
        else
                rpc_error(r, e == -EINVAL ? CONNECT_INVALID_ARGUMENT : CONNECT_RESOURCE_EXHAUSTED, "%s",
                          e == -EINVAL ? "the input is not valid base64" : "out of memory");
}

static void close_stdin(struct rpc *r, json_t *req) {
        struct proc *p = select_running(r, req);
        if (!p)
                return;
        if (proc_input_end(p) < 0 && !proc_spec(p)->stdin_open)
                rpc_error(r, CONNECT_FAILED_PRECONDITION, "stdin of the process is not enabled");
        else
                rpc_reply(r, json_object());
}

static void send_signal(struct rpc *r, json_t *req) {
        const json_t *v = rpc_member(req, "signal");
        const char *name = json_string_value(v);
        int sig = json_is_integer(v) ? (int) json_integer_value(v) : 0;
        if (str_eq(name, "SIGNAL_SIGKILL"))
                sig = SIGKILL;
        else if (str_eq(name, "SIGNAL_SIGTERM"))
                sig = SIGTERM;
        if (sig != SIGKILL && sig != SIGTERM) {
                rpc_error(r, CONNECT_INVALID_ARGUMENT, "signal must be SIGNAL_SIGKILL or SIGNAL_SIGTERM");
                return;
        }
        struct proc *p = select_running(r, req);
        if (!p)
                return;
        if (proc_signal(p, sig) < 0)
                rpc_error(r, CONNECT_NOT_FOUND, "process with pid %d not found: it has ended", (int) proc_pid(p));
        else
                rpc_reply(r, json_object());
}

static void update(struct rpc *r, json_t *req) {
        const json_t *pty = rpc_member(req, "pty"), *size = pty ? rpc_member(pty, "size") : NULL;
        struct proc *p = select_running(r, req);
        if (!p)
                return;
        uint16_t cols, rows;
        struct error e = ERROR_INIT;
        if (size && proc_spec_size(size, &cols, &rows, &e) < 0)
                rpc_error(r, CONNECT_INVALID_ARGUMENT, "%s", e.msg);
        else if (size && proc_resize(p, cols, rows) < 0)
                rpc_error(r, CONNECT_FAILED_PRECONDITION, "the process has no pty");
        else
                rpc_reply(r, json_object());
}

static void stream_input(struct rpc *r, json_t *req) {
        (void) req;
        rpc_error(r, CONNECT_UNIMPLEMENTED, "StreamInput is not implemented; use SendInput");
}

const struct rpc_method rpc_process_methods[] = {
        { "Start", true, start },           { "Connect", true, connect_call },
        { "List", false, list },            { "SendInput", false, send_input },
        { "StreamInput", true, stream_input }, { "CloseStdin", false, close_stdin },
        { "SendSignal", false, send_signal }, { "Update", false, update },
        { NULL, false, NULL },
};
