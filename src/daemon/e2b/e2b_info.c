/* SPDX-License-Identifier: Apache-2.0 */

/* E2B routes that only tell: logs of a sandbox, metrics, teams. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "e2b_internal.h"
#include "store/key.h"

#define LOGS_MAX 1000

/* --- logs: the lifecycle log, in the three shapes that clients have asked for ----------------- */

struct logs {
        struct api_req *r;
        json_t *(*shape)(const struct logs *l, const json_t *entries);
        char id[ID_SIZE];
        bool backward;
        char *level, *search; /* NULL: all */
};

static void logs_free(struct logs *l) {
        api_req_unref(l->r);
        free(l->level);
        free(l->search);
        free(l);
}

static const char *member(const json_t *e, const char *key) {
        const char *s = json_string_value(json_object_get(e, key));

        return s ? s : "";
}

static int level_rank(const char *level) {
        static const char *const levels[] = { "debug", "info", "warn", "error" };

        for (size_t i = 0; i < ARRAY_SIZE(levels); i++)
                if (str_eq(level, levels[i]))
                        return (int) i;
        return -1;
}

static json_t *entry_json(const struct logs *l, const json_t *e) {
        return json_pack("{s:s, s:s, s:s, s:{s:s, s:s, s:s}}", "timestamp", member(e, "time"), "level",
                         member(e, "level"), "message", member(e, "message"), "fields", "logger", "cspaced", "event",
                         member(e, "event"), "sandboxID", l->id);
}

/* Clients parse the line as JSON and look at its level and logger. */
static json_t *line_json(const struct logs *l, const json_t *e) {
        _cleanup_json_ json_t *j = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "timestamp", member(e, "time"), "level",
                                             member(e, "level"), "logger", "cspaced", "event", member(e, "event"),
                                             "message", member(e, "message"), "sandboxID", l->id);
        _cleanup_free_ char *text = j ? json_to_str(j) : NULL;

        return text ? json_pack("{s:s, s:s}", "timestamp", member(e, "time"), "line", text) : NULL;
}

static bool wanted(const struct logs *l, const json_t *e) {
        if (l->level && level_rank(member(e, "level")) < level_rank(l->level))
                return false;
        return !l->search || strstr(member(e, "message"), l->search) || strstr(member(e, "event"), l->search);
}

static json_t *shape_v1(const struct logs *l, const json_t *entries) {
        json_t *logs = json_array(), *log_entries = json_array(), *e;
        size_t i;

        json_array_foreach((json_t *) (uintptr_t) entries, i, e) {
                (void) json_array_append_new(logs, line_json(l, e));
                (void) json_array_append_new(log_entries, entry_json(l, e));
        }
        return json_pack("{s:o, s:o}", "logs", logs, "logEntries", log_entries);
}

static json_t *shape_v2(const struct logs *l, const json_t *entries) {
        json_t *logs = json_array(), *e;
        size_t i;

        json_array_foreach((json_t *) (uintptr_t) entries, i, e) {
                if (!wanted(l, e))
                        continue;
                if (l->backward)
                        (void) json_array_insert_new(logs, 0, entry_json(l, e));
                else
                        (void) json_array_append_new(logs, entry_json(l, e));
        }
        return json_pack("{s:o}", "logs", logs);
}

static void on_logs(void *arg, int err, json_t *entries) {
        struct logs *l = arg;

        if (err < 0)
                api_error(l->r, api_code_from_errno(err), "the log cannot be read");
        else
                api_reply(l->r, 200, l->shape(l, entries));
        logs_free(l);
}

static void read_logs(struct logs *l, struct sandbox *s, uint64_t since_ms, uint64_t limit) {
        (void) str_copy(l->id, sizeof(l->id), s->id);
        int n = sandbox_log_read(l->r->app, s, (int64_t) since_ms, (size_t) limit, on_logs, l);
        if (n < 0)
                on_logs(l, n, NULL);
}

static struct logs *logs_new(struct api_req *r, json_t *(*shape)(const struct logs *l, const json_t *entries)) {
        struct logs *l = calloc(1, sizeof(*l));

        if (!l) {
                api_error(r, API_INTERNAL, "no memory");
                return NULL;
        }
        l->r = api_req_ref(r);
        l->shape = shape;
        return l;
}

static void get_logs_v1(struct api_req *r) {
        struct sandbox *s = e2b_sandbox(r);
        uint64_t start = 0, limit = LOGS_MAX;

        if (!s || api_query_u64(r, "start", 0, INT64_MAX / 2, &start) < 0 ||
            api_query_u64(r, "limit", 0, INT32_MAX, &limit) < 0)
                return;
        struct logs *l = logs_new(r, shape_v1);
        if (l)
                read_logs(l, s, start, limit && limit < LOGS_MAX ? limit : LOGS_MAX);
}

static int query_v2(struct api_req *r, struct logs *l, uint64_t *cursor, uint64_t *limit) {
        _cleanup_free_ char *direction = NULL;

        if (api_query_u64(r, "cursor", 0, INT64_MAX / 2, cursor) < 0 ||
            api_query_u64(r, "limit", 1, LOGS_MAX, limit) < 0 || api_query_str(r, "direction", 16, &direction) < 0 ||
            api_query_str(r, "level", 16, &l->level) < 0 || api_query_str(r, "search", 256, &l->search) < 0)
                return -1;
        l->backward = str_eq(direction, "backward");
        if ((l->level && level_rank(l->level) < 0) || (direction && !l->backward && !str_eq(direction, "forward"))) {
                api_error(r, API_INVALID_ARGUMENT,
                          "level is one of debug, info, warn, error; direction one of forward, backward");
                return -1;
        }
        return 0;
}

static void get_logs_v2(struct api_req *r) {
        struct sandbox *s = e2b_sandbox(r);
        struct logs *l = s ? logs_new(r, shape_v2) : NULL;
        uint64_t cursor = 0, limit = LOGS_MAX;

        if (!l)
                return;
        if (query_v2(r, l, &cursor, &limit) < 0)
                return logs_free(l);
        /* A cursor is a time in ms; going backward it would be an upper end, which a log that is
         * bounded to a few hundred lines does not need. */
        read_logs(l, s, l->backward ? 0 : cursor, limit);
}

/* --- teams: there is one, and its key is the one that the caller has just shown ---------------- */

static void get_teams(struct api_req *r) {
        const char *auth = api_header(r, "Authorization"), *key = api_header(r, "X-API-KEY");

        if (!key && auth && str_case_eq_n(auth, strnlen(auth, 7), "Bearer "))
                key = auth + 7 + strspn(auth + 7, " ");
        api_reply(r, 200, json_pack("[{s:s, s:s, s:s, s:b}]", "teamID", "cspace", "name", "cspace", "apiKey",
                                    key ? key : "", "isDefault", 1));
}

#define E API_FLAG_E2B
const struct api_route e2b_info_routes[] = {
        { "GET", "/sandboxes/metrics", e2b_get_all_metrics, API_BODY_NONE, E }, /* before /sandboxes/{id} */
        { "GET", "/sandboxes/{id}/metrics", e2b_get_metrics, API_BODY_NONE, E },
        { "GET", "/sandboxes/{id}/logs", get_logs_v1, API_BODY_NONE, E },
        { "GET", "/v2/sandboxes/{id}/logs", get_logs_v2, API_BODY_NONE, E },
        { "GET", "/teams", get_teams, API_BODY_NONE, E },
};
const size_t e2b_info_routes_n = ARRAY_SIZE(e2b_info_routes);
