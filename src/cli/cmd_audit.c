/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/str.h"
#include "cli.h"
#include "client.h"
#include "command.h"
#include "mem.h"
#include "output.h"
#include "policy/audit.h"
#include "text.h"

#define LINE_MAX_BYTES (4 * AUDIT_LINE_MAX)

static bool follow;
static const char *since, *until, *host, *verdict, *kind, *rule, *reason;

/* --- printing ----------------------------------------------------------------------------------- */

static void print_lost(const json_t *j) {
        text_put(stdout, member_str(j, "time"));
        int64_t n = member_int(j, "records", 0);
        printf(" lost  %lld record%s found no room\n", (long long) n, str_s((uint64_t) n));
}

static void print_record(const json_t *j) {
        _cleanup_free_ char *text = NULL;
        _cleanup_buf_ struct buf line = BUF_INIT(LINE_MAX_BYTES);
        struct audit a;

        if (cli()->json) {
                output_json(j);
                return;
        }
        if (str_eq(member_str(j, "kind"), "lost")) {
                print_lost(j);
                return;
        }
        text = json_dumps(j, JSON_COMPACT);
        if (!text || audit_parse(text, strlen(text), &a, NULL) < 0 || audit_text(&a, &line) < 0)
                return; /* of a newer cspaced; --json shows it */
        fwrite(buf_data(&line), 1, line.len, stdout);
}

static int on_record(void *arg, json_t *j) {
        bool *any = arg;

        *any = true;
        print_record(j);
        return 0;
}

/* --- asking ------------------------------------------------------------------------------------- */

static char *target_of(const char *sandbox) {
        const struct {
                const char *key, *value;
        } all[] = { { "since", since }, { "until", until }, { "host", host },     { "verdict", verdict },
                    { "kind", kind },   { "rule", rule },   { "reason", reason }, { "follow", follow ? "1" : NULL } };
        _cleanup_free_ char *id = client_escape(sandbox);
        char *target = mem_printf("/v1/sandboxes/%s/audit", id), mark = '?';

        for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
                if (!all[i].value)
                        continue;
                _cleanup_free_ char *old = target, *value = client_escape(all[i].value);
                target = mem_printf("%s%c%s=%s", old, mark, all[i].key, value);
                mark = '&';
        }
        return target;
}

static int take_line(const char *text, size_t n) {
        _cleanup_json_ json_t *j = NULL;

        if (json_parse(text, n, LINE_MAX_BYTES, &j, NULL) == 0 && json_is_object(j))
                print_record(j);
        return fflush(stdout) == 0 ? 0 : -1;
}

/* Until the sandbox is gone, or nobody reads what is printed. */
static int stream(struct client *c, const char *target, struct api_error *e) {
        _cleanup_buf_ struct buf line = BUF_INIT(LINE_MAX_BYTES);
        const uint8_t *data;
        struct xfer *x = NULL;
        ssize_t n = 0;
        bool open = true;

        if (xfer_open(c, "GET", target, NULL, 0, &x, e) < 0)
                return -1;
        int r = xfer_finish(x, e);
        xfer_set_timeout(x, 0); /* nothing may happen for days */
        while (r == 0 && open && (n = xfer_read(x, &data, e)) > 0) {
                for (const uint8_t *at = data, *end = data + n, *stop; open && at < end; at = stop + 1) {
                        stop = memchr(at, '\n', (size_t) (end - at));
                        (void) buf_append(&line, at, (size_t) ((stop ? stop : end) - at)); /* an overlong line fails to parse */
                        if (!stop)
                                break;
                        open = take_line((const char *) buf_data(&line), line.len) == 0;
                        buf_clear(&line);
                }
        }
        xfer_free(x);
        return r < 0 || n < 0 ? -1 : 0;
}

static int run(struct client *c, int argc, char **argv) {
        _cleanup_free_ char *target = target_of(argv[0]);
        struct api_error e;
        bool any = false;

        (void) argc;
        int r = follow ? stream(c, target, &e) : client_list(c, target, "records", on_record, &any, &e);
        if (r == 0 && !follow && !any)
                cli_note("no records%s", strchr(target, '?') ? " of that kind" : "");
        return r < 0 ? api_error_print(&e) : CLI_OK;
}

static const struct opt opts[] = {
        { "follow", 'f', OPT_FLAG, &follow, NULL, "Go on until the sandbox is deleted.", COMPLETE_NONE, 0, 0 },
        { "host", 0, OPT_STRING, &host, "HOST", "Of this host: a name, *.SUFFIX, with :PORT if need be, or an address.",
          COMPLETE_NONE, 0, 0 },
        { "kind", 0, OPT_STRING, &kind, "KIND", "Only dns, connect, request, packets, or lost.", COMPLETE_NONE, 0, 0 },
        { "reason", 0, OPT_STRING, &reason, "REASON", "With this reason, such as no_rule.", COMPLETE_NONE, 0, 0 },
        { "rule", 0, OPT_STRING, &rule, "NAME", "Decided by this rule.", COMPLETE_NONE, 0, 0 },
        { "since", 0, OPT_STRING, &since, "TIME", "From then on: 2026-01-02T03:04:05Z, or an age such as 10m.", COMPLETE_NONE, 0, 0 },
        { "until", 0, OPT_STRING, &until, "TIME", "Before then.", COMPLETE_NONE, 0, 0 },
        { "verdict", 0, OPT_STRING, &verdict, "VERDICT", "Only allow, or deny.", COMPLETE_NONE, 0, 0 },
        OPT_END,
};

const struct command command_audit = {
        .name = "audit",
        .synopsis = "[OPTION...] SANDBOX",
        .summary = "Show what a sandbox reached, or tried to.",
        .details = "Every DNS query, connection and request, with the rule that decided and why. With --json one object per line. "
                   "For some time also of a deleted sandbox, by its id.\n\n"
                   "  cspace audit --verdict deny --since 1h work\n"
                   "  cspace audit -f --json work",
        .opts = opts,
        .min_args = 1,
        .max_args = 1,
        .command_at = -1,
        .args = { COMPLETE_SANDBOX },
        .with = run,
};
