/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/options.h"

#include <errno.h>
#include <getopt.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"

enum { OPT_CGROUP = 256, OPT_LOG_LEVEL, OPT_POOL, OPT_VERSION };

static const struct option options_long[] = {
        { "config", required_argument, NULL, 'c' },
        { "run", required_argument, NULL, 'r' },
        { "data", required_argument, NULL, 'd' },
        { "libexec", required_argument, NULL, 'x' },
        { "user", required_argument, NULL, 'u' },
        { "cgroup", required_argument, NULL, OPT_CGROUP },
        { "pool", required_argument, NULL, OPT_POOL },
        { "log-level", required_argument, NULL, OPT_LOG_LEVEL },
        { "help", no_argument, NULL, 'h' },
        { "version", no_argument, NULL, OPT_VERSION },
        {},
};

static const char options_help[] =
        "Usage: cspace-rootd [OPTION]...\n"
        "Gives sandboxes what only root can give: namespaces, cgroups, disks, processes.\n"
        "\n"
        "  --config FILE     configuration (default " CONF_FILE ")\n"
        "  --run DIR         sockets and records of live sandboxes (default /run/cspace)\n"
        "  --data DIR        templates and disks (default /var/lib/cspace)\n"
        "  --libexec DIR     where cspace-warden and the others are\n"
        "  --user NAME       user of cspaced, the only one beside root that may ask (default cspace)\n"
        "  --cgroup NAME     cgroup above those of the sandboxes (default cspace)\n"
        "  --pool N          network namespaces kept ready\n"
        "  --log-level L     error, warn, info or debug\n"
        "  --help, --version\n";

/* Options that are keys of the configuration too. */
static const struct {
        int opt;
        const char *section, *key;
} options_keys[] = {
        { 'r', "paths", "run" },           { 'd', "paths", "data" },
        { 'x', "paths", "libexec" },       { OPT_POOL, "pool", "namespaces" },
        { OPT_LOG_LEVEL, "log", "level" },
};

static int apply(struct options *o, int opt, const char *value, struct error *err) {
        for (size_t i = 0; i < ARRAY_SIZE(options_keys); i++)
                if (options_keys[i].opt == opt)
                        return conf_set(&o->conf, options_keys[i].section, options_keys[i].key, value, err);
        if (opt == 'u' && str_copy(o->user, sizeof o->user, value) < 0)
                return error_set(err, -EINVAL, "user name \"%s\" is too long", value);
        if (opt == OPT_CGROUP) {
                if (strchr(value, '/') || value[0] == '.' || str_copy(o->cgroup, sizeof o->cgroup, value) < 0)
                        return error_set(err, -EINVAL, "\"%s\" is not the name of a cgroup", value);
        }
        return 0;
}

static int resolve_user(struct options *o, struct error *err) {
        errno = 0;
        const struct passwd *pw = getpwnam(o->user);
        if (!pw && errno != 0 && errno != ENOENT)
                return error_errno(err, errno, "cannot look up user \"%s\"", o->user);
        if (!pw)
                return error_set(
                        err, -ENOENT,
                        "there is no user \"%s\"; make it (useradd --system %s) or name another with --user",
                        o->user, o->user);
        o->uid = pw->pw_uid;
        o->gid = pw->pw_gid;
        return 0;
}

/* Now, and not when one is asked for: a directory service may be slow. One that does not exist is told of then. */
static void resolve_token_user(struct options *o) {
        const struct passwd *pw = o->conf.token_user[0] ? getpwnam(o->conf.token_user) : NULL;
        o->token_user_known = pw != NULL;
        o->token_uid = pw ? pw->pw_uid : 0;
        o->token_gid = pw ? pw->pw_gid : 0;
}

int options_parse(struct options *o, int argc, char **argv, struct error *err) {
        const char *file = NULL;
        int c;
        /* The file first, whatever the order: options win over it. */
        optind = 1;
        while ((c = getopt_long(argc, argv, "", options_long, NULL)) != -1) {
                if (c == '?')
                        return error_set(err, -EINVAL, "see cspace-rootd --help");
                if (c == 'h' || c == OPT_VERSION) {
                        fputs(c == 'h' ? options_help : "cspace-rootd " CSPACE_VERSION "\n", stdout);
                        return 1;
                }
                if (c == 'c')
                        file = optarg;
        }
        if (optind < argc)
                return error_set(err, -EINVAL, "unexpected argument \"%s\"", argv[optind]);
        int r = conf_load(&o->conf, file, err);
        if (r < 0)
                return r;
        (void) str_copy(o->user, sizeof o->user, "cspace");
        optind = 1;
        while ((c = getopt_long(argc, argv, "", options_long, NULL)) != -1) {
                r = apply(o, c, optarg, err);
                if (r < 0)
                        return r;
        }
        resolve_token_user(o);
        return resolve_user(o, err);
}
