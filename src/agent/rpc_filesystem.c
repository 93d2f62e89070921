/* SPDX-License-Identifier: Apache-2.0 */

/*
 * E2B's filesystem service. As in the original, the agent acts as root and gives what it makes to
 * the user named in the request; see files_http.c.
 */
#include "rpc_filesystem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "entry.h"
#include "fsop.h"
#include "path.h"
#include "rpc_watch.h"
#include "work.h"

#define DEPTH_MAX 1024
#define LIST_BYTES_MAX (64u * 1024 * 1024)

struct fs_call {
        struct rpc *r; /* NULL: the client is gone */
        void (*run)(struct fs_call *c);
        struct user user;
        char path[PATH_MAX], to[PATH_MAX];
        unsigned depth;
        struct buf out;
        /* outcome: code CONNECT_OK and out, or code and err */
        enum connect_code code;
        struct error err;
};

static void failed(struct fs_call *c, enum connect_code code) {
        c->code = code;
}

static void failed_errno(struct fs_call *c, int r) {
        c->code = r == -ENOTDIR && c->err.code == -ENOTDIR ? CONNECT_INVALID_ARGUMENT : rpc_code_of_errno(r);
}

/* --- on the thread -------------------------------------------------------------------------- */

static void put_entry(struct fs_call *c, const char *path) {
        struct entry *e = malloc(sizeof *e);
        struct user_names *names = user_names_load();
        int r = e && names ? entry_read(path, e, &c->err) : error_set(&c->err, -ENOMEM, "out of memory");
        if (r < 0)
                failed(c, r == -ENOTDIR ? CONNECT_NOT_FOUND : rpc_code_of_errno(r));
        else if (buf_puts(&c->out, "{\"entry\":") < 0 || entry_json_e2b(e, names, &c->out) < 0 ||
                 buf_puts(&c->out, "}") < 0) {
                (void) error_set(&c->err, -ENOMEM, "out of memory");
                failed(c, CONNECT_RESOURCE_EXHAUSTED);
        }
        user_names_free(names);
        free(e);
}

static void run_stat(struct fs_call *c) {
        put_entry(c, c->path);
}

static void run_make_dir(struct fs_call *c) {
        struct stat st;
        if (stat(c->path, &st) == 0) {
                bool dir = S_ISDIR(st.st_mode);
                (void) error_set(&c->err, -EEXIST,
                                 dir ? "directory already exists: %s" : "path already exists but it is not a directory: %s",
                                 c->path);
                failed(c, dir ? CONNECT_ALREADY_EXISTS : CONNECT_INVALID_ARGUMENT);
                return;
        }
        int r = fsop_mkdirs(c->path, &c->user, &c->err);
        if (r < 0)
                failed_errno(c, r);
        else
                put_entry(c, c->path);
}

static void run_move(struct fs_call *c) {
        struct stat st;
        if (lstat(c->path, &st) < 0) {
                (void) error_set(&c->err, -ENOENT, "source file not found: %s", c->path);
                failed(c, CONNECT_NOT_FOUND);
                return;
        }
        int r = fsop_make_parents(c->to, &c->user, &c->err);
        if (r == 0)
                r = fsop_move(c->path, c->to, &c->err);
        if (r < 0)
                failed_errno(c, r);
        else
                put_entry(c, c->to);
}

static void run_remove(struct fs_call *c) {
        int r = fsop_remove(c->path, &c->err);
        if (r < 0)
                failed_errno(c, r);
        else if (buf_puts(&c->out, "{}") < 0)
                failed(c, CONNECT_RESOURCE_EXHAUSTED);
}

static void run_list(struct fs_call *c) {
        int r = buf_puts(&c->out, "{\"entries\":");
        if (r == 0)
                r = fsop_list(c->path, c->depth, true, &c->out, &c->err);
        if (r == 0)
                r = buf_puts(&c->out, "}");
        if (r == -ENOTDIR)
                failed(c, CONNECT_INVALID_ARGUMENT);
        else if (r < 0)
                failed_errno(c, r);
}

static void on_thread(void *arg) {
        struct fs_call *c = arg;
        c->run(c);
}

/* --- on the loop ---------------------------------------------------------------------------- */

static void on_done(void *arg) {
        struct fs_call *c = arg;
        if (c->r && c->code == CONNECT_OK)
                rpc_reply_text(c->r, &c->out);
        else if (c->r)
                rpc_error(c->r, c->code, "%s", c->err.msg);
        buf_done(&c->out);
        free(c);
}

static void on_gone(void *arg) {
        struct fs_call *c = arg;
        c->r = NULL;
}

static int read_path(struct rpc *r, const json_t *req, const char *key, const struct user *u, char out[PATH_MAX],
                     struct error *err) {
        const char *text = NULL;
        int e = json_read_str(req, key, false, LIMIT_PATH - 1, &text, err);
        return e < 0 ? e : path_resolve(text ? text : "", u->home, rpc_agent(r)->identity.default_workdir, out, err);
}

static void start(struct rpc *r, json_t *req, void (*run)(struct fs_call *c)) {
        static const struct rpc_ops ops = { .on_gone = on_gone };
        struct error e = ERROR_INIT;
        struct fs_call *c = calloc(1, sizeof *c);
        if (!c) {
                rpc_error(r, CONNECT_RESOURCE_EXHAUSTED, "out of memory");
                return;
        }
        c->run = run;
        c->r = r;
        c->code = CONNECT_OK;
        c->out = BUF_INIT(LIST_BYTES_MAX);
        bool move = run == run_move;
        uint64_t depth = 1;
        if (identity_user(&rpc_agent(r)->identity, rpc_user(r), &c->user, NULL) < 0) {
                rpc_error(r, CONNECT_UNAUTHENTICATED, "invalid username: '%s'", rpc_user(r));
                free(c);
                return;
        }
        int n = read_path(r, req, move ? "source" : "path", &c->user, c->path, &e);
        if (n == 0 && move)
                n = read_path(r, req, "destination", &c->user, c->to, &e);
        if (n == 0)
                n = json_read_u64(req, "depth", false, 0, UINT32_MAX, &depth, &e);
        if (n < 0) {
                rpc_error(r, CONNECT_INVALID_ARGUMENT, "%s", e.msg);
                free(c);
                return;
        }
        c->depth = depth == 0 ? 1 : depth > DEPTH_MAX ? DEPTH_MAX : (unsigned) depth;
        rpc_set_ops(r, &ops, c);
        if (work_start(rpc_agent(r)->loop, NULL, on_thread, on_done, c) < 0) {
                c->code = CONNECT_RESOURCE_EXHAUSTED;
                (void) error_set(&c->err, -ENOMEM, "out of memory");
                on_done(c);
        }
}

static void call_stat(struct rpc *r, json_t *req) {
        start(r, req, run_stat);
}
static void call_make_dir(struct rpc *r, json_t *req) {
        start(r, req, run_make_dir);
}
static void call_move(struct rpc *r, json_t *req) {
        start(r, req, run_move);
}
static void call_remove(struct rpc *r, json_t *req) {
        start(r, req, run_remove);
}
static void call_list_dir(struct rpc *r, json_t *req) {
        start(r, req, run_list);
}

const struct rpc_method rpc_filesystem_methods[] = {
        { "Stat", false, call_stat },
        { "MakeDir", false, call_make_dir },
        { "Move", false, call_move },
        { "Remove", false, call_remove },
        { "ListDir", false, call_list_dir },
        { "WatchDir", true, rpc_watch_dir },
        { "CreateWatcher", false, rpc_create_watcher },
        { "GetWatcherEvents", false, rpc_get_watcher_events },
        { "RemoveWatcher", false, rpc_remove_watcher },
        { NULL, false, NULL },
};
