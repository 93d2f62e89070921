/* SPDX-License-Identifier: Apache-2.0 */
#include "sandbox.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "exec.h"
#include "mem.h"
#include "operation.h"
#include "output.h"
#include "policy_option.h"
#include "text.h"

#define MIB (1024u * 1024)
#define SANDBOX_DELETE_WAIT_S 60

void sandbox_created_done(struct sandbox_created *s) {
        free(s->id);
        free(s->operation);
        json_decref(s->sandbox);
        *s = (struct sandbox_created) { 0 };
}

static void usage(struct api_error *e, const char *message) {
        api_error_set(e, "usage", "%s", message);
}

static int add_size(json_t *body, const char *key, const char *option, uint64_t bytes, struct api_error *e) {
        if (bytes == 0)
                return 0;
        if (bytes % MIB)
                return api_error_set(e, "usage",
                                     "--%s: %llu bytes are no whole number of MiB; write it as 512M or 2G",
                                     option, (unsigned long long) bytes);
        return json_object_set_new(body, key, json_integer((json_int_t) (bytes / MIB)));
}

int sandbox_add_time(json_t *body, const char *key, const char *option, const char *text, struct api_error *e) {
        uint64_t s = 0;

        if (!text)
                return 0;
        if (str_to_seconds(text, &s) < 0)
                return api_error_set(e, "usage", "--%s \"%s\" is not a time; write it as 30s, 5m or 2h", option, text);
        if (s > LIMIT_TTL_MAX_S)
                return api_error_set(e, "usage", "--%s \"%s\" is more than %llud", option, text, LIMIT_TTL_MAX_S / 86400);
        return json_object_set_new(body, key, json_integer((json_int_t) s));
}

int sandbox_add_rules(json_t *body, const struct sandbox_options *o, struct api_error *e) {
        if (sandbox_add_time(body, "ttl_s", "ttl", o->ttl, e) < 0 || sandbox_add_time(body, "idle_s", "idle", o->idle, e) < 0 ||
            sandbox_add_time(body, "checkpoint_every_s", "checkpoint-every", o->checkpoint_every, e) < 0)
                return -1;
        if (o->on_expiry && json_object_set_new(body, "on_expiry", json_string(o->on_expiry)) < 0)
                return api_error_set(e, "usage", "--on-expiry is not UTF-8");
        if (o->on_idle && json_object_set_new(body, "on_idle", json_string(o->on_idle)) < 0)
                return api_error_set(e, "usage", "--on-idle is not UTF-8");
        if (o->checkpoint_keep)
                json_object_set_new(body, "checkpoint_keep", json_integer((json_int_t) o->checkpoint_keep));
        if (o->wake)
                json_object_set_new(body, "wake", json_true());
        return 0;
}

static int add_metadata(json_t *body, const struct opt_list *list, struct api_error *e) {
        json_t *o = json_object();

        for (size_t i = 0; i < list->n; i++) {
                const char *eq = strchr(list->items[i], '=');
                _cleanup_free_ char *key = mem_ndup(list->items[i], eq ? (size_t) (eq - list->items[i]) : 0);

                if (!eq || !*key || json_object_set_new(o, key, json_string(eq + 1)) < 0) {
                        json_decref(o);
                        return api_error_set(e, "usage", "--metadata \"%s\" is not KEY=VALUE in UTF-8",
                                             list->items[i]);
                }
        }
        return json_object_set_new(body, "metadata", o);
}

static json_t *create_body(const struct sandbox_options *o, struct api_error *e) {
        _cleanup_json_ json_t *body = json_object();
        struct error err = ERROR_INIT;

        json_t *env = exec_env(&o->env, &err);
        if (!env) {
                usage(e, err.msg);
                return NULL;
        }
        json_object_set_new(body, "env", env);
        if (json_object_set_new(body, "template", json_string(o->template ? o->template : "base")) < 0) {
                usage(e, "--template is not UTF-8");
                return NULL;
        }
        if (o->name && json_object_set_new(body, "name", json_string(o->name)) < 0) {
                usage(e, "--name is not UTF-8");
                return NULL;
        }
        if (sandbox_add_rules(body, o, e) < 0)
                return NULL;
        if (policy_option(body, &o->allow, o->policy, e) < 0)
                return NULL;
        if (o->cpus)
                json_object_set_new(body, "cpus", json_integer((json_int_t) o->cpus));
        if (add_size(body, "memory_mb", "memory", o->memory, e) < 0 ||
            add_size(body, "disk_mb", "disk", o->disk, e) < 0 || add_metadata(body, &o->metadata, e) < 0)
                return NULL;
        return STEAL(body);
}

/* The host may allow less than the options do, and says so in the words of its API. */
void sandbox_error_words(struct api_error *e) {
        static const struct {
                const char *api, *option;
        } words[] = { { "\"memory_mb\"", "--memory (in MiB)" }, { "\"disk_mb\"", "--disk (in MiB)" }, { "\"cpus\"", "--cpus" },
                      { "\"ttl_s\"", "--ttl (in seconds)" },   { "\"idle_s\"", "--idle (in seconds)" },
                      { "\"checkpoint_every_s\"", "--checkpoint-every (in seconds)" },
                      { "\"checkpoint_keep\"", "--checkpoint-keep" },
                      { "\"on_expiry\"", "--on-expiry" },
                      { "\"on_idle\"", "--on-idle" } };

        for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
                const char *at = strstr(e->message, words[i].api);
                if (!at)
                        continue;
                _cleanup_free_ char *text = mem_printf("%.*s%s%s", (int) (at - e->message), e->message, words[i].option,
                                                       at + strlen(words[i].api));
                (void) snprintf(e->message, sizeof e->message, "%s", text);
        }
}

int sandbox_create(struct client *c, const struct sandbox_options *o, struct sandbox_created *ret,
                   struct api_error *e) {
        _cleanup_json_ json_t *body = create_body(o, e), *answer = NULL;
        json_t *sandbox = NULL, *op = NULL;
        const char *id = NULL, *op_id = NULL;

        if (!body)
                return -1;
        if (client_call(c, "POST", "/v1/sandboxes", body, 0, &answer, e) < 0) {
                sandbox_error_words(e);
                return -1;
        }
        if (json_read_obj(answer, "sandbox", true, &sandbox, NULL) < 0 ||
            json_read_str(sandbox, "id", true, 256, &id, NULL) < 0 ||
            json_read_obj(answer, "operation", true, &op, NULL) < 0 ||
            json_read_str(op, "id", true, 256, &op_id, NULL) < 0)
                return api_error_set(e, "protocol", "cspaced answered a create without an id");
        ret->id = mem_dup(id);
        ret->operation = mem_dup(op_id);
        ret->sandbox = json_incref(sandbox);
        if (o->policy || o->allow.n > 0)
                policy_tell_warnings(json_object_get(sandbox, "egress"));
        return 0;
}

int sandbox_wait(struct client *c, struct sandbox_created *s, struct api_error *e) {
        struct progress *p = progress_new(false);
        _cleanup_free_ char *text = mem_printf(
                "preparing %s for %lldM/%lld: takes up to a minute, once", member_str(s->sandbox, "template"),
                (long long) member_int(s->sandbox, "memory_mb", 0), (long long) member_int(s->sandbox, "cpus", 0));

        progress_announce(p, "preparing", text);
        int r = operation_wait(c, s->operation, p, NULL, e);
        progress_free(p);
        return r;
}

int sandbox_get(struct client *c, const char *sandbox, json_t **ret, struct api_error *e) {
        _cleanup_free_ char *id = client_escape(sandbox), *target = mem_printf("/v1/sandboxes/%s", id);

        _cleanup_json_ json_t *j = NULL;
        const char *text = NULL;

        if (client_call(c, "GET", target, NULL, 0, &j, e) < 0)
                return -1;
        if (json_read_str(j, "id", true, SIZE_MAX, &text, NULL) < 0)
                return api_error_set(e, "protocol", "cspaced sent a sandbox without an id");
        *ret = STEAL(j);
        return 0;
}

int sandbox_delete(struct client *c, const char *sandbox, struct api_error *e) {
        _cleanup_free_ char *id = client_escape(sandbox);
        _cleanup_free_ char *target = mem_printf("/v1/sandboxes/%s?wait=%d", id, SANDBOX_DELETE_WAIT_S);
        _cleanup_json_ json_t *answer = NULL;
        json_t *op = NULL;
        const char *op_id = NULL;

        if (client_call(c, "DELETE", target, NULL, SANDBOX_DELETE_WAIT_S * 1000 + CLIENT_TIMEOUT_MS, &answer,
                        e) < 0)
                return -1;
        if (json_read_obj(answer, "operation", true, &op, NULL) < 0 ||
            json_read_str(op, "id", true, 256, &op_id, NULL) < 0)
                return 0; /* gone */
        return operation_wait(c, op_id, NULL, NULL, e);
}

void sandbox_print_rules(const json_t *s) {
        const char *name = "Rules:";
        char time[TEXT_SIZE];
        int64_t idle = member_int(s, "idle_s", 0), every = member_int(s, "checkpoint_every_s", 0);

        if (json_is_string(json_object_get(s, "expires_at"))) {
                output_fieldf(name, "%s when it expires", member_str(s, "on_expiry"));
                name = "";
        }
        if (idle > 0) {
                text_duration((uint64_t) idle * 1000, time);
                output_fieldf(name, "%s when nobody used it for %s", member_str(s, "on_idle"), time);
                name = "";
        }
        if (json_is_true(json_object_get(s, "wake"))) {
                output_field(name, "wake when it is used");
                name = "";
        }
        if (every > 0) {
                text_duration((uint64_t) every * 1000, time);
                output_fieldf(name, "checkpoint every %s, the newest %lld kept", time, (long long) member_int(s, "checkpoint_keep", 0));
                name = "";
        }
        if (*name)
                output_field(name, "-");
}
