/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc_watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/id.h"
#include "base/str.h"
#include "entry.h"
#include "fsop.h"
#include "io/stream.h"
#include "jsonw.h"
#include "list.h"
#include "path.h"
#include "timer.h"
#include "watch.h"

#define QUEUE_BYTES_MAX (16u * 1024 * 1024)

static int read_request(struct rpc *r, const json_t *req, char path[PATH_MAX], bool *ret_recursive, bool *ret_entry) {
        struct error e = ERROR_INIT;
        struct user u;
        struct stat st;
        const char *text = NULL;
        bool network = false;
        if (identity_user(&rpc_agent(r)->identity, rpc_user(r), &u, NULL) < 0) {
                rpc_error(r, CONNECT_UNAUTHENTICATED, "invalid username: '%s'", rpc_user(r));
                return -EACCES;
        }
        *ret_recursive = json_is_true(rpc_member(req, "recursive"));
        *ret_entry = json_is_true(rpc_member(req, "includeEntry"));
        network = json_is_true(rpc_member(req, "allowNetworkMounts"));
        if (json_read_str(req, "path", true, LIMIT_PATH - 1, &text, &e) < 0 ||
            path_resolve(text, u.home, rpc_agent(r)->identity.default_workdir, path, &e) < 0)
                rpc_error(r, CONNECT_INVALID_ARGUMENT, "%s", e.msg);
        else if (stat(path, &st) < 0)
                rpc_error(r, CONNECT_NOT_FOUND, "path %s not found", path);
        else if (!S_ISDIR(st.st_mode))
                rpc_error(r, CONNECT_INVALID_ARGUMENT, "path %s not a directory", path);
        else if (!network && fsop_is_network(path))
                rpc_error(r, CONNECT_INVALID_ARGUMENT, "cannot watch path on network filesystem: %s", path);
        else
                return 0;
        return -EINVAL;
}

/* {"name":"...","type":"EVENT_TYPE_CREATE"[,"entry":{...}]} */
static int event_json(struct buf *b, enum watch_event type, const char *name, const char *path, bool with_entry) {
        static const char *const types[] = {
                [WATCH_CREATE] = "EVENT_TYPE_CREATE", [WATCH_WRITE] = "EVENT_TYPE_WRITE",
                [WATCH_REMOVE] = "EVENT_TYPE_REMOVE", [WATCH_RENAME] = "EVENT_TYPE_RENAME",
                [WATCH_CHMOD] = "EVENT_TYPE_CHMOD",
        };
        int r = buf_puts(b, "{");
        if (r == 0)
                r = jsonw_member(b, true, "name", name);
        if (r == 0)
                r = jsonw_member(b, false, "type", types[type]);
        if (r == 0 && with_entry && type != WATCH_REMOVE && type != WATCH_RENAME) {
                struct entry *e = malloc(sizeof *e);
                struct user_names *names = user_names_load();
                if (e && names && entry_read(path, e, NULL) == 0) {
                        r = buf_puts(b, ",\"entry\":");
                        if (r == 0)
                                r = entry_json_e2b(e, names, b);
                }
                user_names_free(names);
                free(e);
        }
        return r < 0 ? r : buf_puts(b, "}");
}

/* --- WatchDir ------------------------------------------------------------------------------- */

struct watch_call {
        struct rpc *r;
        struct watcher *w;
        struct timer *keepalive, *deadline;
        bool with_entry;
};

static void watch_free(struct watch_call *c) {
        watcher_free(c->w);
        timer_free(c->keepalive);
        timer_free(c->deadline);
        free(c);
}

static void send_keepalive(void *arg) {
        struct watch_call *c = arg;
        static const char msg[] = "{\"keepalive\":{}}";
        rpc_send(c->r, msg, sizeof msg - 1);
        timer_start(c->keepalive, rpc_keepalive_ms(c->r));
}

static void watch_deadline(void *arg) {
        struct watch_call *c = arg;
        struct rpc *r = c->r;
        watch_free(c);
        rpc_error(r, CONNECT_DEADLINE_EXCEEDED, "the stream's deadline has come");
}

static void watch_ready(void *arg, int err, const struct error *e) {
        struct watch_call *c = arg;
        struct rpc *r = c->r;
        if (err < 0) {
                c->w = NULL;
                watch_free(c);
                rpc_error(r, rpc_code_of_errno(err), "%s", e->msg);
                return;
        }
        static const char msg[] = "{\"start\":{}}";
        rpc_send(r, msg, sizeof msg - 1);
        timer_start(c->keepalive, rpc_keepalive_ms(r));
}

static void watch_event(void *arg, enum watch_event type, const char *name, const char *path) {
        struct watch_call *c = arg;
        _cleanup_buf_ struct buf b = BUF_INIT(0);
        if (buf_puts(&b, "{\"filesystem\":") == 0 && event_json(&b, type, name, path, c->with_entry) == 0 &&
            buf_puts(&b, "}") == 0)
                rpc_send(c->r, buf_data(&b), b.len);
        if (rpc_queued(c->r) > STREAM_HIGH_WATER)
                watcher_pause(c->w);
        timer_start(c->keepalive, rpc_keepalive_ms(c->r));
}

static void watch_lost(void *arg, int err, const char *why) {
        struct watch_call *c = arg;
        struct rpc *r = c->r;
        (void) err;
        watch_free(c);
        rpc_error(r, CONNECT_RESOURCE_EXHAUSTED, "%s", why);
}

static void watch_gone(void *arg) {
        watch_free(arg);
}

static void watch_drain(void *arg) {
        struct watch_call *c = arg;
        watcher_resume(c->w);
}

void rpc_watch_dir(struct rpc *r, json_t *req) {
        static const struct watch_ops ops = { .on_ready = watch_ready, .on_event = watch_event, .on_lost = watch_lost };
        static const struct rpc_ops call_ops = { .on_gone = watch_gone, .on_drain = watch_drain };
        char path[PATH_MAX];
        bool recursive, with_entry;
        struct error e = ERROR_INIT;
        struct agent *a = rpc_agent(r);
        if (read_request(r, req, path, &recursive, &with_entry) < 0)
                return;
        struct watch_call *c = calloc(1, sizeof *c);
        if (!c || !(c->keepalive = timer_new(a->loop, send_keepalive, c))) {
                free(c);
                rpc_error(r, CONNECT_RESOURCE_EXHAUSTED, "out of memory");
                return;
        }
        c->r = r;
        c->with_entry = with_entry;
        if (watcher_new(a->watchers, path, recursive, &ops, c, &c->w, &e) < 0) {
                c->w = NULL;
                watch_free(c);
                rpc_error(r, CONNECT_RESOURCE_EXHAUSTED, "%s", e.msg);
                return;
        }
        if (rpc_timeout_ms(r) && (c->deadline = timer_new(a->loop, watch_deadline, c)))
                timer_start(c->deadline, rpc_timeout_ms(r));
        rpc_set_ops(r, &call_ops, c);
}

/* --- polled watchers ------------------------------------------------------------------------ */

struct polled_watchers {
        struct list all;
};

struct polled {
        struct list link;
        char id[ID_SIZE];
        struct watcher *w;
        struct rpc *creating; /* waits for the answer; NULL afterwards */
        bool with_entry, lost;
        struct buf events;    /* a comma-separated run of JSON objects */
        size_t n;
};

struct polled_watchers *polled_watchers_new(void) {
        struct polled_watchers *all = calloc(1, sizeof *all);
        if (all)
                list_init(&all->all);
        return all;
}

static void polled_free(struct polled *p) {
        list_remove(&p->link);
        watcher_free(p->w);
        buf_done(&p->events);
        free(p);
}

void polled_watchers_forget(struct polled_watchers *all) {
        LIST_FOREACH(it, &all->all) {
                struct polled *p = CONTAINER_OF(it, struct polled, link);
                struct rpc *r = p->creating;
                polled_free(p);
                if (r)
                        rpc_error(r, CONNECT_UNAVAILABLE, "the sandbox is stopping");
        }
}

void polled_watchers_free(struct polled_watchers *all) {
        if (!all)
                return;
        polled_watchers_forget(all);
        free(all);
}

static void polled_ready(void *arg, int err, const struct error *e) {
        struct polled *p = arg;
        struct rpc *r = p->creating;
        p->creating = NULL;
        if (err < 0) {
                p->w = NULL;
                polled_free(p);
                if (r)
                        rpc_error(r, rpc_code_of_errno(err), "%s", e->msg);
        } else if (r)
                rpc_reply(r, json_pack("{s:s}", "watcherId", p->id));
        else
                polled_free(p); /* nobody knows its id */
}

static void polled_event(void *arg, enum watch_event type, const char *name, const char *path) {
        struct polled *p = arg;
        if (p->lost)
                return;
        size_t before = p->events.len;
        if (p->n >= RPC_WATCH_QUEUE_MAX || (p->n > 0 && buf_puts(&p->events, ",") < 0) ||
            event_json(&p->events, type, name, path, p->with_entry) < 0) {
                p->events.len = before;
                p->lost = true;
        } else
                p->n++;
}

static void polled_lost(void *arg, int err, const char *why) {
        struct polled *p = arg;
        (void) err;
        (void) why;
        p->lost = true;
}

static void creating_gone(void *arg) {
        struct polled *p = arg;
        p->creating = NULL;
}

void rpc_create_watcher(struct rpc *r, json_t *req) {
        static const struct watch_ops ops = { .on_ready = polled_ready, .on_event = polled_event, .on_lost = polled_lost };
        static const struct rpc_ops call_ops = { .on_gone = creating_gone };
        char path[PATH_MAX];
        bool recursive, with_entry;
        struct error e = ERROR_INIT;
        struct agent *a = rpc_agent(r);
        if (read_request(r, req, path, &recursive, &with_entry) < 0)
                return;
        struct polled *p = calloc(1, sizeof *p);
        if (!p || id_new(p->id) < 0) {
                free(p);
                rpc_error(r, CONNECT_RESOURCE_EXHAUSTED, "out of memory");
                return;
        }
        list_append(&a->polled->all, &p->link);
        p->creating = r;
        p->with_entry = with_entry;
        p->events = BUF_INIT(QUEUE_BYTES_MAX);
        if (watcher_new(a->watchers, path, recursive, &ops, p, &p->w, &e) < 0) {
                p->w = NULL;
                polled_free(p);
                rpc_error(r, CONNECT_RESOURCE_EXHAUSTED, "%s", e.msg);
                return;
        }
        rpc_set_ops(r, &call_ops, p);
}

static struct polled *find(struct rpc *r, const json_t *req) {
        const char *id = json_string_value(rpc_member(req, "watcherId"));
        LIST_FOREACH(it, &rpc_agent(r)->polled->all) {
                struct polled *p = CONTAINER_OF(it, struct polled, link);
                if (str_eq(p->id, id) && !p->creating)
                        return p;
        }
        rpc_error(r, CONNECT_NOT_FOUND, "watcher with id %.64s not found", id ? id : "");
        return NULL;
}

void rpc_get_watcher_events(struct rpc *r, json_t *req) {
        struct polled *p = find(r, req);
        if (!p)
                return;
        if (p->lost) {
                /* Told once; what was kept before the loss is of no use without it. */
                p->lost = false;
                p->n = 0;
                buf_clear(&p->events);
                rpc_error(r, CONNECT_RESOURCE_EXHAUSTED, "more events came than the watcher keeps; some are lost");
                return;
        }
        _cleanup_buf_ struct buf b = BUF_INIT(0);
        if (buf_puts(&b, "{\"events\":[") < 0 || buf_append(&b, buf_data(&p->events), p->events.len) < 0 ||
            buf_puts(&b, "]}") < 0) {
                rpc_error(r, CONNECT_RESOURCE_EXHAUSTED, "out of memory");
                return;
        }
        p->n = 0;
        buf_done(&p->events);
        rpc_reply_text(r, &b);
}

void rpc_remove_watcher(struct rpc *r, json_t *req) {
        struct polled *p = find(r, req);
        if (!p)
                return;
        polled_free(p);
        rpc_reply(r, json_object());
}
