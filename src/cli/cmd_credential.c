/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli.h"
#include "client.h"
#include "command.h"
#include "mem.h"
#include "output.h"
#include "table.h"
#include "terminal.h"
#include "text.h"

#define SECRET_MAX 8192 /* as cspaced takes it */
#define RENEW_MS 60000  /* until all gateways have it */

static const char *file, *expires;
static struct {
        const char *url, *client, *scope, *audience, *auth, *command;
        bool token;
} p;
static struct {
        struct opt_list hosts, methods, paths;
        const char *header, *basic, *query, *expires, *env, *id;
        uint64_t rate, burst, uses;
} b;

/* A time, or so long from now. */
static int put_time(json_t *body, const char *key, const char *option, const char *text) {
        char out[RFC3339_SIZE];
        int64_t ms;
        uint64_t s;

        if (!text)
                return 0;
        if (clock_parse_rfc3339(text, &ms) < 0) {
                if (str_to_seconds(text, &s) < 0 || s > INT32_MAX)
                        return cli_usage("--%s \"%s\" is neither a time such as 2026-01-02T03:04:05Z nor so long as 2h", option, text);
                ms = clock_real_ms() + (int64_t) s * 1000;
        }
        clock_rfc3339(ms, out);
        return json_object_set_new(body, key, json_string(out));
}

/* --- credential add ------------------------------------------------------------------------------- */

/* At most SECRET_MAX bytes and a line end, which is left out. */
static int read_all(int fd, char secret[SECRET_MAX + 3]) {
        size_t n = 0;

        while (n < SECRET_MAX + 2) {
                ssize_t r = read(fd, secret + n, SECRET_MAX + 2 - n);
                if (r < 0 && errno == EINTR)
                        continue;
                if (r < 0)
                        return -errno;
                if (r == 0 || (n += (size_t) r, isatty(fd)))
                        break;
        }
        if (n > 0 && secret[n - 1] == '\n')
                n--;
        if (n > 0 && secret[n - 1] == '\r')
                n--;
        secret[n] = '\0';
        return n > SECRET_MAX ? -EFBIG : strlen(secret) != n ? -EINVAL : 0;
}

static int read_terminal(char secret[SECRET_MAX + 3]) {
        struct error e = ERROR_INIT;

        if (terminal_hide(&e) < 0)
                return -ENOTTY;
        fputs("Secret: ", stderr);
        int r = read_all(STDIN_FILENO, secret);
        terminal_restore();
        fputc('\n', stderr);
        return r;
}

static int read_secret(char secret[SECRET_MAX + 3]) {
        if (!file && isatty(STDIN_FILENO))
                return read_terminal(secret);
        _cleanup_fd_ int fd = file ? open(file, O_RDONLY | O_CLOEXEC) : -EBADF;
        if (file && fd < 0)
                return -errno;
        return read_all(file ? fd : STDIN_FILENO, secret);
}

/* {"secret": ...}; NULL: told why. */
static json_t *secret_body(void) {
        char secret[SECRET_MAX + 3];
        int r = read_secret(secret);

        if (r < 0) {
                (void) cli_usage("the secret cannot be read: %s", r == -EFBIG ? "it is too long" : strerror(-r));
                return NULL;
        }
        json_t *body = json_pack("{s:s}", "secret", secret);
        explicit_bzero(secret, sizeof secret);
        if (!body)
                (void) cli_usage("the secret is not UTF-8");
        return body;
}

static int check_provider(void) {
        if (p.command && (p.url || file || expires))
                return cli_usage("--command takes no secret, and no option for one");
        if (p.url && (!p.client || expires))
                return cli_usage("--oauth2 needs --client-id, and has no --expires");
        if (!p.url && (p.client || p.scope || p.audience || p.auth))
                return cli_usage("--client-id, --scope, --audience and --client-auth are for --oauth2");
        return 0;
}

static int put_oauth2(json_t *body) {
        _cleanup_json_ json_t *more = json_pack("{s:s, s:s, s:s, s:s*, s:s*, s:s*}", "provider", "oauth2", "token_url", p.url, "client_id",
                                                p.client, "scope", p.scope, "audience", p.audience, "auth", p.auth);

        return more ? json_object_update(body, more) : cli_usage("an option is not UTF-8");
}

/* Stored it is; that there is no token may be the other side's fault. */
static void note_failure(const json_t *answer) {
        const json_t *token = json_object_get(answer, "token");

        if (str_eq(json_string_value(json_object_get(token, "state")), "failed"))
                cli_note("the credential is stored, but there is no token: %s", member_str(token, "reason"));
}

static int add(struct client *c, int argc, char **argv) {
        _cleanup_free_ char *name = client_escape(argv[0]), *target = mem_printf("/v1/credentials/%s", name);
        _cleanup_json_ json_t *body = NULL, *answer = NULL;
        struct api_error e;
        int r;

        (void) argc;
        if ((r = check_provider()) != 0)
                return r;
        body = p.command ? json_pack("{s:s, s:s}", "provider", "command", "command", p.command) : secret_body();
        if (!body)
                return p.command ? cli_usage("an option is not UTF-8") : CLI_USAGE;
        if (p.url && (r = put_oauth2(body)) != 0)
                return r;
        if ((r = put_time(body, "expires_at", "expires", expires)) != 0)
                return r;
        if (client_call(c, "PUT", target, body, RENEW_MS, &answer, &e) < 0)
                return api_error_print(&e);
        note_failure(answer);
        if (cli()->json)
                output_json(answer);
        return CLI_OK;
}

/* --- credential rotate ---------------------------------------------------------------------------- */

static int rotate(struct client *c, int argc, char **argv) {
        _cleanup_free_ char *name = client_escape(argv[0]), *target = mem_printf("/v1/credentials/%s/rotate", name);
        _cleanup_json_ json_t *body = NULL, *answer = NULL;
        struct api_error e;
        int r;

        (void) argc;
        if (p.token && (file || expires))
                return cli_usage("--token takes no other option");
        body = p.token ? json_object() : secret_body();
        if (!body)
                return CLI_USAGE;
        if ((r = put_time(body, "expires_at", "expires", expires)) != 0)
                return r;
        if (client_call(c, "POST", target, body, RENEW_MS, &answer, &e) < 0)
                return api_error_print(&e);
        if (cli()->json)
                output_json(answer);
        return CLI_OK;
}

/* --- credential ls, rm ---------------------------------------------------------------------------- */

static int ls(struct client *c, int argc, char **argv) {
        static const char *const headers[] = { "NAME", "PROVIDER", "CREATED", "UPDATED", "EXPIRES", "TOKEN", NULL };
        _cleanup_json_ json_t *answer = NULL;
        json_t *list = NULL, *one;
        struct api_error e;
        char when[TEXT_SIZE];
        size_t i;

        (void) argc;
        (void) argv;
        if (client_call(c, "GET", "/v1/credentials", NULL, 0, &answer, &e) < 0)
                return api_error_print(&e);
        if (json_read_array(answer, "credentials", true, SIZE_MAX, &list, NULL) < 0)
                return cli_fail_code("protocol", "cspaced sent no list of credentials");
        if (cli()->json) {
                output_json(list);
                return CLI_OK;
        }
        if (json_array_size(list) == 0) {
                cli_note("no credentials; `cspace credential add` keeps one");
                return CLI_OK;
        }
        struct table *t = table_new(headers);
        json_array_foreach(list, i, one) {
                static const char *const times[] = { "created_at", "updated_at", "expires_at" };
                table_cell(t, member_str(one, "name"));
                table_cell(t, member_str(one, "provider"));
                const json_t *token = json_object_get(one, "token");
                for (size_t k = 0; k < ARRAY_SIZE(times); k++) {
                        const json_t *from = token && k == 2 ? token : one;
                        text_relative_rfc3339(json_string_value(json_object_get(from, times[k])), when);
                        table_cell(t, when);
                }
                const char *reason = json_string_value(json_object_get(token, "reason"));
                if (token && reason)
                        table_cellf(t, "%s: %s", member_str(token, "state"), reason);
                else
                        table_cell(t, token ? member_str(token, "state") : NULL);
        }
        table_print(t, stdout);
        table_free(t);
        return CLI_OK;
}

static int rm(struct client *c, int argc, char **argv) {
        return client_delete_each(c, "/v1/credentials", argc, argv);
}

/* --- bind, unbind --------------------------------------------------------------------------------- */

static int put_list(json_t *body, const char *key, const struct opt_list *l) {
        json_t *list = l->n > 0 ? json_array() : NULL;

        for (size_t i = 0; i < l->n; i++)
                if (json_array_append_new(list, json_string(l->items[i])) < 0) {
                        json_decref(list);
                        return cli_usage("an option is not UTF-8");
                }
        return list ? json_object_set_new(body, key, list) : 0;
}

/* --header NAME or NAME=TEMPLATE, --basic USER, --query NAME. */
static int put_inject(json_t *body) {
        const char *eq = b.header ? strchr(b.header, '=') : NULL;
        _cleanup_free_ char *name = b.header ? mem_ndup(b.header, eq ? (size_t) (eq - b.header) : strlen(b.header)) : NULL;
        json_t *inject = NULL;

        if (!!b.header + !!b.basic + !!b.query > 1)
                return cli_usage("only one of --header, --basic and --query can be given");
        if (b.header)
                inject = json_pack("{s:s, s:s, s:s*}", "as", "header", "name", name, "template", eq ? eq + 1 : NULL);
        else if (b.basic)
                inject = json_pack("{s:s, s:s}", "as", "basic", "user", b.basic);
        else if (b.query)
                inject = json_pack("{s:s, s:s}", "as", "query", "name", b.query);
        else
                return 0;
        return inject ? json_object_set_new(body, "inject", inject) : cli_usage("an option is not UTF-8");
}

static int put_rate(json_t *body) {
        if (b.burst && !b.rate)
                return cli_usage("--burst needs --rate");
        if (b.uses && json_object_set_new(body, "uses", json_integer((json_int_t) b.uses)) < 0)
                return -1;
        if (!b.rate)
                return 0;
        json_t *rate = json_pack("{s:I}", "per_minute", (json_int_t) b.rate);
        if (b.burst)
                json_object_set_new(rate, "burst", json_integer((json_int_t) b.burst));
        return json_object_set_new(body, "rate", rate);
}

static int bind_one(struct client *c, int argc, char **argv) {
        _cleanup_free_ char *id = client_escape(argv[0]), *target = mem_printf("/v1/sandboxes/%s/bindings", id);
        _cleanup_json_ json_t *body = json_pack("{s:s, s:s*, s:s*}", "credential", argv[1], "env", b.env, "id", b.id), *answer = NULL;
        struct api_error e;
        int r;

        (void) argc;
        if (!body)
                return cli_usage("an option is not UTF-8");
        if (b.hosts.n == 0)
                return cli_usage("--host is needed: toward whom the credential is added");
        if ((r = put_list(body, "hosts", &b.hosts)) != 0 || (r = put_list(body, "methods", &b.methods)) != 0 ||
            (r = put_list(body, "paths", &b.paths)) != 0 || (r = put_inject(body)) != 0 || (r = put_rate(body)) != 0 ||
            (r = put_time(body, "expires", "expires", b.expires)) != 0)
                return r;
        if (client_call(c, "POST", target, body, 0, &answer, &e) < 0)
                return api_error_print(&e);
        if (cli()->json) {
                output_json(answer);
        } else {
                text_put(stdout, member_str(answer, "id"));
                putchar('\n');
        }
        return CLI_OK;
}

static int unbind_all(struct client *c, int argc, char **argv) {
        _cleanup_free_ char *id = client_escape(argv[0]), *folder = mem_printf("/v1/sandboxes/%s/bindings", id);

        return client_delete_each(c, folder, argc - 1, argv + 1);
}

/* Table cell of a list of strings. */
static void cell_list(struct table *t, const json_t *list) {
        char *text = mem_dup("");
        json_t *v;
        size_t i;

        json_array_foreach((json_t *) (uintptr_t) list, i, v) {
                _cleanup_free_ char *old = text;
                text = mem_printf("%s%s%s", old, i ? "," : "", json_string_value(v) ? json_string_value(v) : "?");
        }
        table_cell(t, *text ? text : NULL);
        free(text);
}

static int list_bindings(struct client *c, int argc, char **argv) {
        static const char *const headers[] = { "ID", "CREDENTIAL", "HOSTS", "METHODS", "PATHS", "USED", "EXPIRES", NULL };
        _cleanup_free_ char *id = client_escape(argv[0]), *target = mem_printf("/v1/sandboxes/%s/bindings", id);
        _cleanup_json_ json_t *answer = NULL;
        json_t *list = NULL, *one;
        struct api_error e;
        char when[TEXT_SIZE];
        size_t i;

        (void) argc;
        if (client_call(c, "GET", target, NULL, 0, &answer, &e) < 0)
                return api_error_print(&e);
        if (json_read_array(answer, "bindings", true, SIZE_MAX, &list, NULL) < 0)
                return cli_fail_code("protocol", "cspaced sent no list of bindings");
        if (cli()->json) {
                output_json(list);
                return CLI_OK;
        }
        if (json_array_size(list) == 0) {
                cli_note("no bindings; `cspace bind` makes one");
                return CLI_OK;
        }
        struct table *t = table_new(headers);
        json_array_foreach(list, i, one) {
                table_cell(t, member_str(one, "id"));
                table_cell(t, member_str(one, "credential"));
                cell_list(t, json_object_get(one, "hosts"));
                cell_list(t, json_object_get(one, "methods"));
                cell_list(t, json_object_get(one, "paths"));
                if (member_int(one, "uses", 0))
                        table_cellf(t, "%lld of %lld", (long long) member_int(one, "used", 0), (long long) member_int(one, "uses", 0));
                else
                        table_cellf(t, "%lld", (long long) member_int(one, "used", 0));
                text_relative_rfc3339(json_string_value(json_object_get(one, "expires")), when);
                table_cell(t, when);
        }
        table_print(t, stdout);
        table_free(t);
        return CLI_OK;
}

/* --- the table ------------------------------------------------------------------------------------ */

static const struct opt opts_add[] = {
        { "file", 0, OPT_STRING, &file, "FILE", "Read the secret from this file.", COMPLETE_FILE, 0, 0 },
        { "expires", 0, OPT_STRING, &expires, "TIME", "Use it no more from then on: 2026-01-02T03:04:05Z, or so long as 2h.",
          COMPLETE_NONE, 0, 0 },
        { "oauth2", 0, OPT_STRING, &p.url, "URL", "Get tokens from this endpoint; the secret is the client's.", COMPLETE_NONE, 0, 0 },
        { "client-id", 0, OPT_STRING, &p.client, "ID", "With --oauth2: who asks.", COMPLETE_NONE, 0, 0 },
        { "scope", 0, OPT_STRING, &p.scope, "SCOPE", "With --oauth2: what for, names separated by blanks.", COMPLETE_NONE, 0, 0 },
        { "audience", 0, OPT_STRING, &p.audience, "AUDIENCE", "With --oauth2: whom the tokens are for.", COMPLETE_NONE, 0, 0 },
        { "client-auth", 0, OPT_STRING, &p.auth, "basic|body", "With --oauth2: where the client's secret goes; basic without it.", COMPLETE_NONE,
          0, 0 },
        { "command", 0, OPT_STRING, &p.command, "NAME", "Get tokens from this program of the operator's.", COMPLETE_NONE, 0, 0 },
        OPT_END,
};

static const struct opt opts_rotate[] = {
        { "file", 0, OPT_STRING, &file, "FILE", "Read the secret from this file.", COMPLETE_FILE, 0, 0 },
        { "expires", 0, OPT_STRING, &expires, "TIME", "Use it no more from then on: 2026-01-02T03:04:05Z, or so long as 2h.",
          COMPLETE_NONE, 0, 0 },
        { "token", 0, OPT_FLAG, &p.token, NULL, "Read no secret: get a new token with the one there is.", COMPLETE_NONE, 0, 0 },
        OPT_END,
};

const struct command command_credential_rotate = {
        .name = "credential rotate",
        .synopsis = "[OPTION...] NAME",
        .summary = "Another secret, or another token, for a credential that there is.",
        .details = "When this returns, the gateways of all sandboxes with a binding for it use the new one and forget the old one.\n\n"
                   "  cspace credential rotate api-token < token.txt",
        .opts = opts_rotate,
        .min_args = 1,
        .max_args = 1,
        .command_at = -1,
        .args = { COMPLETE_CREDENTIAL },
        .with = rotate,
};

const struct command command_credential_add = {
        .name = "credential add",
        .synopsis = "[OPTION...] NAME",
        .summary = "Keep a secret on the host, or another one under the same name.",
        .details = "It is read from stdin, without its line end, stored encrypted, and never shown again. Sandboxes do not see it: `cspace "
                   "bind` has it added to requests on their way out. A new secret is in use when this returns.\n\n"
                   "  cspace credential add api-token < token.txt\n"
                   "  cspace credential add --oauth2 https://login.example/token --client-id me crm\n"
                   "  cspace credential add --command vault db-token\n\n"
                   "With --oauth2 or --command what requests get is a token, which is renewed before it expires. Programs for --command lie in the"
                   " folder that cspace.conf(5) names.",
        .opts = opts_add,
        .min_args = 1,
        .max_args = 1,
        .command_at = -1,
        .args = { COMPLETE_CREDENTIAL },
        .with = add,
};

const struct command command_credential_ls = {
        .name = "credential ls",
        .synopsis = "",
        .summary = "List credentials, without their secrets.",
        .max_args = 0,
        .command_at = -1,
        .with = ls,
};

const struct command command_credential_rm = {
        .name = "credential rm",
        .synopsis = "NAME...",
        .summary = "Forget credentials that no sandbox has a binding for.",
        .min_args = 1,
        .max_args = -1,
        .command_at = -1,
        .args = { COMPLETE_CREDENTIAL },
        .with = rm,
};

static const struct opt opts_bind[] = {
        { "host", 0, OPT_LIST, &b.hosts, "HOST", "Toward whom: a name, *.SUFFIX, NAME:PORT. Again for more.", COMPLETE_NONE, 0, 0 },
        { "method", 'X', OPT_LIST, &b.methods, "METHOD", "Only with this method. Again for more.", COMPLETE_NONE, 0, 0 },
        { "path", 0, OPT_LIST, &b.paths, "PATH", "Only with this path; /x/ is all below it. Again for more.", COMPLETE_NONE, 0, 0 },
        { "header", 0, OPT_STRING, &b.header, "NAME[=TEMPLATE]", "In this header, in place of {secret}; Authorization=Bearer {secret} "
          "without it.", COMPLETE_NONE, 0, 0 },
        { "basic", 0, OPT_STRING, &b.basic, "USER", "As the password of basic authentication.", COMPLETE_NONE, 0, 0 },
        { "query", 0, OPT_STRING, &b.query, "NAME", "As a parameter of the query.", COMPLETE_NONE, 0, 0 },
        { "rate", 0, OPT_UINT, &b.rate, "N", "At most so many requests a minute.", COMPLETE_NONE, 1, 0 },
        { "burst", 0, OPT_UINT, &b.burst, "N", "So many of them at once.", COMPLETE_NONE, 1, 0 },
        { "uses", 0, OPT_UINT, &b.uses, "N", "At most so many requests at all.", COMPLETE_NONE, 1, 0 },
        { "expires", 0, OPT_STRING, &b.expires, "TIME", "Not from then on: 2026-01-02T03:04:05Z, or so long as 2h.", COMPLETE_NONE, 0, 0 },
        { "env", 0, OPT_STRING, &b.env, "NAME", "Commands started from now on find a placeholder in this variable.", COMPLETE_NONE, 0, 0 },
        { "id", 0, OPT_STRING, &b.id, "ID", "Its name, for records and unbind.", COMPLETE_NONE, 0, 0 },
        OPT_END,
};

const struct command command_bind = {
        .name = "bind",
        .synopsis = "--host HOST [OPTION...] SANDBOX CREDENTIAL",
        .summary = "Have a credential added to some requests of a sandbox.",
        .details = "Prints the id of the binding. The sandbox never sees the secret, and its policy must allow the requests.\n\n"
                   "  cspace bind --host api.example.com --env API_TOKEN --rate 60 work api-token\n"
                   "  cspace bind --host git.example.com --basic x-access-token work git-token",
        .opts = opts_bind,
        .min_args = 2,
        .max_args = 2,
        .command_at = -1,
        .args = { COMPLETE_SANDBOX, COMPLETE_CREDENTIAL },
        .with = bind_one,
};

const struct command command_unbind = {
        .name = "unbind",
        .synopsis = "SANDBOX BINDING...",
        .summary = "Have a credential added no more.",
        .min_args = 2,
        .max_args = -1,
        .command_at = -1,
        .args = { COMPLETE_SANDBOX, COMPLETE_BINDING },
        .with = unbind_all,
};

const struct command command_bindings = {
        .name = "bindings",
        .synopsis = "SANDBOX",
        .summary = "List the credentials that are added to a sandbox's requests.",
        .min_args = 1,
        .max_args = 1,
        .command_at = -1,
        .args = { COMPLETE_SANDBOX },
        .with = list_bindings,
};
