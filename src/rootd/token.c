/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/token.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "rootd/errand.h"
#include "rootd/resolvers.h"
#include "rootd/server.h"

#define TOKEN_MEMORY_BYTES (256ull << 20)
#define TOKEN_PIDS_MAX 64
#define TOKEN_CPUS 1
#define TOKEN_FILES 256
#define TOKEN_USER_PROCESSES 4096 /* counts those that the operator's user has elsewhere too; the cgroup has its own limit */
#define TOKEN_FILE_BYTES (64ull << 20)
#define TOKEN_OOM_ADJ 600
#define TOKEN_ARGS_MAX 24

static const struct errand_kind kind = { .what = "token",
                                         .letter = 't',
                                         .places = TOKEN_RUNNING_MAX,
                                         .limits = { TOKEN_MEMORY_BYTES, TOKEN_PIDS_MAX, TOKEN_CPUS },
                                         .uid = instance_token_uid };
_Static_assert(TOKEN_RUNNING_MAX <= ERRAND_PLACES_MAX, "places");

/* As cspace-token tells its own failures. */
static void tell_failure(int out, const char *what, int code) {
        char line[256];
        int n = snprintf(line, sizeof line, "error cspace-token could not be started: %s: %s\n", what, strerror(-code));
        (void) fd_write_all(out, line, (size_t) n, NULL);
}

/* ---- oauth2 --------------------------------------------------------------------------------- */

struct args {
        char *argv[TOKEN_ARGS_MAX];
        size_t n;
        char text[2048];
        size_t used;
};

static int add(struct args *a, const char *s) {
        size_t n = strlen(s) + 1;
        if (a->n + 1 >= TOKEN_ARGS_MAX || n > sizeof a->text - a->used)
                return -E2BIG;
        a->argv[a->n++] = memcpy(a->text + a->used, s, n);
        a->used += n;
        return 0;
}

static int add_resolver(void *arg, const char *address) {
        int r = add(arg, "--resolver");
        return r < 0 ? r : add(arg, address);
}

static int add_open(struct args *a, const char *ranges) {
        int r = 0;
        for (const char *p = ranges + strspn(ranges, " \t"); *p && r == 0; p += strspn(p, " \t")) {
                char range[INET6_ADDRSTRLEN + 8];
                size_t n = strcspn(p, " \t");
                if (n >= sizeof range)
                        return -E2BIG;
                memcpy(range, p, n);
                range[n] = '\0';
                r = add(a, "--open");
                if (r == 0)
                        r = add(a, range);
                p += n;
        }
        return r;
}

static int oauth2(struct rootd *r, struct errand_start *s, struct args *a, int request, int *ret_trust, struct error *err) {
        const struct conf *conf = &r->opt.conf;
        int res = resolvers_each(conf->resolv_conf, add_resolver, a);
        if (res == 0)
                res = add_open(a, conf->token_open);
        if (res < 0)
                return error_set(err, -E2BIG, "[credentials] open has too many ranges");
        if (request < 0)
                return error_set(err, -EINVAL, "the request is missing");
        *ret_trust = open(conf->trust_store, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        if (*ret_trust < 0)
                return error_errno(err, errno, "cannot open [egress] trust_store \"%s\"", conf->trust_store);
        s->view = r->views.plain;
        s->fds[0] = request;
        s->fds[1] = *ret_trust;
        return 0;
}

/* ---- command -------------------------------------------------------------------------------- */

static int cover(const char *path, const char *mode, struct error *err) {
        if (mount("cspace", path, "tmpfs", MS_NOSUID | MS_NODEV, mode) < 0)
                return error_errno(err, errno, "cannot cover \"%s\"", path);
        return 0;
}

/* The host's files as that user sees them, without those of cspace, and with a /tmp of its own. */
static int make_view(const struct rootd *r, struct errand_start *s, struct error *err) {
        (void) s;
        if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
                return error_errno(err, errno, "cannot make a mount namespace");
        int res = cover(r->opt.conf.data, "mode=0755,size=4k", err);
        if (res == 0)
                res = cover(r->opt.conf.run, "mode=0755,size=4k", err);
        if (res == 0 && !str_has_prefix(r->opt.conf.token_commands, "/tmp/") && !str_has_prefix(r->opt.conf.libexec, "/tmp/"))
                res = cover("/tmp", "mode=1777,size=64m", err);
        return res;
}

static int only_roots(int fd, const char *path, bool folder, struct error *err) {
        struct stat st;
        if (fstat(fd, &st) < 0)
                return error_errno(err, errno, "cannot look at \"%s\"", path);
        if (folder ? !S_ISDIR(st.st_mode) : !S_ISREG(st.st_mode) || !(st.st_mode & 0111))
                return error_set(err, -EACCES, "\"%s\" is not %s", path, folder ? "a folder" : "an executable file");
        if (st.st_uid != 0 || (st.st_mode & 022))
                return error_set(err, -EACCES, "\"%s\" is not root's alone to write", path);
        return 0;
}

/* Whatever an API client says, nothing is run that the operator did not put there. */
static int check_command(const struct conf *conf, const char *name, char *path, size_t cap, struct error *err) {
        _cleanup_fd_ int dir = open(conf->token_commands, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (dir < 0)
                return error_errno(err, errno, "cannot open [credentials] commands \"%s\"", conf->token_commands);
        int r = only_roots(dir, conf->token_commands, true, err);
        if (r < 0)
                return r;
        if (snprintf(path, cap, "%s/%s", conf->token_commands, name) >= (int) cap)
                return error_set(err, -ENAMETOOLONG, "path of the command is too long");
        _cleanup_fd_ int fd = fd_open_beneath(dir, name, O_PATH, 0, err);
        if (fd < 0)
                return error_set(err, fd, "there is no command \"%s\" in %s", name, conf->token_commands);
        return only_roots(fd, path, false, err);
}

static int find_user(const struct rootd *r, struct errand_start *s, struct error *err) {
        const char *name = r->opt.conf.token_user;
        if (!name[0])
                return 0;
        if (!r->opt.token_user_known)
                return error_set(err, -ENOENT, "there is no user \"%s\" ([credentials] user)", name);
        if (r->opt.token_uid == 0 || r->opt.token_gid == 0 || r->opt.token_uid == r->opt.uid || r->opt.token_gid == r->opt.gid)
                return error_set(err, -EPERM, "commands do not run as root or as cspaced's user ([credentials] user)");
        s->uid = r->opt.token_uid;
        s->gid = r->opt.token_gid;
        s->confine.processes = TOKEN_USER_PROCESSES;
        return 0;
}

static int command(struct rootd *r, struct errand_start *s, struct args *a, const char *name, struct error *err) {
        char path[CONF_STR_MAX + 80];
        int res = check_command(&r->opt.conf, name, path, sizeof path, err);
        if (res == 0)
                res = find_user(r, s, err);
        if (res == 0 && (add(a, "--command") < 0 || add(a, path) < 0))
                res = error_set(err, -E2BIG, "path of the command is too long");
        s->prepare = make_view;
        return res;
}

/* ---- both ----------------------------------------------------------------------------------- */

static bool name_valid(const char *s) {
        static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
        return s[0] && s[0] != '.' && s[0] != '-' && s[strspn(s, allowed)] == '\0';
}

static int begin(struct rootd *r, const struct ipc_token *m, int request, int *ret_fd, struct error *err) {
        static char path[] = "PATH=/usr/local/bin:/usr/bin:/bin", lang[] = "LANG=C.UTF-8";
        static char *const env[] = { path, lang, NULL };
        struct args a = {};
        char program[CONF_STR_MAX + 32], timeout[16];
        bool is_command = str_eq(m->provider, "command");
        _cleanup_fd_ int reader = -EBADF, trust = -EBADF;
        struct errand *e = NULL;
        if (!name_valid(m->credential) || (!is_command && !str_eq(m->provider, "oauth2")) || (is_command && !name_valid(m->command)))
                return error_set(err, -EINVAL, "this is no question for a token");
        (void) snprintf(timeout, sizeof timeout, "%llu", (unsigned long long) r->opt.conf.token_timeout_s);
        if (conf_libexec_path(&r->opt.conf, "cspace-token", program, sizeof program) < 0 || add(&a, program) < 0 ||
            add(&a, "--timeout") < 0 || add(&a, timeout) < 0)
                return error_set(err, -ENAMETOOLONG, "path of the programs is too long");
        int res = errand_new(r, &kind, m->credential, &e, &reader, err);
        if (res < 0)
                return res;
        struct errand_start s = { .uid = e->uid,
                                  .view = -EBADF,
                                  .fds = { -EBADF, -EBADF },
                                  .confine = { .files = TOKEN_FILES,
                                               .processes = TOKEN_PIDS_MAX,
                                               .file_bytes = TOKEN_FILE_BYTES,
                                               .oom_score_adj = TOKEN_OOM_ADJ },
                                  .argv = a.argv,
                                  .env = env,
                                  .fail = tell_failure };
        res = is_command ? command(r, &s, &a, m->command, err) : oauth2(r, &s, &a, request, &trust, err);
        if (res < 0) {
                errand_drop(e);
                return res;
        }
        res = errand_run(e, &s, (unsigned) r->opt.conf.token_timeout_s + TOKEN_GRACE_S, err);
        if (res == 0)
                *ret_fd = fd_steal(&reader);
        return res;
}

void token_handle(struct rootd *r, const struct ticket *t, const struct ipc_token *m, int request) {
        struct error e = ERROR_INIT;
        _cleanup_fd_ int fd = -EBADF, in = request;
        if (begin(r, m, in, &fd, &e) < 0)
                ticket_error(r, t, &e);
        else
                ticket_fd(r, t, fd);
}
