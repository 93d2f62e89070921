/* SPDX-License-Identifier: Apache-2.0 */
#include "identity.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/limits.h"
#include "base/str.h"
#include "trust.h"

#define ENTROPY_BYTES 64
#define MARKER_DIR "/run/e2b"
#define BOOT_ID_FILE IDENTITY_DIR "/boot_id" /* bound over the kernel's (boot.c) */

int identity_init(struct identity *id, bool owns_machine, struct error *err) {
        *id = (struct identity){ .owns_machine = owns_machine };
        id->env = json_object();
        if (!id->env)
                return error_set(err, -ENOMEM, "out of memory");
        (void) str_copy(id->default_user, sizeof id->default_user, "user");
        return 0;
}

static void wipe_token(struct identity *id) {
        if (id->token)
                explicit_bzero(id->token, strlen(id->token));
        free(id->token);
        id->token = NULL;
}

void identity_done(struct identity *id) {
        wipe_token(id);
        json_decref(id->env);
        free(id->default_workdir);
        free(id->hosts);
        id->env = NULL;
        id->default_workdir = id->hosts = NULL;
}

void identity_forget(struct identity *id) {
        wipe_token(id);
        json_object_clear(id->env);
        free(id->default_workdir);
        id->default_workdir = NULL;
        id->sandbox_id[0] = '\0';
        if (id->owns_machine)
                (void) trust_set("", NULL);
        id->has_ca = false;
        (void) str_copy(id->default_user, sizeof id->default_user, "user");
        id->ready = false;
}

/* --- the machine ---------------------------------------------------------------------------- */

static void warn(struct identity *id, const char *what) {
        if (!id->warning.code)
                (void) error_errno(&id->warning, errno, "%s", what);
}

static void set_clock(struct identity *id, int64_t ns) {
        struct timespec ts = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };
        if (clock_settime(CLOCK_REALTIME, &ts) < 0)
                warn(id, "cannot set the clock");
}

/* Clones of one memory image have the same generator: mix in the host's bytes, count them, and
 * make the kernel key its per-CPU generators anew now rather than within a minute. */
static void add_entropy(struct identity *id, const uint8_t bytes[ENTROPY_BYTES]) {
        struct { /* struct rand_pool_info */
                int entropy_count, buf_size;
                uint8_t buf[ENTROPY_BYTES];
        } pool = { .entropy_count = 8 * ENTROPY_BYTES, .buf_size = ENTROPY_BYTES };
        memcpy(pool.buf, bytes, ENTROPY_BYTES);
        _cleanup_fd_ int fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);
        if (fd < 0 || ioctl(fd, RNDADDENTROPY, &pool) < 0)
                warn(id, "cannot add entropy");
        else if (ioctl(fd, RNDRESEEDCRNG) < 0)
                warn(id, "cannot reseed the random generator");
        explicit_bzero(&pool, sizeof pool);
}

/* In place rather than with O_TRUNC: ext4 would give the blocks back, take new ones and write them out
 * at the close. Nobody is waited for, who might read from a fifo that somebody has put there. */
static void put_file(struct identity *id, const char *path, const char *text) {
        _cleanup_fd_ int fd = open(path, O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW, 0644);
        struct stat st;
        size_t n = strlen(text);
        if (fd < 0 || write(fd, text, n) != (ssize_t) n || fstat(fd, &st) < 0 ||
            (st.st_size != (off_t) n && ftruncate(fd, (off_t) n) < 0))
                warn(id, path);
}

/* Whether /etc/NAME is a link to its file in memory (boot.c), and nobody has replaced that. */
static bool is_linked(const char *etc, const char *run) {
        char to[64];
        ssize_t n = readlink(etc, to, sizeof to);
        return n > 0 && (size_t) n == strlen(run) && memcmp(to, run, (size_t) n) == 0;
}

/* /etc/NAME, or the file in memory that it is a link to. */
static void put_etc(struct identity *id, const char *name, const char *text) {
        char etc[64], run[64];
        (void) snprintf(etc, sizeof etc, "/etc/%s", name);
        (void) snprintf(run, sizeof run, IDENTITY_DIR "/%s", name);
        put_file(id, is_linked(etc, run) ? run : etc, text);
}

void identity_settle(struct identity *id) {
        static const char etc[] = "/etc/hosts", run[] = IDENTITY_DIR "/hosts", anew[] = "/etc/.hosts.cspace";
        _cleanup_free_ char *text = NULL;
        size_t n = 0;
        if (!id->owns_machine || !id->hosts || !is_linked(etc, run) || fd_read_regular_at(AT_FDCWD, run, IDENTITY_FILE_MAX, &text, &n, NULL) < 0 ||
            str_eq(text, id->hosts))
                return;
        (void) unlink(anew);
        _cleanup_fd_ int fd = open(anew, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (fd < 0 || fchmod(fd, 0644) < 0 || fd_write_all(fd, text, n, NULL) < 0 || rename(anew, etc) < 0) {
                warn(id, etc);
                (void) unlink(anew);
        }
}

/* The line of the host name, and all others as they are. */
static void put_hosts(struct identity *id, const char *hostname) {
        _cleanup_free_ char *old = NULL;
        _cleanup_buf_ struct buf text = BUF_INIT(2 * IDENTITY_FILE_MAX);
        identity_settle(id);
        if (fd_read_regular_at(AT_FDCWD, "/etc/hosts", IDENTITY_FILE_MAX, &old, NULL, NULL) < 0)
                old = strdup("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n");
        for (const char *line = old; line && *line;) {
                size_t n = strcspn(line, "\n");
                if (strncmp(line, "127.0.1.1", 9) != 0)
                        (void) buf_printf(&text, "%.*s\n", (int) n, line);
                line += n + (line[n] == '\n');
        }
        (void) buf_printf(&text, "127.0.1.1\t%s\n", hostname);
        const char *all = buf_str(&text);
        if (all && !str_eq(all, old))
                put_etc(id, "hosts", all);
        free(id->hosts);
        id->hosts = all ? strdup(all) : NULL;
}

static void set_hostname(struct identity *id, const char *hostname) {
        if (sethostname(hostname, strlen(hostname)) < 0)
                warn(id, "cannot set the host name");
        char line[IDENTITY_HOSTNAME_MAX + 2];
        (void) snprintf(line, sizeof line, "%s\n", hostname);
        put_etc(id, "hostname", line);
        put_hosts(id, hostname);
}

static void set_ca(struct identity *id, const char *pem) {
        struct error e = ERROR_INIT;
        id->has_ca = *pem != '\0';
        if (trust_set(pem, &e) < 0 && !id->warning.code)
                id->warning = e;
}

static void put_markers(struct identity *id, const char *template_id) {
        if (mkdir(MARKER_DIR, 0755) < 0 && errno != EEXIST) {
                warn(id, MARKER_DIR);
                return;
        }
        put_file(id, MARKER_DIR "/.E2B_SANDBOX", "true");
        put_file(id, MARKER_DIR "/.E2B_SANDBOX_ID", id->sandbox_id);
        put_file(id, MARKER_DIR "/.E2B_TEMPLATE_ID", template_id);
}

/* What a machine makes once in its life or at its boot, and a clone must not share. */
static void make_unique(struct identity *id) {
        uint8_t raw[32];
        char hex[65], line[80];
        if (random_bytes(raw, sizeof raw) < 0)
                return;
        raw[6] = (uint8_t) ((raw[6] & 0x0f) | 0x40); /* RFC 4122, version 4 */
        raw[8] = (uint8_t) ((raw[8] & 0x3f) | 0x80);
        str_hex(raw, sizeof raw, hex);
        (void) snprintf(id->boot_id, sizeof id->boot_id, "%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12,
                        hex + 16, hex + 20);
        if (!id->owns_machine)
                return;
        (void) snprintf(line, sizeof line, "%s\n", id->boot_id);
        put_file(id, BOOT_ID_FILE, line);
        (void) snprintf(line, sizeof line, "%.32s\n", hex + 32);
        put_etc(id, "machine-id", line);
}

/* --- the request ---------------------------------------------------------------------------- */

struct request {
        const char *sandbox_id, *template_id, *hostname, *token, *time_ns, *entropy, *user, *workdir, *ca;
        json_t *env;
        int64_t ns;
        uint8_t entropy_raw[ENTROPY_BYTES * 2];
};

static int read_text(const json_t *req, const char *key, size_t max, const char **ret, struct error *err) {
        return json_read_str(req, key, false, max, ret, err);
}

static int parse(const json_t *req, struct request *q, struct error *err) {
        *q = (struct request){ .sandbox_id = "", .template_id = "" };
        int r = read_text(req, "sandboxId", IDENTITY_ID_MAX, &q->sandbox_id, err);
        if (r == 0)
                r = read_text(req, "templateId", IDENTITY_ID_MAX, &q->template_id, err);
        if (r == 0)
                r = read_text(req, "hostname", IDENTITY_HOSTNAME_MAX, &q->hostname, err);
        if (r == 0)
                r = read_text(req, "accessToken", IDENTITY_TOKEN_MAX, &q->token, err);
        if (r == 0)
                r = read_text(req, "timeNs", 24, &q->time_ns, err);
        if (r == 0)
                r = read_text(req, "entropy", 128, &q->entropy, err);
        if (r == 0)
                r = read_text(req, "defaultUser", USER_NAME_MAX - 1, &q->user, err);
        if (r == 0)
                r = read_text(req, "defaultWorkdir", LIMIT_PATH - 1, &q->workdir, err);
        if (r == 0)
                r = read_text(req, "caCertificate", TRUST_PEM_MAX, &q->ca, err);
        if (r == 0)
                r = json_read_str_map(req, "env", LIMIT_ENV_ITEMS, 4096, LIMIT_ENV_VALUE, &q->env, err);
        if (r < 0)
                return r;
        uint64_t ns = 0;
        if (q->time_ns && str_to_u64(q->time_ns, INT64_MAX, &ns) < 0)
                return error_set(err, -EINVAL, "\"timeNs\" must be a decimal number of nanoseconds in a string");
        q->ns = (int64_t) ns;
        if (q->entropy &&
            base64_decode(q->entropy, strlen(q->entropy), q->entropy_raw) != (ssize_t) ENTROPY_BYTES)
                return error_set(err, -EINVAL, "\"entropy\" must be %d bytes in base64", ENTROPY_BYTES);
        return 0;
}

static json_t *make_env(const struct request *q) {
        _cleanup_json_ json_t *env = json_object();
        if (!env || (q->env && json_object_update(env, q->env) < 0))
                return NULL;
        if (json_object_set_new(env, "E2B_SANDBOX", json_string("true")) < 0 ||
            json_object_set_new(env, "E2B_SANDBOX_ID", json_string(q->sandbox_id)) < 0 ||
            json_object_set_new(env, "E2B_TEMPLATE_ID", json_string(q->template_id)) < 0)
                return NULL;
        return STEAL(env);
}

static void resync(struct identity *id, struct request *q) {
        if (id->owns_machine && q->ns > 0)
                set_clock(id, q->ns);
        if (id->owns_machine && q->entropy)
                add_entropy(id, q->entropy_raw);
        explicit_bzero(q->entropy_raw, sizeof q->entropy_raw);
}

int identity_resync(struct identity *id, const json_t *req, struct error *err) {
        struct request q;
        int r = parse(req, &q, err);
        if (r == 0)
                resync(id, &q);
        return r;
}

int identity_apply(struct identity *id, const json_t *req, struct error *err) {
        struct request q;
        int r = parse(req, &q, err);
        if (r < 0)
                return r;
        _cleanup_json_ json_t *env = make_env(&q);
        _cleanup_free_ char *token = q.token && *q.token ? strdup(q.token) : NULL;
        _cleanup_free_ char *workdir = q.workdir && *q.workdir ? strdup(q.workdir) : NULL;
        if (!env || (q.token && *q.token && !token) || (q.workdir && *q.workdir && !workdir))
                return error_set(err, -ENOMEM, "out of memory");

        id->warning = ERROR_INIT;
        resync(id, &q);
        /* Another sandbox than before, or the first one after boot or restore. */
        bool fresh = !id->ready || !str_eq(id->sandbox_id, q.sandbox_id);
        (void) str_copy(id->sandbox_id, sizeof id->sandbox_id, q.sandbox_id);
        wipe_token(id);
        id->token = STEAL(token);
        json_decref(id->env);
        id->env = STEAL(env);
        free(id->default_workdir);
        id->default_workdir = STEAL(workdir);
        (void) str_copy(id->default_user, sizeof id->default_user, q.user && *q.user ? q.user : "user");
        if (fresh)
                make_unique(id);
        /* What was suspended goes on with the host name and files that it has. */
        if (id->owns_machine && fresh) {
                if (q.hostname && *q.hostname)
                        set_hostname(id, q.hostname);
                put_markers(id, q.template_id);
                set_ca(id, q.ca ? q.ca : "");
        }
        id->ready = true;
        return 0;
}

/* --- questions ------------------------------------------------------------------------------ */

bool identity_token_ok(const struct identity *id, const char *token) {
        if (!id->token)
                return true;
        size_t n = strlen(id->token);
        return token && strlen(token) == n && mem_eq_ct(token, id->token, n);
}

int identity_user(const struct identity *id, const char *name, struct user *ret, struct error *err) {
        if (name && *name)
                return user_lookup(name, ret, err);
        if (user_lookup(id->default_user, ret, NULL) == 0)
                return 0;
        return user_lookup("root", ret, err);
}
