/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cspaced: the API, the state and the lifecycle of sandboxes. This file reads the options, makes the
 * sockets, gives up root, makes the parts in the order in which they need each other, runs the
 * loop, and takes the parts down.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "api/api.h"
#include "api/api_wait.h"
#include "app.h"
#include "audit/audit_store.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "e2b/e2b.h"
#include "egress/credential.h"
#include "egress/egress.h"
#include "egress/policies.h"
#include "peers/agent_call.h"
#include "peers/rootd.h"
#include "privilege.h"
#include "proxy/proxy.h"
#include "sandbox/checkpoint.h"
#include "sandbox/fork.h"
#include "sandbox/reconcile.h"
#include "sandbox/sandbox_flow.h"
#include "sandbox/settle.h"
#include "sandbox/warm.h"
#include "store/db.h"
#include "store/idem.h"
#include "store/key.h"
#include "store/op.h"
#include "template/template.h"
#include "template/variant.h"

#define PROGRAM "cspaced"
#define USER "cspace"
#define API_SOCK_MODE 0660

const struct conn_kind conn_trusted = { .trusted = true }, conn_untrusted = { .trusted = false };

struct options {
        const char *config, *data, *run, *listen, *log_level, *user;
        bool allow_root, routes;
};

struct daemon {
        struct app app;
        struct options o;
        int unix_fd, tcp_fd;
        struct listener *unix_listener, *tcp_listener;
        uv_signal_t term, interrupt;
        bool signals;
};

/* ---- options ------------------------------------------------------------------------------- */

static void usage(FILE *out) {
        fputs("Usage: cspaced [--config FILE] [--data DIR] [--run DIR] [--listen IP:PORT] [--user NAME]\n"
              "               [--log-level error|warn|info|debug] [--allow-root] [--version] [--help]\n\n"
              "The API server of cspace. Started as root it becomes the user \"" USER "\"; --allow-root is for tests.\n",
              out);
}

/* 0 go on, 1 done, negative wrong. */
static int read_options(int argc, char **argv, struct options *o) {
        static const struct option longs[] = {
                { "config", required_argument, NULL, 'c' },     { "data", required_argument, NULL, 'd' },
                { "run", required_argument, NULL, 'r' },        { "listen", required_argument, NULL, 'l' },
                { "log-level", required_argument, NULL, 'L' },  { "user", required_argument, NULL, 'u' },
                { "allow-root", no_argument, NULL, 'R' },       { "routes", no_argument, NULL, 'P' },
                { "version", no_argument, NULL, 'V' },          { "help", no_argument, NULL, 'h' },
                { NULL, 0, NULL, 0 },
        };
        *o = (struct options){ .user = USER };
        int c;
        while ((c = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
                switch (c) {
                case 'c':
                        o->config = optarg;
                        break;
                case 'd':
                        o->data = optarg;
                        break;
                case 'r':
                        o->run = optarg;
                        break;
                case 'l':
                        o->listen = optarg;
                        break;
                case 'L':
                        o->log_level = optarg;
                        break;
                case 'u':
                        o->user = optarg;
                        break;
                case 'R':
                        o->allow_root = true;
                        break;
                case 'P':
                        o->routes = true;
                        break;
                case 'V':
                        puts(PROGRAM " " CSPACE_VERSION);
                        return 1;
                case 'h':
                        usage(stdout);
                        return 1;
                default:
                        usage(stderr);
                        return -EINVAL;
                }
        }
        if (optind < argc) {
                fprintf(stderr, PROGRAM ": \"%s\" is not an option\n", argv[optind]);
                return -EINVAL;
        }
        return 0;
}

static int read_config(struct app *app, const struct options *o, struct error *err) {
        int r = conf_load(&app->conf, o->config, err);
        if (r >= 0 && o->data)
                r = conf_set(&app->conf, "paths", "data", o->data, err);
        if (r >= 0 && o->run)
                r = conf_set(&app->conf, "paths", "run", o->run, err);
        if (r >= 0 && o->listen)
                r = conf_set(&app->conf, "api", "listen", o->listen, err);
        if (r >= 0 && o->log_level)
                r = conf_set(&app->conf, "log", "level", o->log_level, err);
        enum log_level level = LOG_LVL_INFO;
        if (r >= 0 && log_level_parse(app->conf.log_level, &level) >= 0)
                log_setup(PROGRAM, level);
        return r;
}

/* ---- sockets ------------------------------------------------------------------------------- */

/* "127.0.0.1:7070", "[::1]:7070" */
static int parse_listen(const char *text, char *ip, size_t cap, uint16_t *ret_port, struct error *err) {
        const char *colon = strrchr(text, ':');
        size_t n = colon ? (size_t) (colon - text) : 0;
        uint64_t port;
        if (n >= 2 && text[0] == '[' && text[n - 1] == ']') {
                text++;
                n -= 2;
        }
        if (!colon || n == 0 || n >= cap || str_to_u64(colon + 1, 65535, &port) < 0)
                return error_set(err, -EINVAL, "the listen address must be IP:PORT, not \"%s\"", text);
        memcpy(ip, text, n);
        ip[n] = 0;
        *ret_port = (uint16_t) port;
        return 0;
}

static bool is_loopback(const char *ip) {
        struct in_addr a4;
        struct in6_addr a6;
        if (inet_pton(AF_INET, ip, &a4) == 1)
                return (ntohl(a4.s_addr) >> 24) == 127;
        return inet_pton(AF_INET6, ip, &a6) == 1 && IN6_IS_ADDR_LOOPBACK(&a6);
}

static int make_sockets(struct daemon *d, const struct identity *id, struct error *err) {
        char path[CONF_STR_MAX + 32], ip[64];
        uint16_t port;
        int r = conf_run_path(&d->app.conf, "api.sock", path, sizeof path);
        if (r < 0)
                return error_errno(err, r, "the run folder's path is too long");
        r = listen_unix(path, API_SOCK_MODE, &d->unix_fd, err);
        if (r < 0)
                return r;
        if (id && lchown(path, id->uid, id->gid) < 0)
                return error_errno(err, errno, "could not give \"%s\" to its user", path);
        r = parse_listen(d->app.conf.listen, ip, sizeof ip, &port, err);
        if (r >= 0)
                r = listen_tcp(ip, port, &d->tcp_fd, err);
        return r;
}

/* Nobody but this machine until a key exists and the operator has said so. */
static int check_exposure(struct app *app, struct error *err) {
        char ip[64];
        uint16_t port;
        int r = parse_listen(app->conf.listen, ip, sizeof ip, &port, err);
        if (r < 0 || is_loopback(ip))
                return r;
        if (!app->conf.insecure_listen)
                return error_set(err, -EPERM,
                                 "refusing to listen on %s, which is not loopback: the API has no TLS of its own. Put a proxy with"
                                 " TLS before it, or set [api] insecure_listen = yes",
                                 app->conf.listen);
        if (keys_count(app->keys) == 0)
                return error_set(err, -EPERM,
                                 "refusing to listen on %s: there is no API key yet. Make one over the Unix socket first",
                                 app->conf.listen);
        return 0;
}

static void on_unix(void *arg, struct stream *s, int fd) {
        struct app *app = arg;
        const struct conn_kind *kind = privilege_peer_trusted(fd) ? &conn_trusted : &conn_untrusted;
        (void) http_server_add(api_http(app->api, API_UNIX), s, (void *) (uintptr_t) kind);
}

static void on_tcp(void *arg, struct stream *s, int fd) {
        (void) fd;
        struct app *app = arg;
        (void) http_server_add(api_http(app->api, API_TCP), s, (void *) (uintptr_t) &conn_untrusted);
}

/* ---- parts --------------------------------------------------------------------------------- */

static int add_routes(struct app *app, struct error *err) {
        const struct {
                const struct api_route *routes;
                size_t n;
        } tables[] = {
                { host_routes, host_routes_n },         { sandbox_routes, sandbox_routes_n },
                { command_routes, command_routes_n },   { file_routes, file_routes_n },
                { checkpoint_routes, checkpoint_routes_n },
                { fork_routes, fork_routes_n },
                { publish_routes, publish_routes_n },
                { template_routes, template_routes_n }, { op_routes, op_routes_n },
                { key_routes, key_routes_n },           { policy_routes, policy_routes_n },
                { audit_routes, audit_routes_n },       { credential_routes, credential_routes_n },
                { history_routes, history_routes_n },
        };
        int r = 0;
        for (size_t i = 0; i < ARRAY_SIZE(tables) && r >= 0; i++)
                r = api_add_routes(app->api, tables[i].routes, tables[i].n, err);
        return r;
}

static int load(struct app *app, struct error *err) {
        char path[CONF_STR_MAX + 32];
        int r = conf_data_path(&app->conf, "state.db", path, sizeof path);
        if (r < 0)
                return error_errno(err, r, "the data folder's path is too long");
        r = db_open(app->loop, path, &app->db, err);
        if (r >= 0)
                r = keys_load(app, &app->keys, err);
        if (r >= 0)
                r = ops_load(app, &app->ops, err);
        if (r >= 0)
                r = idems_load(app, &app->idems, err);
        if (r >= 0)
                r = templates_load(app, &app->templates, err);
        if (r >= 0)
                r = variants_load(app, &app->variants, err);
        if (r >= 0)
                r = policies_load(app, &app->policies, err);
        if (r >= 0)
                r = credentials_load(app, &app->credentials, err);
        if (r >= 0)
                r = sandboxes_load(app, &app->sandboxes, err);
        if (r >= 0)
                r = egress_load(app, err);
        if (r >= 0)
                r = audit_store_new(app, &app->audit, err);
        if (r >= 0)
                r = checkpoints_load(app, err);
        if (r >= 0)
                r = forks_load(app, err);
        if (r >= 0)
                r = db_start(app->db, err);
        return r;
}

static int make_parts(struct app *app, struct error *err) {
        int r = load(app, err);
        if (r >= 0)
                r = check_exposure(app, err);
        if (r >= 0)
                r = proxy_new(app->loop, app->conf.run, &app->proxy, err);
        if (r >= 0)
                r = removals_new(app, &app->removals, err);
        if (r >= 0)
                r = expiry_new(app, &app->expiry, err);
        if (r >= 0)
                r = warm_new(app, &app->warm, err);
        if (r >= 0)
                r = settle_new(app, &app->settle, err);
        if (r >= 0)
                r = api_new(app, &app->api, err);
        if (r >= 0)
                r = add_routes(app, err);
        if (r >= 0)
                r = e2b_init(app, err);
        if (r >= 0)
                r = rootd_new(app, &app->rootd, err);
        return r;
}

/*
 * First everything ends what it does: calls that wait get their answer (-ECANCELED) while what they belong to is still
 * there. Then the audit log and the database give theirs, to whatever asked before; so what an answer may look into
 * (tables that are empty by now, a rootd that is not reachable) is freed only after that.
 */
static void free_parts(struct app *app) {
        app->stopping = true;
        attach_drop_all(app);
        credentials_stop(app);
        api_free(app->api);
        e2b_free(app);
        settle_free(app->settle);
        app->settle = NULL;
        rootd_stop(app->rootd);
        warm_free(app->warm);
        app->warm = NULL;
        expiry_free(app->expiry);
        audit_store_free(app->audit);
        app->audit = NULL;
        deletes_abandon(app);
        sandboxes_abandon(app);
        template_builds_abandon(app);
        variants_abandon(app);
        db_close(app->db);
        forks_free(app);
        variants_free(app->variants);
        removals_free(app->removals);
        proxy_free(app->proxy);
        templates_free(app->templates);
        app->templates = NULL;
        sandboxes_free(app->sandboxes);
        rootd_free(app->rootd);
        ops_free(app, app->ops);
        idems_free(app->idems);
        policies_free(app->policies);
        credentials_free(app->credentials);
        keys_free(app->keys);
}

/* ---- run ----------------------------------------------------------------------------------- */

/* sd_notify(3): a datagram to the service manager, if there is one. */
static void tell_manager(const char *state) {
        const char *path = getenv("NOTIFY_SOCKET");
        struct sockaddr_un sa = { .sun_family = AF_UNIX };
        if (!path || (path[0] != '/' && path[0] != '@') || str_copy(sa.sun_path, sizeof sa.sun_path, path) < 0)
                return;
        socklen_t n = (socklen_t) (offsetof(struct sockaddr_un, sun_path) + strlen(path));
        if (path[0] == '@')
                sa.sun_path[0] = 0;
        _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd >= 0)
                (void) sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *) &sa, n);
}

static void on_signal(uv_signal_t *s, int signum) {
        struct daemon *d = s->data;
        log_info("stopping on signal %d; sandboxes go on", signum);
        tell_manager("STOPPING=1");
        d->app.stopping = true;
        uv_stop(d->app.loop);
}

static int watch_signals(struct daemon *d) {
        int r = uv_signal_init(d->app.loop, &d->term);
        if (r >= 0)
                r = uv_signal_init(d->app.loop, &d->interrupt);
        if (r < 0)
                return r;
        d->signals = true;
        d->term.data = d->interrupt.data = d;
        r = uv_signal_start(&d->term, on_signal, SIGTERM);
        return r < 0 ? r : uv_signal_start(&d->interrupt, on_signal, SIGINT);
}

static int start(struct daemon *d, struct error *err) {
        struct app *app = &d->app;
        int r = make_parts(app, err);
        if (r < 0)
                return r;
        reconcile_rows(app);
        expiry_changed(app);
        r = listener_new(app->loop, fd_steal(&d->unix_fd), on_unix, app, &d->unix_listener, err);
        if (r >= 0)
                r = listener_new(app->loop, fd_steal(&d->tcp_fd), on_tcp, app, &d->tcp_listener, err);
        if (r >= 0 && watch_signals(d) < 0)
                r = error_set(err, -EIO, "could not watch signals");
        return r;
}

static void close_signal(uv_signal_t *s) {
        uv_close((uv_handle_t *) s, NULL);
}

static void drain_loop(uv_loop_t *loop) {
        /* What was closed ends in turns of the loop; streams may linger until their queue is out. */
        uint64_t until = clock_mono_ms() + 2000;
        while (uv_run(loop, UV_RUN_NOWAIT) != 0 && clock_mono_ms() < until)
                (void) usleep(1000);
        if (uv_loop_close(loop) == UV_EBUSY)
                log_debug("something was still open at the end");
}

static void stop(struct daemon *d) {
        listener_free(d->unix_listener);
        listener_free(d->tcp_listener);
        free_parts(&d->app);
        if (d->signals) {
                close_signal(&d->term);
                close_signal(&d->interrupt);
        }
        (void) fd_close(d->unix_fd);
        (void) fd_close(d->tcp_fd);
        drain_loop(d->app.loop);
}

static int become_user(const struct options *o, struct identity *id, bool *ret_change, struct error *err) {
        *ret_change = false;
        if (geteuid() != 0)
                return 0;
        int r = privilege_lookup(o->user, id, err);
        if (r >= 0) {
                *ret_change = true;
                return 0;
        }
        return o->allow_root ? 0 : r;
}

/* Before anything is confined: the C library looks into /sys and /proc for it. */
static void look_at_host(struct app *app) {
        long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE), cpus = sysconf(_SC_NPROCESSORS_ONLN);
        app->host_memory_mb = pages > 0 && page > 0 ? (uint64_t) pages * (uint64_t) page >> 20 : 0;
        app->host_cpus = cpus > 0 ? (uint32_t) cpus : 0;
}

static int run(struct daemon *d, struct error *err) {
        struct identity id;
        bool change;
        struct rlimit files;
        int r = read_config(&d->app, &d->o, err);
        look_at_host(&d->app);
        if (r >= 0)
                r = d->o.allow_root ? 0 : become_user(&d->o, &id, &change, err);
        if (d->o.allow_root)
                change = false;
        if (r >= 0)
                r = make_sockets(d, change ? &id : NULL, err);
        if (r >= 0 && change)
                r = privilege_drop(&id, err);
        if (r < 0)
                return r;
        privilege_harden();
        if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
                files.rlim_cur = files.rlim_max;
                (void) setrlimit(RLIMIT_NOFILE, &files);
        }
        r = privilege_filter(err);
        if (r >= 0)
                r = start(d, err);
        if (r < 0)
                return r;
        log_info("cspaced %s listens on %s, data in \"%s\"", CSPACE_VERSION, d->app.conf.listen, d->app.conf.data);
        tell_manager("READY=1");
        (void) uv_run(d->app.loop, UV_RUN_DEFAULT);
        return 0;
}

static int print_routes(struct app *app) {
        struct error e = ERROR_INIT;
        int r = api_new(app, &app->api, &e);
        if (r >= 0)
                r = add_routes(app, &e);
        if (r >= 0)
                r = e2b_init(app, &e);
        if (r < 0)
                fprintf(stderr, PROGRAM ": %s\n", e.msg);
        else
                api_print_routes(app->api);
        e2b_free(app);
        api_free(app->api);
        drain_loop(app->loop);
        return r >= 0 && fflush(stdout) == 0 ? 0 : 1;
}

int main(int argc, char **argv) {
        struct daemon d = { .unix_fd = -EBADF, .tcp_fd = -EBADF };
        struct error e = ERROR_INIT;
        uv_loop_t loop;
        int r = read_options(argc, argv, &d.o);
        if (r != 0)
                return r < 0 ? 2 : 0;
        log_setup(PROGRAM, LOG_LVL_INFO);
        fault_setup("cspaced");
        (void) signal(SIGPIPE, SIG_IGN);
        if (uv_loop_init(&loop) < 0) {
                log_error("could not start the loop");
                return 1;
        }
        d.app.loop = &loop;
        d.app.started_ms = clock_real_ms();
        if (d.o.routes)
                return print_routes(&d.app);
        r = run(&d, &e);
        if (r < 0)
                log_error("%s", e.msg);
        stop(&d);
        return r < 0 ? 1 : 0;
}
