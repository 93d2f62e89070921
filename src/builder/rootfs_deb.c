/* SPDX-License-Identifier: Apache-2.0 */

/*
 * mmdebstrap finds the lists and packages where the download has put them, in the apt folders of the root filesystem,
 * so it needs no network and gets none. It runs as root of the builder's namespaces.
 */
#include "rootfs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apt.h"
#include "base/buf.h"
#include "base/fd.h"
#include "base/str.h"
#include "child.h"

/*
 * In the template for good: a sandbox is short-lived and small, so nothing waits for the disk while unpacking,
 * and documentation that only people read stays out. Licences stay in.
 */
static const char dpkg_config[] = "force-unsafe-io\n"
                                  "path-exclude=/usr/share/man/*\n"
                                  "path-exclude=/usr/share/info/*\n"
                                  "path-exclude=/usr/share/doc/*\n"
                                  "path-include=/usr/share/doc/*/copyright\n"
                                  "path-exclude=/usr/share/locale/*\n"
                                  "path-include=/usr/share/locale/locale.alias\n"
                                  "path-exclude=/usr/share/lintian/*\n";

struct counter {
        struct build *b;
        unsigned events; /* of two per package: unpacked, set up */
};

static void on_line(void *arg, const char *line) {
        struct counter *c = arg;
        char message[160];

        bool unpacking = str_has_prefix(line, "Unpacking "), setup = str_has_prefix(line, "Setting up ");
        if (!unpacking && !setup)
                return;
        c->events++;
        unsigned total = c->b->n_debs ? 2 * c->b->n_debs : 1;
        const char *name = strchr(line + (setup ? 8 : 0), ' ');
        (void) snprintf(message, sizeof message, "%s %.100s", unpacking ? "unpacking" : "setting up", name ? name + 1 : "");
        message[strcspn(message, "(")] = '\0';
        size_t n = strlen(message);
        while (n > 0 && message[n - 1] == ' ')
                message[--n] = '\0';
        build_progress(c->b, c->events * 99 / total, message);
}

static int include_list(const struct build *b, struct buf *out, struct error *err) {
        int r = buf_puts(out, "--include=");

        for (const char *const *p = apt_base_packages; *p && r == 0; p++)
                r = buf_printf(out, "%s%s", p == apt_base_packages ? "" : ",", *p);
        for (const char *p = b->packages + strspn(b->packages, " "); *p && r == 0;) {
                size_t n = strcspn(p, " ");
                r = buf_printf(out, ",%.*s", (int) n, p);
                p += n;
                p += strspn(p, " ");
        }
        return r < 0 ? error_set(err, -ENOMEM, "the list of packages is too long") : 0;
}

int rootfs_from_packages(struct build *b, struct error *err) {
        _cleanup_buf_ struct buf include = BUF_INIT(64 * 1024);
        char sources[BUILD_PATH_MAX + 128], arch[64];
        struct counter counter = { .b = b };
        struct child c = CHILD_INIT;

        build_step(b, STEP_ROOTFS, "unpacking packages");
        int r = include_list(b, &include, err);
        if (r < 0)
                return r;
        r = fd_mkdir_p_at(b->dirfd, "rootfs/etc/dpkg/dpkg.cfg.d", 0755, err);
        if (r == 0)
                r = fd_replace_file_at(b->dirfd, "rootfs/etc/dpkg/dpkg.cfg.d/cspace", dpkg_config, sizeof dpkg_config - 1, 0644,
                                       err);
        if (r < 0)
                return r;
        (void) snprintf(sources, sizeof sources, "%s/etc/apt/sources.list.d/0000debian.%s", b->rootfs,
                        b->sources && str_has_suffix(b->sources, ".list") ? "list" : "sources");
        (void) snprintf(arch, sizeof arch, "--architectures=%s", b->arch);
        const char *const argv[] = { "mmdebstrap",
                                     "-v",
                                     "--mode=root",
                                     "--variant=minbase",
                                     "--format=directory",
                                     "--skip=update,check/empty,check/signed-by,essential/unlink",
                                     arch,
                                     "--aptopt=APT::Install-Recommends \"false\"",
                                     "--aptopt=Acquire::Languages \"none\"",
                                     buf_str(&include),
                                     /* Sources of the administrator's own may name their suite as they like. */
                                     b->sources ? b->suite : b->suite_used,
                                     b->rootfs,
                                     sources,
                                     NULL };
        c.argv = argv;
        c.no_network = true;
        c.on_line = on_line;
        c.line_arg = &counter;
        return child_run(b, &c, err);
}
