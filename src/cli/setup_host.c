/* SPDX-License-Identifier: Apache-2.0 */

/* User, configuration file and folders. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "setup.h"

#ifndef CSPACE_DATADIR
#define CSPACE_DATADIR "/usr/local/share/cspace"
#endif

static bool look_up(struct setup *s) {
        const struct passwd *pw = getpwnam(SETUP_USER);

        if (!pw)
                return false;
        s->uid = pw->pw_uid;
        s->gid = pw->pw_gid;
        return true;
}

int setup_user(struct setup *s, bool create, struct error *err) {
        static const char *const group[] = { "groupadd", "--system", SETUP_USER, NULL };
        static const char *const user[] = { "useradd",        "--system", "--gid",             SETUP_USER, "--no-create-home",
                                            "--home-dir",     "/nonexistent", "--shell",       "/usr/sbin/nologin",
                                            "--comment",      "cspace services", SETUP_USER,   NULL };

        bool found = look_up(s);
        if (found && s->uid == 0)
                return error_set(err, -EPERM, "the user " SETUP_USER " has uid 0");
        if (found)
                return 0;
        if (!create)
                return error_set(err, -ENOENT, "there is no user " SETUP_USER);
        int r = getgrnam(SETUP_USER) ? 0 : setup_exec(group, err);
        if (r == 0)
                r = setup_exec(user, err);
        if (r < 0)
                return error_wrap(err, "cannot make the user " SETUP_USER);
        if (!look_up(s))
                return error_set(err, -ENOENT, "the user " SETUP_USER " was made, but is not found");
        setup_say("user " SETUP_USER " made (uid %u)", s->uid);
        return 0;
}

/* The commented file that was installed, or, run from a build folder, the bare keys. */
static int default_text(char **ret, size_t *ret_n, struct error *err) {
        struct conf c;

        if (fd_read_file_at(AT_FDCWD, CSPACE_DATADIR "/cspace.conf", CONF_FILE_MAX, ret, ret_n, NULL) == 0)
                return 0;
        FILE *f = open_memstream(ret, ret_n);
        if (!f)
                return error_set(err, -ENOMEM, "out of memory");
        conf_defaults(&c);
        int r = conf_print(&c, f);
        return fclose(f) != 0 || r < 0 ? error_set(err, -ENOMEM, "out of memory") : 0;
}

int setup_config(struct setup *s, struct error *err) {
        _cleanup_free_ char *text = NULL;
        size_t n = 0;

        if (s->config || access(CONF_FILE, F_OK) == 0)
                return 0;
        int r = default_text(&text, &n, err);
        if (r == 0)
                r = fd_mkdir_p_at(AT_FDCWD, "/etc/cspace", 0755, err);
        if (r == 0)
                r = fd_replace_file_at(AT_FDCWD, CONF_FILE, text, n, 0644, err);
        if (r < 0)
                return r;
        setup_say("%s written with the defaults", CONF_FILE);
        return 0;
}

/* A folder of root's whose mode the services rely on. */
static int root_dir(const char *path, mode_t mode, gid_t gid, struct error *err) {
        struct stat st;

        int r = fd_mkdir_p_at(AT_FDCWD, path, 0755, err);
        if (r < 0)
                return r;
        _cleanup_fd_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st) < 0)
                return error_errno(err, errno, "cannot open %s", path);
        if (st.st_uid == 0 && st.st_gid == gid && (st.st_mode & 07777) == mode)
                return 0;
        if (fchown(fd, 0, gid) < 0 || fchmod(fd, mode) < 0)
                return error_errno(err, errno, "cannot set owner and mode of %s", path);
        return 0;
}

int setup_dirs(struct setup *s, struct error *err) {
        /* Sticky: cspaced keeps files of its own beside root's, and cannot touch those. */
        int r = root_dir(s->conf.run, 01775, s->gid, err);

        if (r == 0)
                r = root_dir(s->conf.data, 01775, s->gid, err);
        if (r == 0)
                r = root_dir(s->conf.log, 0750, s->gid, err);
        return r;
}
