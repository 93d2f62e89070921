/* SPDX-License-Identifier: Apache-2.0 */
#include "sources.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/str.h"

/* Names under which a host may follow its release, and the archives that belong to a release. */
static const char *const aliases[] = { "stable", "oldstable", "oldoldstable", "testing", "unstable", "sid" };
static const char *const suffixes[] = { "", "-updates", "-security", "/updates" };

static void source_add(struct sources *s, const struct source *src) {
        if (s->n == SOURCES_MAX || !src->uri[0] || !src->suite[0] || !src->components[0])
                return;
        for (size_t i = 0; i < s->n; i++)
                if (str_eq(s->list[i].uri, src->uri) && str_eq(s->list[i].suite, src->suite))
                        return;
        s->list[s->n++] = *src;
}

/* Copies the next blank-separated word of *p; false at the end or when it does not fit. */
static bool next_word(const char **p, char *out, size_t cap) {
        const char *w = *p + strspn(*p, " \t");
        size_t n = strcspn(w, " \t");

        *p = w + n;
        if (n == 0 || n >= cap)
                return false;
        memcpy(out, w, n);
        out[n] = '\0';
        return true;
}

static bool is_debian_key(const char *signed_by) {
        return signed_by[0] == '\0' || strstr(signed_by, "debian-archive") != NULL;
}

/* ---- one line each --------------------------------------------------------------------------- */

static void parse_list_line(struct sources *s, const char *line) {
        struct source src = { 0 };
        char word[256];

        if (!next_word(&line, word, sizeof word) || !str_eq(word, "deb"))
                return;
        line += strspn(line, " \t");
        if (*line == '[') {
                const char *end = strchr(line, ']');
                const char *key = strstr(line, "signed-by=");
                if (!end)
                        return;
                if (key && key < end) {
                        char value[256] = "";
                        size_t n = strcspn(key + 10, " ]");
                        if (n < sizeof value)
                                memcpy(value, key + 10, n);
                        src.foreign_key = !is_debian_key(value);
                }
                line = end + 1;
        }
        if (!next_word(&line, src.uri, sizeof src.uri) || !next_word(&line, src.suite, sizeof src.suite))
                return;
        line += strspn(line, " \t");
        if (str_copy(src.components, sizeof src.components, line) == 0)
                source_add(s, &src);
}

/* Calls f for every line without its end and its comment. Lines that are too long are left out. */
static void each_line(struct sources *s, const char *text, void (*f)(struct sources *, const char *)) {
        char line[1024];

        while (*text) {
                size_t n = strcspn(text, "\n");
                if (n < sizeof line) {
                        memcpy(line, text, n);
                        line[n] = '\0';
                        line[strcspn(line, "#\r")] = '\0';
                        f(s, line);
                }
                text += n + (text[n] == '\n');
        }
}

void sources_parse_list(struct sources *s, const char *text) {
        each_line(s, text, parse_list_line);
}

/* ---- deb822 ---------------------------------------------------------------------------------- */

struct stanza {
        char types[64], uris[1024], suites[512], components[128], signed_by[512];
        bool disabled;
        char *last; /* field that a continuation line belongs to */
        size_t last_cap;
};

static void stanza_end(struct sources *s, const struct stanza *z) {
        char type[32], uri[256], suite[64];
        bool binary = false;

        for (const char *p = z->types; next_word(&p, type, sizeof type);)
                binary = binary || str_eq(type, "deb");
        if (!binary || z->disabled)
                return;
        for (const char *u = z->uris; next_word(&u, uri, sizeof uri);)
                for (const char *p = z->suites; next_word(&p, suite, sizeof suite);) {
                        struct source src = { .foreign_key = !is_debian_key(z->signed_by) };
                        if (str_copy(src.uri, sizeof src.uri, uri) == 0 &&
                            str_copy(src.suite, sizeof src.suite, suite) == 0 &&
                            str_copy(src.components, sizeof src.components, z->components) == 0)
                                source_add(s, &src);
                }
}

static void stanza_line(struct stanza *z, const char *line) {
        const struct {
                const char *name;
                char *at;
                size_t cap;
        } fields[] = {
                { "types:", z->types, sizeof z->types },
                { "uris:", z->uris, sizeof z->uris },
                { "suites:", z->suites, sizeof z->suites },
                { "components:", z->components, sizeof z->components },
                { "signed-by:", z->signed_by, sizeof z->signed_by },
        };

        if (line[0] == ' ' || line[0] == '\t') {
                size_t n = z->last ? strlen(z->last) : 0;
                if (z->last && n + strlen(line) < z->last_cap)
                        memcpy(z->last + n, line, strlen(line) + 1);
                return;
        }
        z->last = NULL;
        if (strncasecmp(line, "enabled:", 8) == 0)
                z->disabled = strstr(line + 8, "no") != NULL || strstr(line + 8, "false") != NULL;
        for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
                size_t n = strlen(fields[i].name);
                if (strncasecmp(line, fields[i].name, n) != 0)
                        continue;
                if (str_copy(fields[i].at, fields[i].cap, line + n + strspn(line + n, " \t")) < 0)
                        continue;
                z->last = fields[i].at;
                z->last_cap = fields[i].cap;
        }
}

void sources_parse_deb822(struct sources *s, const char *text) {
        struct stanza z = { 0 };
        char line[1024];

        while (*text) {
                size_t n = strcspn(text, "\n");
                if (n < sizeof line && text[0] != '#') {
                        memcpy(line, text, n);
                        line[n] = '\0';
                        line[strcspn(line, "\r")] = '\0';
                        if (strspn(line, " \t") == strlen(line)) {
                                stanza_end(s, &z);
                                memset(&z, 0, sizeof z);
                        } else {
                                stanza_line(&z, line);
                        }
                }
                text += n + (text[n] == '\n');
        }
        stanza_end(s, &z);
}

/* ---- the host's files ------------------------------------------------------------------------ */

static int read_one(struct sources *s, int dirfd, const char *name, struct error *err) {
        _cleanup_free_ char *text = NULL;

        int r = fd_read_file_at(dirfd, name, SOURCES_TEXT_MAX, &text, NULL, err);
        if (r < 0)
                return r;
        if (str_has_suffix(name, ".sources"))
                sources_parse_deb822(s, text);
        else
                sources_parse_list(s, text);
        return 0;
}

static void closedirp(DIR **d) {
        if (*d)
                closedir(*d);
}

int sources_read_host(struct sources *s, const char *etc_apt, struct error *err) {
        _cleanup_fd_ int etc = open(etc_apt, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        _cleanup_(closedirp) DIR *d = NULL;

        if (etc < 0)
                return error_errno(err, errno, "cannot open %s", etc_apt);
        int r = read_one(s, etc, "sources.list", err);
        if (r < 0 && r != -ENOENT)
                return r;
        int parts = openat(etc, "sources.list.d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (parts < 0)
                return 0;
        d = fdopendir(parts);
        if (!d) {
                (void) fd_close(parts);
                return error_set(err, -ENOMEM, "out of memory");
        }
        for (struct dirent *e; (e = readdir(d));) {
                if (!str_has_suffix(e->d_name, ".list") && !str_has_suffix(e->d_name, ".sources"))
                        continue;
                /* A file that is not for everybody's eyes may hold a private repository's password. */
                (void) read_one(s, parts, e->d_name, NULL);
        }
        return 0;
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* The part of the suite after the release's name, or NULL when it is another release's. */
static const char *suffix_of(const char *suite, const char *release) {
        if (!str_has_prefix(suite, release))
                return NULL;
        const char *rest = suite + strlen(release);
        for (size_t i = 0; i < ARRAY_SIZE(suffixes); i++)
                if (str_eq(rest, suffixes[i]))
                        return suffixes[i];
        return NULL;
}

static const char *host_suffix(const char *suite, const char *host_suite) {
        const char *rest = host_suite[0] ? suffix_of(suite, host_suite) : NULL;

        for (size_t i = 0; !rest && i < ARRAY_SIZE(aliases); i++)
                rest = suffix_of(suite, aliases[i]);
        return rest;
}

static bool has_main(const char *components) {
        char word[128];

        for (const char *p = components; next_word(&p, word, sizeof word);)
                if (str_eq(word, "main"))
                        return true;
        return false;
}

/* URIs come from the host's administrator; nothing in one may start a line of its own. */
static bool plain(const char *s) {
        for (; *s; s++)
                if ((unsigned char) *s <= ' ' || *s == 0x7f)
                        return false;
        return true;
}

int sources_select(const struct sources *s, const char *host_suite, const char *suite, const char *keyring,
                   struct buf *out, struct error *err) {
        bool rolling = str_eq(suite, "sid") || str_eq(suite, "unstable");
        size_t taken = 0;
        int r = 0;

        for (size_t i = 0; i < s->n && r == 0; i++) {
                const struct source *src = &s->list[i];
                const char *rest = host_suffix(src->suite, host_suite);
                if (!rest || src->foreign_key || !has_main(src->components) || !plain(src->uri))
                        continue;
                if (rolling && rest[0])
                        continue; /* has no updates and no security archive of its own */
                r = buf_printf(out, "%sTypes: deb\nURIs: %s\nSuites: %s%s\nComponents: main\nSigned-By: %s\n",
                               taken ? "\n" : "", src->uri, suite, rest, keyring);
                taken++;
        }
        if (r < 0)
                return error_errno(err, r, "the list of sources is too long");
        if (taken == 0)
                return error_set(err, -ENOENT,
                                 "no Debian archive among this host's apt sources; name a sources file with "
                                 "[build] sources in cspace.conf");
        return 0;
}

void sources_codename(const char *os_release, char *out, size_t cap) {
        static const char key[] = "VERSION_CODENAME=";

        out[0] = '\0';
        for (const char *p = os_release; p && *p;) {
                size_t n = strcspn(p, "\n");
                if (str_has_prefix(p, key)) {
                        const char *v = p + sizeof key - 1;
                        v += *v == '"';
                        size_t len = strspn(v, "abcdefghijklmnopqrstuvwxyz0123456789-");
                        if (len < cap) {
                                memcpy(out, v, len);
                                out[len] = '\0';
                        }
                        return;
                }
                p += n + (p[n] == '\n');
        }
}
