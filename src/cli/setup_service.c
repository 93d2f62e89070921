/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The two services, by systemd where it runs and knows them, else as plain daemons:
 *
 *   <run>/services/NAME.pid   "PID START": START (field 22 of /proc/PID/stat) tells the process from a
 *                             later one that got its number; the folder is root's alone
 *   <run>/services/NAME.conf  the configuration it was started with (setup_noted.c)
 *   <log>/NAME.log            through `cspace __log`, which bounds it
 *
 * Each is ready when it answers, not when it was started: cspace-rootd accepts on rootd.sock, cspaced answers
 * /health on api.sock. A restart leaves sandboxes alone.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "endpoint.h"
#include "ipc/ipc.h"
#include "ipc/messages.h"
#include "setup.h"
#include "setup_internal.h"

#define READY_LIMIT_MS 30000
#define STOP_LIMIT_MS 20000
#define STEP_MS 20
#define FILES_MAX_ 262144 /* open files: each sandbox takes some */
#define TAIL_MAX 380
#define KEYS_MAX 200 /* names of keys that were changed */
#define TAIL_READ 4096
#define LOG_LIMIT_MS 2000
#define HEALTH_LIMIT_MS 5000

const struct service services[SETUP_SERVICES] = {
        { "cspace-rootd", "cspace-rootd.service", true, "rootd.sock", SOCK_SEQPACKET },
        { "cspaced", "cspaced.service", false, "api.sock", SOCK_STREAM },
};

/* ---- answers --------------------------------------------------------------------------------- */

/* *ret_pid: the process that listens there. */
static int connect_unix(const char *path, int type, pid_t *ret_pid) {
        struct sockaddr_un a = { .sun_family = AF_UNIX };

        if (str_copy(a.sun_path, sizeof a.sun_path, path) < 0)
                return -ENAMETOOLONG;
        _cleanup_fd_ int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *) &a, sizeof a) < 0)
                return -errno;
        struct ucred peer = { 0 };
        socklen_t n = sizeof peer;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0)
                return -errno;
        *ret_pid = peer.pid;
        return fd_steal(&fd);
}

static int health_on(const char *path, pid_t *ret_pid) {
        static const char request[] = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        const struct timeval limit = { .tv_sec = HEALTH_LIMIT_MS / 1000 };
        char answer[16];
        size_t got = 0;

        _cleanup_fd_ int fd = connect_unix(path, SOCK_STREAM, ret_pid);
        if (fd < 0)
                return fd;
        (void) setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        if (send(fd, request, sizeof request - 1, MSG_NOSIGNAL) != (ssize_t) sizeof request - 1)
                return -EIO;
        while (got < sizeof answer - 1) {
                ssize_t n = recv(fd, answer + got, sizeof answer - 1 - got, 0);
                if (n <= 0)
                        break;
                got += (size_t) n;
        }
        answer[got] = '\0';
        return str_has_prefix(answer, "HTTP/1.1 20") ? 0 : -EPROTO;
}

/* A socket of a process that hangs or is about to die still takes connections: only an answer is one. No
 * version of the protocol is 0, so the answer is a refusal, and the daemon takes us for no client. */
static int rootd_answers(const char *path, pid_t *ret_pid) {
        const struct timeval limit = { .tv_sec = HEALTH_LIMIT_MS / 1000 };
        const struct ipc_hello hello = { .version = 0 };
        uint8_t body[64];
        struct ipc_packet p = { 0 };
        size_t n = 0;

        _cleanup_fd_ int fd = connect_unix(path, SOCK_SEQPACKET, ret_pid);
        if (fd < 0)
                return fd;
        _cleanup_free_ uint8_t *packet = malloc(IPC_PACKET_MAX);
        (void) setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        if (!packet || ipc_hello_encode(&hello, body, sizeof body, &n) < 0)
                return -ENOMEM;
        int r = ipc_send(fd, IPC_HELLO, 0, 1, body, n, NULL, 0, NULL);
        if (r == 0)
                r = ipc_recv(fd, packet, &p, NULL);
        if (r <= 0)
                return r < 0 ? r : -ECONNRESET;
        ipc_packet_close_fds(&p);
        return p.seq == 1 && p.flags != 0 ? 0 : -EPROTO;
}

/* 0 when the service answers; *ret_pid tells which process that was. */
static int answers(const struct setup *s, const struct service *v, pid_t *ret_pid) {
        char path[CONF_STR_MAX + 32];

        *ret_pid = 0;
        if (conf_run_path(&s->conf, v->socket, path, sizeof path) < 0)
                return -ENAMETOOLONG;
        return v->type == SOCK_STREAM ? health_on(path, ret_pid) : rootd_answers(path, ret_pid);
}

static bool answers_as(const struct setup *s, const struct service *v, pid_t pid) {
        pid_t peer;

        return answers(s, v, &peer) == 0 && (pid <= 0 || peer == pid);
}

int setup_health(const struct setup *s, struct error *err) {
        pid_t pid;
        int r = answers(s, &services[1], &pid);

        if (r == -EACCES) /* which says nothing about cspaced */
                return error_set(err, r, "%s/%s is open to root and the group " SETUP_USER " alone", s->conf.run,
                                 services[1].socket);
        return r < 0 ? error_errno(err, r, "cspaced does not answer on %s/%s", s->conf.run, services[1].socket) : 0;
}

/* ---- processes ------------------------------------------------------------------------------- */

/* Field 22 of /proc/PID/stat; the name before it may hold anything, but ends with the last ')'. */
static int start_time(pid_t pid, uint64_t *ret) {
        _cleanup_free_ char *text = NULL;
        char path[64];
        unsigned long long v;
        char state;

        (void) snprintf(path, sizeof path, "/proc/%d/stat", (int) pid);
        if (fd_read_file_at(AT_FDCWD, path, 4096, &text, NULL, NULL) < 0)
                return -ESRCH;
        const char *p = strrchr(text, ')');
        if (!p || sscanf(p + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &state, &v) != 2)
                return -ESRCH;
        if (state == 'Z' || state == 'X')
                return -ESRCH; /* ended, and nobody has looked yet */
        *ret = v;
        return 0;
}

static bool is_outdated(const struct setup *s, const struct service *v, pid_t pid) {
        char exe[64], path[CONF_STR_MAX + 64];
        struct stat now, then;

        (void) snprintf(exe, sizeof exe, "/proc/%d/exe", (int) pid);
        if (conf_libexec_path(&s->conf, v->name, path, sizeof path) < 0 || stat(exe, &then) < 0 || stat(path, &now) < 0)
                return false;
        return now.st_dev != then.st_dev || now.st_ino != then.st_ino;
}

static pid_t plain_pid(const struct setup *s, const struct service *v) {
        char name[CONF_STR_MAX + 64];
        _cleanup_free_ char *text = NULL;
        uint64_t now;
        int pid;
        unsigned long long start;

        (void) snprintf(name, sizeof name, "%s/services/%s.pid", s->conf.run, v->name);
        if (fd_read_file_at(AT_FDCWD, name, 128, &text, NULL, NULL) < 0)
                return 0;
        if (sscanf(text, "%d %llu", &pid, &start) != 2 || pid <= 1 || start_time(pid, &now) < 0 || now != start)
                return 0;
        return pid;
}

/* One that nobody noted, started by hand: it holds the socket, and its program is ours. */
static pid_t unnoted_pid(const struct setup *s, const struct service *v) {
        char link[64], exe[CONF_STR_MAX + 64], path[CONF_STR_MAX + 64];
        pid_t pid;

        if (answers(s, v, &pid) < 0 || pid <= 1 || conf_libexec_path(&s->conf, v->name, path, sizeof path) < 0)
                return 0;
        (void) snprintf(link, sizeof link, "/proc/%d/exe", (int) pid);
        ssize_t n = readlink(link, exe, sizeof exe - 1);
        exe[n > 0 ? n : 0] = '\0';
        return str_eq(exe, path) || (str_has_prefix(exe, path) && str_has_suffix(exe, " (deleted)")) ? pid : 0;
}

static pid_t unit_pid(const struct service *v) {
        const char *const argv[] = { "systemctl", "show", "--property", "MainPID", "--value", v->unit, NULL };
        char text[32];
        uint64_t pid;

        if (setup_exec_line(argv, text, sizeof text, NULL) < 0 || str_to_u64(text, INT32_MAX, &pid) < 0)
                return 0;
        return (pid_t) pid;
}

int setup_service_state(const struct setup *s, unsigned i, struct service_state *ret) {
        const struct service *v = &services[i];

        ret->name = v->name;
        ret->pid = setup_use_systemd(s) ? unit_pid(v) : plain_pid(s, v);
        if (ret->pid == 0)
                ret->pid = unnoted_pid(s, v);
        ret->outdated = ret->pid > 0 && is_outdated(s, v, ret->pid);
        return 0;
}

/* ---- systemd --------------------------------------------------------------------------------- */

bool setup_use_systemd(const struct setup *s) {
        static const char *const argv[] = { "systemctl", "cat", "cspaced.service", NULL };
        static int known = -1;

        if (s->plain || access("/run/systemd/system", F_OK) < 0)
                return false;
        if (known < 0)
                known = setup_exec(argv, NULL) == 0;
        return known == 1;
}

static int unit_do(const char *verb, const struct service *v, struct error *err) {
        const char *const argv[] = { "systemctl", "--quiet", verb, v->unit, NULL };

        return setup_exec(argv, err);
}

/* ---- plain daemons --------------------------------------------------------------------------- */

static int open_log_pipe(const struct setup *s, const struct service *v, pid_t *ret_pid, struct error *err) {
        char file[CONF_STR_MAX + 64];
        int p[2];

        (void) snprintf(file, sizeof file, "%s/%s.log", s->conf.log, v->name);
        if (pipe2(p, O_CLOEXEC) < 0)
                return error_errno(err, errno, "cannot make a pipe");
        _cleanup_fd_ int rd = p[0];
        _cleanup_fd_ int wr = p[1];
        pid_t pid = fork();
        if (pid < 0)
                return error_errno(err, errno, "cannot fork");
        if (pid == 0) {
                int null = open("/dev/null", O_RDWR | O_CLOEXEC);
                if (setsid() < 0 || null < 0 || dup2(rd, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0 || chdir("/") < 0)
                        _exit(126);
                (void) syscall(SYS_close_range, 3u, ~0u, 0u); /* a lock or a pipe of whoever called `cspace up` */
                (void) execl("/proc/self/exe", "cspace", "__log", file, (char *) NULL);
                _exit(127);
        }
        *ret_pid = pid;
        return fd_steal(&wr);
}

/* cspaced is its user from the first instruction on. */
static bool become_user(const struct setup *s) {
        return setgroups(1, &s->gid) == 0 && setresgid(s->gid, s->gid, s->gid) == 0 && setresuid(s->uid, s->uid, s->uid) == 0 &&
               prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

/* go: a byte comes once our pid is noted. None comes when the parent was killed before: then nobody would know of us. */
static _Noreturn void daemon_child(const struct setup *s, const struct service *v, int log, int go) {
        static const char *const passed[] = { "http_proxy", "https_proxy", "no_proxy", "CSPACE_LOG_FORMAT" };
        const struct rlimit files = { FILES_MAX_, FILES_MAX_ };
        char program[CONF_STR_MAX + 64], store[ARRAY_SIZE(passed)][512];
        const char *argv[8] = { program }, *env[ARRAY_SIZE(passed) + 2] = { "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" };
        size_t n = 1, e = 1;
        char byte;

        if (read(go, &byte, 1) != 1)
                _exit(126);
        int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (setsid() < 0 || null < 0 || dup2(null, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0 || chdir("/") < 0)
                _exit(126);
        (void) syscall(SYS_close_range, 3u, ~0u, 0u);
        (void) setrlimit(RLIMIT_NOFILE, &files);
        (void) umask(022);
        if (conf_libexec_path(&s->conf, v->name, program, sizeof program) < 0)
                _exit(126);
        const char *const options[][2] = { { "--config", s->config }, { "--data", s->data }, { "--run", s->run } };
        for (size_t i = 0; i < ARRAY_SIZE(options); i++) {
                if (!options[i][1])
                        continue;
                argv[n++] = options[i][0];
                argv[n++] = options[i][1];
        }
        for (size_t i = 0; i < ARRAY_SIZE(passed); i++) {
                const char *value = getenv(passed[i]);
                int len = value ? snprintf(store[i], sizeof store[i], "%s=%s", passed[i], value) : 0;
                if (len > 0 && (size_t) len < sizeof store[i])
                        env[e++] = store[i];
        }
        if (!v->root && !become_user(s))
                _exit(126);
        char **args = NULL, **envp = NULL;
        const char **args_p = argv, **env_p = env;
        memcpy(&args, &args_p, sizeof args); /* execve() honours the const that its type lacks */
        memcpy(&envp, &env_p, sizeof envp);
        (void) execve(program, args, envp);
        dprintf(2, "cannot run %s: %s\n", program, strerror(errno));
        _exit(127);
}

/* Both our children, so that their numbers stay theirs while we wait. */
struct started {
        pid_t service, log; /* 0: systemd's */
};

static int note_pid(struct setup *s, const struct service *v, pid_t pid, struct error *err) {
        char name[64], text[64];
        uint64_t start = 0;

        (void) start_time(pid, &start);
        (void) snprintf(name, sizeof name, "%s.pid", v->name);
        int n = snprintf(text, sizeof text, "%d %llu\n", (int) pid, (unsigned long long) start);
        return fd_replace_file_at(s->lock, name, text, (size_t) n, 0644, err);
}

static int plain_start(struct setup *s, const struct service *v, struct started *ret, struct error *err) {
        int p[2];

        _cleanup_fd_ int log = open_log_pipe(s, v, &ret->log, err);
        if (log < 0)
                return log;
        if (pipe2(p, O_CLOEXEC) < 0)
                return error_errno(err, errno, "cannot make a pipe");
        _cleanup_fd_ int wait = p[0];
        _cleanup_fd_ int go = p[1];
        pid_t pid = fork();
        if (pid < 0)
                return error_errno(err, errno, "cannot fork");
        if (pid == 0) {
                go = fd_close(go);
                daemon_child(s, v, log, wait);
        }
        ret->service = pid;
        int r = note_pid(s, v, pid, err);
        return r < 0 ? r : fd_write_all(go, "g", 1, err);
}

/* Ends a process that may not be our child; 0 once it is gone. */
static int end_process(pid_t pid, struct error *err) {
        _cleanup_fd_ int fd = (int) syscall(SYS_pidfd_open, pid, 0u);

        if (fd < 0)
                return errno == ESRCH ? 0 : error_errno(err, errno, "cannot watch process %d", (int) pid);
        struct pollfd p = { .fd = fd, .events = POLLIN };
        (void) syscall(SYS_pidfd_send_signal, fd, SIGTERM, NULL, 0u);
        if (poll(&p, 1, STOP_LIMIT_MS) == 1)
                return 0;
        setup_say("process %d does not end: killed", (int) pid);
        (void) syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0u);
        return poll(&p, 1, STOP_LIMIT_MS) == 1 ? 0 : error_set(err, -EBUSY, "process %d cannot be ended", (int) pid);
}

/* ---- starting and stopping ------------------------------------------------------------------- */

/* The last message of the log. */
static void log_tail(const struct setup *s, const struct service *v, char out[TAIL_MAX]) {
        char path[CONF_STR_MAX + 64], text[TAIL_READ];
        struct stat st;

        out[0] = '\0';
        (void) snprintf(path, sizeof path, "%s/%s.log", s->conf.log, v->name);
        _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0 || fstat(fd, &st) < 0)
                return;
        off_t from = st.st_size > TAIL_READ - 1 ? st.st_size - (TAIL_READ - 1) : 0;
        ssize_t n = pread(fd, text, TAIL_READ - 1, from);
        while (n > 0 && text[n - 1] == '\n')
                n--;
        text[n > 0 ? n : 0] = '\0';
        const char *nl = strrchr(text, '\n'), *line = nl ? nl + 1 : text;
        _cleanup_json_ json_t *j = json_loads(line, 0, NULL);
        const char *msg = json_string_value(json_object_get(j, "msg"));
        (void) snprintf(out, TAIL_MAX, "%.*s", TAIL_MAX - 1, msg ? msg : line);
}

/* Whether another program has the address of the API. */
static bool listen_taken(const struct setup *s) {
        char url[CONF_STR_MAX + 16];
        struct endpoint to;
        struct sockaddr_storage ss = { 0 };
        struct sockaddr_in *a4 = (struct sockaddr_in *) &ss;
        struct sockaddr_in6 *a6 = (struct sockaddr_in6 *) &ss;
        const int on = 1;

        (void) snprintf(url, sizeof url, "http://%s", s->conf.listen);
        if (endpoint_parse(url, &to, NULL) < 0)
                return false;
        if (inet_pton(AF_INET, to.host, &a4->sin_addr) == 1) {
                ss.ss_family = AF_INET;
                a4->sin_port = htons(to.port);
        } else if (inet_pton(AF_INET6, to.host, &a6->sin6_addr) == 1) {
                ss.ss_family = AF_INET6;
                a6->sin6_port = htons(to.port);
        } else {
                return false;
        }
        _cleanup_fd_ int fd = socket(ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        (void) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        return fd >= 0 && bind(fd, (const struct sockaddr *) &ss, sizeof ss) < 0 && errno == EADDRINUSE;
}

static int not_ready(const struct setup *s, const struct service *v, const char *what, struct error *err) {
        char tail[TAIL_MAX];

        if (!v->root && listen_taken(s))
                return error_set(err, -EADDRINUSE, "%s %s: another program listens on %s; set [api] listen in %s and run again", v->name,
                                 what, s->conf.listen, s->config ? s->config : CONF_FILE);
        if (setup_use_systemd(s))
                return error_set(err, -ETIMEDOUT, "%s %s; see: journalctl -u %s", v->name, what, v->unit);
        log_tail(s, v, tail);
        return error_set(err, -ETIMEDOUT, "%s %s%s%s", v->name, what, tail[0] ? "; its last word: " : "", tail);
}

/* Its last words are in the log once the log's process has ended, too. */
static int ended_at_once(const struct setup *s, const struct service *v, pid_t log, struct error *err) {
        _cleanup_fd_ int fd = log > 0 ? (int) syscall(SYS_pidfd_open, log, 0u) : -EBADF;
        struct pollfd p = { .fd = fd, .events = POLLIN };

        (void) poll(&p, 1, LOG_LIMIT_MS);
        return not_ready(s, v, "ended at once", err);
}

static int wait_ready(const struct setup *s, const struct service *v, const struct started *st, struct error *err) {
        _cleanup_fd_ int fd = st->service > 0 ? (int) syscall(SYS_pidfd_open, st->service, 0u) : -EBADF;

        for (uint64_t end = clock_mono_ms() + READY_LIMIT_MS;;) {
                struct pollfd p = { .fd = fd, .events = POLLIN };
                if (answers_as(s, v, st->service))
                        return 0;
                if (clock_mono_ms() > end)
                        return not_ready(s, v, "does not answer", err);
                if (poll(&p, 1, STEP_MS) == 1)
                        return ended_at_once(s, v, st->log, err);
        }
}

static int start_one(struct setup *s, unsigned i, struct error *err) {
        const struct service *v = &services[i];
        struct service_state state;
        struct started started = { 0 };
        bool systemd = setup_use_systemd(s);
        char keys[KEYS_MAX] = "";
        uint64_t start = 0;
        int r = 0;

        (void) setup_service_state(s, i, &state);
        bool changed = state.pid > 0 && start_time(state.pid, &start) == 0 &&
                       noted_changed(s, v->name, state.pid, start, keys, sizeof keys);
        if (state.pid > 0 && !state.outdated && !changed && answers_as(s, v, state.pid))
                return 0;
        if (systemd) {
                r = unit_do("enable", v, err);
                if (r == 0)
                        r = unit_do(state.pid > 0 ? "restart" : "start", v, err);
        } else {
                if (state.pid > 0)
                        r = end_process(state.pid, err);
                if (r == 0)
                        r = plain_start(s, v, &started, err);
        }
        if (r == 0)
                r = wait_ready(s, v, &started, err);
        if (r < 0)
                return r;
        if (changed)
                setup_say("%s restarted with the changed configuration%s%s%s", v->name, keys[0] ? " (" : "", keys, keys[0] ? ")" : "");
        else
                setup_say("%s %s", v->name, state.pid > 0 ? "restarted" : "started");
        (void) setup_service_state(s, i, &state);
        if (state.pid <= 0 || start_time(state.pid, &start) < 0)
                return 0; /* gone again: the next start notes it */
        return noted_write(s, v->name, state.pid, start, err);
}

int setup_services_start(struct setup *s, struct error *err) {
        for (unsigned i = 0; i < SETUP_SERVICES; i++) {
                int r = start_one(s, i, err);
                if (r < 0)
                        return r;
        }
        return 0;
}

int setup_services_stop(struct setup *s, struct error *err) {
        char name[64];

        for (unsigned i = SETUP_SERVICES; i-- > 0;) {
                struct service_state state;
                (void) setup_service_state(s, i, &state);
                int r = 0;
                if (setup_use_systemd(s))
                        r = unit_do("stop", &services[i], err);
                else if (state.pid > 0)
                        r = end_process(state.pid, err);
                if (r < 0)
                        return r;
                (void) snprintf(name, sizeof name, "%s.pid", services[i].name);
                (void) unlinkat(s->lock, name, 0);
                (void) snprintf(name, sizeof name, "%s.conf", services[i].name);
                (void) unlinkat(s->lock, name, 0);
                if (state.pid > 0)
                        setup_say("%s stopped", services[i].name);
        }
        return 0;
}
