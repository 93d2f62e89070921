/* SPDX-License-Identifier: Apache-2.0 */

/* /v1/sandboxes/{id}/diff, /history/file and /history/tree: what changed on a sandbox's disk, and files as they are or were. */

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api_named.h"
#include "api_wait.h"
#include "app.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/str.h"
#include "peers/history.h"
#include "sandbox/checkpoint.h"
#include "sandbox/sandbox.h"

#define CHANGES_DEFAULT 1000
#define CHANGES_MAX 10000
#define PLACE_MAX 128
#define NOT_YET (SANDBOX_BIT(SANDBOX_CREATING) | SANDBOX_BIT(SANDBOX_DELETING))

static struct sandbox *find(struct api_req *r) {
        struct sandbox *s = api_sandbox(r);
        if (s && (SANDBOX_BIT(s->state) & NOT_YET)) {
                api_error(r, API_CONFLICT, "sandbox \"%s\" is %s", s->id, sandbox_state_name(s->state));
                return NULL;
        }
        return s;
}

/* The image that `name` stands for ("template", "now", a checkpoint's id or name). Negative: answered. */
static int place_of(struct api_req *r, const struct sandbox *s, const char *key, const char *otherwise, char ret[ID_SIZE]) {
        _cleanup_free_ char *given = NULL;
        if (api_query_str(r, key, PLACE_MAX, &given) < 0)
                return -EINVAL;
        const char *name = given ? given : otherwise;
        if (str_eq(name, "template"))
                return str_copy(ret, ID_SIZE, name);
        if (str_eq(name, "now")) /* one without a VM has an image instead */
                return str_copy(ret, ID_SIZE, s->image[0] ? s->image : name);
        const struct checkpoint *c = api_checkpoint(r, s, name);
        return c ? str_copy(ret, ID_SIZE, c->id) : -ENOENT;
}

static int path_of(struct api_req *r, const char *key, const char *otherwise, char **ret) {
        _cleanup_free_ char *path = NULL;
        int found = api_query_str(r, key, LIMIT_PATH - 1, &path);
        if (found < 0)
                return found;
        if (!found && otherwise)
                path = strdup(otherwise);
        if (!path || path[0] != '/') {
                api_error(r, API_INVALID_ARGUMENT, "\"%s\" must be an absolute path", key);
                return -EINVAL;
        }
        *ret = STEAL(path);
        return 0;
}

/* ---- diff ---------------------------------------------------------------------------------- */

struct page {
        struct api_req *r;
        struct history *h;
        json_t *changes;
};

static void page_free(struct page *p) {
        history_free(p->h);
        json_decref(p->changes);
        api_req_unref(p->r);
        free(p);
}

static void page_on_gone(void *arg) {
        page_free(arg);
}

static void page_on_change(void *arg, json_t *change) {
        struct page *p = arg;
        (void) json_array_append(p->changes, change); /* no memory: seen by its number below */
}

static void page_on_end(void *arg, int err, enum api_code code, const struct error *e, const json_t *end) {
        struct page *p = arg;
        p->r->on_gone = NULL;
        if (err < 0)
                api_error_err(p->r, code, e);
        else
                api_reply(p->r, 200, json_pack("{s:O, s:O?, s:O?, s:b}", "changes", p->changes, "next_cursor",
                                               json_object_get(end, "cursor"), "warnings", json_object_get(end, "warnings"),
                                               "synced", history_synced(p->h)));
        page_free(p);
}

static void page_on_file(void *arg, const json_t *file, uint64_t size) {
        (void) arg;
        (void) file;
        (void) size;
}

static int page_on_bytes(void *arg, const void *data, size_t n) {
        (void) arg;
        (void) data;
        (void) n;
        return 0;
}

static void ask_page(struct api_req *r, struct sandbox *s, const struct history_question *q) {
        static const struct history_handler handler = { page_on_change, page_on_file, page_on_bytes, page_on_end };
        struct error e = ERROR_INIT;
        struct page *p = calloc(1, sizeof *p);
        json_t *changes = json_array();
        if (!p || !changes) {
                free(p);
                json_decref(changes);
                api_error(r, API_INTERNAL, "out of memory");
                return;
        }
        *p = (struct page){ .r = api_req_ref(r), .changes = changes };
        int rc = history_ask(r->app, s, q, &handler, p, &p->h, &e);
        if (rc < 0) {
                api_error_err(r, api_code_from_errno(rc), &e);
                page_free(p);
                return;
        }
        r->gone_arg = p;
        r->on_gone = page_on_gone;
}

static void diff(struct api_req *r) {
        _cleanup_free_ char *prefix = NULL, *cursor = NULL;
        struct history_question q = { .diff = true };
        uint64_t limit = CHANGES_DEFAULT, patch = 0;
        struct sandbox *s = find(r);
        if (!s || place_of(r, s, "from", "template", q.from) < 0 || place_of(r, s, "to", "now", q.to) < 0 ||
            path_of(r, "prefix", "/", &prefix) < 0 || api_query_str(r, "cursor", HISTORY_CURSOR_MAX, &cursor) < 0 ||
            api_query_u64(r, "limit", 1, CHANGES_MAX, &limit) < 0 || api_query_u64(r, "patch", 0, 1, &patch) < 0)
                return;
        q.path = prefix;
        q.cursor = cursor ? cursor : "";
        q.limit = (uint32_t) limit;
        q.patch = patch;
        ask_page(r, s, &q);
}

/* ---- a file -------------------------------------------------------------------------------- */

struct download {
        struct api_req *r; /* until its bytes come */
        struct http_x *x;  /* from then on */
        struct history *h;
};

static void download_free(struct download *d) {
        history_free(d->h);
        api_req_unref(d->r);
        free(d);
}

static void download_on_gone(void *arg) {
        download_free(arg);
}

static void download_on_drain(void *arg) {
        struct download *d = arg;
        history_resume(d->h);
}

static void download_on_eof(void *arg) {
        struct download *d = arg;
        http_x_abort(d->x); /* nobody reads on */
}

static const struct http_x_ops download_ops = { .on_drain = download_on_drain, .on_eof = download_on_eof,
                                                .on_abort = download_on_gone, .on_done = download_on_gone };

static void download_on_change(void *arg, json_t *change) {
        (void) arg;
        (void) change;
}

/* One of ours: what the program says is a guest's. */
static const char *type_of(const json_t *file) {
        static const char *const known[] = { "file", "directory", "symlink" };
        const char *type = json_string_value(json_object_get(file, "type"));
        for (size_t i = 0; type && i < ARRAY_SIZE(known); i++)
                if (str_eq(type, known[i]))
                        return known[i];
        return "other";
}

static void download_on_file(void *arg, const json_t *file, uint64_t size) {
        struct download *d = arg;
        char mode[16];
        bool tree = size == HISTORY_NO_SIZE;
        (void) snprintf(mode, sizeof mode, "%04o", (unsigned) json_integer_value(json_object_get(file, "mode")));
        const struct http_header h[] = { { "Content-Type", tree ? "application/x-tar" : "application/octet-stream" },
                                         { "X-File-Mode", mode },
                                         { "X-File-Type", type_of(file) } };
        struct api_req *r = STEAL(d->r);
        r->on_gone = NULL;
        d->x = api_take(r);
        http_x_set_ops(d->x, &download_ops, d);
        api_req_unref(r);
        if (http_x_start(d->x, 200, h, ARRAY_SIZE(h), tree ? -1 : (int64_t) size) < 0)
                http_x_abort(d->x);
}

static int download_on_bytes(void *arg, const void *data, size_t n) {
        struct download *d = arg;
        int r = http_x_write(d->x, data, n);
        return r == 0 && http_x_queued(d->x) > STREAM_HIGH_WATER ? 1 : r;
}

static void download_on_end(void *arg, int err, enum api_code code, const struct error *e, const json_t *end) {
        struct download *d = arg;
        struct history *h = STEAL(d->h);
        (void) end;
        history_free(h);
        if (d->r) { /* nothing was sent yet */
                d->r->on_gone = NULL;
                api_error_err(d->r, err < 0 ? code : API_HISTORY_FAILED, e);
                download_free(d);
        } else if (err < 0) {
                http_x_abort(d->x); /* must not look complete; d goes with it */
        } else {
                (void) http_x_end(d->x);
        }
}

static void send_out(struct api_req *r, bool tree) {
        static const struct history_handler handler = { download_on_change, download_on_file, download_on_bytes,
                                                        download_on_end };
        _cleanup_free_ char *path = NULL;
        struct history_question q = { .cursor = "", .tree = tree };
        struct error e = ERROR_INIT;
        struct sandbox *s = find(r);
        if (!s || place_of(r, s, "at", "now", q.from) < 0 || path_of(r, "path", NULL, &path) < 0)
                return;
        q.path = path;
        struct download *d = calloc(1, sizeof *d);
        if (!d) {
                api_error(r, API_INTERNAL, "out of memory");
                return;
        }
        d->r = api_req_ref(r);
        int rc = history_ask(r->app, s, &q, &handler, d, &d->h, &e);
        if (rc < 0) {
                api_error_err(r, api_code_from_errno(rc), &e);
                download_free(d);
                return;
        }
        r->gone_arg = d;
        r->on_gone = download_on_gone;
}

static void file(struct api_req *r) {
        send_out(r, false);
}

static void tree(struct api_req *r) {
        send_out(r, true);
}

const struct api_route history_routes[] = {
        { "GET", "/v1/sandboxes/{id}/diff", diff, API_BODY_NONE, API_FLAG_SETTLED },
        { "GET", "/v1/sandboxes/{id}/history/file", file, API_BODY_NONE, API_FLAG_SETTLED },
        { "GET", "/v1/sandboxes/{id}/history/tree", tree, API_BODY_NONE, API_FLAG_SETTLED },
};
const size_t history_routes_n = ARRAY_SIZE(history_routes);
