/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Whether the agent of a template, which is in its initrd for good, is the one that is installed: sandboxes of an older template
 * have what an upgrade brought only in their host's part. The builder writes the agent's digest into manifest.json; the
 * installed one's is computed again when the file is another one.
 */

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "app.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "manifest/manifest.h"
#include "template/template.h"
#include "template/template_internal.h"

#define LOOK_EVERY_MS 1000

static bool same_file(const struct stat *a, const struct stat *b) {
        return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
               a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* "" when it cannot be read. */
static const char *installed(struct app *app) {
        struct installed_agent *a = &app->templates->agent;
        uint64_t now = clock_mono_ms();
        char path[CONF_STR_MAX + 64];
        struct stat st;
        if (a->looked_ms && now - a->looked_ms < LOOK_EVERY_MS)
                return a->digest;
        a->looked_ms = now;
        if (conf_libexec_path(&app->conf, "cspace-agent", path, sizeof path) < 0 || stat(path, &st) < 0) {
                *a = (struct installed_agent){ .looked_ms = now };
                return a->digest;
        }
        if (a->digest[0] && same_file(&a->st, &st))
                return a->digest;
        _cleanup_free_ char *text = NULL;
        size_t n = 0;
        a->st = st;
        if (fd_read_file_at(AT_FDCWD, path, MANIFEST_AGENT_MAX, &text, &n, NULL) < 0 || manifest_digest(text, n, a->digest) < 0)
                a->digest[0] = '\0';
        return a->digest;
}

const char *template_agent(struct app *app, const struct tmpl *t) {
        const char *now = installed(app);
        const char *its = json_string_value(json_object_get(json_object_get(t->manifest, MANIFEST_AGENT_KEY), "sha256"));
        return !now[0] ? NULL : str_eq(its, now) ? "installed" : "other";
}
