/* SPDX-License-Identifier: Apache-2.0 */

/* /v1/sandboxes/{id}/audit: pages of records, or a stream of lines that goes on as they come. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api_wait.h"
#include "app.h"
#include "audit/audit_store.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/str.h"
#include "sandbox/sandbox.h"

#define PAGE_DEFAULT 1000
#define PAGE_MAX 10000
#define FOLLOW_PAGE 1000
#define VALUE_MAX 300
#define ANSWER_MAX (AUDIT_PAGE_BYTES + 64 * 1024)

/* ---- query --------------------------------------------------------------------------------- */

static int bad(struct api_req *r, const char *what) {
        api_error(r, API_INVALID_ARGUMENT, "%s", what);
        return -EINVAL;
}

static int read_keys(struct api_req *r, struct audit_query *q) {
        static const char *const keys[] = { "since", "until", "host", "verdict", "kind", "rule", "reason", "binding", "method" };
        for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
                _cleanup_free_ char *value = NULL;
                struct error e = ERROR_INIT;
                int rc = api_query_str(r, keys[i], VALUE_MAX, &value);
                if (rc < 0)
                        return rc;
                if (rc > 0 && audit_query_set(q, keys[i], value, &e) < 0) {
                        api_error_err(r, API_INVALID_ARGUMENT, &e);
                        return -EINVAL;
                }
        }
        return 0;
}

static int read_cursor(struct api_req *r, struct audit_place *ret) {
        _cleanup_free_ char *text = NULL;
        int rc = api_query_str(r, "cursor", AUDIT_CURSOR_SIZE, &text);
        if (rc > 0 && audit_place_parse(text, ret) < 0)
                return bad(r, "the cursor is not one that this log gave");
        return rc < 0 ? rc : 0;
}

static int read_query(struct api_req *r, struct audit_query *q, struct audit_place *from, uint64_t *limit, uint64_t *follow) {
        int rc = read_keys(r, q);
        if (rc >= 0)
                rc = read_cursor(r, from);
        if (rc >= 0)
                rc = api_query_u64(r, "limit", 1, PAGE_MAX, limit);
        return rc < 0 ? rc : api_query_u64(r, "follow", 0, 1, follow);
}

/* ---- a page -------------------------------------------------------------------------------- */

static int page_body(const struct audit_page *p, struct buf *out) {
        const char *at = (const char *) buf_data(&p->lines), *end = at + p->lines.len;
        char next[AUDIT_CURSOR_SIZE];
        int r = buf_puts(out, "{\"records\":[");
        for (bool first = true; r >= 0 && at < end; first = false) {
                const char *stop = memchr(at, '\n', (size_t) (end - at));
                if (!first)
                        r = buf_puts(out, ",");
                if (r >= 0)
                        r = buf_append(out, at, (size_t) ((stop ? stop : end) - at));
                at = stop ? stop + 1 : end;
        }
        audit_place_text(&p->next, next);
        if (r >= 0)
                r = p->end ? buf_puts(out, "],\"next_cursor\":null}") : buf_printf(out, "],\"next_cursor\":\"%s\"}", next);
        return r;
}

/* No log yet, or a log that is gone: which, the table of sandboxes knows. */
static void no_log(struct api_req *r) {
        if (sandbox_find(r->app, r->params[0]) || sandbox_find_any(r->app, r->params[0]))
                api_reply(r, 200, json_pack("{s:[], s:n}", "records", "next_cursor"));
        else
                api_error(r, API_SANDBOX_NOT_FOUND, "sandbox \"%.80s\" does not exist, and no audit log of it is kept", r->params[0]);
}

struct page {
        struct api_req *r;
        struct audit_query query;
};

static void page_free(struct page *p) {
        audit_query_done(&p->query);
        api_req_unref(p->r);
        free(p);
}

static void on_page(void *arg, int err, const struct error *e, struct audit_page *page) {
        struct page *p = arg;
        struct api_req *r = p->r;
        _cleanup_buf_ struct buf body = BUF_INIT(ANSWER_MAX);
        if (err == -ENOENT)
                no_log(r);
        else if (err < 0)
                api_error_err(r, err == -EINVAL ? API_INVALID_ARGUMENT : API_INTERNAL, e);
        else if (page_body(page, &body) < 0)
                api_error(r, API_INTERNAL, "out of memory");
        else
                api_reply_raw(r, 200, "application/json", buf_data(&body), body.len);
        page_free(p);
}

/* q is taken. */
static void one_page(struct api_req *r, const char *id, struct audit_query *q, struct audit_place from, size_t limit) {
        struct page *p = calloc(1, sizeof *p);
        if (!p) {
                audit_query_done(q);
                api_error(r, API_INTERNAL, "out of memory");
                return;
        }
        *p = (struct page){ .r = api_req_ref(r), .query = *q };
        if (audit_store_read(r->app, id, &p->query, from, limit, on_page, p) < 0) {
                api_error(r, API_INTERNAL, "out of memory");
                page_free(p);
        }
}

/* ---- following ----------------------------------------------------------------------------- */

struct follow {
        struct app *app;
        struct http_x *x;  /* NULL: gone */
        char id[ID_SIZE];
        struct audit_query query;
        struct audit_place at;
        struct audit_watch *watch;
        bool reading;      /* a page is being read */
        bool more;         /* something came meanwhile */
        bool full;         /* the client takes no more for now */
        bool ended;        /* the sandbox is gone: what is there is all */
        struct buf rest;   /* lines that did not go out yet */
};

static void follow_read(struct follow *f);

static void follow_free(struct follow *f) {
        audit_store_unwatch(f->watch);
        f->watch = NULL;
        if (f->reading)
                return; /* on_piece() frees */
        buf_done(&f->rest);
        audit_query_done(&f->query);
        free(f);
}

static void follow_on_gone(void *arg) {
        struct follow *f = arg;
        f->x = NULL;
        follow_free(f);
}

/* True: all is out. */
static bool follow_flush(struct follow *f) {
        if (f->rest.len == 0)
                return true;
        int r = http_x_write(f->x, buf_data(&f->rest), f->rest.len);
        if (r >= 0)
                buf_clear(&f->rest);
        f->full = r == -ENOBUFS || (r >= 0 && http_x_queued(f->x) > STREAM_HIGH_WATER);
        return r >= 0;
}

static void on_piece(void *arg, int err, const struct error *e, struct audit_page *page) {
        struct follow *f = arg;
        (void) e;
        f->reading = false;
        if (!f->x) {
                follow_free(f);
                return;
        }
        if (err < 0 && err != -ENOENT) {
                http_x_abort(f->x);
                return;
        }
        bool end = err == -ENOENT || page->end;
        if (err >= 0) {
                f->at = page->next;
                if (page->lines.len > 0 && buf_append(&f->rest, buf_data(&page->lines), page->lines.len) < 0) {
                        http_x_abort(f->x);
                        return;
                }
        }
        f->more = f->more || !end;
        if (!follow_flush(f))
                return;
        if (f->more)
                follow_read(f);
        else if (f->ended)
                (void) http_x_end(f->x);
}

static void follow_read(struct follow *f) {
        if (f->reading || f->full || !f->x)
                return;
        f->more = false;
        f->reading = audit_store_read(f->app, f->id, &f->query, f->at, FOLLOW_PAGE, on_piece, f) >= 0;
        if (!f->reading)
                http_x_abort(f->x);
}

static void on_news(void *arg, bool ended) {
        struct follow *f = arg;
        f->more = true;
        f->ended = f->ended || ended;
        follow_read(f);
}

static void on_drain(void *arg) {
        struct follow *f = arg;
        f->full = false;
        if (!follow_flush(f))
                return;
        if (f->more)
                follow_read(f);
        else if (f->ended && !f->reading)
                (void) http_x_end(f->x);
}

static void on_eof(void *arg) {
        struct follow *f = arg;
        http_x_abort(f->x); /* nobody reads on */
}

static const struct http_x_ops follow_ops = { .on_drain = on_drain, .on_eof = on_eof, .on_abort = follow_on_gone, .on_done = follow_on_gone };

/* q is taken. */
static void follow(struct api_req *r, const char *id, struct audit_query *q, struct audit_place from) {
        static const struct http_header type = { "Content-Type", "application/x-ndjson" };
        struct follow *f = calloc(1, sizeof *f);
        int rc = f ? audit_store_watch(r->app, id, on_news, f, &f->watch) : -ENOMEM;
        if (rc < 0) {
                free(f);
                audit_query_done(q);
                api_error(r, rc == -EAGAIN ? API_TOO_MANY : API_INTERNAL, rc == -EAGAIN ? "%d clients follow audit logs already"
                          : "out of memory", AUDIT_WATCHERS_MAX);
                return;
        }
        f->app = r->app;
        f->query = *q;
        f->at = from;
        f->rest = BUF_INIT(2 * AUDIT_PAGE_BYTES);
        (void) str_copy(f->id, sizeof f->id, id);
        f->ended = !sandbox_find(r->app, id);
        f->x = api_take(r);
        http_x_set_ops(f->x, &follow_ops, f);
        if (http_x_start(f->x, 200, &type, 1, -1) < 0)
                http_x_abort(f->x);
        else
                follow_read(f);
}

static void audit(struct api_req *r) {
        struct audit_query query = { .filter = NULL };
        struct audit_place from = { 0 };
        uint64_t limit = PAGE_DEFAULT, follows = 0;
        const struct sandbox *s = sandbox_find_any(r->app, r->params[0]);
        const char *id = s ? s->id : r->params[0];
        if (!id_valid(id)) {
                api_error(r, API_SANDBOX_NOT_FOUND, "sandbox \"%.80s\" does not exist", r->params[0]);
        } else if (read_query(r, &query, &from, &limit, &follows) < 0) {
                audit_query_done(&query);
        } else if (!follows) {
                one_page(r, id, &query, from, (size_t) limit);
        } else if (!s) {
                api_error(r, API_SANDBOX_NOT_FOUND, "sandbox \"%.80s\" does not exist; its audit log can be read, not followed", id);
                audit_query_done(&query);
        } else {
                follow(r, id, &query, from);
        }
}

const struct api_route audit_routes[] = {
        { "GET", "/v1/sandboxes/{id}/audit", audit, API_BODY_NONE, 0 },
};
const size_t audit_routes_n = ARRAY_SIZE(audit_routes);
