/* SPDX-License-Identifier: Apache-2.0 */

/* /v1/sandboxes/{id}/commands: the agent's command sessions under the names of the native API. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api_wait.h"
#include "app.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/str.h"
#include "egress/bindings.h"
#include "egress/egress.h"
#include "peers/agent_call.h"
#include "sandbox/sandbox.h"
#include "store/db.h"
#include "store/idem.h"

#define DEFAULT_USER "root"
#define ARGS_MAX 65536
#define TAG_MAX 256
#define USER_MAX 64
#define TIMEOUT_MAX_MS (LIMIT_TTL_MAX_S * 1000)

/* ---- create -------------------------------------------------------------------------------- */

static int check_strings(const json_t *array, const char *key, struct error *err) {
        size_t i;
        json_t *v;
        json_array_foreach(array, i, v) {
                if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
                        return error_set(err, -EINVAL, "\"%s\": item %zu is not a string without NUL", key, i + 1);
        }
        return 0;
}

static int put(json_t *out, const char *key, json_t *v) {
        return v && json_object_set_new(out, key, v) < 0 ? -ENOMEM : 0;
}

/* cmd and args, or shell. */
static int read_program(const json_t *b, json_t *out, struct error *err) {
        const char *cmd = NULL, *shell = NULL;
        json_t *args = NULL;
        int r = json_read_str(b, "cmd", false, LIMIT_PATH, &cmd, err);
        if (r >= 0)
                r = json_read_str(b, "shell", false, LIMIT_JSON_BODY, &shell, err);
        if (r >= 0)
                r = json_read_array(b, "args", false, ARGS_MAX, &args, err);
        if (r >= 0)
                r = check_strings(args, "args", err);
        if (r < 0)
                return r;
        if (!cmd == !shell || (shell && args))
                return error_set(err, -EINVAL, "either \"cmd\" (with \"args\") or \"shell\" is needed");
        if (cmd && !cmd[0])
                return error_set(err, -EINVAL, "\"cmd\" is empty");
        r = put(out, "cmd", json_string(cmd ? cmd : "/bin/bash"));
        if (r >= 0 && args)
                r = put(out, "args", json_incref(args));
        if (r >= 0 && shell)
                r = put(out, "args", json_pack("[s, s, s]", "-l", "-c", shell));
        return r;
}

static int read_pty(const json_t *b, json_t *out, struct error *err) {
        static const char *const keys[] = { "cols", "rows", NULL };
        json_t *pty = NULL;
        uint64_t cols = 0, rows = 0;
        int r = json_read_obj(b, "pty", false, &pty, err);
        if (r < 0 || !pty)
                return r;
        r = json_only_keys(pty, keys, err);
        if (r >= 0)
                r = json_read_u64(pty, "cols", true, 1, 65535, &cols, err);
        if (r >= 0)
                r = json_read_u64(pty, "rows", true, 1, 65535, &rows, err);
        if (r < 0)
                return error_wrap(err, "\"pty\"");
        return put(out, "pty", json_pack("{s:I, s:I}", "cols", (json_int_t) cols, "rows", (json_int_t) rows));
}

static int read_command(const json_t *b, json_t *out, struct error *err) {
        static const char *const keys[] = { "cmd", "args",       "shell", "env",   "cwd", "user",
                                            "pty", "timeout_ms", "stdin", "start", "tag", NULL };
        const char *cwd = NULL, *user = DEFAULT_USER, *tag = NULL;
        json_t *env = NULL;
        uint64_t timeout = 0;
        bool in = true, start = false;
        if (!b)
                return error_set(err, -EINVAL, "a body with \"cmd\" or \"shell\" is needed");
        int r = json_only_keys(b, keys, err);
        if (r >= 0)
                r = read_program(b, out, err);
        if (r >= 0)
                r = json_read_str_map(b, "env", LIMIT_ENV_ITEMS, LIMIT_PATH, LIMIT_ENV_VALUE, &env, err);
        if (r >= 0)
                r = json_read_str(b, "cwd", false, LIMIT_PATH, &cwd, err);
        if (r >= 0)
                r = json_read_str(b, "user", false, USER_MAX, &user, err);
        if (r >= 0)
                r = json_read_str(b, "tag", false, TAG_MAX, &tag, err);
        if (r >= 0)
                r = read_pty(b, out, err);
        if (r >= 0)
                r = json_read_u64(b, "timeout_ms", false, 1, TIMEOUT_MAX_MS, &timeout, err);
        if (r >= 0)
                r = json_read_bool(b, "stdin", false, &in, err);
        if (r >= 0)
                r = json_read_bool(b, "start", false, &start, err);
        if (r >= 0)
                r = put(out, "user", json_string(user[0] ? user : DEFAULT_USER));
        if (r >= 0)
                r = put(out, "stdin", json_boolean(in));
        if (r >= 0)
                r = put(out, "start", json_boolean(start));
        if (r >= 0 && env)
                r = put(out, "env", json_incref(env));
        if (r >= 0 && cwd)
                r = put(out, "cwd", json_string(cwd));
        if (r >= 0 && tag)
                r = put(out, "tag", json_string(tag));
        if (r >= 0 && timeout)
                r = put(out, "timeoutMs", json_integer((json_int_t) timeout));
        return r;
}

struct created {
        struct api_req *r;
        json_t *body;
};

static void on_stored(void *arg, int err, const struct error *e) {
        struct created *c = arg;
        idem_settle(c->r->app, c->r->idem_scope, err >= 0);
        if (err < 0)
                api_error_err(c->r, api_code_from_errno(err), e);
        else
                api_reply(c->r, 201, json_incref(c->body));
        json_decref(c->body);
        api_req_unref(c->r);
        free(c);
}

static void reply_created(struct api_req *r, json_t *body) {
        if (!r->idem_scope) {
                api_reply(r, 201, body);
                return;
        }
        struct created *c = calloc(1, sizeof *c);
        struct db_batch *b = db_batch_new();
        if (!c) {
                db_batch_free(b);
                json_decref(body);
                api_error(r, API_INTERNAL, "out of memory");
                return;
        }
        *c = (struct created){ .r = api_req_ref(r), .body = body };
        idem_bind_reply(r->app, r->idem_scope, 201, body, b);
        int rc = db_batch_submit(r->app->db, b, on_stored, c);
        if (rc < 0) {
                struct error e = ERROR_INIT;
                (void) error_errno(&e, rc, "could not store the answer");
                on_stored(c, rc, &e);
        }
}

static void on_prepared(struct api_req *r, void *arg, int status, json_t *answer) {
        struct sandbox *s = arg;
        const char *process_id = NULL;
        char session_id[ID_SIZE], token[SESSION_TOKEN_SIZE], url[128];
        (void) status;
        if (!json_is_object(answer) || json_read_str(answer, "processId", true, ID_LEN, &process_id, NULL) < 0 ||
            !id_valid(process_id) || id_new(session_id) < 0) {
                api_error(r, API_GUEST_PROTOCOL, "the agent's answer has no process id");
                return;
        }
        session_token(s, process_id, session_id, token);
        (void) snprintf(url, sizeof url, "/v1/sandboxes/%s/commands/%s/attach", s->id, process_id);
        reply_created(r, json_pack("{s:s, s:s, s:s, s:s}", "session_id", session_id, "process_id", process_id, "token", token,
                                   "attach_url", url));
}

static void unref_sandbox(void *arg) {
        sandbox_unref(arg);
}

/* Placeholders of bindings that are younger than the sandbox's own environment. */
static int add_placeholders(const struct sandbox *s, json_t *body) {
        _cleanup_json_ json_t *placeholders = json_object();
        json_t *env = json_object_get(body, "env"), *value;
        const char *key;
        if (!placeholders || bindings_add_env(egress_bindings(s), placeholders) < 0)
                return -ENOMEM;
        if (json_object_size(placeholders) == 0)
                return 0;
        if (!env && json_object_set_new(body, "env", env = json_object()) < 0)
                return -ENOMEM;
        json_object_foreach(placeholders, key, value)
                if (!json_object_get(env, key) && !json_object_get(s->env, key) && json_object_set(env, key, value) < 0)
                        return -ENOMEM;
        return 0;
}

static void create(struct api_req *r) {
        struct error e = ERROR_INIT;
        struct sandbox *s = agent_sandbox(r);
        if (!s)
                return;
        _cleanup_json_ json_t *body = json_object();
        int rc = body ? read_command(r->body, body, &e) : -ENOMEM;
        if (rc >= 0)
                rc = add_placeholders(s, body);
        if (rc < 0) {
                if (rc == -ENOMEM)
                        api_error(r, API_INTERNAL, "out of memory");
                else
                        api_error_err(r, API_INVALID_ARGUMENT, &e);
                return;
        }
        if (idem_begin(r, NULL) == 0)
                agent_request(r, s, "POST", "/cspace/v1/processes", body, on_prepared, unref_sandbox, sandbox_ref(s));
}

/* ---- the others ---------------------------------------------------------------------------- */

/* What is passed on of the agent's description: known members of the right kind. */
static json_t *describe(const json_t *p) {
        static const struct {
                const char *theirs, *ours;
                json_type type;
        } members[] = {
                { "state", "state", JSON_STRING }, { "pid", "pid", JSON_INTEGER },  { "cmd", "cmd", JSON_STRING },
                { "args", "args", JSON_ARRAY },    { "cwd", "cwd", JSON_STRING },   { "user", "user", JSON_STRING },
                { "tag", "tag", JSON_STRING },     { "exit", "exit", JSON_OBJECT },
        };
        const char *id = json_string_value(json_object_get(p, "processId"));
        if (!id || !id_valid(id))
                return NULL;
        json_t *out = json_pack("{s:s}", "process_id", id);
        for (size_t i = 0; i < ARRAY_SIZE(members); i++) {
                json_t *v = json_object_get(p, members[i].theirs);
                if (v && json_typeof(v) == members[i].type)
                        (void) json_object_set(out, members[i].ours, v);
        }
        return out;
}

static void on_list(struct api_req *r, void *arg, int status, json_t *answer) {
        (void) arg;
        (void) status;
        const json_t *all = json_is_array(answer) ? answer : json_object_get(answer, "processes");
        json_t *out = json_array(), *p;
        size_t i;
        json_array_foreach(all, i, p) {
                json_t *j = describe(p);
                if (j)
                        (void) json_array_append_new(out, j);
        }
        api_reply(r, 200, json_pack("{s:o}", "commands", out));
}

static void list(struct api_req *r) {
        struct sandbox *s = agent_sandbox(r);
        if (s)
                agent_request(r, s, "GET", "/cspace/v1/processes", NULL, on_list, NULL, NULL);
}

/* "/cspace/v1/processes/<id><rest>" of the second path parameter; false: answered. */
static bool target_of(struct api_req *r, const char *rest, char out[128]) {
        if (!id_valid(r->params[1])) {
                api_error(r, API_PROCESS_NOT_FOUND, "process \"%.80s\" does not exist", r->params[1]);
                return false;
        }
        (void) snprintf(out, 128, "/cspace/v1/processes/%s%s", r->params[1], rest);
        return true;
}

static void on_one(struct api_req *r, void *arg, int status, json_t *answer) {
        (void) arg;
        (void) status;
        json_t *j = describe(answer);
        if (j)
                api_reply(r, 200, j);
        else
                api_error(r, API_GUEST_PROTOCOL, "the agent's answer describes no process");
}

static void get(struct api_req *r) {
        char target[128];
        struct sandbox *s = agent_sandbox(r);
        if (s && target_of(r, "", target))
                agent_request(r, s, "GET", target, NULL, on_one, NULL, NULL);
}

static void on_empty(struct api_req *r, void *arg, int status, json_t *answer) {
        (void) arg;
        (void) status;
        (void) answer;
        api_reply_empty(r, 204);
}

static void delete(struct api_req *r) {
        char target[128];
        struct sandbox *s = agent_sandbox(r);
        if (s && target_of(r, "", target))
                agent_request(r, s, "DELETE", target, NULL, on_empty, NULL, NULL);
}

static void signal_one(struct api_req *r) {
        static const char *const keys[] = { "signal", NULL };
        struct error e = ERROR_INIT;
        char target[128];
        struct sandbox *s = agent_sandbox(r);
        if (!s || !target_of(r, "/signal", target))
                return;
        const json_t *v = json_object_get(r->body, "signal");
        if (!r->body || json_only_keys(r->body, keys, &e) < 0 || (!json_is_string(v) && !json_is_integer(v))) {
                api_error(r, API_INVALID_ARGUMENT, "%s", e.msg[0] ? e.msg : "\"signal\" must be a name or a number");
                return;
        }
        if (idem_begin(r, NULL) == 0)
                agent_request(r, s, "POST", target, r->body, on_empty, NULL, NULL);
}

const struct api_route command_routes[] = {
        { "POST", "/v1/sandboxes/{id}/commands", create, API_BODY_JSON, API_FLAG_IDEM | API_FLAG_SETTLED },
        { "GET", "/v1/sandboxes/{id}/commands", list, API_BODY_NONE, 0 },
        { "GET", "/v1/sandboxes/{id}/commands/{process_id}", get, API_BODY_NONE, 0 },
        { "DELETE", "/v1/sandboxes/{id}/commands/{process_id}", delete, API_BODY_NONE, 0 },
        { "POST", "/v1/sandboxes/{id}/commands/{process_id}/signal", signal_one, API_BODY_JSON, API_FLAG_IDEM },
        { "GET", "/v1/sandboxes/{id}/commands/{process_id}/attach", attach_handler, API_BODY_NONE, API_FLAG_TOKEN },
};
const size_t command_routes_n = ARRAY_SIZE(command_routes);
