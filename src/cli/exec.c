/* SPDX-License-Identifier: Apache-2.0 */
#include "exec.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"
#include "cli.h"
#include "escape.h"
#include "mem.h"
#include "output.h"
#include "sandbox.h"
#include "signals.h"
#include "terminal.h"
#include "text.h"

#define EXEC_TIMED_OUT 124  /* as timeout(1) */
#define EXEC_HANGUP_MS 2000 /* after SIGHUP in a terminal session */

/* The end of a file could be told to the terminal as ^D only, which a program that has not set up its terminal
 * yet does not see as one. */
int exec_check_terminal(const struct exec_options *o) {
        if (!o->tty || o->no_stdin || isatty(STDIN_FILENO))
                return CLI_OK;
        return cli_usage("stdin is not a terminal: leave out --tty, or give --no-stdin with it");
}

json_t *exec_env(const struct opt_list *env, struct error *err) {
        json_t *o = json_object();

        for (size_t i = 0; o && i < env->n; i++) {
                const char *item = env->items[i], *eq = strchr(item, '=');
                size_t n = eq ? (size_t) (eq - item) : strlen(item);
                _cleanup_free_ char *name = mem_ndup(item, n);
                const char *value = eq ? eq + 1 : getenv(name);

                if (n == 0) {
                        error_set(err, -EINVAL, "--env \"%s\" has no name; write NAME=VALUE", item);
                } else if (!value) {
                        error_set(err, -EINVAL, "--env %s: this variable is not set here; write %s=VALUE",
                                  name, name);
                } else if (!str_is_utf8(item, strlen(item)) || !str_is_utf8(value, strlen(value))) {
                        error_set(err, -EINVAL, "--env %s: the value is not UTF-8", name);
                } else if (json_object_set_new(o, name, json_string(value)) == 0) {
                        continue;
                }
                json_decref(o);
                return NULL;
        }
        return o;
}

char *exec_target(const char *sandbox, const char *process) {
        _cleanup_free_ char *s = client_escape(sandbox), *p = client_escape(process);

        return mem_printf("/v1/sandboxes/%s/commands/%s/attach", s, p);
}

static int set_str(json_t *o, const char *key, const char *v) {
        return v ? json_object_set_new(o, key, json_string(v)) : 0;
}

static int add_terminal(json_t *body, json_t *env) {
        const char *term = getenv("TERM");
        uint16_t cols, rows;

        terminal_size(&cols, &rows);
        if (!json_object_get(env, "TERM"))
                set_str(env, "TERM", term && *term ? term : "xterm-256color");
        return json_object_set_new(body, "pty",
                                   json_pack("{s:i, s:i}", "cols", (int) cols, "rows", (int) rows));
}

/* bash where there is one: it reads the profile, knows where it is, and every base template has it. */
#define EXEC_LOGIN_SHELL "if [ -x /bin/bash ]; then exec /bin/bash -il; else exec /bin/sh -il; fi"

static json_t *command_body(const struct exec_options *o, int argc, char **argv, struct api_error *e) {
        struct error err = ERROR_INIT;
        json_t *env = exec_env(&o->env, &err), *args = json_array(), *body = json_object();

        if (!env) {
                api_error_set(e, "usage", "%s", err.msg);
                json_decref(args);
                json_decref(body);
                return NULL;
        }
        if (argc == 0) {
                set_str(body, "cmd", "/bin/sh");
                json_array_append_new(args, json_string("-c"));
                json_array_append_new(args, json_string(EXEC_LOGIN_SHELL));
        } else {
                set_str(body, "cmd", argv[0]);
        }
        for (int i = 1; i < argc; i++) {
                if (json_array_append_new(args, json_string(argv[i])) == 0)
                        continue;
                api_error_set(e, "usage", "argument %d is not UTF-8: \"%s\"", i, argv[i]);
                json_decref(env);
                json_decref(args);
                json_decref(body);
                return NULL;
        }
        if (o->tty)
                add_terminal(body, env);
        json_object_set_new(body, "args", args);
        json_object_set_new(body, "env", env);
        set_str(body, "user", o->user);
        set_str(body, "cwd", o->workdir);
        json_object_set_new(body, "stdin", json_boolean(!o->no_stdin));
        if (o->timeout_s)
                json_object_set_new(body, "timeout_ms", json_integer((json_int_t) o->timeout_s * 1000));
        return body;
}

static int prepare(struct client *c, const char *sandbox, const struct exec_options *o, int argc, char **argv,
                   bool start, char **ret_process, struct api_error *e) {
        _cleanup_free_ char *s = client_escape(sandbox), *path = mem_printf("/v1/sandboxes/%s/commands", s);
        _cleanup_json_ json_t *answer = NULL, *body = NULL;
        const char *process = NULL;

        if (argc > 0 && !str_is_utf8(argv[0], strlen(argv[0])))
                return api_error_set(e, "usage", "the command's name is not UTF-8");
        body = command_body(o, argc, argv, e);
        if (!body)
                return -1;
        if (start) {
                json_object_set_new(body, "start", json_true());
                json_object_set_new(body, "stdin", json_false());
        }
        if (client_call(c, "POST", path, body, 0, &answer, e) < 0)
                return -1;
        if (json_read_str(answer, "process_id", true, 256, &process, NULL) < 0)
                return api_error_set(e, "protocol", "cspaced gave the command no process id");
        *ret_process = mem_dup(process);
        return 0;
}

int exec_prepare(struct client *c, const char *sandbox, const struct exec_options *o, int argc, char **argv,
                 char **ret_process, char **ret_target, struct api_error *e) {
        if (prepare(c, sandbox, o, argc, argv, false, ret_process, e) < 0)
                return -1;
        *ret_target = exec_target(sandbox, *ret_process);
        return 0;
}

int exec_start(struct client *c, const char *sandbox, const struct exec_options *o, int argc, char **argv,
               char **ret_process, struct api_error *e) {
        return prepare(c, sandbox, o, argc, argv, true, ret_process, e);
}

/* --- streaming ------------------------------------------------------------------------------------ */

struct stream_state {
        const struct exec_stream *s;
        struct attach *attach;
        struct escape escape;
        uv_timer_t hangup;
        int hangup_signal;
        bool started;
};

static void on_hangup(uv_timer_t *t) {
        struct stream_state *st = t->data;

        attach_abandon(st->attach, st->hangup_signal);
}

static void on_signal(void *arg, int signum) {
        struct stream_state *st = arg;
        uint16_t cols, rows;

        if (signum == SIGWINCH) {
                terminal_size(&cols, &rows);
                attach_resize(st->attach, cols, rows);
        } else if (st->s->options->tty && signals_ends(signum)) {
                /* Keys come as bytes; a signal means that this terminal session is to end. */
                st->hangup_signal = signum;
                attach_signal(st->attach, SIGHUP);
                uv_timer_start(&st->hangup, on_hangup, EXEC_HANGUP_MS, 0);
        } else {
                attach_signal(st->attach, signum);
        }
}

static ssize_t on_keys(void *arg, uint8_t *data, size_t n) {
        struct stream_state *st = arg;

        return escape_filter(&st->escape, data, n);
}

static void on_started(void *arg, uint32_t pid) {
        struct stream_state *st = arg;

        (void) pid;
        st->started = true;
        if (st->s->started_us)
                *st->s->started_us = clock_mono_us();
}

static void on_link(void *arg, bool up) {
        (void) arg;
        /* In raw mode a line feed alone does not go back to column 0. */
        if (terminal_is_raw())
                fputs(up ? "\r\ncspace: connected again\r\n"
                         : "\r\ncspace: connection lost, connecting again ...\r\n",
                      stderr);
        else
                cli_note(up ? "connected again" : "connection lost, connecting again ...");
}

static void put_line(const char *text) {
        fprintf(stderr, terminal_is_raw() ? "\r\n%s\r\n" : "%s\n", text);
}

static int told_signal(int signum) {
        return CLI_SIGNAL + (signum > 0 && signum < 65 ? signum : SIGKILL);
}

/* A sandbox that stands still has its commands, and they go on with it. */
static bool stands_still(const struct exec_stream *s) {
        static const char *const states[] = { "pausing", "paused", "suspending", "suspended" };
        _cleanup_json_ json_t *now = NULL;
        struct api_error e;

        if (sandbox_get(s->client, s->sandbox, &now, &e) < 0)
                return false;
        for (size_t i = 0; i < ARRAY_SIZE(states); i++)
                if (str_eq(member_str(now, "state"), states[i]))
                        return true;
        return false;
}

/* Errors that a shell would tell by an exit code of its own. */
static int failed(const struct exec_stream *s, const struct attach_result *r, bool started) {
        if (started && s->stays && api_error_is(&r->err, "sandbox_not_running") && stands_still(s))
                return cli_fail_code(r->err.code, "%s; after `cspace wake %s` it goes on, and `cspace %s --attach %s %s` attaches to it again",
                                     r->err.message, s->sandbox, s->options->tty ? "shell" : "exec", s->process, s->sandbox);
        int rc = api_error_print(&r->err);

        if (api_error_is(&r->err, "command_not_found"))
                return CLI_NOT_FOUND;
        if (api_error_is(&r->err, "not_executable"))
                return CLI_NOT_EXECUTABLE;
        return rc;
}

static int result_code(const struct exec_stream *s, const struct attach_result *r, bool started) {
        char where[TEXT_SIZE];

        switch (r->end) {
        case ATTACH_EXITED:
                if (r->timed_out) {
                        text_duration(s->options->timeout_s * 1000, where);
                        cli_note("the time limit of %s is over; the command was killed", where);
                        return EXEC_TIMED_OUT;
                }
                return r->signal ? told_signal(r->signal) : r->exit_code;
        case ATTACH_DETACHED:
                fputc('\n', stderr); /* the cursor is wherever the sandbox has left it */
                cli_note("detached; the command runs on: cspace shell --attach %s %s", s->process,
                         s->sandbox);
                return CLI_OK;
        case ATTACH_ABANDONED:
                return told_signal(r->signal);
        case ATTACH_FAILED:
                return failed(s, r, started);
        }
        return CLI_FAILURE;
}

static void on_closed(uv_handle_t *h) {
        free(h->data);
}

int exec_stream(const struct exec_stream *s, struct attach_result *ret) {
        static const int list[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, 0 };
        struct stream_state *st = mem_new(sizeof *st);
        struct error err = ERROR_INIT;
        struct attach_result r;
        uint16_t cols, rows;
        bool terminal = s->options->tty && isatty(STDIN_FILENO) && !s->options->no_stdin;

        st->s = s;
        if (terminal && escape_init(&st->escape, s->options->escape, put_line, &err) < 0) {
                free(st);
                return cli_usage("%s", err.msg);
        }
        if (terminal && terminal_raw(&err) < 0) {
                free(st);
                return cli_fail_err(&err);
        }
        const struct attach_params p = {
                .client = s->client,
                .target = s->target,
                .has_stdin = !s->options->no_stdin,
                .filter = terminal ? on_keys : NULL,
                .filter_arg = st,
                .on_started = on_started,
                .on_link = on_link,
                .arg = st,
        };
        uv_timer_init(client_loop(s->client), &st->hangup);
        st->hangup.data = st;
        st->attach = attach_start(&p);
        struct signals *signals = signals_new(client_loop(s->client), list, on_signal, st);
        if (s->options->tty) {
                terminal_size(&cols, &rows);
                attach_resize(st->attach, cols, rows);
        }
        attach_finish(st->attach, &r);
        signals_free(signals);
        terminal_restore();
        int hangup = st->hangup_signal;
        bool started = st->started;
        uv_close((uv_handle_t *) &st->hangup, on_closed);
        if (ret)
                *ret = r;
        return hangup ? told_signal(hangup) : result_code(s, &r, started);
}
