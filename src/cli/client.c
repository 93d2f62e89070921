/* SPDX-License-Identifier: Apache-2.0 */
#include "client.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/limits.h"
#include "base/str.h"
#include "cli.h"
#include "client_internal.h"
#include "conf/conf.h"
#include "mem.h"
#include "output.h"

#define CLIENT_RETRY_MS 20000 /* how long a restart of cspaced, or of cspace-rootd, may take */
#define CLIENT_RETRY_GAP_MS 250
#define CLIENT_PAGE 200
#define CLIENT_CLOSE_MS 100 /* then a worker is at it still: a look-up of a name */

static const struct {
        const char *code, *hint;
} hints[] = {
        { "sandbox_not_found", "`cspace ls` shows those that exist" },
        { "template_not_found",
          "`cspace template ls` shows those that exist, `cspace template build` makes one" },
        { "checkpoint_not_found", "`cspace history SANDBOX` shows those it has" },
        { "credential_not_found", "`cspace credential ls` shows those that exist" },
        { "key_not_found", "`cspace key ls` shows those that exist" },
        { "process_not_found", "`cspace info SANDBOX` shows the commands of a sandbox" },
        { "unauthenticated",
          "give a key in CSPACE_API_KEY or with --key; root on the host makes one with `cspace key create`" },
        { "name_taken", "choose another name, or remove what has it" },
        { "sandbox_not_running", "`cspace wake SANDBOX` has it run again where it stands still, `cspace logs SANDBOX` says what happened to it" },
        { "template_in_use", "delete them first; `cspace ls` shows the sandboxes, snapshots are those of the E2B API" },
        { "build_running", "wait until it is done, or build under another name" },
        { "unavailable", "`cspace doctor` says what is missing" },
        { "storage_full", "delete sandboxes or templates, or enlarge the data folder" },
};

const char *api_error_hint(const char *code) {
        for (size_t i = 0; i < ARRAY_SIZE(hints); i++)
                if (str_eq(hints[i].code, code))
                        return hints[i].hint;
        return NULL;
}

bool api_error_is(const struct api_error *e, const char *code) {
        return str_eq(e->code, code);
}

int api_error_set(struct api_error *e, const char *code, const char *fmt, ...) {
        va_list ap;

        e->status = 0;
        snprintf(e->code, sizeof e->code, "%s", code);
        va_start(ap, fmt);
        vsnprintf(e->message, sizeof e->message, fmt, ap);
        va_end(ap);
        return -1;
}

/* With the sandbox that the command is about in the place of SANDBOX, so that it can be typed as it stands. */
static char *spoken(const char *hint) {
        static const char word[] = "SANDBOX";
        char *out = mem_dup("");

        for (const char *at; cli()->sandbox && (at = strstr(hint, word)); hint = at + sizeof word - 1) {
                _cleanup_free_ char *before = out;
                out = mem_printf("%s%.*s%s", before, (int) (at - hint), hint, cli()->sandbox);
        }
        _cleanup_free_ char *before = out;
        return mem_printf("%s%s", before, hint);
}

int api_error_print(const struct api_error *e) {
        const char *hint = api_error_hint(e->code);
        _cleanup_free_ char *words = hint ? spoken(hint) : NULL;

        if (api_error_is(e, "usage"))
                return cli_usage("%s", e->message);
        return cli_fail_code(e->code, "%s%s%s", e->message, words ? "; " : "", words ? words : "");
}

/* --api, CSPACE_API_URL, or the socket in the run folder of the configuration. */
static int choose_endpoint(struct endpoint *ret, char listen[CONF_STR_MAX + 1], struct error *err) {
        struct conf conf;
        char path[ENDPOINT_PATH_MAX + 1], url[ENDPOINT_PATH_MAX + 8];

        if (cli()->api)
                return endpoint_parse(cli()->api, ret, err);
        int r = conf_load(&conf, cli()->config, err);
        if (r == -EACCES && !cli()->config)
                conf_defaults(&conf); /* the file is for those who run the services */
        else if (r < 0)
                return r;
        if (r == 0)
                (void) str_copy(listen, CONF_STR_MAX + 1, conf.listen);
        if (conf_run_path(&conf, "api.sock", path, sizeof path) < 0)
                return error_set(err, -ENAMETOOLONG, "run folder \"%s\" has too long a path", conf.run);
        snprintf(url, sizeof url, "unix:%s", path);
        return endpoint_parse(url, ret, err);
}

static int check_key(const char *key, struct error *err) {
        for (const char *p = key; *p; p++)
                if (*p <= ' ' || *p > '~')
                        return error_set(err, -EINVAL, "the API key has a blank or a byte that no key has");
        return 0;
}

int client_new(struct client **ret, struct error *err) {
        struct endpoint to;
        char listen[CONF_STR_MAX + 1] = "";
        int r = choose_endpoint(&to, listen, err);

        if (r < 0)
                return r;
        if (cli()->key) {
                r = check_key(cli()->key, err);
                if (r < 0)
                        return r;
        }
        struct client *c = mem_new(sizeof *c);
        r = uv_loop_init(&c->loop);
        if (r < 0) {
                free(c);
                return error_errno(err, r, "cannot make an event loop");
        }
        c->to = to;
        (void) str_copy(c->listen, sizeof c->listen, listen);
        c->key = cli()->key ? mem_dup(cli()->key) : NULL;
        *ret = c;
        return 0;
}

void client_free(struct client *c) {
        if (!c)
                return;
        uint64_t end = clock_mono_ms() + CLIENT_CLOSE_MS, now;
        /* What was closed still waits for its callback, a worker for its end. No handle of our own waits for
         * them: it would keep the loop from closing itself. */
        for (;;) {
                uv_run(&c->loop, UV_RUN_NOWAIT);
                if (uv_loop_close(&c->loop) != UV_EBUSY)
                        break;
                now = clock_mono_ms();
                if (now >= end) {
                        cli()->stuck = true; /* then it must not be freed either */
                        return;
                }
                struct pollfd p = { .fd = uv_backend_fd(&c->loop), .events = POLLIN };
                int due = uv_backend_timeout(&c->loop), left = (int) (end - now);
                (void) poll(&p, 1, due >= 0 && due < left ? due : left);
        }
        free(c->key);
        free(c);
}

uv_loop_t *client_loop(struct client *c) {
        return &c->loop;
}

void client_interrupt(struct client *c) {
        c->interrupted = true;
}

void client_resume(struct client *c) {
        c->interrupted = false;
}

size_t client_headers(const struct client *c, struct http_header h[CLIENT_HEADERS_MAX]) {
        size_t n = 0;

        h[n++] = (struct http_header) { "Host", c->to.authority };
        h[n++] = (struct http_header) { "User-Agent", "cspace/" CSPACE_VERSION };
        if (c->key)
                h[n++] = (struct http_header) { "X-API-KEY", c->key };
        return n;
}

void client_dial_error(const struct client *c, const struct error *err, struct api_error *e) {
        const char *where = c->to.text;

        if (c->to.local && (err->code == -ENOENT || err->code == -ECONNREFUSED))
                api_error_set(e, "unreachable",
                              "cspaced does not run: nobody listens on %s; start it with `cspace up`", where);
        else if (c->to.local && err->code == -EACCES)
                api_error_set(e, "unreachable",
                              "no permission for %s: it is open to root and the group cspace; others use "
                              "--api http://%s with a key",
                              where, c->listen[0] ? c->listen : "HOST:PORT ([api] listen of its configuration)");
        else if (err->code == -ECONNREFUSED)
                api_error_set(e, "unreachable",
                              "nobody listens on %s; is cspaced running there, and is this its address?",
                              where);
        else
                api_error_set(e, "unreachable", "%s", err->msg);
}

void client_body_error(int status, const void *body, size_t n, struct api_error *e) {
        _cleanup_json_ json_t *j = NULL;
        json_t *o = NULL;
        const char *code = NULL, *message = NULL;

        if (json_parse(body, n, LIMIT_JSON_BODY, &j, NULL) == 0) {
                if (json_read_obj(j, "error", true, &o, NULL) == 0) {
                        (void) json_read_str(o, "code", true, SIZE_MAX, &code, NULL);
                        (void) json_read_str(o, "message", true, SIZE_MAX, &message, NULL);
                } else {
                        (void) json_read_str(j, "message", true, SIZE_MAX, &message, NULL);
                }
        }
        if (message)
                api_error_set(e, code ? code : "protocol", "%s", message);
        else
                api_error_set(e, code ? code : "protocol", "cspaced answered with status %d and no reason",
                              status);
        e->status = status;
}

static int call_once(struct client *c, const char *method, const char *target, const char *body,
                     uint64_t timeout_ms, json_t **ret, struct api_error *e) {
        size_t n = body ? strlen(body) : 0;
        struct xfer *x = NULL;

        int r = xfer_open(c, method, target, body ? "application/json" : NULL, (int64_t) n, &x, e);
        if (r < 0)
                return r;
        xfer_set_timeout(x, timeout_ms ? timeout_ms : CLIENT_TIMEOUT_MS);
        if (n > 0)
                r = xfer_write(x, body, n, e);
        if (r == 0)
                r = xfer_finish(x, e);
        if (r == 0)
                r = xfer_read_json(x, ret, e);
        xfer_free(x);
        return r;
}

struct pause {
        uv_timer_t timer;
        bool over;
};

static void on_pause_over(uv_timer_t *t) {
        ((struct pause *) t->data)->over = true;
}

static void on_pause_closed(uv_handle_t *h) {
        free(h->data);
}

void client_pause(struct client *c, uint64_t ms) {
        struct pause *p = mem_new(sizeof *p);

        uv_timer_init(&c->loop, &p->timer);
        p->timer.data = p;
        uv_timer_start(&p->timer, on_pause_over, ms, 0);
        while (!p->over && !c->interrupted)
                uv_run(&c->loop, UV_RUN_ONCE);
        uv_close((uv_handle_t *) &p->timer, on_pause_closed);
}

/* cspaced answered before and is gone now: it restarts. What it was asked then it may still be at. Or it waits itself for what it
 * needs to make a change. */
static bool is_passing(const char *method, const struct api_error *e) {
        return api_error_is(e, "unreachable") || api_error_is(e, "connection_lost") ||
               api_error_is(e, "idempotency_in_progress") || (api_error_is(e, "unavailable") && !str_eq(method, "GET"));
}

int client_call(struct client *c, const char *method, const char *target, const json_t *body,
                uint64_t timeout_ms, json_t **ret, struct api_error *e) {
        _cleanup_free_ char *text = body ? json_to_str(body) : NULL;
        char key[ID_SIZE];
        json_t *answer = NULL;
        uint64_t give_up = clock_mono_ms() + CLIENT_RETRY_MS;
        bool post = str_eq(method, "POST"), again;
        int r;

        if (body && !text)
                return api_error_set(e, "failure", "out of memory");
        if (post && id_new(key) < 0)
                return api_error_set(e, "failure", "no random numbers");
        do {
                c->idempotency = post ? key : NULL;
                r = call_once(c, method, target, text, timeout_ms, &answer, e);
                c->idempotency = NULL;
                again = r < 0 && c->alive && is_passing(method, e) && clock_mono_ms() < give_up;
                if (again)
                        client_pause(c, CLIENT_RETRY_GAP_MS);
        } while (again);
        if (r < 0)
                return r;
        if (ret)
                *ret = answer;
        else
                json_decref(answer);
        return 0;
}

int client_list(struct client *c, const char *target, const char *key, int (*fn)(void *arg, json_t *item),
                void *arg, struct api_error *e) {
        _cleanup_free_ char *cursor = NULL;

        do {
                _cleanup_free_ char *page =
                        cursor ? mem_printf("%s%climit=%d&cursor=%s", target, strchr(target, '?') ? '&' : '?',
                                            CLIENT_PAGE, cursor)
                               : mem_printf("%s%climit=%d", target, strchr(target, '?') ? '&' : '?',
                                            CLIENT_PAGE);
                _cleanup_json_ json_t *j = NULL;
                json_t *items = NULL, *item;
                const char *next = NULL;
                size_t i;

                if (client_call(c, "GET", page, NULL, 0, &j, e) < 0)
                        return -1;
                if (json_read_array(j, key, true, SIZE_MAX, &items, NULL) < 0)
                        return api_error_set(e, "protocol", "cspaced sent a list without \"%s\"", key);
                json_array_foreach(items, i, item) {
                        int r = fn(arg, item);
                        if (r != 0)
                                return r;
                }
                (void) json_read_str(j, "next_cursor", false, SIZE_MAX, &next, NULL);
                free(cursor);
                cursor = next && *next ? client_escape(next) : NULL;
        } while (cursor);
        return 0;
}

char *client_escape(const char *s) {
        static const char hex[] = "0123456789ABCDEF";
        char *out = mem_new(3 * strlen(s) + 1), *w = out;

        for (; *s; s++) {
                unsigned char b = (unsigned char) *s;

                if ((b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z') || (b >= '0' && b <= '9') ||
                    strchr("-._~", b)) {
                        *w++ = (char) b;
                } else {
                        *w++ = '%';
                        *w++ = hex[b >> 4];
                        *w++ = hex[b & 15];
                }
        }
        *w = '\0';
        return out;
}

int client_with(int (*fn)(struct client *c, int argc, char **argv), int argc, char **argv) {
        struct error err = ERROR_INIT;
        struct client *c = NULL;

        if (client_new(&c, &err) < 0)
                return cli_fail_err(&err);
        int rc = fn(c, argc, argv);
        client_free(c);
        return rc;
}

int client_delete_each(struct client *c, const char *folder, int n, char **names) {
        _cleanup_json_ json_t *gone = json_array();
        struct api_error e;
        int rc = CLI_OK;

        for (int i = 0; i < n; i++) {
                _cleanup_free_ char *name = client_escape(names[i]), *target = mem_printf("%s/%s", folder, name);

                if (cli_named_before(names, i))
                        continue;
                if (client_call(c, "DELETE", target, NULL, 0, NULL, &e) < 0) {
                        rc = api_error_print(&e);
                        continue;
                }
                json_array_append_new(gone, json_string(names[i]));
                if (!cli()->json)
                        puts(names[i]);
        }
        if (cli()->json)
                output_json(gone);
        return rc;
}
