/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli.h"
#include "client.h"
#include "command.h"
#include "mem.h"
#include "output.h"
#include "sandbox.h"
#include "table.h"
#include "template.h"
#include "text.h"

#define PART_TIMEOUT_MS 6000

/* What a part of the sandbox says is left out when it does not answer. */
static json_t *part(struct client *c, const char *sandbox, const char *what, bool *ret_silent) {
        _cleanup_free_ char *id = client_escape(sandbox),
                            *target = mem_printf("/v1/sandboxes/%s/%s", id, what);
        struct api_error e;
        json_t *j = NULL;

        if (client_call(c, "GET", target, NULL, PART_TIMEOUT_MS, &j, &e) == 0 && j)
                return j;
        *ret_silent |= api_error_is(&e, "timeout") || api_error_is(&e, "guest_timeout");
        return json_null();
}

static void print_map(const char *name, const json_t *map) {
        const char *key;
        json_t *v;
        bool first = true;

        if (json_object_size(map) == 0)
                output_field(name, "-");
        json_object_foreach((json_t *) (uintptr_t) map, key, v) {
                output_fieldf(first ? name : "", "%s=%s", key,
                              json_string_value(v) ? json_string_value(v) : "");
                first = false;
        }
}

static void print_usage(const json_t *usage) {
        const json_t *host = json_object_get(usage, "host");
        char memory[TEXT_SIZE], disk[TEXT_SIZE], cpu[TEXT_SIZE];

        if (!json_is_object(host))
                return;
        int64_t n = member_int(host, "processes", 0);
        text_size((uint64_t) member_int(host, "memory_bytes", 0), memory);
        text_size((uint64_t) member_int(host, "disk_bytes", 0), disk);
        if (n == 0) { /* what is stored of one that is suspended or stopped */
                output_fieldf("On the host:", "%s of disk", disk);
                return;
        }
        text_duration((uint64_t) member_int(host, "cpu_us", 0) / 1000, cpu);
        output_fieldf("On the host:", "%s of memory, %s of disk, %s of CPU time, %lld process%s", memory,
                      disk, cpu, (long long) n, n == 1 ? "" : "es");
}

static void print_egress(const json_t *s, const json_t *usage) {
        const json_t *e = json_object_get(s, "egress"), *now = json_object_get(usage, "egress");
        char in[TEXT_SIZE], out[TEXT_SIZE];
        int64_t rules = member_int(e, "rules", 0);

        if (!json_is_object(e))
                return;
        if (rules == 0)
                output_field("Reaches:", "nothing");
        else
                output_fieldf("Reaches:", "what its policy of %lld rule%s allows", (long long) rules, str_s((uint64_t) rules));
        if (*member_str(e, "reason"))
                output_fieldf("Gateway:", "%s: %s", member_str(e, "state"), member_str(e, "reason"));
        else if (str_eq(member_str(e, "state"), "idle"))
                output_field("Gateway:", "idle, starts with the first packet");
        else if (!str_eq(member_str(e, "state"), "off"))
                output_field("Gateway:", member_str(e, "state"));
        if (!json_is_object(now))
                return;
        int64_t requests = member_int(now, "requests", 0), open = member_int(now, "connections", 0);
        text_size((uint64_t) member_int(now, "bytes_in", 0), in);
        text_size((uint64_t) member_int(now, "bytes_out", 0), out);
        output_fieldf("Traffic:", "%s in, %s out, %lld request%s, %lld connection%s open", in, out, (long long) requests,
                      str_s((uint64_t) requests), (long long) open, str_s((uint64_t) open));
}

static void print_commands(const json_t *commands) {
        static const char *const headers[] = { "PROCESS", "STATE", "PID", "COMMAND", NULL };
        const json_t *list = json_object_get(commands, "commands"), *one;
        size_t i;

        if (json_array_size(list) == 0)
                return;
        struct table *t = table_new(headers);
        json_array_foreach(list, i, one) {
                const json_t *args = json_object_get(one, "args"), *exit = json_object_get(one, "exit"), *a;
                char *text = mem_dup(member_str(one, "cmd"));
                size_t k;

                json_array_foreach(args, k, a) {
                        _cleanup_free_ char *old = text;
                        text = mem_printf("%s %s", old, json_string_value(a) ? json_string_value(a) : "");
                }
                table_cell(t, member_str(one, "process_id"));
                if (json_is_object(exit) && str_eq(member_str(exit, "reason"), "timeout"))
                        table_cell(t, "timed out");
                else if (json_is_object(exit) && *member_str(exit, "signal"))
                        table_cell(t, member_str(exit, "signal"));
                else if (json_is_object(exit) && member_int(exit, "exitCode", -1) < 0)
                        table_cell(t, "not started");
                else if (json_is_object(exit))
                        table_cellf(t, "exited %lld", (long long) member_int(exit, "exitCode", -1));
                else
                        table_cell(t, member_str(one, "state"));
                int64_t pid = member_int(one, "pid", 0);
                if (pid > 0)
                        table_cellf(t, "%lld", (long long) pid);
                else
                        table_cell(t, NULL);
                table_cellf(t, "%.200s", text);
                free(text);
        }
        putchar('\n');
        table_print(t, stdout);
        table_free(t);
}

static void print(const json_t *s, const json_t *usage, const json_t *commands, const char *old_agent) {
        char memory[TEXT_SIZE], disk[TEXT_SIZE];
        int64_t disk_mb = member_int(s, "disk_mb", 0), cpus = member_int(s, "cpus", 0);

        text_size((uint64_t) member_int(s, "memory_mb", 0) << 20, memory);
        text_size((uint64_t) disk_mb << 20, disk);
        output_field("Id:", member_str(s, "id"));
        if (*member_str(s, "name"))
                output_field("Name:", member_str(s, "name"));
        output_field("State:", member_str(s, "state"));
        if (json_is_false(json_object_get(s, "responding")))
                output_field("Guest:", "does not answer");
        if (*member_str(s, "reason"))
                output_field("Reason:", member_str(s, "reason"));
        output_field("Template:", member_str(s, "template"));
        output_field("Digest:", member_str(s, "digest"));
        if (*member_str(s, "forked_from"))
                output_field("Forked from:", member_str(s, "forked_from"));
        if (old_agent) /* from before an upgrade */
                output_fieldf("Agent:", "not this cspace's; %s, and create it again", old_agent);
        output_fieldf("Size:", "%s memory, %lld CPU%s, disk %s", memory, (long long) cpus, str_s((uint64_t) cpus),
                      disk_mb ? disk : "as the template's");
        output_time("Created:", json_string_value(json_object_get(s, "created_at")));
        output_time("First ran:", json_string_value(json_object_get(s, "started_at")));
        output_time("Expires:", json_string_value(json_object_get(s, "expires_at")));
        sandbox_print_rules(s);
        const json_t *timing = json_object_get(s, "timing");
        if (json_is_object(timing))
                output_fieldf("Start took:", "%.1f ms%s", (double) member_int(timing, "total_us", 0) / 1000,
                              json_is_true(json_object_get(timing, "warm")) ? " (from the warm pool)" : "");
        print_egress(s, usage);
        print_map("Metadata:", json_object_get(s, "metadata"));
        print_map("Env:", json_object_get(s, "env"));
        print_usage(usage);
        print_commands(commands);
}

/* Not on the way: it has a VM, or an image that is stored. */
static bool exists(const json_t *s) {
        static const char *const states[] = { "running", "paused", "suspended", "stopped", "failed" };

        for (size_t i = 0; i < ARRAY_SIZE(states); i++)
                if (str_eq(member_str(s, "state"), states[i]))
                        return true;
        return false;
}

static int show(struct client *c, const char *sandbox) {
        _cleanup_json_ json_t *s = NULL, *usage = NULL, *commands = NULL;
        struct api_error e;

        if (sandbox_get(c, sandbox, &s, &e) < 0)
                return api_error_print(&e);
        bool running = str_eq(member_str(s, "state"), "running"), silent = false, unknown = false;
        bool answers = running && !json_is_false(json_object_get(s, "responding"));
        commands = answers ? part(c, sandbox, "commands", &silent) : json_null();
        if (silent) /* this was the first to notice */
                json_object_set_new(s, "responding", json_false());
        usage = exists(s) ? part(c, sandbox, "usage", &unknown) : json_null();
        if (!cli()->json) {
                _cleanup_free_ char *target = mem_printf("/v1/templates/%s", member_str(s, "digest")), *renew = NULL;
                _cleanup_json_ json_t *tmpl = NULL;

                if (client_call(c, "GET", target, NULL, 0, &tmpl, &e) == 0)
                        renew = template_renew(tmpl);
                print(s, usage, commands, renew);
                return CLI_OK;
        }
        json_object_set(s, "usage", usage);
        json_t *list = json_object_get(commands, "commands");
        json_object_set(s, "commands", list ? list : json_null());
        output_json(s);
        return CLI_OK;
}

static int run(struct client *c, int argc, char **argv) {
        (void) argc;
        return show(c, argv[0]);
}

const struct command command_info = {
        .name = "info",
        .synopsis = "SANDBOX",
        .summary = "Show all about one sandbox: its state, use of the host, commands.",
        .min_args = 1,
        .max_args = 1,
        .command_at = -1,
        .args = { COMPLETE_SANDBOX },
        .with = run,
};
