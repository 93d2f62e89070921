/* SPDX-License-Identifier: Apache-2.0 */

/* Folders and files that every sandbox needs, and for package builds the settings of apt and pip. */
#include "configure_internal.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"

static const struct {
        const char *path;
        unsigned mode;
} folders[] = {
        { "/dev", 0755 }, { "/proc", 0555 }, { "/sys", 0555 },  { "/run", 0755 }, { "/tmp", 01777 },
        { "/var", 0755 }, { "/var/tmp", 01777 }, { "/root", 0700 }, { "/mnt", 0755 },
};

struct image_file {
        const char *path, *text;
};

static const struct image_file every_image[] = {
        { "/etc/hostname", "sandbox\n" },
        { "/etc/hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" },
        /* The gateway's end of the sandbox's network. */
        { "/etc/resolv.conf", "nameserver 10.200.0.1\n" },
        /* systemd takes an empty file as "to be made at boot"; without one it believes in a first boot. */
        { "/etc/machine-id", "" },
};

static const struct image_file package_images[] = {
        { "/etc/fstab", "/dev/vda / ext4 defaults 0 0\n" },
        { "/etc/default/locale", "LANG=C.UTF-8\n" },
        { "/etc/apt/apt.conf.d/50cspace", "// A sandbox is small and short-lived.\n"
                                          "APT::Install-Recommends \"false\";\n"
                                          "Acquire::Languages \"none\";\n"
                                          "Acquire::Retries \"2\";\n"
                                          "Dpkg::Use-Pty \"0\";\n" },
        /* The whole machine is the agent's: there is no system Python to protect from pip. */
        { "/etc/pip.conf", "[global]\n"
                           "break-system-packages = true\n"
                           "root-user-action = ignore\n"
                           "disable-pip-version-check = true\n" },
};

static int failed(struct configure *c, int r, const char *path) {
        return configure_fail(c, r == -ENOSPC || r == -EDQUOT ? "no_space" : "", r, "cannot make %s: %s", path, strerror(-r));
}

static int put_files(struct configure *c, const struct image_file *list, size_t n) {
        for (size_t i = 0; i < n; i++) {
                int r = image_write(list[i].path, list[i].text, strlen(list[i].text), 0644);
                if (r < 0)
                        return failed(c, r, list[i].path);
        }
        return 0;
}

/* Some packages link into these when they are installed, documentation or not. */
static int make_man_folders(struct configure *c) {
        char path[32] = "/usr/share/man";

        int r = image_mkdir(path, 0755);
        for (unsigned i = 1; i <= 8 && r == 0; i++) {
                (void) snprintf(path, sizeof path, "/usr/share/man/man%u", i);
                r = image_mkdir(path, 0755);
        }
        return r < 0 ? failed(c, r, path) : 0;
}

/* mmdebstrap gives the file that it was handed a name of its own making. */
static void remove_sources(const char *folder) {
        DIR *d = opendir(folder);

        for (struct dirent *e; d && (e = readdir(d));)
                if (e->d_name[0] != '.')
                        (void) unlinkat(dirfd(d), e->d_name, 0);
        if (d)
                closedir(d);
}

static int set_sources(struct configure *c) {
        if (!c->sources)
                return 0;
        (void) unlink("/etc/apt/sources.list");
        remove_sources("/etc/apt/sources.list.d");
        int r = image_write("/etc/apt/sources.list.d/debian.sources", c->sources, strlen(c->sources), 0644);
        return r < 0 ? failed(c, r, "/etc/apt/sources.list.d/debian.sources") : 0;
}

/* KEY=value or KEY="value" of os-release(5). */
static void os_value(const char *text, const char *key, char *out, size_t cap) {
        for (const char *p = text; *p;) {
                size_t n = strcspn(p, "\n");
                if (str_has_prefix(p, key)) {
                        const char *v = p + strlen(key);
                        size_t len = n - strlen(key);
                        if (len >= 2 && (v[0] == '"' || v[0] == '\'') && v[len - 1] == v[0]) {
                                v++;
                                len -= 2;
                        }
                        if (len < cap && str_is_utf8(v, len)) {
                                memcpy(out, v, len);
                                out[len] = '\0';
                        }
                        return;
                }
                p += n + (p[n] == '\n');
        }
}

static void read_os(struct configure *c) {
        _cleanup_free_ char *text = NULL;

        if (image_read("/etc/os-release", 64 * 1024, &text) < 0 && image_read("/usr/lib/os-release", 64 * 1024, &text) < 0)
                return;
        os_value(text, "ID=", c->os_id, sizeof c->os_id);
        os_value(text, "VERSION_ID=", c->os_version, sizeof c->os_version);
        os_value(text, "PRETTY_NAME=", c->os_name, sizeof c->os_name);
}

int configure_settings(struct configure *c) {
        for (size_t i = 0; i < ARRAY_SIZE(folders); i++) {
                int r = image_mkdir(folders[i].path, folders[i].mode);
                if (r < 0)
                        return failed(c, r, folders[i].path);
        }
        read_os(c);
        int r = put_files(c, every_image, ARRAY_SIZE(every_image));
        if (r < 0 || !c->packages)
                return r;
        r = put_files(c, package_images, ARRAY_SIZE(package_images));
        if (r == 0)
                r = make_man_folders(c);
        return r < 0 ? r : set_sources(c);
}
