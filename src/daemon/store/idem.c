/* SPDX-License-Identifier: Apache-2.0 */

#include "idem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "db.h"
#include "map.h"
#include "op.h"

#define SCOPE_MAX (ID_LEN + 1 + IDEM_KEY_MAX)

enum idem_state { IDEM_CLAIMED, IDEM_BOUND, IDEM_KEPT };

struct idem {
        char scope[SCOPE_MAX + 1];
        char hash[DIGEST_LEN + 1];
        enum idem_state state;
        char op_id[ID_SIZE]; /* "" for a stored answer */
        int status;
        json_t *body;
        int64_t created_ms;
        struct idem *prev, *next;
};

struct idems {
        struct map *by_scope;
        struct idem *oldest, *newest;
};

static void drop(struct idems *all, struct idem *i) {
        (void) map_remove(all->by_scope, i->scope);
        *(i->prev ? &i->prev->next : &all->oldest) = i->next;
        *(i->next ? &i->next->prev : &all->newest) = i->prev;
        json_decref(i->body);
        free(i);
}

static int add(struct idems *all, struct idem *i) {
        int r = map_put(all->by_scope, i->scope, i);
        if (r < 0)
                return r;
        i->prev = all->newest;
        *(all->newest ? &all->newest->next : &all->oldest) = i;
        all->newest = i;
        return 0;
}

static int load_row(void *arg, struct db_row *row, struct error *err) {
        struct idem *i = calloc(1, sizeof *i);
        if (!i)
                return error_set(err, -ENOMEM, "out of memory");
        i->state = IDEM_KEPT;
        i->status = (int) db_row_int(row, 3);
        i->created_ms = db_row_int(row, 5);
        const char *op_id = db_row_str(row, 2), *body = db_row_str(row, 4);
        int r = 0;
        if (str_copy(i->scope, sizeof i->scope, db_row_str(row, 0)) < 0 ||
            str_copy(i->hash, sizeof i->hash, db_row_str(row, 1)) < 0 ||
            (op_id && str_copy(i->op_id, sizeof i->op_id, op_id) < 0))
                r = -EBADMSG;
        if (r == 0 && body)
                r = json_parse(body, strlen(body), LIMIT_JSON_BODY, &i->body, NULL);
        if (r == 0)
                r = add(arg, i);
        if (r < 0) {
                json_decref(i->body);
                free(i);
                return error_errno(err, r, "state.db: an idempotency key's row is damaged");
        }
        return 0;
}

int idems_load(struct app *app, struct idems **ret, struct error *err) {
        struct idems *all = calloc(1, sizeof *all);
        if (all)
                all->by_scope = map_new();
        if (!all || !all->by_scope) {
                free(all);
                return error_set(err, -ENOMEM, "out of memory");
        }
        struct db_conn *c = db_conn_of(app->db);
        int r = db_run(c, err, "DELETE FROM idems WHERE created_ms < ?", "i", clock_real_ms() - IDEM_KEEP_MS);
        if (r >= 0)
                r = db_query(c, load_row, all, err,
                             "SELECT scope, hash, op_id, status, body, created_ms FROM idems ORDER BY created_ms", "");
        if (r < 0) {
                idems_free(all);
                return r;
        }
        *ret = all;
        return 0;
}

void idems_free(struct idems *all) {
        if (!all)
                return;
        while (all->oldest)
                drop(all, all->oldest);
        map_free(all->by_scope);
        free(all);
}

/* ---- requests ------------------------------------------------------------------------------ */

static bool key_ok(const char *k) {
        size_t n = strlen(k);
        if (n < 1 || n > IDEM_KEY_MAX)
                return false;
        for (; *k; k++)
                if (*k < 0x21 || *k > 0x7e)
                        return false;
        return true;
}

static int claim(struct api_req *r, const char *scope) {
        struct idems *all = r->app->idems;
        struct idem *i = calloc(1, sizeof *i);
        r->idem_scope = strdup(scope);
        if (!i || !r->idem_scope) {
                free(i);
                return -ENOMEM;
        }
        (void) str_copy(i->scope, sizeof i->scope, scope);
        (void) str_copy(i->hash, sizeof i->hash, r->body_hash);
        i->created_ms = clock_real_ms();
        int rc = add(all, i);
        if (rc < 0)
                free(i);
        return rc;
}

static int replay(struct api_req *r, struct idem *i, struct op **ret_op) {
        if (strcmp(i->hash, r->body_hash) != 0) {
                api_error(r, API_IDEMPOTENCY_MISMATCH, "this Idempotency-Key was used with a different request");
                return 1;
        }
        if (i->state != IDEM_KEPT) {
                api_error(r, API_IDEMPOTENCY_IN_PROGRESS, "a request with this Idempotency-Key is under way");
                return 1;
        }
        if (!i->op_id[0]) {
                if (i->body)
                        api_reply(r, i->status, json_incref(i->body));
                else
                        api_reply_empty(r, i->status);
                return 1;
        }
        struct op *o = op_find(r->app, i->op_id);
        if (!o || !ret_op) {
                api_error(r, API_CONFLICT, "operation %s of this Idempotency-Key has ended and is not kept any more",
                          i->op_id);
                return 1;
        }
        *ret_op = o;
        return 2;
}

int idem_begin(struct api_req *r, struct op **ret_op) {
        const char *key = api_header(r, "Idempotency-Key");
        if (!key)
                return 0;
        if (!key_ok(key)) {
                api_error(r, API_INVALID_ARGUMENT, "Idempotency-Key must be 1 to %d visible ASCII characters",
                          IDEM_KEY_MAX);
                return 1;
        }
        _cleanup_buf_ struct buf b = BUF_INIT(SCOPE_MAX + 1);
        const char *scope = buf_printf(&b, "%s:%s", r->owner, key) < 0 ? NULL : buf_str(&b);
        struct idem *i = scope ? map_get(r->app->idems->by_scope, scope) : NULL;
        if (i)
                return replay(r, i, ret_op);
        if (!scope || claim(r, scope) < 0) {
                api_error(r, API_INTERNAL, "out of memory");
                return 1;
        }
        return 0;
}

void idem_release(struct app *app, const char *scope) {
        struct idem *i = scope ? map_get(app->idems->by_scope, scope) : NULL;
        if (i && i->state == IDEM_CLAIMED)
                drop(app->idems, i);
}

/* ---- binding ------------------------------------------------------------------------------- */

static void prune(struct idems *all, struct db_batch *b) {
        int64_t before = clock_real_ms() - IDEM_KEEP_MS;
        for (int n = 0; n < 2 && all->oldest && all->oldest->state == IDEM_KEPT; n++) {
                struct idem *i = all->oldest;
                if (i->created_ms >= before && map_count(all->by_scope) <= IDEM_MAX)
                        break;
                db_batch_add(b, "DELETE FROM idems WHERE scope = ?", "s", i->scope);
                drop(all, i);
        }
}

static void bind_row(struct app *app, const char *scope, const char *op_id, int status, const json_t *body,
                     struct db_batch *b) {
        struct idem *i = scope ? map_get(app->idems->by_scope, scope) : NULL;
        if (!i)
                return;
        i->state = IDEM_BOUND;
        i->status = status;
        if (op_id)
                (void) str_copy(i->op_id, sizeof i->op_id, op_id);
        else if (body)
                i->body = json_deep_copy(body);
        db_batch_add(b, "INSERT INTO idems (scope, hash, op_id, status, body, created_ms) VALUES (?, ?, ?, ?, ?, ?)",
                     "sssiji", i->scope, i->hash, op_id, (int64_t) status, body, i->created_ms);
        prune(app->idems, b);
}

void idem_bind_op(struct app *app, const char *scope, const char *op_id, struct db_batch *b) {
        bind_row(app, scope, op_id, 202, NULL, b);
}

void idem_bind_reply(struct app *app, const char *scope, int status, const json_t *body, struct db_batch *b) {
        bind_row(app, scope, NULL, status, body, b);
}

void idem_settle(struct app *app, const char *scope, bool durable) {
        struct idem *i = scope ? map_get(app->idems->by_scope, scope) : NULL;
        if (!i || i->state != IDEM_BOUND)
                return;
        if (durable)
                i->state = IDEM_KEPT;
        else
                drop(app->idems, i);
}
