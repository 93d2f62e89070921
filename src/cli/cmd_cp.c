/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli.h"
#include "command.h"
#include "copy.h"
#include "mem.h"

static const char *user;
static bool recursive, tar, quiet;

/* "SANDBOX:PATH": a colon before any slash. A local name of that form is written ./a:b. */
static const char *remote_part(const char *arg) {
        const char *colon = strchr(arg, ':'), *slash = strchr(arg, '/');

        return colon && colon > arg && (!slash || colon < slash) ? colon : NULL;
}

struct plan {
        char *sandbox;
        bool upload;
};

static int same_sandbox(struct plan *p, const char *arg, const char *colon) {
        _cleanup_free_ char *sandbox = mem_ndup(arg, (size_t) (colon - arg));

        if (p->sandbox && !str_eq(p->sandbox, sandbox))
                return cli_usage("all sources must be in one sandbox; \"%s\" and \"%s\" are two", p->sandbox,
                                 sandbox);
        if (!p->sandbox)
                p->sandbox = STEAL(sandbox);
        return CLI_OK;
}

static int make_plan(int argc, char **argv, struct plan *p) {
        const char *dst = argv[argc - 1], *colon = remote_part(dst);
        int n_remote = 0;

        if (colon) {
                p->upload = true;
                p->sandbox = mem_ndup(dst, (size_t) (colon - dst));
        }
        for (int i = 0; i < argc - 1; i++) {
                const char *c = remote_part(argv[i]);

                if (!c)
                        continue;
                n_remote++;
                if (colon)
                        return cli_usage(
                                "both sides are in a sandbox; copy here first, or pipe: cspace cp --tar "
                                "A:DIR - | "
                                "cspace cp --tar - B:DIR");
                int rc = same_sandbox(p, argv[i], c);
                if (rc != CLI_OK)
                        return rc;
        }
        if (!colon && n_remote == 0)
                return cli_usage("neither side is in a sandbox; write that one as SANDBOX:PATH");
        if (!colon && n_remote < argc - 1)
                return cli_usage("the sources are partly here and partly in the sandbox");
        return CLI_OK;
}

static int check_stdio(int argc, char **argv) {
        bool stdio = str_eq(argv[argc - 1], "-");

        for (int i = 0; i < argc - 1; i++)
                stdio = stdio || str_eq(argv[i], "-");
        if (stdio && argc > 2)
                return cli_usage("\"-\" stands for one source or the destination, not for one of several");
        if (tar && !stdio)
                return cli_usage("--tar is for \"-\": an archive on stdin or stdout");
        return CLI_OK;
}

static int copy_all(struct copy *c, const struct plan *p, int argc, char **argv) {
        const char *dst = argv[argc - 1];
        bool several = argc > 2;
        int rc = CLI_OK;

        for (int i = 0; i < argc - 1; i++) {
                int r = p->upload ? copy_upload(c, argv[i], remote_part(dst) + 1, several)
                                  : copy_download(c, remote_part(argv[i]) + 1, dst, several);
                if (r != CLI_OK)
                        rc = r;
        }
        if (rc == CLI_OK && c->skipped > 0)
                rc = cli_fail(c->skipped == 1 ? "%llu entry was left out" : "%llu entries were left out", (unsigned long long) c->skipped);
        return rc;
}

static int run(int argc, char **argv) {
        struct plan p = { 0 };
        struct error err = ERROR_INIT;
        struct copy c = { .tar = tar };

        int rc = make_plan(argc, argv, &p);
        if (rc == CLI_OK)
                rc = check_stdio(argc, argv);
        if (rc == CLI_OK && client_new(&c.remote.client, &err) < 0)
                rc = cli_fail_err(&err);
        if (rc == CLI_OK) {
                c.remote.sandbox = cli()->sandbox = p.sandbox;
                c.remote.user = user;
                c.progress = progress_new(false);
                rc = copy_all(&c, &p, argc, argv);
                progress_free(c.progress);
                client_free(c.remote.client);
                cli()->sandbox = NULL;
        }
        free(p.sandbox);
        return rc;
}

static const struct opt opts[] = {
        { "recursive", 'r', OPT_FLAG, &recursive, NULL,
          "Accepted for habit: folders are always copied whole.", COMPLETE_NONE, 0, 0 },
        { "tar", 0, OPT_FLAG, &tar, NULL, "\"-\" is a tar archive of a folder's contents.", COMPLETE_NONE, 0,
          0 },
        { "user", 'u', OPT_STRING, &user, "USER",
          "User in the sandbox: who reads, and who owns what is written (root).", COMPLETE_NONE, 0, 0 },
        { "quiet", 'q', OPT_FLAG, &quiet, NULL, "No progress.", COMPLETE_NONE, 0, 0 },
        OPT_END,
};

const struct command command_cp = {
        .name = "cp",
        .synopsis = "[OPTION...] SOURCE... DESTINATION",
        .summary = "Copy files and folders between here and a sandbox.",
        .details =
                "One side is SANDBOX:PATH; \"-\" is stdin or stdout. As cp(1): into a folder that exists, "
                "else to the name "
                "given; FOLDER/. means its contents. Folders are copied whole. Links that are named are "
                "followed, "
                "links inside folders are kept. A local name with a colon is written ./a:b.\n\n"
                "  cspace cp notes.txt SANDBOX:/root/\n"
                "  cspace cp SANDBOX:/var/log logs\n"
                "  cspace cp --tar SANDBOX:/srv - | tar t",
        .opts = opts,
        .min_args = 2,
        .max_args = -1,
        .command_at = -1,
        .args = { COMPLETE_CP },
        .run = run,
};
