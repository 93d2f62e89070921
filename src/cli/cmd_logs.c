/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"
#include "cli.h"
#include "client.h"
#include "command.h"
#include "mem.h"
#include "output.h"
#include "text.h"

#define LOGS_LINE_MAX (256u * 1024)
#define LOGS_POLL_MS 1000
#define LOGS_SEEN_MAX 64 /* lines of the last millisecond, to tell repeated ones */

static bool follow;
static const char *since;

/* The time of the newest line and the lines of that time: "since" is asked with that time less
 * one, so that a line of the same millisecond that came later is not missed. */
struct logs {
        int64_t newest_ms;
        char *seen[LOGS_SEEN_MAX];
        size_t n_seen;
};

static bool note_seen(struct logs *l, int64_t ms, const char *line) {
        if (ms > l->newest_ms) {
                while (l->n_seen > 0)
                        free(l->seen[--l->n_seen]);
                l->newest_ms = ms;
        }
        if (ms < l->newest_ms)
                return true; /* asked for twice */
        for (size_t i = 0; i < l->n_seen; i++)
                if (str_eq(l->seen[i], line))
                        return false;
        if (l->n_seen < LOGS_SEEN_MAX)
                l->seen[l->n_seen++] = mem_dup(line);
        return true;
}

static void print_line(struct logs *l, const char *line) {
        _cleanup_json_ json_t *j = NULL;
        int64_t ms = 0;

        if (json_parse(line, strlen(line), LOGS_LINE_MAX, &j, NULL) < 0 || !json_is_object(j))
                return;
        if (clock_parse_rfc3339(member_str(j, "time"), &ms) == 0 && !note_seen(l, ms, line))
                return;
        if (cli()->json) {
                output_json(j);
                return;
        }
        text_put(stdout, member_str(j, "time"));
        _cleanup_free_ char *level = text_safe(*member_str(j, "level") ? member_str(j, "level") : "-");
        printf(" %-5s ", level);
        text_put(stdout, member_str(j, "event"));
        if (*member_str(j, "message")) {
                fputs(": ", stdout);
                text_put(stdout, member_str(j, "message"));
        }
        putchar('\n');
}

/* Its lines went with it; that it is gone is seen all the same. */
static void print_deleted(struct logs *l) {
        char now[RFC3339_SIZE];

        clock_rfc3339(clock_real_ms(), now);
        _cleanup_json_ json_t *j = json_pack("{s:s, s:s, s:s}", "time", now, "level", "info", "event", "deleted");
        _cleanup_free_ char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
        if (text)
                print_line(l, text);
}

static int read_once(struct client *c, struct logs *l, const char *sandbox, int64_t from_ms,
                     struct api_error *e) {
        _cleanup_free_ char *id = client_escape(sandbox);
        _cleanup_free_ char *target =
                from_ms > 0 ? mem_printf("/v1/sandboxes/%s/logs?since=%lld", id, (long long) from_ms)
                            : mem_printf("/v1/sandboxes/%s/logs", id);
        _cleanup_buf_ struct buf line = BUF_INIT(LOGS_LINE_MAX);
        const uint8_t *data;
        struct xfer *x = NULL;
        ssize_t n = 0;

        int r = xfer_open(c, "GET", target, NULL, 0, &x, e);
        if (r == 0)
                r = xfer_finish(x, e);
        while (r == 0 && (n = xfer_read(x, &data, e)) > 0) {
                for (ssize_t i = 0; i < n; i++) {
                        if (data[i] != '\n') {
                                (void) buf_append(&line, &data[i], 1); /* an overlong line fails to parse */
                                continue;
                        }
                        print_line(l, buf_str(&line));
                        buf_clear(&line);
                }
        }
        xfer_free(x);
        return r < 0 || n < 0 ? -1 : 0;
}

static int since_ms(int64_t *ret) {
        uint64_t s;

        *ret = 0;
        if (!since)
                return 0;
        if (clock_parse_rfc3339(since, ret) == 0)
                return 0;
        if (str_to_seconds(since, &s) < 0 || s > INT32_MAX)
                return -1;
        *ret = clock_real_ms() - (int64_t) s * 1000;
        return 0;
}

static int run(struct client *c, int argc, char **argv) {
        struct logs l = { 0 };
        struct api_error e;
        int64_t from;
        int rc = CLI_OK;
        bool seen = false;

        (void) argc;
        if (since_ms(&from) < 0)
                return cli_usage(
                        "--since \"%s\" is neither a time such as 2026-01-02T03:04:05Z nor an age such as "
                        "10m",
                        since);
        for (;;) {
                if (read_once(c, &l, argv[0], from, &e) < 0) {
                        /* Followed to its end. */
                        if (seen && api_error_is(&e, "sandbox_not_found"))
                                print_deleted(&l);
                        else
                                rc = api_error_print(&e);
                        break;
                }
                seen = true;
                if (!follow || fflush(stdout) != 0)
                        break;
                if (l.newest_ms > 0)
                        from = l.newest_ms - 1;
                client_pause(c, LOGS_POLL_MS);
        }
        while (l.n_seen > 0)
                free(l.seen[--l.n_seen]);
        return rc;
}

static const struct opt opts[] = {
        { "follow", 'f', OPT_FLAG, &follow, NULL, "Go on until the sandbox is deleted.", COMPLETE_NONE, 0,
          0 },
        { "since", 0, OPT_STRING, &since, "TIME",
          "Only what came after: 2026-01-02T03:04:05Z, or an age such as 10m.", COMPLETE_NONE, 0, 0 },
        OPT_END,
};

const struct command command_logs = {
        .name = "logs",
        .synopsis = "[OPTION...] SANDBOX",
        .summary = "Show what happened to a sandbox.",
        .details = "Its lifecycle as the host saw it. With --json one object per line.",
        .opts = opts,
        .min_args = 1,
        .max_args = 1,
        .command_at = -1,
        .args = { COMPLETE_SANDBOX },
        .with = run,
};
