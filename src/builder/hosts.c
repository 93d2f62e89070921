/* SPDX-License-Identifier: Apache-2.0 */
#include "hosts.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "child.h"
#include "configure_internal.h"
#include "sources.h"

#define OUTPUT_MAX (64u * 1024)
#define ENTRY_MAX 280

int hosts_of_url(const char *url, char *out, size_t cap) {
        static const struct {
                const char *scheme, *port;
        } known[] = { { "http://", "80" }, { "https://", "443" } };
        for (size_t i = 0; i < ARRAY_SIZE(known); i++) {
                if (!str_has_prefix(url, known[i].scheme))
                        continue;
                const char *authority = url + strlen(known[i].scheme);
                size_t n = strcspn(authority, "/?#");
                const char *at = memchr(authority, '@', n); /* a password is none of a policy's business */
                const char *host = at ? at + 1 : authority;
                n -= (size_t) (host - authority);
                const char *colon = memchr(host, ':', n);
                size_t host_n = colon ? (size_t) (colon - host) : n;
                const char *port = colon ? colon + 1 : known[i].port;
                size_t port_n = colon ? n - host_n - 1 : strlen(port);
                if (host_n == 0 || host_n > 253 || port_n == 0 || port_n > 5 || strspn(port, "0123456789") < port_n ||
                    snprintf(out, cap, "%.*s:%.*s", (int) host_n, host, (int) port_n, port) >= (int) cap)
                        return -EINVAL;
                for (char *p = out; *p; p++) {
                        *p = (char) tolower((unsigned char) *p);
                        if (!isalnum((unsigned char) *p) && !strchr(".-:", *p))
                                return -EINVAL;
                }
                return 0;
        }
        return -EINVAL;
}

/* In the image. */
static int print_apt(void *arg) {
        struct sources s = { .n = 0 };
        (void) arg;
        if (sources_read_host(&s, "/etc/apt", NULL) < 0)
                return 0;
        for (size_t i = 0; i < s.n; i++)
                if (dprintf(STDOUT_FILENO, "%s\n", s.list[i].uri) < 0)
                        return 1;
        return 0;
}

/* Each line of text that is a URL becomes an entry. */
static void add_urls(json_t *set, const char *text) {
        for (const char *p = text; *p && json_object_size(set) < HOSTS_MAX;) {
                size_t n = strcspn(p, "\n");
                char line[512], entry[ENTRY_MAX];
                if (snprintf(line, sizeof line, "%.*s", (int) n, p) < (int) sizeof line &&
                    hosts_of_url(line, entry, sizeof entry) == 0)
                        (void) json_object_set_new(set, entry, json_true());
                p += n + (p[n] == '\n');
        }
}

/* A manager that is not there, or does not say, is no failure of the build. */
static void ask(struct build *b, json_t *set, const char *const *argv, int (*call)(void *arg)) {
        _cleanup_free_ char *text = NULL;
        struct child c = CHILD_INIT;
        struct error e = ERROR_INIT;
        c.argv = argv;
        c.call = call;
        c.root = b->rootfs;
        c.no_network = true;
        if (child_output(b, &c, OUTPUT_MAX, &text, &e) < 0)
                build_logf(b, "hosts of packages: %s\n", e.msg);
        else
                add_urls(set, text);
}

static bool has(const struct build *b, const char *path) {
        char full[BUILD_PATH_MAX + 64];
        return snprintf(full, sizeof full, "%s%s", b->rootfs, path) < (int) sizeof full && access(full, F_OK) == 0;
}

static int compare(const void *a, const void *b) {
        return strcmp(*(const char *const *) a, *(const char *const *) b);
}

static json_t *sorted(json_t *set) {
        const char *names[HOSTS_MAX], *key;
        json_t *value, *list = json_array();
        size_t n = 0;
        json_object_foreach(set, key, value)
                if (n < HOSTS_MAX)
                        names[n++] = key;
        qsort(names, n, sizeof *names, compare);
        for (size_t i = 0; list && i < n; i++)
                if (json_array_append_new(list, json_string(names[i])) < 0) {
                        json_decref(list);
                        return NULL;
                }
        return list;
}

int hosts_of_packages(struct build *b, json_t **ret, struct error *err) {
        static const char *const pip[] = { "python3", "-c",
                                           "from pip._internal.models.index import PyPI\n"
                                           "print(PyPI.url)\n"
                                           "print('https://' + PyPI.file_storage_domain)",
                                           NULL };
        static const char *const npm[] = { "npm", "config", "get", "registry", NULL };
        _cleanup_json_ json_t *set = json_object();
        if (!set)
                return error_set(err, -ENOMEM, "out of memory");
        ask(b, set, NULL, print_apt);
        /* Nothing of an archive that somebody brought is ever run. */
        if (b->source == SOURCE_PACKAGES && has(b, "/usr/lib/python3/dist-packages/pip"))
                ask(b, set, pip, NULL);
        if (b->source == SOURCE_PACKAGES && has(b, "/usr/bin/npm"))
                ask(b, set, npm, NULL);
        json_t *list = sorted(set);
        if (!list)
                return error_set(err, -ENOMEM, "out of memory");
        *ret = list;
        return 0;
}
