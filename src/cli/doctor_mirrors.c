/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Where this host's package managers fetch from, asked of themselves, and whether gateways would go there. A mirror
 * within a company has a private address, which is refused whatever a policy says until the operator opens it: better
 * said here than found out in a sandbox. A resolver that does not answer must not hold doctor up, so names are
 * resolved in a process that has a few seconds.
 */
#include "doctor_mirrors.h"

#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli.h"
#include "policy/address.h"
#include "policy/host.h"
#include "setup.h"

#define MIRRORS_MAX 16
#define MIRROR_ADDRESSES_MAX 8 /* of one name */
#define MIRROR_SECONDS 5       /* for all names together */
#define MIRROR_TEXT_MAX 8192   /* of what a package manager tells */
#define MIRRORS_TOLD 4

struct mirrors {
        char host[MIRRORS_MAX][HOST_SIZE];
        size_t n;
};

/* Name or address of a URL; what is before an @ is nobody's business. */
static bool host_of_url(const char *url, size_t n, char out[HOST_SIZE]) {
        const char *p = memmem(url, n, "://", 3), *end = url + n;
        if (!p || (!str_has_prefix(url, "http://") && !str_has_prefix(url, "https://")))
                return false;
        p += 3;
        size_t authority = strcspn(p, "/?# \t\n");
        end = p + authority < end ? p + authority : end;
        const char *at = memrchr(p, '@', (size_t) (end - p));
        p = at ? at + 1 : p;
        const char *colon = memchr(p, ':', (size_t) (end - p));
        struct host h;
        if (host_parse(p, (size_t) ((colon ? colon : end) - p), &h, NULL) < 0)
                return false;
        return str_copy(out, HOST_SIZE, h.name) == 0;
}

static void add(struct mirrors *m, const char *line, size_t n) {
        char host[HOST_SIZE];
        if (m->n == MIRRORS_MAX || !host_of_url(line, n, host))
                return;
        for (size_t i = 0; i < m->n; i++)
                if (str_eq(m->host[i], host))
                        return;
        memcpy(m->host[m->n++], host, sizeof host);
}

/* One that is not there, or does not say, has no mirror. */
static void ask(struct mirrors *m, const char *const *argv) {
        char text[MIRROR_TEXT_MAX];
        if (setup_exec_text(argv, text, sizeof text, NULL) < 0)
                return;
        for (const char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n') {
                size_t n = strcspn(p, "\n");
                const char *url = memmem(p, n, "http", 4); /* pip: key='URL' */
                if (url)
                        add(m, url, strcspn(url, "'\n"));
        }
}

static void learn(struct mirrors *m) {
        static const char *const apt[] = { "apt-get", "indextargets", "--format", "$(SITE)", NULL };
        static const char *const pip[] = { "pip3", "config", "list", NULL };
        static const char *const npm[] = { "npm", "config", "get", "registry", NULL };
        ask(m, apt);
        ask(m, pip);
        ask(m, npm);
}

/* ---- addresses ------------------------------------------------------------------------------- */

static _Noreturn void resolve(const struct mirrors *m, int out) {
        (void) signal(SIGALRM, SIG_DFL);
        (void) alarm(MIRROR_SECONDS);
        for (size_t i = 0; i < m->n; i++) {
                struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *list = NULL;
                size_t n = 0;
                if (getaddrinfo(m->host[i], NULL, &hints, &list) != 0)
                        continue;
                for (const struct addrinfo *a = list; a && n < MIRROR_ADDRESSES_MAX; a = a->ai_next, n++) {
                        char text[ADDRESS_TEXT_SIZE];
                        struct address address;
                        if (address_of_sockaddr(a->ai_addr, a->ai_addrlen, &address) < 0)
                                continue;
                        address_text(&address, text);
                        (void) dprintf(out, "%zu %s\n", i, text);
                }
                freeaddrinfo(list);
        }
        _exit(0);
}

/* Lines of "INDEX ADDRESS"; those that came in time. */
static void resolve_all(const struct mirrors *m, struct buf *out) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) < 0)
                return;
        _cleanup_fd_ int rd = ends[0], wr = ends[1];
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0)
                resolve(m, wr);
        wr = fd_close(wr);
        for (;;) {
                uint8_t *to;
                ssize_t n = buf_reserve(out, 512, &to) < 0 ? 0 : read(rd, to, 512);
                if (n <= 0)
                        break;
                buf_commit(out, (size_t) n);
        }
        if (pid > 0)
                (void) waitpid(pid, NULL, 0);
}

/* ---- the verdict ----------------------------------------------------------------------------- */

struct findings {
        struct buf told, open; /* for people; what [egress] open would have to have more */
        struct address_set *named; /* in there */
        size_t closed, unopenable;
};

static void judge(struct findings *f, const struct address_set *open, const char *host, const char *text) {
        struct address a;
        if (address_parse(text, &a) < 0)
                return;
        enum address_class class = address_classify(&a);
        bool openable = class == ADDRESS_PRIVATE || class == ADDRESS_RESERVED;
        if (class == ADDRESS_PUBLIC || (openable && address_set_is_open(open, &a)))
                return;
        f->unopenable += !openable;
        if (f->closed++ >= MIRRORS_TOLD)
                return;
        (void) buf_printf(&f->told, "%s%s is at %s (%s)", f->closed > 1 ? ", " : "", host, text, address_class_name(class));
        if (openable && !address_set_is_open(f->named, &a) && address_set_open(f->named, text, NULL) == 0)
                (void) buf_printf(&f->open, " %s", text);
}

static void tell(struct findings *f, const struct conf *conf, struct report *r) {
        char hint[1024];
        const char *told = buf_str(&f->told), *open = buf_str(&f->open);
        if (!told || !open)
                return;
        if (f->unopenable == f->closed)
                (void) snprintf(hint, sizeof hint, "sandboxes cannot be let there: give it an address that is not this host's or the link's alone");
        else
                (void) snprintf(hint, sizeof hint, "where sandboxes are to reach it: in %s, below [egress]: open =%s%s%s", cli()->config ? cli()->config : CONF_FILE,
                                conf->open_ranges[0] ? " " : "", conf->open_ranges, open);
        report_add(r, VERDICT_WARN, "mirrors", hint, "%s%s, which gateways refuse", told, f->closed > MIRRORS_TOLD ? " and more" : "");
}

static void judge_all(struct findings *f, const struct address_set *open, const struct mirrors *m, const char *lines) {
        for (const char *p = lines; *p; p += strcspn(p, "\n"), p += *p == '\n') {
                char *rest, text[ADDRESS_TEXT_SIZE];
                size_t i = strtoul(p, &rest, 10), n = strcspn(rest + 1, "\n");
                if (*rest != ' ' || i >= m->n || n >= sizeof text)
                        continue;
                (void) snprintf(text, sizeof text, "%.*s", (int) n, rest + 1);
                judge(f, open, m->host[i], text);
        }
}

static int open_set(const struct conf *conf, struct address_set **ret) {
        char ranges[CONF_STR_MAX + 1], *save = NULL;
        int r = address_set_new(ret);
        (void) snprintf(ranges, sizeof ranges, "%s", conf->open_ranges);
        for (char *w = strtok_r(ranges, " \t", &save); w && r >= 0; w = strtok_r(NULL, " \t", &save))
                r = address_set_open(*ret, w, NULL);
        return r;
}

static void findings_done(struct findings *f) {
        address_set_free(f->named);
        buf_done(&f->told);
        buf_done(&f->open);
}

void doctor_mirrors(const struct conf *conf, struct report *r) {
        struct mirrors m = { .n = 0 };
        _cleanup_(findings_done) struct findings f = { .told = BUF_INIT(4096), .open = BUF_INIT(1024) };
        _cleanup_buf_ struct buf lines = BUF_INIT(16384);
        _cleanup_(address_set_freep) struct address_set *open = NULL;
        learn(&m);
        if (m.n > 0)
                resolve_all(&m, &lines);
        const char *text = buf_str(&lines);
        if (!text || address_set_new(&f.named) < 0 || open_set(conf, &open) < 0) /* a range that is none is told of by others */
                return;
        judge_all(&f, open, &m, text);
        if (f.closed > 0)
                tell(&f, conf, r);
        else if (lines.len > 0)
                report_add(r, VERDICT_OK, "mirrors", NULL, "gateways may go where this host's package managers do");
        else if (m.n > 0)
                report_add(r, VERDICT_WARN, "mirrors", "see /etc/resolv.conf", "none of the names of this host's package mirrors resolved in %d s",
                           MIRROR_SECONDS);
}
