/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Removes what is of one build only, or must not be the same in two sandboxes: caches, logs, locks, backups, keys,
 * random seeds. What is listed here was found by comparing two builds.
 */
#include "configure_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/str.h"

/* Everything in these folders. */
static const char *const empty_folders[] = {
        "/var/lib/apt/lists", "/var/cache/apt", "/tmp", "/var/tmp", "/run", "/dev", "/var/cache/ldconfig",
        "/var/cache/man", "/root/.cache",
};

/* Everything in these folders, when built from packages. */
static const char *const empty_folders_of_packages[] = {
        "/usr/share/man", "/usr/share/info", "/usr/share/lintian", "/usr/share/doc-base",
};

static const char *const files[] = {
        "/etc/passwd-", "/etc/shadow-", "/etc/group-", "/etc/gshadow-", "/etc/subuid-", "/etc/subgid-", "/etc/.pwd.lock",
        "/var/lib/dpkg/status-old", "/var/lib/dpkg/available-old", "/var/lib/dpkg/diversions-old",
        "/var/lib/dpkg/statoverride-old", "/var/lib/dpkg/lock", "/var/lib/dpkg/lock-frontend",
        "/var/lib/dpkg/triggers/Lock", "/var/cache/debconf/config.dat-old", "/var/cache/debconf/templates.dat-old",
        "/var/cache/debconf/passwords.dat", "/var/lib/dbus/machine-id", "/var/lib/systemd/random-seed",
        "/var/lib/urandom/random-seed", "/root/.bash_history", "/root/.wget-hsts", "/etc/apt/apt.conf.d/99mmdebstrap",
        "/etc/dpkg/dpkg.cfg.d/99mmdebstrap", "/etc/apt/apt.conf.d/00mmdebstrap",
};

static void closedirp(DIR **d) {
        if (*d)
                closedir(*d);
}

static DIR *open_folder(const char *path) {
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        DIR *d = fd < 0 ? NULL : fdopendir(fd);

        if (!d)
                (void) fd_close(fd);
        return d;
}

/* Best effort: a file that stays behind is found by the comparison of builds, not a reason to fail. */
static void empty_folder(const char *path) {
        _cleanup_(closedirp) DIR *d = open_folder(path);

        for (struct dirent *e; d && (e = readdir(d));)
                if (!str_eq(e->d_name, ".") && !str_eq(e->d_name, ".."))
                        (void) fd_remove_tree_at(dirfd(d), e->d_name, NULL);
}

static void remove_matching(const char *path, const char *prefix, const char *suffix) {
        _cleanup_(closedirp) DIR *d = open_folder(path);

        for (struct dirent *e; d && (e = readdir(d));)
                if (str_has_prefix(e->d_name, prefix) && str_has_suffix(e->d_name, suffix))
                        (void) unlinkat(dirfd(d), e->d_name, 0);
}

/* Logs: the folders stay, as services expect theirs. */
static bool remove_log(const FTSENT *e) {
        return e->fts_info == FTS_F;
}

/* Documentation: licences stay, and links between packages' folders, which may lead to licences. */
static bool remove_doc(const FTSENT *e) {
        if (e->fts_info == FTS_F || (e->fts_info == FTS_SL && e->fts_level > 1))
                return !str_eq(e->fts_name, "copyright");
        return false;
}

static void walk(const char *path, bool (*remove)(const FTSENT *), bool folders_too) {
        char copy[64];
        char *const roots[] = { copy, NULL };

        if (str_copy(copy, sizeof copy, path) < 0)
                return;
        FTS *f = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR | FTS_XDEV, NULL);
        for (FTSENT *e; f && (e = fts_read(f));) {
                if (remove(e))
                        (void) unlink(e->fts_accpath);
                else if (folders_too && e->fts_info == FTS_DP && e->fts_level > 0)
                        (void) rmdir(e->fts_accpath); /* only if it is empty */
        }
        if (f)
                (void) fts_close(f);
}

/* Message catalogues of all languages; the alias file is not a folder. */
static void remove_locales(void) {
        _cleanup_(closedirp) DIR *d = open_folder("/usr/share/locale");

        for (struct dirent *e; d && (e = readdir(d));)
                if (e->d_type == DT_DIR && e->d_name[0] != '.')
                        (void) fd_remove_tree_at(dirfd(d), e->d_name, NULL);
}

int configure_tidy(struct configure *c) {
        for (size_t i = 0; i < ARRAY_SIZE(empty_folders); i++)
                empty_folder(empty_folders[i]);
        for (size_t i = 0; i < ARRAY_SIZE(files); i++)
                (void) unlink(files[i]);
        /* Keys that would be the same in every sandbox. */
        remove_matching("/etc/ssh", "ssh_host_", "");
        walk("/var/log", remove_log, false);
        if (!c->packages)
                return 0;
        for (size_t i = 0; i < ARRAY_SIZE(empty_folders_of_packages); i++)
                empty_folder(empty_folders_of_packages[i]);
        walk("/usr/share/doc", remove_doc, true);
        remove_locales();
        /* apt wants its folders back. */
        (void) image_mkdir("/var/cache/apt/archives", 0755);
        (void) image_mkdir("/var/cache/apt/archives/partial", 0755);
        (void) image_mkdir("/var/lib/apt/lists/partial", 0755);
        return 0;
}
