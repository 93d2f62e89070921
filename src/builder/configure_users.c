/* SPDX-License-Identifier: Apache-2.0 */

/* Accounts: root, and one user who may become root without a password. */
#include "configure_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/str.h"
#include "users.h"

#define USER_NAME "user"
#define USER_HOME "/home/user"

static int failed(struct configure *c, int r, const char *path) {
        if (r == -ENOSPC || r == -EDQUOT)
                return configure_fail(c, "no_space", r, "no space left in the data folder");
        return configure_fail(c, "", r, "cannot change %s: %s", path, strerror(-r));
}

/* Appends a line to a file that exists (or, with `create`, to a new one). */
static int add_line(struct configure *c, const char *path, const char *line, bool create) {
        _cleanup_buf_ struct buf text = BUF_INIT(USERS_FILE_MAX);
        _cleanup_free_ char *old = NULL;

        int r = image_read(path, USERS_FILE_MAX / 2, &old);
        if (r == -ENOENT && !create)
                return 0;
        if (r < 0 && r != -ENOENT)
                return failed(c, r, path);
        if (old && old[0]) {
                r = buf_puts(&text, old);
                if (r == 0 && old[strlen(old) - 1] != '\n')
                        r = buf_puts(&text, "\n");
        } else {
                r = 0;
        }
        if (r == 0)
                r = buf_puts(&text, line);
        if (r == 0)
                r = image_write(path, (const char *) buf_data(&text), text.len, 0644);
        return r < 0 ? failed(c, r, path) : 0;
}

static int read_or_empty(struct configure *c, const char *path, char **ret) {
        int r = image_read(path, USERS_FILE_MAX / 2, ret);

        if (r == -ENOENT) {
                *ret = strdup("");
                r = *ret ? 0 : -ENOMEM;
        }
        return r < 0 ? failed(c, r, path) : 0;
}

static int ensure_root(struct configure *c, const char *passwd) {
        char line[128];
        uint32_t uid, gid;

        if (users_find(passwd, "root", &uid, &gid) == 0)
                return 0;
        (void) snprintf(line, sizeof line, "root:x:0:0:root:/root:%s\n", c->shell);
        int r = add_line(c, "/etc/passwd", line, true);
        return r < 0 ? r : add_line(c, "/etc/group", "root:x:0:\n", true);
}

static int add_user(struct configure *c, const char *passwd, const char *group) {
        uint32_t id = users_free_id(passwd, group);
        char line[256];
        int r;

        if (id == 0)
                return configure_fail(c, "", -EUSERS, "no user id from %d to %d is free", USERS_UID_FIRST, USERS_UID_LAST);
        c->uid = id;
        c->gid = id;
        if (users_find_group(group, USER_NAME, &c->gid) < 0) {
                c->gid = id;
                (void) snprintf(line, sizeof line, USER_NAME ":x:%u:\n", c->gid);
                r = add_line(c, "/etc/group", line, true);
                if (r == 0)
                        r = add_line(c, "/etc/gshadow", USER_NAME ":!::\n", false);
                if (r < 0)
                        return r;
        }
        (void) snprintf(line, sizeof line, USER_NAME ":x:%u:%u::" USER_HOME ":%s\n", c->uid, c->gid, c->shell);
        r = add_line(c, "/etc/passwd", line, true);
        if (r < 0)
                return r;
        (void) snprintf(line, sizeof line, USER_NAME ":*:%llu:0:99999:7:::\n", (unsigned long long) (c->epoch / 86400));
        return add_line(c, "/etc/shadow", line, false);
}

static int make_home(struct configure *c) {
        static const char *const skel[] = { ".bashrc", ".profile", ".bash_logout" };
        struct stat st;

        int r = image_mkdir("/home", 0755);
        if (r < 0)
                return failed(c, r, "/home");
        if (stat(USER_HOME, &st) == 0 && S_ISDIR(st.st_mode))
                return 0;
        r = image_mkdir(USER_HOME, 0755);
        if (r < 0 || chown(USER_HOME, c->uid, c->gid) < 0)
                return failed(c, r < 0 ? r : -errno, USER_HOME);
        for (size_t i = 0; i < ARRAY_SIZE(skel); i++) {
                _cleanup_free_ char *text = NULL;
                char from[64], to[64];
                (void) snprintf(from, sizeof from, "/etc/skel/%s", skel[i]);
                (void) snprintf(to, sizeof to, USER_HOME "/%s", skel[i]);
                if (image_read(from, 64 * 1024, &text) < 0)
                        continue;
                r = image_write(to, text, strlen(text), 0644);
                if (r < 0 || chown(to, c->uid, c->gid) < 0)
                        return failed(c, r < 0 ? r : -errno, to);
        }
        return 0;
}

static int allow_sudo(struct configure *c) {
        static const char rule[] = USER_NAME " ALL=(ALL:ALL) NOPASSWD: ALL\n";

        if (!image_exists("/etc/sudoers"))
                return 0;
        int r = image_mkdir("/etc/sudoers.d", 0750);
        if (r == 0)
                r = image_write("/etc/sudoers.d/" USER_NAME, rule, sizeof rule - 1, 0440);
        return r < 0 ? failed(c, r, "/etc/sudoers.d") : 0;
}

/* Dates of password changes are the day of the build otherwise. */
static int set_dates(struct configure *c) {
        _cleanup_buf_ struct buf text = BUF_INIT(USERS_FILE_MAX);
        _cleanup_free_ char *shadow = NULL;

        int r = image_read("/etc/shadow", USERS_FILE_MAX / 2, &shadow);
        if (r == -ENOENT)
                return 0;
        if (r == 0)
                r = users_set_dates(shadow, c->epoch / 86400, &text);
        if (r == 0)
                r = image_write("/etc/shadow", (const char *) buf_data(&text), text.len, 0640);
        return r < 0 ? failed(c, r, "/etc/shadow") : 0;
}

int configure_users(struct configure *c) {
        _cleanup_free_ char *passwd = NULL, *group = NULL;

        int r = image_mkdir("/etc", 0755);
        if (r < 0)
                return failed(c, r, "/etc");
        r = read_or_empty(c, "/etc/passwd", &passwd);
        if (r == 0)
                r = read_or_empty(c, "/etc/group", &group);
        if (r == 0)
                r = ensure_root(c, passwd);
        if (r < 0)
                return r;
        (void) str_copy(c->user, sizeof c->user, USER_NAME);
        if (users_find(passwd, USER_NAME, &c->uid, &c->gid) < 0)
                r = add_user(c, passwd, group);
        if (r == 0)
                r = make_home(c);
        if (r == 0)
                r = allow_sudo(c);
        return r < 0 ? r : set_dates(c);
}
