/* SPDX-License-Identifier: Apache-2.0 */

/* /v1/templates. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api_named.h"
#include "api_wait.h"
#include "app.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/str.h"
#include "sandbox/sandbox_rules.h"
#include "store/idem.h"
#include "store/op.h"
#include "template/template.h"
#include "upload.h"

#define PACKAGES_MAX 1000
#define PACKAGES_BYTES 16383
#define ARCHIVE_MAX (64ULL << 30)
#define TIMEOUT_MIN_S 60
#define TIMEOUT_MAX_S 86400

static enum api_code code_of(int err) {
        switch (err) {
        case -ENOENT:
                return API_TEMPLATE_NOT_FOUND;
        case -EBUSY:
                return API_TEMPLATE_IN_USE;
        case -EALREADY:
                return API_CONFLICT;
        case -EAGAIN:
                return API_TOO_MANY;
        default:
                return api_code_from_errno(err);
        }
}

/* ---- list, get, remove, tag ---------------------------------------------------------------- */

static int by_creation(const void *a, const void *b) {
        const struct tmpl *x = *(struct tmpl *const *) a, *y = *(struct tmpl *const *) b;
        return x->created_ms < y->created_ms ? -1 : x->created_ms > y->created_ms;
}

static void list(struct api_req *r) {
        struct tmpl *all[TEMPLATE_MAX];
        size_t n = templates_all(r->app, all, ARRAY_SIZE(all));
        qsort(all, n, sizeof *all, by_creation);
        json_t *a = json_array();
        for (size_t i = 0; i < n; i++)
                if (!all[i]->removing)
                        (void) json_array_append_new(a, template_to_json(r->app, all[i], false));
        api_reply(r, 200, json_pack("{s:o}", "templates", a));
}

static struct tmpl *find(struct api_req *r) {
        struct tmpl *t = NULL;
        char ref[TEMPLATE_REF_SIZE];
        struct error e = ERROR_INIT;
        int rc = template_resolve(r->app, r->params[0], &t, ref, &e);
        if (rc < 0)
                api_error_err(r, code_of(rc), &e);
        return rc < 0 ? NULL : t;
}

static void get(struct api_req *r) {
        struct tmpl *t = find(r);
        if (t)
                api_reply(r, 200, template_to_json(r->app, t, true));
}

static void on_removed(void *arg, int err, const struct error *e) {
        struct api_req *r = arg;
        if (err < 0)
                api_error(r, code_of(err), "%s", e ? e->msg : "could not be removed");
        else
                api_reply_empty(r, 204);
        api_req_unref(r);
}

static void remove_one(struct api_req *r) {
        struct error e = ERROR_INIT;
        int rc = template_remove(r->app, r->params[0], on_removed, api_req_ref(r), &e);
        if (rc < 0) {
                api_error_err(r, code_of(rc), &e);
                api_req_unref(r);
        }
}

struct tagged {
        struct api_req *r;
        char digest[DIGEST_LEN + 1];
};

static void on_tagged(void *arg, int err, const struct error *e) {
        struct tagged *g = arg;
        const struct tmpl *t = template_find(g->r->app, g->digest);
        idem_settle(g->r->app, g->r->idem_scope, err >= 0);
        if (err < 0)
                api_error_err(g->r, api_code_from_errno(err), e);
        else if (!t)
                api_error(g->r, API_TEMPLATE_NOT_FOUND, "the template has been removed");
        else
                api_reply(g->r, 200, template_to_json(g->r->app, t, true));
        api_req_unref(g->r);
        free(g);
}

static void add_tag(struct api_req *r) {
        static const char *const keys[] = { "name", "tag", NULL };
        char ref[TEMPLATE_REF_SIZE];
        struct error e = ERROR_INIT;
        struct tmpl *t = find(r);
        if (!t)
                return;
        if (!r->body || json_only_keys(r->body, keys, &e) < 0 || api_template_ref(r->body, ref, &e) < 0) {
                api_error(r, API_INVALID_ARGUMENT, "%s", e.msg[0] ? e.msg : "a body with \"name\" is needed");
                return;
        }
        struct tagged *g = calloc(1, sizeof *g);
        if (!g) {
                api_error(r, API_INTERNAL, "out of memory");
                return;
        }
        if (idem_begin(r, NULL) != 0) {
                free(g);
                return;
        }
        g->r = api_req_ref(r);
        memcpy(g->digest, t->digest, sizeof g->digest);
        int rc = template_tag(r->app, ref, t, on_tagged, g, &e);
        if (rc < 0) {
                api_error_err(r, code_of(rc), &e);
                api_req_unref(r);
                free(g);
        }
}

/* ---- build --------------------------------------------------------------------------------- */

static void on_started(void *arg, int err, const struct error *e, struct op *o) {
        (void) o;
        api_wait_durable(arg, err, e);
}

static void start(struct api_req *r, struct template_build_params *p, uint64_t wait_ms) {
        struct error e = ERROR_INIT;
        struct op *o = NULL;
        struct api_wait *w = api_wait_new(r, wait_ms, 201, false);
        if (!w) {
                (void) fd_close(p->tar_fd);
                api_error(r, API_INTERNAL, "out of memory");
                return;
        }
        p->owner = r->owner;
        p->idem = r->idem_scope;
        int rc = template_build(r->app, p, on_started, w, &o, &e);
        if (rc >= 0) {
                api_wait_set(w, o);
                return;
        }
        if (rc == -EALREADY && o)
                api_error_details(r, API_BUILD_RUNNING, json_pack("{s:s}", "operation_id", o->id), "%s", e.msg);
        else
                api_error_err(r, code_of(rc), &e);
        api_wait_free(w);
}

static int read_packages(const json_t *body, struct buf *out, struct error *err) {
        json_t *list_of = NULL, *p;
        size_t i;
        int rc = json_read_array(body, "packages", false, PACKAGES_MAX, &list_of, err);
        if (rc < 0)
                return rc;
        json_array_foreach(list_of, i, p) {
                const char *s = json_string_value(p);
                size_t n = s ? strlen(s) : 0;
                /* Debian policy 5.6.7, with :arch and =version as apt takes them. */
                if (n == 0 || strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+-:=~") != n || s[0] == '-')
                        return error_set(err, -EINVAL, "\"packages\": item %zu is not the name of a package", i + 1);
                if (buf_printf(out, "%s%s", out->len ? " " : "", s) < 0)
                        return error_set(err, -EINVAL, "\"packages\" is longer than %d bytes in all", PACKAGES_BYTES);
        }
        return 0;
}

static int read_build(const json_t *b, struct template_build_params *p, char ref[TEMPLATE_REF_SIZE], struct buf *packages,
                      struct error *err) {
        static const char *const keys[] = { "name",    "tag",       "source", "packages",  "suite",
                                            "disk_mb", "memory_mb", "cpus",   "timeout_s", "checkpoint_every_s", "checkpoint_keep", NULL };
        const char *source = "packages";
        uint64_t disk = 0, memory = 0, cpus = 0;
        if (!b)
                return error_set(err, -EINVAL, "a body with \"name\" is needed");
        int rc = json_only_keys(b, keys, err);
        if (rc >= 0)
                rc = api_template_ref(b, ref, err);
        if (rc >= 0)
                rc = json_read_str(b, "source", false, 16, &source, err);
        if (rc >= 0)
                rc = json_read_str(b, "suite", false, 63, &p->suite, err);
        if (rc >= 0)
                rc = json_read_u64(b, "disk_mb", false, LIMIT_TEMPLATE_DISK_MIN_MB, LIMIT_DISK_MAX_MB, &disk, err);
        if (rc >= 0)
                rc = json_read_u64(b, "memory_mb", false, LIMIT_MEMORY_MIN_MB, LIMIT_MEMORY_MAX_MB, &memory, err);
        if (rc >= 0)
                rc = json_read_u64(b, "cpus", false, 1, LIMIT_CPUS_MAX, &cpus, err);
        if (rc >= 0)
                rc = json_read_u64(b, "timeout_s", false, TIMEOUT_MIN_S, TIMEOUT_MAX_S, &p->timeout_s, err);
        struct sandbox_rules rules = SANDBOX_RULES_DEFAULT;
        if (rc >= 0)
                rc = sandbox_rules_read_checkpoints(b, &rules, err);
        if (rc >= 0)
                rc = read_packages(b, packages, err);
        if (rc >= 0 && !str_eq(source, "packages"))
                rc = error_set(err, -EINVAL, "\"source\" must be \"packages\"; an archive goes to /v1/templates/import");
        p->source = "packages";
        p->checkpoint_every_s = rules.checkpoint_every_s;
        p->checkpoint_keep = rules.checkpoint_keep;
        p->disk_bytes = disk << 20;
        p->memory_mb = (uint32_t) memory;
        p->cpus = (uint32_t) cpus;
        return rc;
}

static void build(struct api_req *r) {
        struct template_build_params p = { .tar_fd = -EBADF };
        _cleanup_buf_ struct buf packages = BUF_INIT(PACKAGES_BYTES);
        char ref[TEMPLATE_REF_SIZE];
        struct error e = ERROR_INIT;
        struct op *o = NULL;
        uint64_t wait_ms = 0;
        if (api_query_wait(r, &wait_ms) < 0)
                return;
        if (read_build(r->body, &p, ref, &packages, &e) < 0) {
                api_error_err(r, API_INVALID_ARGUMENT, &e);
                return;
        }
        int idem = idem_begin(r, &o);
        if (idem == 2)
                api_wait_existing(r, o, wait_ms, 201, false);
        if (idem != 0)
                return;
        p.ref = ref;
        p.packages = buf_str(&packages);
        start(r, &p, wait_ms);
}

/* The query of an import; answered when wrong. */
static int read_import(struct api_req *r, struct template_build_params *p, char ref[TEMPLATE_REF_SIZE],
                       uint64_t *ret_wait_ms) {
        _cleanup_free_ char *name = NULL, *tag = NULL;
        struct error e = ERROR_INIT;
        uint64_t disk = 0, memory = 0, cpus = 0;
        if (api_query_str(r, "name", TEMPLATE_NAME_MAX, &name) < 0 || api_query_str(r, "tag", TEMPLATE_NAME_MAX, &tag) < 0 ||
            api_query_u64(r, "disk_mb", LIMIT_TEMPLATE_DISK_MIN_MB, LIMIT_DISK_MAX_MB, &disk) < 0 ||
            api_query_u64(r, "memory_mb", LIMIT_MEMORY_MIN_MB, LIMIT_MEMORY_MAX_MB, &memory) < 0 ||
            api_query_u64(r, "cpus", 1, LIMIT_CPUS_MAX, &cpus) < 0 ||
            api_query_u64(r, "timeout_s", TIMEOUT_MIN_S, TIMEOUT_MAX_S, &p->timeout_s) < 0 ||
            api_query_u64(r, "checkpoint_every_s", CHECKPOINT_EVERY_MIN_S, LIMIT_TTL_MAX_S, &p->checkpoint_every_s) < 0 ||
            api_query_u64(r, "checkpoint_keep", 1, CHECKPOINT_KEEP_MAX, &p->checkpoint_keep) < 0 ||
            api_query_wait(r, ret_wait_ms) < 0)
                return -EINVAL;
        if (!name) {
                api_error(r, API_INVALID_ARGUMENT, "the query parameter \"name\" is needed");
                return -EINVAL;
        }
        if (template_ref_make(name, tag ? tag : TEMPLATE_TAG_DEFAULT, ref, &e) < 0) {
                api_error_err(r, API_INVALID_ARGUMENT, &e);
                return -EINVAL;
        }
        p->source = "tar";
        p->disk_bytes = disk << 20;
        p->memory_mb = (uint32_t) memory;
        p->cpus = (uint32_t) cpus;
        return 0;
}

static void on_uploaded(struct api_req *r, int fd, const struct error *err) {
        struct template_build_params p = { .tar_fd = fd };
        char ref[TEMPLATE_REF_SIZE];
        uint64_t wait_ms = 0;
        if (fd < 0) {
                api_error_err(r, fd == -EFBIG ? API_BODY_TOO_LARGE : api_code_from_errno(fd), err);
                return;
        }
        if (read_import(r, &p, ref, &wait_ms) < 0) { /* was right before */
                (void) fd_close(fd);
                return;
        }
        p.ref = ref;
        start(r, &p, wait_ms);
}

static void import(struct api_req *r) {
        struct template_build_params p = { .tar_fd = -EBADF };
        char ref[TEMPLATE_REF_SIZE];
        struct error e = ERROR_INIT;
        struct op *o = NULL;
        uint64_t wait_ms = 0;
        if (read_import(r, &p, ref, &wait_ms) < 0)
                return;
        int idem = idem_begin(r, &o);
        if (idem == 2)
                api_wait_existing(r, o, wait_ms, 201, false);
        if (idem != 0)
                return;
        int rc = upload_start(r, ARCHIVE_MAX, on_uploaded, &e);
        if (rc < 0)
                api_error_err(r, api_code_from_errno(rc), &e);
}

const struct api_route template_routes[] = {
        { "GET", "/v1/templates", list, API_BODY_NONE, 0 },
        { "POST", "/v1/templates", build, API_BODY_JSON, API_FLAG_IDEM },
        { "POST", "/v1/templates/import", import, API_BODY_STREAM, API_FLAG_IDEM },
        { "GET", "/v1/templates/{ref}", get, API_BODY_NONE, 0 },
        { "DELETE", "/v1/templates/{ref}", remove_one, API_BODY_NONE, 0 },
        { "POST", "/v1/templates/{ref}/tags", add_tag, API_BODY_JSON, API_FLAG_IDEM },
};
const size_t template_routes_n = ARRAY_SIZE(template_routes);
