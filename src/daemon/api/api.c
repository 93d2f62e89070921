/* SPDX-License-Identifier: Apache-2.0 */

/*
 * From exchange to handler: router hook, route, authentication, body. A request holds one reference
 * for the exchange (dropped by on_done or on_abort) and one while its handler runs.
 */

#include "api.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/id.h"
#include "base/json.h"
#include "base/str.h"
#include "sandbox/settle.h"
#include "store/idem.h"
#include "store/key.h"

#define TABLES_MAX 32
#define SEGMENTS_MAX 16
#define IDLE_TIMEOUT_MS 75000
#define HEAD_TIMEOUT_MS 15000
#define BODY_TIMEOUT_MS 300000 /* no byte of a request body for this long; streams of input send keepalives */
/* Each listener has its own limit: what the network does never keeps a local user out. */
#define CONNECTIONS_TCP_MAX 8192
#define CONNECTIONS_UNIX_MAX 2048
#define STRANGERS_TCP_MAX 1024 /* connections that have not shown a valid key or reached a sandbox yet */

struct api {
        struct app *app;
        struct http_server *http[API_LISTENERS];
        bool (*router)(struct app *app, struct http_x *x);
        struct {
                const struct api_route *routes;
                size_t n;
        } tables[TABLES_MAX];
        size_t n_tables;
};

struct req {
        struct api_req pub; /* first */
        unsigned refs;
        char *param_mem[API_PARAMS_MAX];
        char owner[ID_SIZE];
        struct buf body;
        EVP_MD_CTX *hash;
};

static struct req *priv(struct api_req *r) {
        return CONTAINER_OF(r, struct req, pub);
}

struct api_req *api_req_ref(struct api_req *r) {
        priv(r)->refs++;
        return r;
}

void api_req_unref(struct api_req *r) {
        if (!r || --priv(r)->refs > 0)
                return;
        struct req *q = priv(r);
        for (size_t i = 0; i < API_PARAMS_MAX; i++)
                free(q->param_mem[i]);
        buf_done(&q->body);
        EVP_MD_CTX_free(q->hash);
        json_decref(r->body);
        idem_release(r->app, r->idem_scope);
        free(r->idem_scope);
        free(q);
}

/* ---- matching ------------------------------------------------------------------------------ */

struct segments {
        const char *at[SEGMENTS_MAX];
        size_t len[SEGMENTS_MAX];
        size_t n;
};

/* "/a/b" gives a, b; "/a/" gives a and an empty one. */
static int split(const char *path, struct segments *ret) {
        ret->n = 0;
        while (*path == '/') {
                if (ret->n == SEGMENTS_MAX)
                        return -E2BIG;
                size_t len = strcspn(++path, "/");
                ret->at[ret->n] = path;
                ret->len[ret->n++] = len;
                path += len;
        }
        return *path ? -EINVAL : 0;
}

static bool match(const struct api_route *route, const struct segments *path) {
        struct segments want;
        if (split(route->path, &want) < 0 || want.n != path->n)
                return false;
        for (size_t i = 0; i < want.n; i++) {
                if (want.at[i][0] == '{' ? path->len[i] == 0
                                         : want.len[i] != path->len[i] ||
                                               memcmp(want.at[i], path->at[i], want.len[i]) != 0)
                        return false;
        }
        return true;
}

static const struct api_route *find_route(const struct api *a, const char *method, const struct segments *path,
                                          const struct api_route **ret_other) {
        *ret_other = NULL;
        for (size_t t = 0; t < a->n_tables; t++)
                for (size_t i = 0; i < a->tables[t].n; i++) {
                        const struct api_route *route = &a->tables[t].routes[i];
                        if (!match(route, path))
                                continue;
                        if (strcmp(route->method, method) == 0)
                                return route;
                        if (!*ret_other)
                                *ret_other = route;
                }
        return NULL;
}

static int take_params(struct req *q, const struct segments *path) {
        struct segments want;
        if (split(q->pub.route->path, &want) < 0)
                return -EINVAL;
        size_t n = 0;
        for (size_t i = 0; i < want.n && n < API_PARAMS_MAX; i++) {
                if (want.at[i][0] != '{')
                        continue;
                _cleanup_buf_ struct buf b = BUF_INIT(LIMIT_PATH);
                int r = http1_percent_decode(path->at[i], path->len[i], false, &b);
                if (r < 0)
                        return r;
                const char *s = buf_str(&b);
                q->param_mem[n] = s ? strdup(s) : NULL;
                if (!q->param_mem[n])
                        return -ENOMEM;
                q->pub.params[n] = q->param_mem[n];
                n++;
        }
        return 0;
}

/* ---- authentication ------------------------------------------------------------------------ */

static const char *key_of(const struct http1_head *h) {
        const char *k = http1_get(h, "X-API-KEY");
        if (k)
                return k;
        const char *a = http1_get(h, "Authorization");
        if (!a || !str_case_eq_n(a, strnlen(a, 7), "Bearer "))
                return NULL;
        return a + 7 + strspn(a + 7, " ");
}

/* False: answered. */
static bool authenticate(struct req *q) {
        struct api_req *r = &q->pub;
        const struct conn_kind *kind = http_x_conn_tag(r->x);
        const char *text = key_of(http_x_head(r->x));
        if (text) {
                r->key = key_check(r->app, text);
                r->authed = r->key != NULL;
                if (r->key)
                        (void) str_copy(q->owner, sizeof q->owner, r->key->id);
        } else {
                r->authed = kind && kind->trusted;
        }
        if (r->authed)
                http_x_admit(r->x);
        if (r->authed || (r->route->flags & API_FLAG_PUBLIC))
                return true;
        if (!text && (r->route->flags & API_FLAG_TOKEN))
                return true;
        if (text)
                api_error(r, API_UNAUTHENTICATED, "the API key is not valid");
        else
                api_error(r, API_UNAUTHENTICATED,
                          "an API key is needed: send it as \"X-API-KEY\" or \"Authorization: Bearer\"");
        return false;
}

/* ---- body ---------------------------------------------------------------------------------- */

static void call_handler(struct api_req *r) {
        (void) api_req_ref(r);
        r->route->handler(r);
        api_req_unref(r);
}

static void on_body(void *arg, const uint8_t *data, size_t n) {
        struct req *q = arg;
        if (!q->pub.x || q->pub.route->body != API_BODY_JSON)
                return;
        if (q->body.len + n > LIMIT_JSON_BODY) {
                api_error(&q->pub, API_BODY_TOO_LARGE, "the body is longer than %d MiB", LIMIT_JSON_BODY >> 20);
                return;
        }
        if (buf_append(&q->body, data, n) < 0)
                api_error(&q->pub, API_INTERNAL, "out of memory");
}

static int parse_body(struct req *q) {
        struct api_req *r = &q->pub;
        if (r->route->body != API_BODY_JSON || q->body.len == 0)
                return 0;
        struct error e = ERROR_INIT;
        int rc = json_parse(buf_data(&q->body), q->body.len, LIMIT_JSON_BODY, &r->body, &e);
        if (rc >= 0 && !json_is_object(r->body))
                rc = error_set(&e, -EINVAL, "the body must be a JSON object");
        if (rc < 0)
                api_error(r, API_BAD_REQUEST, "%s", e.msg);
        return rc;
}

/* The target without how long its sender waits for the answer: who asks again may be less patient. */
static int hash_target(EVP_MD_CTX *hash, const char *target) {
        size_t path = strcspn(target, "?");
        int ok = EVP_DigestUpdate(hash, target, path);
        for (const char *p = target + path; *p && ok == 1;) {
                size_t n = strcspn(++p, "&"), name = strcspn(p, "=&");
                if (n > 0 && !(name == 4 && memcmp(p, "wait", 4) == 0))
                        ok = EVP_DigestUpdate(hash, "&", 1) & EVP_DigestUpdate(hash, p, n);
                p += n;
        }
        return ok == 1 && EVP_DigestUpdate(hash, "", 1) == 1 ? 0 : -ENOMEM;
}

/* Who and what a request is, for idempotency. */
static int hash_request(struct req *q) {
        struct api_req *r = &q->pub;
        const struct http1_head *h = http_x_head(r->x);
        uint8_t md[EVP_MAX_MD_SIZE];
        unsigned n = 0;
        q->hash = EVP_MD_CTX_new();
        if (!q->hash || EVP_DigestInit_ex(q->hash, EVP_sha256(), NULL) != 1 ||
            EVP_DigestUpdate(q->hash, h->method, strlen(h->method) + 1) != 1 ||
            hash_target(q->hash, h->target) < 0 ||
            EVP_DigestUpdate(q->hash, &h->content_length, sizeof h->content_length) != 1 ||
            EVP_DigestUpdate(q->hash, buf_data(&q->body), q->body.len) != 1 ||
            EVP_DigestFinal_ex(q->hash, md, &n) != 1)
                return -ENOMEM;
        str_hex(md, n, r->body_hash);
        return 0;
}

static void on_end(void *arg) {
        struct req *q = arg;
        struct api_req *r = &q->pub;
        if (!r->x)
                return;
        if ((r->route->flags & API_FLAG_IDEM) && api_header(r, "Idempotency-Key") && hash_request(q) < 0) {
                api_error(r, API_INTERNAL, "out of memory");
                return;
        }
        if (parse_body(q) < 0)
                return;
        buf_done(&q->body);
        if (!(r->route->flags & API_FLAG_SETTLED) || !settle_hold(r->app->settle, r, call_handler))
                call_handler(r);
}

static void on_done(void *arg) {
        struct req *q = arg;
        q->pub.x = NULL;
        api_req_unref(&q->pub);
}

static void on_abort(void *arg) {
        struct req *q = arg;
        struct api_req *r = &q->pub;
        r->x = NULL;
        if (r->on_gone) {
                void (*fn)(void *) = r->on_gone;
                r->on_gone = NULL;
                fn(r->gone_arg);
        }
        api_req_unref(r);
}

static const struct http_x_ops ops = {
        .on_body = on_body,
        .on_end = on_end,
        .on_abort = on_abort,
        .on_done = on_done,
};

struct http_x *api_take(struct api_req *r) {
        struct http_x *x = r->x;
        r->x = NULL;
        if (x)
                api_req_unref(r); /* the exchange's reference; the handler holds another */
        return x;
}

void api_give_back(struct api_req *r, struct http_x *x) {
        r->x = x;
        (void) api_req_ref(r); /* the exchange's */
        http_x_set_ops(x, &ops, priv(r));
}

/* ---- entry --------------------------------------------------------------------------------- */

static const struct api_route native_unknown = { .method = "", .path = "" };
static const struct api_route e2b_unknown = { .method = "", .path = "", .flags = API_FLAG_E2B };

static void no_route(struct api_req *r, const char *path, const struct api_route *other) {
        r->route = other ? other : str_has_prefix(path, "/v1/") ? &native_unknown : &e2b_unknown;
        if (other)
                api_error(r, API_METHOD_NOT_ALLOWED, "%s does not take %s", path, http_x_head(r->x)->method);
        else
                api_error(r, API_NOT_FOUND, "there is no %s here", path);
}

static void start(struct req *q, struct api *a) {
        struct api_req *r = &q->pub;
        const struct http1_head *h = http_x_head(r->x);
        _cleanup_buf_ struct buf b = BUF_INIT(LIMIT_HTTP_HEAD);
        struct segments path;
        const char *p = http1_path_of(h->target, &b) >= 0 ? buf_str(&b) : NULL;
        if (!p || split(p, &path) < 0) {
                r->route = &native_unknown;
                api_error(r, API_BAD_REQUEST, "the request target is not a path");
                return;
        }
        const struct api_route *other;
        r->route = find_route(a, h->method, &path, &other);
        if (!r->route) {
                no_route(r, p, other);
                return;
        }
        if (take_params(q, &path) < 0) {
                api_error(r, API_BAD_REQUEST, "the path is not properly encoded");
                return;
        }
        if (!authenticate(q))
                return;
        if (a->app->stopping && strcmp(h->method, "GET") != 0) {
                api_error(r, API_UNAVAILABLE, "cspaced is stopping");
                return;
        }
        if (r->route->body == API_BODY_JSON && h->content_length > LIMIT_JSON_BODY)
                api_error(r, API_BODY_TOO_LARGE, "the body is longer than %d MiB", LIMIT_JSON_BODY >> 20);
        else if (r->route->body == API_BODY_STREAM) {
                if ((r->route->flags & API_FLAG_IDEM) && api_header(r, "Idempotency-Key"))
                        (void) hash_request(q);
                call_handler(r);
        }
}

static void on_request(void *arg, struct http_x *x) {
        struct api *a = arg;
        if (a->router && a->router(a->app, x))
                return;
        struct req *q = calloc(1, sizeof *q);
        if (!q) {
                http_x_abort(x);
                return;
        }
        q->refs = 2; /* the exchange's and ours */
        q->pub.app = a->app;
        q->pub.x = x;
        q->pub.owner = q->owner;
        http_x_set_ops(x, &ops, q);
        start(q, a);
        api_req_unref(&q->pub);
}

int api_add_routes(struct api *a, const struct api_route *routes, size_t n, struct error *err) {
        if (a->n_tables == TABLES_MAX)
                return error_set(err, -ENOBUFS, "too many route tables");
        for (size_t i = 0; i < n; i++)
                for (size_t t = 0; t < a->n_tables; t++)
                        for (size_t j = 0; j < a->tables[t].n; j++)
                                if (str_eq(routes[i].method, a->tables[t].routes[j].method) &&
                                    str_eq(routes[i].path, a->tables[t].routes[j].path))
                                        return error_set(err, -EEXIST, "route %s %s is there twice", routes[i].method,
                                                         routes[i].path);
        a->tables[a->n_tables].routes = routes;
        a->tables[a->n_tables++].n = n;
        return 0;
}

void api_set_router(struct api *a, bool (*fn)(struct app *app, struct http_x *x)) {
        a->router = fn;
}

void api_print_routes(const struct api *a) {
        for (size_t t = 0; t < a->n_tables; t++)
                for (size_t i = 0; i < a->tables[t].n; i++)
                        printf("%s %s\n", a->tables[t].routes[i].method, a->tables[t].routes[i].path);
}

struct http_server *api_http(struct api *a, enum api_listener from) {
        return a->http[from];
}

int api_new(struct app *app, struct api **ret, struct error *err) {
        struct api *a = calloc(1, sizeof *a);
        if (!a)
                return error_set(err, -ENOMEM, "out of memory");
        a->app = app;
        const struct {
                size_t connections, strangers;
        } max[API_LISTENERS] = {
                [API_TCP] = { CONNECTIONS_TCP_MAX, STRANGERS_TCP_MAX },
                [API_UNIX] = { CONNECTIONS_UNIX_MAX, 0 },
        };
        struct http_server_config cfg = {
                .on_request = on_request,
                .arg = a,
                .idle_timeout_ms = IDLE_TIMEOUT_MS,
                .head_timeout_ms = HEAD_TIMEOUT_MS,
                .body_timeout_ms = BODY_TIMEOUT_MS,
        };
        for (size_t i = 0; i < API_LISTENERS; i++) {
                cfg.max_connections = max[i].connections;
                cfg.max_strangers = max[i].strangers;
                int r = http_server_new(app->loop, &cfg, &a->http[i], err);
                if (r < 0) {
                        api_free(a);
                        return r;
                }
        }
        *ret = a;
        return 0;
}

void api_free(struct api *a) {
        if (!a)
                return;
        for (size_t i = 0; i < API_LISTENERS; i++)
                http_server_free(a->http[i]);
        free(a);
}
