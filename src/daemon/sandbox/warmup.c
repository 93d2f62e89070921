/* SPDX-License-Identifier: Apache-2.0 */

#include "warmup.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/id.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "proxy/proxy.h"
#include "sandbox.h"
#include "timer.h"
#include "warm_attach.h"
#include "wire/connect.h"

#define STEP_TIMEOUT_MS 120000 /* a first start under emulation, on a busy host */
#define ANSWER_MAX (1024 * 1024)
#define OWN_MAX 64 /* commands that a template brings */

enum how {
        HTTP,    /* method, target, body as they are */
        START,   /* envd's process.Process/Start of body as a shell command, default user */
        TERMINAL, /* the same on a pty */
        PREPARED, /* a command session of body as root, started at once */
        ATTACHED, /* a command session of body, started by attaching to it */
};

static const struct step {
        enum how how;
        const char *method, *target, *body;
} steps[] = {
        { HTTP, "GET", "/health", NULL },
        { START, NULL, NULL, "/bin/true" },
        { START, NULL, NULL, "ls -la / >/dev/null; cat /etc/os-release >/dev/null; id; env; uname -a; date" },
        { START, NULL, NULL, "python3 -c 'import json, os, sys, subprocess, random, time, re; print(6*7)'" },
        { START, NULL, NULL, "sudo -n true; git --version; curl --version; ps aux; df -h; head -c 16 /dev/urandom | base64" },
        { TERMINAL, NULL, NULL, "true" },
        { PREPARED, NULL, NULL, "python3 -c pass" },
        { PREPARED, NULL, NULL, "true; ls /; cat /etc/hostname; uuidgen" },
        { ATTACHED, NULL, NULL, "true" },
        { ATTACHED, NULL, NULL, "cat" },
        { HTTP, "GET", "/cspace/v1/processes", NULL },
        { HTTP, "POST", "/filesystem.Filesystem/ListDir", "{\"path\":\"/\"}" },
        { HTTP, "POST", "/filesystem.Filesystem/Stat", "{\"path\":\"/etc/hostname\"}" },
        { HTTP, "PUT", "/cspace/v1/files?path=/tmp/.cspace-warm", "warm" },
        { HTTP, "GET", "/cspace/v1/files?path=/tmp/.cspace-warm", NULL },
        { HTTP, "GET", "/cspace/v1/files/list?path=/tmp", NULL },
        { HTTP, "DELETE", "/cspace/v1/files?path=/tmp/.cspace-warm", NULL },
        { HTTP, "GET", "/metrics", NULL },
};

struct warmup {
        struct app *app;
        char id[ID_SIZE];
        char token[SANDBOX_TOKEN_LEN + 1];
        json_t *own;
        const struct warmup_ops *ops;
        void *arg;
        unsigned at, lost; /* step; steps without an answer */
        struct proxy_call *call;
        struct warm_attach *attach;
        struct timer *next;
};

static void run_step(void *arg);

static void end(struct warmup *w, int err, const struct error *e) {
        const struct warmup_ops *ops = w->ops;
        void *arg = w->arg;
        explicit_bzero(w->token, sizeof w->token);
        json_decref(w->own);
        free(w);
        ops->on_done(arg, err, e);
}

static const struct step *step_of(const struct warmup *w, struct step *own) {
        if (w->at < ARRAY_SIZE(steps))
                return &steps[w->at];
        *own = (struct step){ .how = START, .body = json_string_value(json_array_get(w->own, w->at - ARRAY_SIZE(steps))) };
        return own;
}

/* Not every template has every program. */
static void step_over(struct warmup *w, int err, const char *why) {
        struct error e = ERROR_INIT;
        if (err < 0 && (w->at == 0 || ++w->lost > 2)) {
                (void) error_set(&e, err, "%s", why);
                end(w, err, &e);
                return;
        }
        if (why)
                log_info("warming %s: step %u: %s, going on", w->id, w->at, why);
        w->at++;
        run_step(w);
}

static void on_attached(void *arg, int err, const struct error *e) {
        struct warmup *w = arg;
        w->attach = NULL;
        step_over(w, err, err < 0 ? e->msg : NULL);
}

static void attach(struct warmup *w, const char *answer, size_t n) {
        struct error e = ERROR_INIT;
        _cleanup_json_ json_t *j = NULL;
        const char *process = json_parse(answer, n, ANSWER_MAX, &j, NULL) < 0 ? NULL : json_string_value(json_object_get(j, "processId"));
        int r = process && id_valid(process) ? warm_attach_start(w->app, w->id, process, w->token, STEP_TIMEOUT_MS, on_attached, w, &w->attach, &e)
                                             : error_set(&e, -EPROTO, "the agent's answer has no process");
        if (r < 0)
                step_over(w, r, e.msg);
}

static void on_answer(void *arg, int err, const struct error *e, int status, const char *body, size_t n) {
        struct warmup *w = arg;
        struct step own;
        char why[48];
        w->call = NULL;
        (void) snprintf(why, sizeof why, "refused with %d", status);
        if (err >= 0 && status < 400 && step_of(w, &own)->how == ATTACHED)
                attach(w, body, n);
        else
                step_over(w, err, err < 0 ? e->msg : status >= 400 ? why : NULL);
}

/* Serialised request of a step that is not HTTP. */
static int make_body(const struct step *s, struct buf *out) {
        _cleanup_json_ json_t *j = NULL;
        if (s->how == PREPARED)
                j = json_pack("{s:s, s:[s, s, s], s:s, s:b, s:b}", "cmd", "/bin/bash", "args", "-l", "-c", s->body, "user",
                              "root", "stdin", 0, "start", 1);
        else if (s->how == ATTACHED)
                j = json_pack("{s:s, s:b}", "cmd", s->body, "stdin", 1);
        else if (s->how == TERMINAL)
                j = json_pack("{s:{s:s, s:[s, s, s, s], s:{s:s}}, s:{s:{s:i, s:i}}}", "process", "cmd", "/bin/bash", "args",
                              "-i", "-l", "-c", s->body, "envs", "TERM", "xterm-256color", "pty", "size", "cols", 80,
                              "rows", 24);
        else
                j = json_pack("{s:{s:s, s:[s, s, s]}, s:b}", "process", "cmd", "/bin/bash", "args", "-l", "-c", s->body,
                              "stdin", 0);
        _cleanup_free_ char *text = j ? json_to_str(j) : NULL;
        if (!text)
                return -ENOMEM;
        return s->how == PREPARED || s->how == ATTACHED ? buf_puts(out, text) : connect_write_frame(out, 0, text, strlen(text));
}

static void run_step(void *arg) {
        struct warmup *w = arg;
        w->next = NULL;
        size_t n = ARRAY_SIZE(steps) + json_array_size(w->own);
        if (w->at >= n) {
                end(w, 0, NULL);
                return;
        }
        struct step own;
        const struct step *s = step_of(w, &own);
        bool connect = s->how == START || s->how == TERMINAL;
        struct error e = ERROR_INIT;
        w->ops->on_step(w->arg, "warming", w->at + 1, (unsigned) n);
        _cleanup_buf_ struct buf body = BUF_INIT(ANSWER_MAX);
        int r = 0;
        if (s->how != HTTP)
                r = make_body(s, &body);
        else if (s->body)
                r = buf_puts(&body, s->body);
        struct proxy_request q = {
                .id = w->id,
                .method = s->how == HTTP ? s->method : "POST",
                .target = s->how == HTTP ? s->target : connect ? "/process.Process/Start" : "/cspace/v1/processes",
                .access_token = w->token,
                .content_type = connect ? "application/connect+json" : NULL,
                .body = body.len ? buf_data(&body) : NULL,
                .body_n = body.len,
                .max_answer = ANSWER_MAX,
                .timeout_ms = STEP_TIMEOUT_MS,
        };
        if (r >= 0)
                r = proxy_call(w->app->proxy, &q, on_answer, w, &w->call, &e);
        if (r < 0)
                end(w, r, &e);
}

int warmup_start(struct app *app, const char *id, const char *token, const json_t *own, const struct warmup_ops *ops,
                 void *arg, struct warmup **ret, struct error *err) {
        struct warmup *w = calloc(1, sizeof *w);
        if (!w)
                return error_set(err, -ENOMEM, "out of memory");
        w->app = app;
        w->ops = ops;
        w->arg = arg;
        w->own = json_is_array(own) && json_array_size(own) <= OWN_MAX ? json_deep_copy(own) : NULL;
        (void) str_copy(w->id, sizeof w->id, id);
        (void) str_copy(w->token, sizeof w->token, token);
        w->next = timer_start(app->loop, 0, run_step, w);
        if (!w->next) {
                free(w);
                return error_set(err, -ENOMEM, "out of memory");
        }
        *ret = w;
        return 0;
}

void warmup_cancel(struct warmup *w) {
        if (!w)
                return;
        timer_cancel(w->next);
        proxy_call_cancel(w->call);
        warm_attach_cancel(w->attach);
        explicit_bzero(w->token, sizeof w->token);
        json_decref(w->own);
        free(w);
}
