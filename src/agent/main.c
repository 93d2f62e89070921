/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cspace-agent: the part of cspace inside the sandbox. As PID 1 it boots the machine, reaps, and
 * serves; with --listen it is an ordinary service without the duties of PID 1.
 *
 * One thread runs everything but file work that may take long, which goes to libuv's thread pool
 * (work.h). Nothing happens in an idle sandbox: no timer is armed unless something waits for it.
 */
#include <errno.h>
#include <getopt.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent.h"
#include "api.h"
#include "base/log.h"
#include "base/str.h"
#include "boot.h"
#include "control.h"
#include "gate.h"
#include "guest.h"
#include "procs.h"
#include "rpc_watch.h"
#include "session.h"
#include "trim.h"
#include "watch.h"

#define API_CONNECTIONS_MAX 2048
#define CONTROL_CONNECTIONS_MAX 16
#define IDLE_MS 300000
#define HEAD_MS 60000
#define BODY_MS 600000
#define CLOSE_TURNS 100
#define THREADS "6"

struct options {
        const char *listen, *control_socket, *port, *token, *cgroup, *user;
        bool own_machine, wait_init, trust_listen, link;
        enum log_level level;
};

static void usage(FILE *f) {
        (void) fputs("Usage: cspace-agent [OPTION]...\n"
                     "The cspace agent. It is PID 1 of a sandbox; otherwise a service with these options:\n\n"
                     "  --listen ADDR:PORT     serve the API there (default 127.0.0.1:49983)\n"
                     "  --link                 serve the host on the virtio port named cspace\n"
                     "  --port PATH            as --link, on this device or Unix socket\n"
                     "  --own-machine          set clock, entropy, host name and files as init asks\n"
                     "  --wait-init            hold requests back until POST /control/init\n"
                     "  --token TOKEN          access token until init gives one\n"
                     "  --user NAME            default user (default user)\n"
                     "  --cgroup DIR           cgroup2 folder for the commands' cgroups\n"
                     "  --control-socket PATH  serve the control service on a Unix socket (tests)\n"
                     "  --trust-listen         treat connections to --listen as the host's (tests)\n"
                     "  --log-level LEVEL      error, warn, info or debug\n"
                     "  --version, --help\n",
                     f);
}

/* 0: go on; else exit status + 1. */
static int parse_options(int argc, char **argv, struct options *o) {
        enum { LISTEN = 256, LINK, PORT, OWN, WAIT, TOKEN, USER, CGROUP, CONTROL, TRUST, LEVEL, VERSION, HELP };
        static const struct option longs[] = {
                { "listen", required_argument, NULL, LISTEN }, { "link", no_argument, NULL, LINK },
                { "port", required_argument, NULL, PORT },     { "own-machine", no_argument, NULL, OWN },
                { "wait-init", no_argument, NULL, WAIT },      { "token", required_argument, NULL, TOKEN },
                { "user", required_argument, NULL, USER },     { "cgroup", required_argument, NULL, CGROUP },
                { "control-socket", required_argument, NULL, CONTROL },
                { "trust-listen", no_argument, NULL, TRUST },  { "log-level", required_argument, NULL, LEVEL },
                { "version", no_argument, NULL, VERSION },     { "help", no_argument, NULL, HELP },
                { NULL, 0, NULL, 0 },
        };
        for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) >= 0;) {
                switch (c) {
                case LISTEN: o->listen = optarg; break;
                case LINK: o->link = true; break;
                case PORT: o->port = optarg; o->link = true; break;
                case OWN: o->own_machine = true; break;
                case WAIT: o->wait_init = true; break;
                case TOKEN: o->token = optarg; break;
                case USER: o->user = optarg; break;
                case CGROUP: o->cgroup = optarg; break;
                case CONTROL: o->control_socket = optarg; break;
                case TRUST: o->trust_listen = true; break;
                case LEVEL:
                        if (log_level_parse(optarg, &o->level) < 0) {
                                (void) fprintf(stderr, "cspace-agent: unknown log level '%s'\n", optarg);
                                return 3;
                        }
                        break;
                case VERSION: (void) puts("cspace-agent " CSPACE_VERSION); return 1;
                case HELP: usage(stdout); return 1;
                default: usage(stderr); return 3;
                }
        }
        if (optind < argc) {
                (void) fprintf(stderr, "cspace-agent: unexpected argument '%s'\n", argv[optind]);
                return 3;
        }
        return 0;
}

/* --- listeners ------------------------------------------------------------------------------ */

static void api_accept(void *arg, struct stream *s, int fd) {
        struct agent *a = arg;
        (void) fd;
        (void) http_server_add(a->api, s, TAG_TCP);
}

static void control_accept(void *arg, struct stream *s, int fd) {
        struct agent *a = arg;
        (void) fd;
        (void) http_server_add(a->control, s, TAG_LINK);
}

static int listen_api(struct agent *a, const char *where, struct listener **ret, struct error *err) {
        char ip[64];
        const char *colon = strrchr(where, ':');
        uint64_t port;
        if (!colon || (size_t) (colon - where) >= sizeof ip || str_to_u64(colon + 1, UINT16_MAX, &port) < 0)
                return error_set(err, -EINVAL, "'%s' is not ADDRESS:PORT", where);
        memcpy(ip, where, (size_t) (colon - where));
        ip[colon - where] = '\0';
        int fd;
        int r = listen_tcp(ip, (uint16_t) port, &fd, err);
        return r < 0 ? r : listener_new(a->loop, fd, api_accept, a, ret, err);
}

static int listen_control(struct agent *a, const char *path, struct listener **ret, struct error *err) {
        int fd;
        int r = listen_unix(path, 0600, &fd, err);
        return r < 0 ? r : listener_new(a->loop, fd, control_accept, a, ret, err);
}

/* --- life ----------------------------------------------------------------------------------- */

struct listeners {
        struct listener *api, *control;
        uv_signal_t signals[2];
};

static int set_up(struct agent *a, const struct options *o, struct error *err) {
        struct http_server_config api = {
                .on_request = api_on_request, .arg = a, .idle_timeout_ms = IDLE_MS, .head_timeout_ms = HEAD_MS,
                .body_timeout_ms = BODY_MS, .max_connections = API_CONNECTIONS_MAX,
        };
        struct http_server_config control = {
                .on_request = control_on_request, .arg = a, .max_connections = CONTROL_CONNECTIONS_MAX,
        };
        int r = identity_init(&a->identity, a->pid1 || o->own_machine, err);
        if (r == 0)
                r = cgroups_new(o->cgroup, &a->cgroups, err);
        if (r == 0)
                r = procs_new(a->loop, &a->identity, a->cgroups, &a->procs, err);
        if (r == 0)
                r = http_server_new(a->loop, &api, &a->api, err);
        if (r == 0)
                r = http_server_new(a->loop, &control, &a->control, err);
        if (r < 0)
                return r;
        a->sessions = sessions_new(a);
        a->watchers = watchers_new(a->loop);
        a->polled = polled_watchers_new();
        a->gate = gate_new(a);
        if (!a->sessions || !a->watchers || !a->polled || !a->gate)
                return error_set(err, -ENOMEM, "out of memory");
        if (a->pid1) {
                if (trim_new(a, &a->trim) < 0)
                        return error_set(err, -ENOMEM, "out of memory");
                procs_on_reaped(a->procs, trim_later, a->trim);
        }
        a->trust_listen = o->trust_listen;
        a->identity.ready = !a->pid1 && !o->wait_init;
        if (o->token && !(a->identity.token = strdup(o->token)))
                return error_set(err, -ENOMEM, "out of memory");
        if (o->user)
                return str_copy(a->identity.default_user, sizeof a->identity.default_user, o->user);
        return 0;
}

static void on_terminate(uv_signal_t *h, int signum) {
        (void) signum;
        uv_stop(h->loop);
}

static int serve(struct agent *a, const struct options *o, struct listeners *l, struct error *err) {
        int r = 0;
        if (o->listen)
                r = listen_api(a, o->listen, &l->api, err);
        if (r == 0 && o->control_socket)
                r = listen_control(a, o->control_socket, &l->control, err);
        if (r == 0 && o->link)
                r = guest_new(a, o->port, &a->guest, err);
        if (r < 0 || a->pid1)
                return r;
        static const int sigs[] = { SIGTERM, SIGINT };
        for (size_t i = 0; i < ARRAY_SIZE(sigs); i++) {
                (void) uv_signal_init(a->loop, &l->signals[i]);
                (void) uv_signal_start(&l->signals[i], on_terminate, sigs[i]);
        }
        return 0;
}

static void tear_down(struct agent *a, struct listeners *l) {
        listener_free(l->api);
        listener_free(l->control);
        guest_free(a->guest);
        http_server_free(a->api);
        http_server_free(a->control);
        sessions_free(a->sessions);
        polled_watchers_free(a->polled);
        watchers_free(a->watchers);
        gate_free(a->gate);
        procs_free(a->procs);
        trim_free(a->trim);
        for (size_t i = 0; i < ARRAY_SIZE(l->signals); i++)
                if (l->signals[i].loop)
                        uv_close((uv_handle_t *) &l->signals[i], NULL);
        /* What still has to be closed or flushed; streams give up by themselves after a while, and
         * nothing is lost that anyone could still get. */
        for (int i = 0; i < CLOSE_TURNS && uv_loop_close(a->loop) == UV_EBUSY; i++)
                (void) uv_run(a->loop, UV_RUN_NOWAIT);
        cgroups_free(a->cgroups);
        identity_done(&a->identity);
}

/*
 * Whoever is root in the machine can send its first process a signal. The kernel drops one that has no handler there, but not
 * while the main thread has it blocked, which is at each start of a command: then a thread that does not block it makes it
 * the end of the process, and so of the machine. With a handler it is no end; execve(2) takes that away again for commands.
 */
static void shrug(int sig, siginfo_t *info, void *context) {
        (void) context;
        if (info->si_code > 0) /* the kernel's own, of a fault of ours: it comes again at once */
                (void) signal(sig, SIG_DFL);
}

static void shrug_off_signals(void) {
        const struct sigaction sa = { .sa_sigaction = shrug, .sa_flags = SA_RESTART | SA_SIGINFO };
        for (int sig = 1; sig < NSIG; sig++)
                if (sig != SIGCHLD && sig != SIGPIPE)
                        (void) sigaction(sig, &sa, NULL);
}

static int run(struct options *o, bool pid1) {
        struct error e = ERROR_INIT;
        struct agent a = { .pid1 = pid1 };
        struct listeners l = { .api = NULL };
        uv_loop_t loop;
        if (a.pid1) {
                boot_early();
                o->listen = "127.0.0.1:49983";
                o->link = true;
                o->cgroup = BOOT_CGROUP_DIR;
                if (boot_machine(&e) < 0) {
                        log_error("boot: %s", e.msg);
                        return EXIT_FAILURE;
                }
        }
        /* Large blocks go back to the kernel at once: an idle agent is small. */
        (void) mallopt(M_MMAP_THRESHOLD, 128 * 1024);
        (void) mallopt(M_TRIM_THRESHOLD, 256 * 1024);
        (void) mallopt(M_ARENA_MAX, 1);
        for (int sig = 1; sig < NSIG; sig++) /* what whoever started the agent ignored is not for commands */
                (void) signal(sig, SIG_DFL);
        if (a.pid1)
                shrug_off_signals();
        (void) signal(SIGPIPE, SIG_IGN);
        (void) umask(022);
        (void) setenv("UV_THREADPOOL_SIZE", THREADS, 0);
        if (uv_loop_init(&loop) < 0)
                return EXIT_FAILURE;
        a.loop = &loop;
        int r = set_up(&a, o, &e);
        if (r == 0)
                r = serve(&a, o, &l, &e);
        if (r < 0)
                log_error("%s", e.msg);
        else {
                log_info("ready");
                (void) uv_run(&loop, UV_RUN_DEFAULT);
        }
        if (a.pid1)
                return EXIT_FAILURE;
        tear_down(&a, &l);
        return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv) {
        struct options o = { .level = LOG_LVL_INFO, .listen = "127.0.0.1:49983" };
        bool pid1 = boot_is_machine();
        int r = pid1 ? 0 : parse_options(argc, argv, &o);
        if (r > 0)
                return r - 1;
        log_setup("cspace-agent", pid1 ? LOG_LVL_WARN : o.level);
        return run(&o, pid1);
}
