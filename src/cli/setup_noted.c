/* SPDX-License-Identifier: Apache-2.0 */

/*
 * <run>/services/NAME.conf: the configuration that a service was started with, all keys of it, after a line
 * "# PID START". By it `up` sees that the file was edited since, and `down` finds what runs though the
 * file has become unreadable. A service that somebody else has started (systemd after a crash) is not that process:
 * then the file's time says whether it can have read it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/str.h"
#include "setup.h"
#include "setup_internal.h"

#define KEYS_TOLD 4

static int config_text(const struct conf *c, char **ret) {
        size_t n = 0;

        *ret = NULL;
        FILE *f = open_memstream(ret, &n);
        if (!f)
                return -ENOMEM;
        int r = conf_print(c, f);
        return fclose(f) != 0 || r < 0 ? -ENOMEM : 0;
}

static void head_line(pid_t pid, uint64_t start, char out[64]) {
        (void) snprintf(out, 64, "# %d %llu\n", (int) pid, (unsigned long long) start);
}

int noted_write(const struct setup *s, const char *service, pid_t pid, uint64_t start, struct error *err) {
        _cleanup_free_ char *text = NULL, *all = NULL;
        char name[64], head[64];

        (void) snprintf(name, sizeof name, "%s.conf", service);
        head_line(pid, start, head);
        if (config_text(&s->conf, &text) < 0 || asprintf(&all, "%s%s", head, text) < 0)
                return error_set(err, -ENOMEM, "out of memory");
        return fd_replace_file_at(s->lock, name, all, strlen(all), 0600, err);
}

static int noted_read(const struct setup *s, const char *service, char **ret) {
        char path[CONF_STR_MAX + 64];

        (void) snprintf(path, sizeof path, "%s/services/%s.conf", s->conf.run, service);
        return fd_read_file_at(AT_FDCWD, path, CONF_FILE_MAX, ret, NULL, NULL);
}

/* The file's last change is later than the start of the process. */
static bool edited_since(const struct setup *s, uint64_t start) {
        struct timespec now, up;
        struct stat st;
        long hz = sysconf(_SC_CLK_TCK);

        if (stat(s->config ? s->config : CONF_FILE, &st) < 0 || hz <= 0 || clock_gettime(CLOCK_REALTIME, &now) < 0 ||
            clock_gettime(CLOCK_BOOTTIME, &up) < 0)
                return false;
        double age = (double) up.tv_sec - (double) start / (double) hz;
        return difftime(st.st_mtime, now.tv_sec) > -age;
}

static const char *line_end(const char *p) {
        return p + strcspn(p, "\n");
}

/* "[api] listen": the keys whose lines differ. Both texts have all keys in one order, unless another version has
 * written one of them: then there is nothing to tell. */
static void changed_keys(const char *then, const char *now, char *out, size_t cap) {
        char section[64] = "";
        unsigned n = 0;

        out[0] = '\0';
        while (*then && *now) {
                const char *a = line_end(then), *b = line_end(now);
                size_t key = strcspn(now, " =\n");

                if (*now == '[')
                        (void) snprintf(section, sizeof section, "%.*s", (int) (b - now), now);
                bool same = a - then == b - now && memcmp(then, now, (size_t) (a - then)) == 0;
                if (!same && strncmp(then, now, key) != 0) {
                        out[0] = '\0';
                        return;
                }
                if (!same && n++ < KEYS_TOLD) {
                        size_t at = strlen(out);
                        (void) snprintf(out + at, cap - at, "%s%s %.*s", at ? ", " : "", section, (int) key, now);
                }
                then = a + (*a == '\n');
                now = b + (*b == '\n');
        }
        if (n > KEYS_TOLD)
                (void) snprintf(out + strlen(out), cap - strlen(out), ", ...");
}

bool noted_changed(const struct setup *s, const char *service, pid_t pid, uint64_t start, char *ret_keys, size_t cap) {
        _cleanup_free_ char *then = NULL, *now = NULL;
        char head[64];

        ret_keys[0] = '\0';
        head_line(pid, start, head);
        if (noted_read(s, service, &then) < 0 || !str_has_prefix(then, head))
                return edited_since(s, start);
        if (config_text(&s->conf, &now) < 0 || str_eq(then + strlen(head), now))
                return false;
        changed_keys(then + strlen(head), now, ret_keys, cap);
        return true;
}

/* What runs has its folders open: others under the same name would make two of it. */
int setup_check_moved(const struct setup *s, struct error *err) {
        _cleanup_free_ char *then = NULL;
        struct conf c;

        if (noted_read(s, services[1].name, &then) < 0 || conf_parse(&c, then, "noted", NULL) < 0 ||
            str_eq(c.data, s->conf.data) || setup_count_sandboxes(s) <= 0)
                return 0;
        return error_set(err, -EBUSY, "[paths] data was changed from %s to %s while sandboxes run; end them first: cspace down", c.data,
                         s->conf.data);
}

int setup_load_running(struct setup *s, struct error *ret_why) {
        struct error err = ERROR_INIT;
        struct conf none;

        int r = setup_load(s, ret_why);
        if (r >= 0)
                return 0;
        /* What can be read of it, for the run folder. */
        (void) conf_load_lenient(&s->conf, s->config, NULL);
        conf_defaults(&none);
        /* Never from a file that was named to the services of another one. */
        if (s->config && !s->run && str_eq(s->conf.run, none.run)) {
                err = *ret_why;
                return error_set(ret_why, r, "%s; correct it, or name the run folder with --run", err.msg);
        }
        return setup_options(s, &err) < 0 ? error_set(ret_why, err.code, "%s", err.msg) : 1;
}

/* For who holds the lock: until then nobody has looked whose that folder is. */
bool setup_take_noted(struct setup *s) {
        for (size_t i = SETUP_SERVICES; i-- > 0;) {
                _cleanup_free_ char *text = NULL;
                struct conf c;

                if (noted_read(s, services[i].name, &text) < 0 || conf_parse(&c, text, "noted", NULL) < 0)
                        continue;
                (void) str_copy(c.run, sizeof c.run, s->conf.run);
                s->conf = c;
                return true;
        }
        return false;
}
