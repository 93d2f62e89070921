/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cat and restore-file: files out of a sandbox's disk, as it is or as a checkpoint has it. What restore-file brings back, a file or
 * a folder, comes as a tar stream, which the sandbox's agent unpacks; here nobody looks into it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli.h"
#include "client.h"
#include "command.h"
#include "copy.h"
#include "mem.h"
#include "output.h"
#include "progress.h"
#include "remote.h"

#define CAT_TIMEOUT_MS (5 * 60 * 1000) /* without progress */

static const char *user;

/* what: "file" or "tree" */
static int open_file(struct client *c, const char *what, const char *sandbox, const char *at, const char *path, struct xfer **ret,
                     struct api_error *e) {
        _cleanup_free_ char *id = client_escape(sandbox), *when = client_escape(at), *p = client_escape(path);
        _cleanup_free_ char *target = mem_printf("/v1/sandboxes/%s/history/%s?at=%s&path=%s", id, what, when, p);
        struct xfer *x = NULL;

        if (xfer_open(c, "GET", target, NULL, 0, &x, e) < 0)
                return -1;
        xfer_set_timeout(x, CAT_TIMEOUT_MS);
        if (xfer_finish(x, e) < 0) {
                xfer_free(x);
                return -1;
        }
        *ret = x;
        return 0;
}

/* ---- cat -------------------------------------------------------------------------------------- */

/* SANDBOX[@CHECKPOINT]:PATH */
static int parse(const char *arg, char **ret_sandbox, char **ret_at, const char **ret_path) {
        const char *colon = strchr(arg, ':'), *sign = strchr(arg, '@');

        if (!colon || colon[1] != '/')
                return cli_usage("\"%s\" is not SANDBOX[@CHECKPOINT]:PATH with an absolute path", arg);
        if (sign && sign > colon)
                sign = NULL; /* of the path */
        const char *end = sign ? sign : colon;
        if (end == arg || (sign && sign + 1 == colon))
                return cli_usage("\"%s\" is not SANDBOX[@CHECKPOINT]:PATH", arg);
        *ret_sandbox = mem_ndup(arg, (size_t) (end - arg));
        *ret_at = sign ? mem_ndup(sign + 1, (size_t) (colon - sign - 1)) : mem_dup("now");
        *ret_path = colon + 1;
        return CLI_OK;
}

static int cat_one(struct client *c, const char *sandbox, const char *at, const char *path) {
        struct api_error e;
        struct xfer *x = NULL;
        const uint8_t *data;
        ssize_t n;

        cli()->sandbox = sandbox;
        if (open_file(c, "file", sandbox, at, path, &x, &e) < 0)
                return api_error_print(&e);
        while ((n = xfer_read(x, &data, &e)) > 0)
                if (fwrite(data, 1, (size_t) n, stdout) != (size_t) n)
                        break; /* told at the end */
        xfer_free(x);
        return n < 0 ? api_error_print(&e) : CLI_OK;
}

static int run_cat(int argc, char **argv) {
        struct error err = ERROR_INIT;
        struct client *c = NULL;
        int rc = CLI_OK;

        for (int i = 0; i < argc && rc == CLI_OK; i++) {
                _cleanup_free_ char *sandbox = NULL, *at = NULL;
                const char *path = NULL;

                rc = parse(argv[i], &sandbox, &at, &path);
                if (rc == CLI_OK && !c && client_new(&c, &err) < 0)
                        rc = cli_fail_err(&err);
                if (rc == CLI_OK)
                        rc = cat_one(c, sandbox, at, path);
        }
        client_free(c);
        return rc;
}

/* ---- restore-file ------------------------------------------------------------------------------ */

/* Into a folder that exists: under its own name. NULL: answered. */
static char *destination(const struct remote *r, const char *path, const char *dest, struct api_error *e) {
        _cleanup_free_ char *name = copy_basename(path);
        struct remote_stat st;

        if (remote_stat(r, dest, &st, e) < 0)
                return NULL;
        return st.type == REMOTE_DIR || dest[strlen(dest) - 1] == '/' ? copy_join(dest, name) : mem_dup(dest);
}

/* Where it goes in the sandbox: into the folder `dir`, under `as`, or as that folder itself (NULL). */
struct target {
        char *dest, *dir, *as;
};

static void target_done(struct target *t) {
        free(t->dest);
        free(t->dir);
        free(t->as);
}

static int find_target(const struct remote *r, const char *path, const char *dest, bool folder, struct target *ret, struct api_error *e) {
        ret->dest = dest ? destination(r, path, dest, e) : mem_dup(path);
        if (!ret->dest)
                return -1;
        if (folder) {
                ret->dir = mem_dup(ret->dest);
                return 0;
        }
        size_t n = strlen(ret->dest);
        while (n > 1 && ret->dest[n - 1] == '/')
                n--;
        _cleanup_free_ char *clean = mem_ndup(ret->dest, n);
        const char *slash = strrchr(clean, '/');
        ret->as = mem_dup(slash ? slash + 1 : clean);
        ret->dir = !slash ? mem_dup(".") : slash == clean ? mem_dup("/") : mem_ndup(clean, (size_t) (slash - clean));
        return 0;
}

static int transfer(const struct remote *r, struct xfer *from, const struct target *t, bool owner, json_t **ret_answer, struct api_error *e) {
        _cleanup_free_ char *as = t->as ? client_escape(t->as) : NULL;
        _cleanup_free_ char *query = mem_printf("tar=1%s%s%s", owner ? "&owner=1" : "", as ? "&as=" : "", as ? as : "");
        struct progress *progress = progress_new(false);
        const uint8_t *data;
        struct xfer *to = NULL;
        uint64_t done = 0;
        ssize_t n = 0;

        int rc = remote_put(r, t->dir, query, -1, &to, e);
        while (rc == 0 && (n = xfer_read(from, &data, e)) > 0) {
                rc = xfer_write(to, data, (size_t) n, e);
                done += (uint64_t) n;
                progress_bytes(progress, t->dest, done, 0);
        }
        if (rc == 0 && n == 0)
                rc = xfer_finish(to, e);
        else
                rc = -1;
        if (rc == 0)
                rc = xfer_read_json(to, ret_answer, e);
        progress_free(progress);
        xfer_free(to); /* an archive that breaks off is told as an error */
        return rc;
}

/* What is in the place of something that came back and was left as it is. */
static int tell_kept(const struct target *t, const json_t *answer) {
        json_int_t kept = json_integer_value(json_object_get(answer, "kept"));
        const json_t *paths = json_object_get(answer, "kept_paths"), *path;
        size_t i;

        if (kept <= 0)
                return CLI_OK;
        json_array_foreach(paths, i, path) {
                const char *name = json_string_value(path);
                _cleanup_free_ char *full = copy_join(t->dir, name ? name : "");
                if (!cli()->json)
                        cli_fail_code("kept", "\"%s\" did not come back: a folder with something in it is in its place, or of another name of the file, or something is mounted there", full);
        }
        if (!cli()->json && (size_t) kept > json_array_size(paths))
                cli_fail_code("kept", "nor did %lld more", (long long) kept - (long long) json_array_size(paths));
        return CLI_FAILURE;
}

static int tell_restored(const struct target *t, bool owner, const json_t *answer) {
        json_int_t skipped = json_integer_value(json_object_get(answer, "skipped"));
        const json_t *paths = json_object_get(answer, "kept_paths");
        if (skipped > 0)
                cli_note("%lld device%s left out", (long long) skipped, skipped == 1 ? " was" : "s were");
        json_int_t lost = json_integer_value(json_object_get(answer, "xattrs_lost"));
        if (lost > 0)
                cli_note("%lld extended attribute%s could not be set in the sandbox", (long long) lost, lost == 1 ? "" : "s");
        if (owner && !json_is_true(json_object_get(answer, "owner")))
                cli_note("the agent in this sandbox is older than this cspace: owners, and permissions of folders, may not have come back. "
                         "`cspace template ls` says which templates to build again");
        if (cli()->json) {
                _cleanup_json_ json_t *j = json_pack("{s:s, s:I, s:I, s:I, s:O*}", "path", t->dest, "bytes",
                                                     json_integer_value(json_object_get(answer, "bytes")), "entries",
                                                     json_integer_value(json_object_get(answer, "entries")), "skipped", skipped, "kept_paths", paths);
                output_json(j);
        }
        return tell_kept(t, answer);
}

static int run_restore(int argc, char **argv) {
        const char *path = argv[2];
        struct error err = ERROR_INIT;
        struct remote r = { .sandbox = argv[0], .user = user };
        bool owner = !user || str_eq(user, "root"); /* whoever is not root can give nothing away */
        _cleanup_(target_done) struct target t = { .dest = NULL };
        _cleanup_json_ json_t *answer = NULL;
        struct api_error e;
        struct xfer *x = NULL;

        if (path[0] != '/')
                return cli_usage("\"%s\" is not an absolute path", path);
        if (argc > 3 && !argv[3][0])
                return cli_usage("the destination is empty");
        if (client_new(&r.client, &err) < 0)
                return cli_fail_err(&err);
        int rc = open_file(r.client, "tree", argv[0], argv[1], path, &x, &e);
        if (rc == 0) {
                const char *type = xfer_header(x, "X-File-Type");
                rc = find_target(&r, path, argc > 3 ? argv[3] : NULL, type && str_eq(type, "directory"), &t, &e);
        }
        if (rc == 0)
                rc = transfer(&r, x, &t, owner, &answer, &e);
        if (rc < 0)
                rc = api_error_print(&e);
        else
                rc = tell_restored(&t, owner, answer);
        xfer_free(x);
        client_free(r.client);
        return rc;
}

/* ---- the table's rows -------------------------------------------------------------------------- */

static const struct opt no_opts[] = { OPT_END };
static const struct opt restore_opts[] = {
        { "user", 'u', OPT_STRING, &user, "USER", "User in the sandbox who writes it; who is not root owns it then (root).", COMPLETE_NONE, 0, 0 },
        OPT_END,
};

const struct command command_cat = {
        .name = "cat",
        .synopsis = "SANDBOX[@CHECKPOINT]:PATH...",
        .summary = "Print files of a sandbox, also as a checkpoint has them.",
        .details = "Read on the host from the disk, in every state of the sandbox. \"template\" stands for what it was\n"
                   "created with.\n\n"
                   "  cspace cat SANDBOX:/var/log/syslog\n"
                   "  cspace cat SANDBOX@before-upgrade:/etc/fstab",
        .opts = no_opts,
        .min_args = 1,
        .max_args = -1,
        .command_at = -1,
        .args = { COMPLETE_CP },
        .run = run_cat,
};

const struct command command_restore_file = {
        .name = "restore-file",
        .synopsis = "[OPTION...] SANDBOX CHECKPOINT PATH [DESTINATION]",
        .summary = "Put a file or folder of a checkpoint back into a running sandbox.",
        .details = "To where it was, or to DESTINATION, a folder or a name. Owner, permissions and times come with it; of a\n"
                   "folder all that is in it comes back, and what it has besides by now stays. A link comes back as a link.\n"
                   "What is there under the same name is replaced, but for a folder with something in it in the place of what\n"
                   "was none: that stays, is named, and the command fails when all the rest is there.\n"
                   "\"template\" stands for what the sandbox was created with.\n\n"
                   "  cspace restore-file SANDBOX before-upgrade /etc\n"
                   "  cspace restore-file SANDBOX before-upgrade /home/user/notes /tmp",
        .opts = restore_opts,
        .min_args = 3,
        .max_args = 4,
        .command_at = -1,
        .args = { COMPLETE_SANDBOX, COMPLETE_PAST, COMPLETE_NONE },
        .run = run_restore,
};
