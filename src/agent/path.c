/* SPDX-License-Identifier: Apache-2.0 */
#include "path.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"

int path_clean(const char *path, char out[PATH_MAX]) {
        char tmp[PATH_MAX];
        size_t n = 0;
        for (const char *p = path; *p;) {
                while (*p == '/')
                        p++;
                size_t part = strcspn(p, "/");
                if (part == 0)
                        break;
                if (part == 2 && p[0] == '.' && p[1] == '.') {
                        while (n > 0 && tmp[n - 1] != '/')
                                n--;
                        if (n > 0)
                                n--;
                } else if (!(part == 1 && p[0] == '.')) {
                        if (n + 1 + part >= sizeof tmp)
                                return -ENAMETOOLONG;
                        tmp[n++] = '/';
                        memcpy(tmp + n, p, part);
                        n += part;
                }
                p += part;
        }
        if (n == 0)
                tmp[n++] = '/';
        memcpy(out, tmp, n);
        out[n] = '\0';
        return 0;
}

int path_join(const char *dir, const char *name, char out[PATH_MAX]) {
        char tmp[2 * PATH_MAX];
        int n = snprintf(tmp, sizeof tmp, "%s/%s", str_eq(dir, "/") ? "" : dir, name);
        if (n < 0 || n >= PATH_MAX)
                return -ENAMETOOLONG;
        memcpy(out, tmp, (size_t) n + 1);
        return 0;
}

int path_resolve(const char *path, const char *home, const char *dflt, char out[PATH_MAX], struct error *err) {
        char joined[2 * PATH_MAX];
        int n;
        if (!*path) {
                n = snprintf(joined, sizeof joined, "%s", dflt && *dflt ? dflt : home);
                if (n > 0 && joined[0] == '~')
                        return path_resolve(dflt, home, NULL, out, err);
        } else if (path[0] == '~') {
                if (path[1] && path[1] != '/')
                        return error_set(err, -EINVAL, "cannot expand the home folder of another user in path '%s'",
                                         path);
                n = snprintf(joined, sizeof joined, "%s/%s", home, path + 1);
        } else if (path[0] == '/')
                n = snprintf(joined, sizeof joined, "%s", path);
        else
                n = snprintf(joined, sizeof joined, "%s/%s", home, path);
        if (n < 0 || (size_t) n >= sizeof joined || path_clean(joined, out) < 0)
                return error_set(err, -ENAMETOOLONG, "the path is longer than %d bytes", PATH_MAX - 1);
        return 0;
}

int path_resolve_in(const char *path, const char *home, const char *dflt, char out[PATH_MAX], struct error *err) {
        char start[PATH_MAX];
        bool relative = *path && path[0] != '/' && path[0] != '~';
        int r = relative ? path_resolve("", home, dflt, start, err) : 0;
        return r < 0 ? r : path_resolve(path, relative ? start : home, dflt, out, err);
}

const char *path_base(const char *path) {
        const char *slash = strrchr(path, '/');
        if (!slash)
                return path;
        return slash[1] ? slash + 1 : "/";
}

int path_dir(const char *path, char out[PATH_MAX]) {
        const char *slash = strrchr(path, '/');
        size_t n = !slash || slash == path ? 1 : (size_t) (slash - path);
        if (n >= PATH_MAX)
                return -ENAMETOOLONG;
        memmove(out, slash ? path : "/", n);
        out[n] = '\0';
        return 0;
}

bool path_is_below(const char *path, const char *dir) {
        if (str_eq(dir, "/"))
                return true;
        size_t n = strlen(dir);
        return strncmp(path, dir, n) == 0 && (path[n] == '/' || path[n] == '\0');
}
