/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The table below is the file format: a row per key, with its kind, its place in struct conf and its
 * limits. The reader, conf_set() and conf_print() all walk it.
 */
#include "conf/conf.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <limits.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/str.h"

#ifndef CSPACE_LIBEXEC
#define CSPACE_LIBEXEC "/usr/local/libexec/cspace"
#endif

/* A socket's path has 108 bytes; "/sandboxes/<26>/data.sock" takes 47 of them. */
#define CONF_RUN_MAX 60

#define CONF_LINE_MAX 190

enum conf_kind {
        KIND_PATH,    /* absolute; max is the longest length */
        KIND_OPT_PATH, /* the same, or empty */
        KIND_LISTEN,  /* IP:PORT */
        KIND_HOST,    /* host name or empty */
        KIND_USER,    /* name of a user of this host, or empty */
        KIND_BOOL,
        KIND_U32,
        KIND_SIZE,    /* bytes, with a unit */
        KIND_SECONDS, /* seconds, with a unit */
        KIND_ENUM,    /* one of choices */
        KIND_RANGES,  /* addresses or CIDR ranges, separated by blanks */
        KIND_WARM,    /* NAME[:TAG]=COUNT, separated by blanks */
};

struct conf_key {
        const char *section, *key;
        enum conf_kind kind;
        size_t offset;
        uint64_t min, max;
        const char *fallback;
        const char *choices; /* blank-separated */
};

#define AT(member) offsetof(struct conf, member)

static const struct conf_key conf_keys[] = {
        { "paths", "data", KIND_PATH, AT(data), 1, CONF_STR_MAX, "/var/lib/cspace", NULL },
        { "paths", "run", KIND_PATH, AT(run), 1, CONF_RUN_MAX, "/run/cspace", NULL },
        { "paths", "libexec", KIND_PATH, AT(libexec), 1, CONF_STR_MAX, CSPACE_LIBEXEC, NULL },
        { "paths", "log", KIND_PATH, AT(log), 1, CONF_STR_MAX, "/var/log/cspace", NULL },

        { "api", "listen", KIND_LISTEN, AT(listen), 1, CONF_STR_MAX, "127.0.0.1:7070", NULL },
        { "api", "domain", KIND_HOST, AT(domain), 0, 253, "", NULL },
        { "api", "insecure_listen", KIND_BOOL, AT(insecure_listen), 0, 1, "no", NULL },

        { "sandbox", "memory_mb", KIND_U32, AT(memory_mb), LIMIT_MEMORY_MIN_MB, LIMIT_MEMORY_MAX_MB, "512", NULL },
        { "sandbox", "cpus", KIND_U32, AT(cpus), 1, LIMIT_CPUS_MAX, "1", NULL },
        { "sandbox", "max_memory_mb", KIND_U32, AT(max_memory_mb), 0, LIMIT_MEMORY_MAX_MB, "0", NULL },
        { "sandbox", "max_cpus", KIND_U32, AT(max_cpus), 0, LIMIT_CPUS_MAX, "0", NULL },
        { "sandbox", "disk", KIND_SIZE, AT(disk_bytes), 0, 1ULL << 44, "0", NULL },
        { "sandbox", "ttl", KIND_SECONDS, AT(ttl_s), 0, LIMIT_TTL_MAX_S, "0", NULL },
        { "sandbox", "ttl_max", KIND_SECONDS, AT(ttl_max_s), 1, LIMIT_TTL_MAX_S, "30d", NULL },
        { "sandbox", "max", KIND_U32, AT(max_sandboxes), 1, 10000, "1000", NULL },

        { "pool", "namespaces", KIND_U32, AT(pool_namespaces), 0, 1024, "8", NULL },
        { "pool", "warm", KIND_WARM, AT(warm), 0, CONF_WARM_MAX, "", NULL },

        { "engine", "engine", KIND_ENUM, AT(engine), 0, 15, "auto", "auto kvm tcg fake" },
        { "engine", "qemu", KIND_OPT_PATH, AT(qemu), 0, CONF_STR_MAX, "", NULL },
        { "engine", "process_images", KIND_BOOL, AT(process_images), 0, 1, "yes", NULL },

        { "egress", "trust_store", KIND_PATH, AT(trust_store), 1, CONF_STR_MAX, "/etc/ssl/certs/ca-certificates.crt", NULL },
        { "egress", "resolv_conf", KIND_PATH, AT(resolv_conf), 1, CONF_STR_MAX, "/etc/resolv.conf", NULL },
        { "egress", "open", KIND_RANGES, AT(open_ranges), 0, CONF_STR_MAX, "", NULL },
        { "credentials", "commands", KIND_PATH, AT(token_commands), 1, CONF_STR_MAX, "/etc/cspace/credentials.d", NULL },
        { "credentials", "user", KIND_USER, AT(token_user), 0, 31, "", NULL },
        { "credentials", "open", KIND_RANGES, AT(token_open), 0, CONF_STR_MAX, "", NULL },
        { "credentials", "timeout", KIND_SECONDS, AT(token_timeout_s), 1, 300, "30s", NULL },

        { "audit", "sandbox", KIND_SIZE, AT(audit_sandbox_bytes), 64ULL << 10, 1ULL << 40, "64M", NULL },
        { "audit", "total", KIND_SIZE, AT(audit_total_bytes), 1ULL << 20, 1ULL << 44, "4G", NULL },
        { "audit", "keep", KIND_SECONDS, AT(audit_keep_s), 0, 10ULL * 365 * 86400, "7d", NULL },
        { "audit", "packets", KIND_SECONDS, AT(audit_packets_s), 1, 86400, "60s", NULL },

        { "build", "timeout", KIND_SECONDS, AT(build_timeout_s), 10, 86400, "30m", NULL },
        { "build", "disk", KIND_SIZE, AT(build_disk_bytes), 64ULL << 20, 1ULL << 44, "8G", NULL },
        { "build", "parallel", KIND_U32, AT(builds), 1, 64, "2", NULL },
        { "build", "sources", KIND_OPT_PATH, AT(sources), 0, CONF_STR_MAX, "", NULL },

        { "storage", "image", KIND_OPT_PATH, AT(image), 0, CONF_STR_MAX, "", NULL },
        { "storage", "image_size", KIND_SIZE, AT(image_bytes), 0, 1ULL << 46, "0", NULL },

        { "log", "level", KIND_ENUM, AT(log_level), 0, 15, "info", "error warn info debug" },
};

static void *conf_at(struct conf *c, const struct conf_key *k) {
        return (char *) c + k->offset;
}
static const void *conf_at_const(const struct conf *c, const struct conf_key *k) {
        return (const char *) c + k->offset;
}

static int set_path(const struct conf_key *k, char *dst, const char *v, struct error *err) {
        size_t n = strlen(v);

        if (n == 0 && k->kind == KIND_OPT_PATH) {
                dst[0] = '\0';
                return 0;
        }
        if (v[0] != '/')
                return error_set(err, -EINVAL, "\"%s\" is not an absolute path", v);
        while (n > 1 && v[n - 1] == '/')
                n--;
        if (n > k->max)
                return error_set(err, -ENAMETOOLONG, "path \"%s\" is longer than %llu bytes", v,
                                 (unsigned long long) k->max);
        if (strstr(v, "/../") || str_has_suffix(v, "/.."))
                return error_set(err, -EINVAL, "path \"%s\" has a \"..\" in it", v);
        memmove(dst, v, n);
        dst[n] = '\0';
        return 0;
}

static int set_listen(char *dst, const char *v, struct error *err) {
        const char *colon = strrchr(v, ':');
        char host[64];
        uint8_t addr[16];
        uint64_t port;
        bool six = v[0] == '[';

        if (!colon || colon == v || str_to_u64(colon + 1, 65535, &port) < 0 || port == 0)
                return error_set(err, -EINVAL, "\"%s\" is not ADDRESS:PORT", v);
        size_t n = (size_t) (colon - v);
        if (six && (n < 3 || colon[-1] != ']'))
                return error_set(err, -EINVAL, "\"%s\" is not [ADDRESS]:PORT", v);
        if (six)
                n -= 2;
        if (n >= sizeof host || strlen(v) > CONF_STR_MAX)
                return error_set(err, -EINVAL, "\"%s\" is not ADDRESS:PORT", v);
        memcpy(host, six ? v + 1 : v, n);
        host[n] = '\0';
        if (inet_pton(six ? AF_INET6 : AF_INET, host, addr) != 1)
                return error_set(err, -EINVAL, "\"%s\" is not an IP address (an IPv6 address stands in [])", host);
        return str_copy(dst, CONF_STR_MAX + 1, v);
}

static int set_host(const struct conf_key *k, char *dst, const char *v, struct error *err) {
        size_t n = strlen(v);

        if (n > k->max)
                return error_set(err, -EINVAL, "host name \"%s\" is too long", v);
        if (strspn(v, "abcdefghijklmnopqrstuvwxyz0123456789-.") != n || v[0] == '.' || v[0] == '-')
                return error_set(err, -EINVAL, "\"%s\" is not a host name in lower case", v);
        return str_copy(dst, CONF_STR_MAX + 1, v);
}

static int set_user(const struct conf_key *k, char *dst, const char *v, struct error *err) {
        size_t n = strlen(v);

        if (n > k->max || strspn(v, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") != n || v[0] == '-' || v[0] == '.')
                return error_set(err, -EINVAL, "\"%s\" is not the name of a user", v);
        return str_copy(dst, k->max + 1, v);
}

static int set_ranges(char *dst, const char *v, struct error *err) {
        char copy[CONF_STR_MAX + 1], *save = NULL;
        if (str_copy(copy, sizeof copy, v) < 0)
                return error_set(err, -ENAMETOOLONG, "the list of ranges is longer than %d bytes", CONF_STR_MAX);
        for (char *word = strtok_r(copy, " \t", &save); word; word = strtok_r(NULL, " \t", &save)) {
                uint8_t raw[16];
                uint64_t bits = 0;
                char *slash = strchr(word, '/');
                if (slash)
                        *slash = '\0';
                int family = strchr(word, ':') ? AF_INET6 : AF_INET;
                if (inet_pton(family, word, raw) != 1 ||
                    (slash && (str_to_u64(slash + 1, family == AF_INET ? 32 : 128, &bits) < 0 || bits < 8)))
                        return error_set(err, -EINVAL, "\"%s%s%s\" is no range of addresses (like 10.1.0.0/16; at least /8)", word,
                                         slash ? "/" : "", slash ? slash + 1 : "");
        }
        return str_copy(dst, CONF_STR_MAX + 1, v);
}

static int set_bool(bool *dst, const char *v, struct error *err) {
        static const char *const yes[] = { "yes", "true", "on", "1" }, *const no[] = { "no", "false", "off", "0" };

        for (size_t i = 0; i < ARRAY_SIZE(yes); i++) {
                if (str_eq(v, yes[i])) {
                        *dst = true;
                        return 0;
                }
                if (str_eq(v, no[i])) {
                        *dst = false;
                        return 0;
                }
        }
        return error_set(err, -EINVAL, "\"%s\" is neither yes nor no", v);
}

static int in_range(const struct conf_key *k, uint64_t v, const char *text, struct error *err) {
        if (v < k->min || v > k->max)
                return error_set(err, -ERANGE, "\"%s\" is outside %llu to %llu", text,
                                 (unsigned long long) k->min, (unsigned long long) k->max);
        return 0;
}

static int set_number(const struct conf_key *k, void *dst, const char *v, struct error *err) {
        uint64_t n = 0;
        int r = k->kind == KIND_SIZE      ? str_to_size(v, &n)
                : k->kind == KIND_SECONDS ? str_to_seconds(v, &n)
                                          : str_to_u64(v, UINT32_MAX, &n);

        if (r < 0)
                return error_set(err, -EINVAL, "\"%s\" is not %s", v,
                                 k->kind == KIND_SIZE      ? "a size such as 512M or 8G"
                                 : k->kind == KIND_SECONDS ? "a time such as 30s, 5m or 2h"
                                                           : "a number");
        r = in_range(k, n, v, err);
        if (r < 0)
                return r;
        if (k->kind == KIND_U32)
                *(uint32_t *) dst = (uint32_t) n;
        else
                *(uint64_t *) dst = n;
        return 0;
}

static int set_enum(const struct conf_key *k, char *dst, const char *v, struct error *err) {
        size_t n = strlen(v);

        for (const char *p = k->choices; n > 0 && *p;) {
                size_t w = strcspn(p, " ");
                if (w == n && memcmp(p, v, n) == 0)
                        return str_copy(dst, k->max + 1, v);
                p += w + (p[w] == ' ');
        }
        return error_set(err, -EINVAL, "\"%s\" is none of: %s", v, k->choices);
}

static int warm_item(struct conf_warm *w, const char *item, struct error *err) {
        char copy[sizeof w->ref + 16];
        uint64_t count;

        if (str_copy(copy, sizeof copy, item) < 0)
                return error_set(err, -EINVAL, "\"%s\" is too long", item);
        char *eq = strchr(copy, '=');
        if (!eq || str_to_u64(eq + 1, 1000, &count) < 0)
                return error_set(err, -EINVAL, "\"%s\" is not TEMPLATE=COUNT with a count up to 1000", item);
        *eq = '\0';
        const char *colon = strchr(copy, ':');
        size_t n = colon ? (size_t) (colon - copy) : strlen(copy);
        if (!template_name_valid(copy, n) || (colon && !template_name_valid(colon + 1, strlen(colon + 1))))
                return error_set(err, -EINVAL, "\"%s\" is not a template name", copy);
        w->count = (uint32_t) count;
        return str_copy(w->ref, sizeof w->ref, copy);
}

static int set_warm(struct conf *c, const char *v, struct error *err) {
        struct conf_warm list[CONF_WARM_MAX] = { 0 };
        size_t n = 0;

        for (const char *p = v + strspn(v, " \t"); *p; p += strspn(p, " \t")) {
                char item[sizeof list[0].ref + 16];
                size_t w = strcspn(p, " \t");

                if (n == CONF_WARM_MAX)
                        return error_set(err, -E2BIG, "more than %d templates", CONF_WARM_MAX);
                if (w >= sizeof item)
                        return error_set(err, -EINVAL, "\"%s\" is too long", p);
                memcpy(item, p, w);
                item[w] = '\0';
                int r = warm_item(&list[n], item, err);
                if (r < 0)
                        return r;
                n++;
                p += w;
        }
        memcpy(c->warm, list, sizeof list);
        c->n_warm = n;
        return 0;
}

static int conf_key_set(struct conf *c, const struct conf_key *k, const char *v, struct error *err) {
        switch (k->kind) {
        case KIND_PATH:
        case KIND_OPT_PATH:
                return set_path(k, conf_at(c, k), v, err);
        case KIND_LISTEN:
                return set_listen(conf_at(c, k), v, err);
        case KIND_HOST:
                return set_host(k, conf_at(c, k), v, err);
        case KIND_USER:
                return set_user(k, conf_at(c, k), v, err);
        case KIND_RANGES:
                return set_ranges(conf_at(c, k), v, err);
        case KIND_BOOL:
                return set_bool(conf_at(c, k), v, err);
        case KIND_U32:
        case KIND_SIZE:
        case KIND_SECONDS:
                return set_number(k, conf_at(c, k), v, err);
        case KIND_ENUM:
                return set_enum(k, conf_at(c, k), v, err);
        case KIND_WARM:
                return set_warm(c, v, err);
        }
        return error_set(err, -EINVAL, "key without a kind");
}

int conf_set(struct conf *c, const char *section, const char *key, const char *value, struct error *err) {
        bool known_section = false;

        for (size_t i = 0; i < ARRAY_SIZE(conf_keys); i++) {
                const struct conf_key *k = &conf_keys[i];
                if (!str_eq(k->section, section))
                        continue;
                known_section = true;
                if (!str_eq(k->key, key))
                        continue;
                if (conf_key_set(c, k, value, err) < 0)
                        return error_wrap(err, "[%s] %s", section, key);
                return 0;
        }
        if (!known_section)
                return error_set(err, -EINVAL, "unknown section [%s]", section);
        return error_set(err, -EINVAL, "unknown key \"%s\" in section [%s]", key, section);
}

void conf_defaults(struct conf *c) {
        memset(c, 0, sizeof *c);
        for (size_t i = 0; i < ARRAY_SIZE(conf_keys); i++)
                (void) conf_key_set(c, &conf_keys[i], conf_keys[i].fallback, NULL);
}

struct conf_reader {
        struct conf *c;
        struct error first;                /* the first error, which is the one reported */
        bool seen[ARRAY_SIZE(conf_keys)];
};

/* A key given twice is a mistake; so is a continued line, which inih reports as the key again. */
static int note_seen(struct conf_reader *r, const char *section, const char *key, struct error *err) {
        for (size_t i = 0; i < ARRAY_SIZE(conf_keys); i++) {
                if (!str_eq(conf_keys[i].section, section) || !str_eq(conf_keys[i].key, key))
                        continue;
                if (r->seen[i])
                        return error_set(err, -EINVAL, "[%s] %s is set a second time", section, key);
                r->seen[i] = true;
        }
        return 0;
}

static int on_key(void *user, const char *section, const char *name, const char *value) {
        struct conf_reader *r = user;
        struct error e = ERROR_INIT;

        if (note_seen(r, section, name, &e) == 0 && conf_set(r->c, section, name, value, &e) == 0)
                return 1;
        if (r->first.code == 0)
                r->first = e;
        return 0;
}

/* inih cuts a longer line in two and reads the rest as a line of its own. */
static int check_lines(const char *text, const char *name, struct error *err) {
        unsigned line = 1;

        for (const char *p = text; *p; line++) {
                size_t n = strcspn(p, "\n");
                if (n > CONF_LINE_MAX)
                        return error_set(err, -EINVAL, "%s:%u: line longer than %d bytes", name, line, CONF_LINE_MAX);
                p += n + (p[n] == '\n');
        }
        return 0;
}

static int read_text(struct conf *next, const char *text, const char *name, struct error *err) {
        struct conf_reader r = { .c = next };

        int checked = check_lines(text, name, err);
        if (checked < 0)
                return checked;
        /* inih: 0, or the number of the first wrong line. It reads on after an error. */
        int line = ini_parse_string(text, on_key, &r);
        if (line > 0)
                return error_set(err, -EINVAL, "%s:%d: %s", name, line,
                                 r.first.code ? r.first.msg : "neither a [section] nor key = value");
        if (line < 0)
                return error_set(err, -ENOMEM, "%s: out of memory", name);
        return 0;
}

int conf_parse(struct conf *c, const char *text, const char *name, struct error *err) {
        struct conf next;

        conf_defaults(&next);
        int r = read_text(&next, text, name, err);
        if (r == 0)
                *c = next;
        return r;
}

int conf_load_lenient(struct conf *c, const char *path, struct error *err) {
        _cleanup_free_ char *text = NULL;
        struct error e = ERROR_INIT;
        const char *name = path ? path : CONF_FILE;
        size_t n = 0;

        conf_defaults(c);
        int r = fd_read_file_at(AT_FDCWD, name, CONF_FILE_MAX, &text, &n, &e);
        if (r == -ENOENT && !path)
                return 0;
        if (r < 0) {
                if (err)
                        *err = e;
                return r;
        }
        if (strlen(text) != n)
                return error_set(err, -EINVAL, "%s: contains a NUL byte", name);
        return read_text(c, text, name, err);
}

int conf_load(struct conf *c, const char *path, struct error *err) {
        struct conf next;

        int r = conf_load_lenient(&next, path, err);
        if (r == 0)
                *c = next;
        return r;
}

static void print_value(const struct conf *c, const struct conf_key *k, FILE *out) {
        const void *at = conf_at_const(c, k);

        switch (k->kind) {
        case KIND_PATH:
        case KIND_OPT_PATH:
        case KIND_LISTEN:
        case KIND_HOST:
        case KIND_USER:
        case KIND_RANGES:
        case KIND_ENUM:
                fputs((const char *) at, out);
                break;
        case KIND_BOOL:
                fputs(*(const bool *) at ? "yes" : "no", out);
                break;
        case KIND_U32:
                fprintf(out, "%u", *(const uint32_t *) at);
                break;
        case KIND_SIZE:
        case KIND_SECONDS:
                fprintf(out, "%llu", (unsigned long long) *(const uint64_t *) at);
                break;
        case KIND_WARM:
                for (size_t i = 0; i < c->n_warm; i++)
                        fprintf(out, "%s%s=%u", i ? " " : "", c->warm[i].ref, c->warm[i].count);
                break;
        }
}

int conf_print(const struct conf *c, FILE *out) {
        const char *section = "";

        for (size_t i = 0; i < ARRAY_SIZE(conf_keys); i++) {
                const struct conf_key *k = &conf_keys[i];
                if (!str_eq(section, k->section))
                        fprintf(out, "%s[%s]\n", i ? "\n" : "", k->section);
                section = k->section;
                fprintf(out, "%s = ", k->key);
                print_value(c, k, out);
                fputc('\n', out);
        }
        return ferror(out) ? -EIO : 0;
}

static int join(const char *dir, const char *name, char *out, size_t cap) {
        int n = snprintf(out, cap, "%s/%s", dir, name);

        return n < 0 || (size_t) n >= cap ? -ENAMETOOLONG : 0;
}

int conf_run_path(const struct conf *c, const char *name, char *out, size_t cap) {
        return join(c->run, name, out, cap);
}
int conf_data_path(const struct conf *c, const char *name, char *out, size_t cap) {
        return join(c->data, name, out, cap);
}
int conf_libexec_path(const struct conf *c, const char *name, char *out, size_t cap) {
        return join(c->libexec, name, out, cap);
}
