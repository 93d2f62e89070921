/* SPDX-License-Identifier: Apache-2.0 */

#include "agent_call.h"

#include <errno.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/id.h"
#include "api/api_named.h"
#include "base/json.h"
#include "base/str.h"
#include "proxy/proxy.h"
#include "sandbox/sandbox.h"
#include "sandbox/wake.h"

#define ANSWER_MAX (4u * 1024 * 1024)
#define TIMEOUT_MS AGENT_TIMEOUT_MS

struct sandbox *agent_sandbox(struct api_req *r) {
        struct sandbox *s = api_sandbox(r);
        if (!s)
                return NULL;
        if (s->state == SANDBOX_RUNNING) {
                sandbox_touch(s);
                return s;
        }
        if (wake_wanted(s)) {
                wake_request(r, s);
                return NULL;
        }
        api_error(r, API_SANDBOX_NOT_RUNNING, "sandbox \"%s\" is %s%s%s", s->id, sandbox_state_name(s->state),
                  s->reason[0] ? ": " : "", s->reason);
        return NULL;
}

/* ---- errors -------------------------------------------------------------------------------- */

static enum api_code code_of(int status, const char *name) {
        enum api_code named = name ? api_code_from_name(name) : API_INTERNAL;
        /* A sandbox's agent does not speak for the daemon: "unauthenticated" or "internal" would mislead. */
        if (named != API_INTERNAL && api_code_status(named) == status && status != 401 && status < 500)
                return named;
        switch (status) {
        case 400:
        case 416:
        case 422:
                return API_INVALID_ARGUMENT;
        case 404:
                return API_NOT_FOUND;
        case 405:
                return API_METHOD_NOT_ALLOWED;
        case 409:
                return API_CONFLICT;
        case 413:
                return API_BODY_TOO_LARGE;
        case 429:
                return API_TOO_MANY;
        case 507:
                return API_STORAGE_FULL;
        default:
                return API_GUEST_PROTOCOL;
        }
}

void agent_refused(struct api_req *r, int status, const char *body, size_t n) {
        _cleanup_json_ json_t *j = NULL;
        json_t *e = NULL;
        const char *code = NULL, *message = NULL;
        if (json_parse(body, n, ANSWER_MAX, &j, NULL) >= 0 && json_is_object(j))
                e = json_object_get(j, "error");
        (void) json_read_str(e, "code", false, 64, &code, NULL);
        (void) json_read_str(e, "message", false, ERROR_MSG_MAX - 1, &message, NULL);
        api_error_details(r, code_of(status, code), code ? json_pack("{s:s}", "agent_code", code) : NULL, "%s",
                          message ? message : "the agent refused the request");
}

static enum api_code code_of_errno(int err) {
        switch (err) {
        case -ETIMEDOUT:
                return API_GUEST_TIMEOUT;
        case -EMSGSIZE:
        case -EPROTO:
                return API_GUEST_PROTOCOL;
        case -EBUSY:
        case -EAGAIN:
                return API_TOO_MANY;
        default:
                return API_GUEST_UNREACHABLE;
        }
}

/* ---- calls --------------------------------------------------------------------------------- */

struct request {
        struct api_req *r;
        struct sandbox *s;
        struct proxy_call *call;
        agent_reply_cb cb;
        void (*free_arg)(void *);
        void *arg;
};

static void request_free(struct request *q) {
        if (q->free_arg)
                q->free_arg(q->arg);
        api_req_unref(q->r);
        sandbox_unref(q->s);
        free(q);
}

static void on_answer(void *arg, int err, const struct error *e, int status, const char *body, size_t n) {
        struct request *q = arg;
        struct api_req *r = q->r;
        _cleanup_json_ json_t *j = NULL;
        struct error own = ERROR_INIT;
        r->on_gone = NULL;
        sandbox_heard(r->app, q->s, err != -ETIMEDOUT);
        if (err == -ETIMEDOUT)
                api_error(r, API_GUEST_TIMEOUT, AGENT_SILENT_TEXT, AGENT_TIMEOUT_MS / 1000);
        else if (err < 0)
                api_error_err(r, code_of_errno(err), e);
        else if (status >= 400)
                agent_refused(r, status, body, n);
        else if (n > 0 && json_parse(body, n, ANSWER_MAX, &j, &own) < 0)
                api_error(r, API_GUEST_PROTOCOL, "the agent's answer cannot be read: %s", own.msg);
        else
                q->cb(r, q->arg, status, j);
        request_free(q);
}

static void on_gone(void *arg) {
        struct request *q = arg;
        proxy_call_cancel(q->call);
        request_free(q);
}

void agent_request(struct api_req *r, struct sandbox *s, const char *method, const char *target, const json_t *body,
                   agent_reply_cb cb, void (*free_arg)(void *), void *arg) {
        struct error e = ERROR_INIT;
        _cleanup_free_ char *text = body ? json_to_str(body) : NULL;
        struct request *q = calloc(1, sizeof *q);
        if (!q || (body && !text)) {
                free(q);
                if (free_arg)
                        free_arg(arg);
                api_error(r, API_INTERNAL, "out of memory");
                return;
        }
        *q = (struct request){ .r = api_req_ref(r), .s = sandbox_ref(s), .cb = cb, .free_arg = free_arg, .arg = arg };
        struct proxy_request p = { .id = s->id,
                                   .method = method,
                                   .target = target,
                                   .access_token = s->token,
                                   .body = text,
                                   .body_n = text ? strlen(text) : 0,
                                   .max_answer = ANSWER_MAX,
                                   .timeout_ms = TIMEOUT_MS };
        int rc = proxy_call(r->app->proxy, &p, on_answer, q, &q->call, &e);
        if (rc < 0) {
                api_error_err(r, code_of_errno(rc), &e);
                request_free(q);
                return;
        }
        r->on_gone = on_gone;
        r->gone_arg = q;
}

/* ---- session tokens ------------------------------------------------------------------------ */

void session_token(const struct sandbox *s, const char *process_id, const char *session_id, char out[SESSION_TOKEN_SIZE]) {
        char text[96];
        uint8_t mac[EVP_MAX_MD_SIZE] = { 0 };
        unsigned n = 0;
        int len = snprintf(text, sizeof text, "attach:%s:%s", process_id, session_id);
        (void) HMAC(EVP_sha256(), s->token, (int) strlen(s->token), (const uint8_t *) text, (size_t) len, mac, &n);
        char hex[65];
        str_hex(mac, 32, hex);
        (void) snprintf(out, SESSION_TOKEN_SIZE, "%s.%s", session_id, hex);
}

bool session_token_valid(const struct sandbox *s, const char *process_id, const char *token) {
        char session_id[ID_SIZE], want[SESSION_TOKEN_SIZE];
        if (strlen(token) != SESSION_TOKEN_SIZE - 1 || token[ID_LEN] != '.')
                return false;
        memcpy(session_id, token, ID_LEN);
        session_id[ID_LEN] = 0;
        if (!id_valid(session_id) || !id_valid(process_id))
                return false;
        session_token(s, process_id, session_id, want);
        return mem_eq_ct(want, token, SESSION_TOKEN_SIZE - 1);
}
