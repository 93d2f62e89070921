/* SPDX-License-Identifier: Apache-2.0 */
#include "session_http.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "base/str.h"
#include "procs.h"
#include "session.h"
#include "wire/attach.h"

static json_t *describe(struct proc *p) {
        static const char *const states[] = { "prepared", "running", "exited" };
        static const char *const reasons[] = { "exited", "signaled", "timeout", "killed" };
        const struct proc_spec *s = proc_spec(p);
        json_t *args = json_array(), *exit = NULL;
        for (char **a = s->argv + 1; *a; a++)
                (void) json_array_append_new(args, json_string(*a));
        if (proc_start_failure(p) != PROC_START_OK)
                exit = json_pack("{s:{s:s,s:s}}", "error", "code", proc_start_error_name(proc_start_failure(p)), "message",
                                 proc_start_message(p));
        else if (proc_state(p) == PROC_ENDED) {
                int sig = proc_exit_signal(p);
                exit = json_pack("{s:i,s:s}", "exitCode", sig ? 128 + sig : proc_exit_code(p), "reason",
                                 reasons[proc_reason(p)]);
                if (sig)
                        (void) json_object_set_new(exit, "signalNumber", json_integer(sig));
        }
        json_t *j = json_pack("{s:s,s:s,s:s,s:o*,s:s*,s:s*,s:s*,s:b,s:o*}", "processId", proc_id(p), "state",
                              states[proc_state(p)], "cmd", s->argv[0], "args", args, "cwd", s->cwd, "user", s->user,
                              "tag", s->tag, "pty", (int) s->pty, "exit", exit);
        if (j && proc_pid(p) > 0)
                (void) json_object_set_new(j, "pid", json_integer(proc_pid(p)));
        return j;
}

static void list_one(void *arg, struct proc *p) {
        json_t *j = describe(p);
        if (j)
                (void) json_array_append_new(arg, j);
}

/* --- create --------------------------------------------------------------------------------- */

static int read_spec(const json_t *req, struct proc_spec *spec, bool *ret_start, struct error *err) {
        static const char *const keys[] = { "cmd", "args", "env", "cwd", "user", "pty", "timeoutMs", "stdin", "start",
                                            "tag", NULL };
        const char *user = NULL, *tag = NULL;
        json_t *pty = NULL;
        bool start = false;
        int r = json_only_keys(req, keys, err);
        if (r == 0)
                r = proc_spec_command(spec, req, "env", err);
        if (r == 0)
                r = json_read_str(req, "user", false, USER_NAME_MAX - 1, &user, err);
        if (r == 0)
                r = json_read_str(req, "tag", false, PROC_TAG_MAX, &tag, err);
        if (r == 0)
                r = json_read_obj(req, "pty", false, &pty, err);
        if (r == 0)
                r = json_read_u64(req, "timeoutMs", false, 0, PROC_TIMEOUT_MAX_MS, &spec->timeout_ms, err);
        if (r == 0)
                r = json_read_bool(req, "stdin", false, &spec->stdin_open, err);
        if (r == 0)
                r = json_read_bool(req, "start", false, &start, err);
        if (r == 0 && pty) {
                spec->pty = true;
                r = proc_spec_size(pty, &spec->cols, &spec->rows, err);
        }
        if (r == 0 && ((user && *user && !(spec->user = strdup(user))) || (tag && *tag && !(spec->tag = strdup(tag)))))
                r = error_set(err, -ENOMEM, "out of memory");
        if (r == 0)
                *ret_start = start;
        return r;
}

static void start_failed(struct http_x *x, struct proc *p) {
        enum proc_start_error e = proc_start_failure(p);
        int status = e == PROC_START_LIMIT ? 429 : e == PROC_START_INTERNAL ? 500 : 400;
        api_fail(x, status, proc_start_error_name(e), "%s", proc_start_message(p));
}

static void create(void *arg, struct http_x *x, struct buf *body) {
        struct agent *a = arg;
        struct error e = ERROR_INIT;
        struct proc_spec spec = { 0 };
        bool start = false;
        _cleanup_json_ json_t *req = NULL;
        if (json_parse(buf_data(body), body->len, LIMIT_JSON_BODY, &req, &e) < 0 ||
            read_spec(req, &spec, &start, &e) < 0) {
                proc_spec_done(&spec);
                api_fail(x, 400, "invalid_argument", "%s", e.msg);
                return;
        }
        struct proc *p = NULL;
        struct session *s = NULL;
        if (procs_create(a->procs, &spec, &p, &e) < 0) {
                api_fail(x, 429, "too_many_processes", "%s", e.msg);
                return;
        }
        if (session_new(a->sessions, p, &s) < 0) {
                api_fail(x, 500, "internal", "out of memory");
                return;
        }
        if (start && proc_start(p, &e) < 0) {
                start_failed(x, p);
                session_delete(s);
                return;
        }
        api_json(x, 201, json_pack("{s:s}", "processId", proc_id(p)));
}

/* --- one process ---------------------------------------------------------------------------- */

static int parse_signal(const json_t *v) {
        if (json_is_integer(v)) {
                json_int_t n = json_integer_value(v);
                return n > 0 && n < NSIG ? (int) n : -EINVAL;
        }
        const char *name = json_string_value(v);
        if (!name)
                return -EINVAL;
        if (str_has_prefix(name, "SIG"))
                name += 3;
        for (int sig = 1; sig < NSIG; sig++)
                if (str_eq(sigabbrev_np(sig), name))
                        return sig;
        return -EINVAL;
}

struct signal_call {
        struct agent *a;
        char id[ID_SIZE];
};

static void signal_body(void *arg, struct http_x *x, struct buf *body) {
        struct signal_call *c = arg;
        struct proc *p = procs_by_id(c->a->procs, c->id);
        struct error e = ERROR_INIT;
        _cleanup_json_ json_t *req = NULL;
        int sig;
        if (!p)
                api_fail(x, 404, "process_not_found", "process \"%s\" does not exist", c->id);
        else if (json_parse(buf_data(body), body->len, 4096, &req, &e) < 0)
                api_fail(x, 400, "invalid_argument", "%s", e.msg);
        else if ((sig = parse_signal(json_object_get(req, "signal"))) < 0)
                api_fail(x, 400, "invalid_signal", "\"signal\" must be a signal's name or number");
        else if (proc_signal(p, sig) < 0)
                api_fail(x, 409, "process_not_running", "process \"%s\" does not run", c->id);
        else
                api_json(x, 200, json_object());
        free(c);
}

static void signal_call(struct agent *a, struct http_x *x, const char *id) {
        struct signal_call *c = calloc(1, sizeof *c);
        if (!c) {
                api_fail(x, 500, "internal", "out of memory");
                return;
        }
        c->a = a;
        (void) str_copy(c->id, sizeof c->id, id);
        (void) api_collect(x, 4096, signal_body, free, c);
}

static void attach(struct agent *a, struct http_x *x, struct proc *p) {
        const struct http1_head *h = http_x_head(x);
        if (!h->upgrade || !http1_has_token(h, "Upgrade", ATTACH_UPGRADE)) {
                api_fail(x, 426, "upgrade_required", "attaching needs \"Upgrade: %s\"", ATTACH_UPGRADE);
                return;
        }
        _cleanup_free_ char *text = NULL;
        uint64_t offset = 0;
        int r = api_query(x, "offset", &text);
        if (r < 0 || (r == 1 && str_to_u64(text, INT64_MAX, &offset) < 0)) {
                api_fail(x, 400, "invalid_argument", "\"offset\" must be a decimal number");
                return;
        }
        struct session *s = session_by_id(a->sessions, proc_id(p));
        if (!s && session_new(a->sessions, p, &s) < 0) {
                api_fail(x, 500, "internal", "out of memory");
                return;
        }
        if (session_check_offset(s, offset) < 0) {
                api_fail(x, 416, "offset_out_of_range", "the process has not written %llu bytes yet",
                         (unsigned long long) offset);
                return;
        }
        static const struct http_header headers[] = { { "Upgrade", ATTACH_UPGRADE } };
        struct stream *conn = NULL;
        if (http_x_upgrade(x, 101, headers, ARRAY_SIZE(headers), &conn) == 0)
                session_attach(s, conn, offset);
}

static void one(struct agent *a, struct http_x *x, const char *id, const char *verb) {
        const char *method = http_x_head(x)->method;
        struct proc *p = procs_by_id(a->procs, id);
        if (!p) {
                api_fail(x, 404, "process_not_found", "process \"%s\" does not exist", id);
                return;
        }
        if (str_eq(verb, "/attach") && str_eq(method, "GET"))
                attach(a, x, p);
        else if (str_eq(verb, "/signal") && str_eq(method, "POST"))
                signal_call(a, x, id);
        else if (str_eq(verb, "") && str_eq(method, "GET"))
                api_json(x, 200, describe(p));
        else if (str_eq(verb, "") && str_eq(method, "DELETE")) {
                struct session *s = session_by_id(a->sessions, id);
                if (s)
                        session_delete(s);
                else
                        procs_delete(p);
                api_empty(x, 204);
        } else
                api_fail(x, 405, "method_not_allowed", "%s is not allowed here", method);
}

void session_http(struct agent *a, struct http_x *x, const char *rest) {
        const char *method = http_x_head(x)->method;
        if (str_eq(rest, "") || str_eq(rest, "/")) {
                if (str_eq(method, "POST"))
                        (void) api_collect(x, LIMIT_JSON_BODY, create, NULL, a);
                else if (str_eq(method, "GET")) {
                        json_t *all = json_array();
                        procs_each(a->procs, list_one, all);
                        api_json(x, 200, json_pack("{s:o}", "processes", all));
                } else
                        api_fail(x, 405, "method_not_allowed", "%s is not allowed here", method);
                return;
        }
        char id[ID_SIZE];
        size_t n = strcspn(rest + 1, "/");
        if (rest[0] != '/' || n != ID_LEN) {
                api_fail(x, 404, "process_not_found", "there is no such process");
                return;
        }
        memcpy(id, rest + 1, n);
        id[n] = '\0';
        one(a, x, id, rest + 1 + n);
}
