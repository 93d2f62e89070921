/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "entry.h"
#include "jsonw.h"

#define PREFIX "user.e2b."
#define LIST_MAX (64 * 1024)
#define VALUE_MAX (METADATA_TOTAL_MAX + 1)

void metadata_done(struct metadata *m) {
        for (size_t i = 0; i < m->n; i++) {
                free(m->items[i].key);
                free(m->items[i].value);
        }
        free(m->items);
        *m = (struct metadata){ 0 };
}

static bool printable(const char *s) {
        for (; *s; s++)
                if ((unsigned char) *s < 0x20 || (unsigned char) *s > 0x7e)
                        return false;
        return true;
}

int metadata_add(struct metadata *m, const char *key, const char *value, struct error *err) {
        size_t kn = strlen(key), vn = strlen(value);
        if (kn == 0 || kn > METADATA_KEY_MAX)
                return error_set(err, -EINVAL, "a metadata key must have 1 to %d bytes", METADATA_KEY_MAX);
        if (!printable(key) || !printable(value))
                return error_set(err, -EINVAL, "metadata '%s' must be printable ASCII", key);
        if (m->total + kn + vn > METADATA_TOTAL_MAX)
                return error_set(err, -EINVAL, "the metadata has more than %d bytes", METADATA_TOTAL_MAX);
        struct metadata_item *items = realloc(m->items, (m->n + 1) * sizeof *items);
        if (!items)
                return error_set(err, -ENOMEM, "out of memory");
        m->items = items;
        struct metadata_item it = { .key = strdup(key), .value = strdup(value) };
        if (!it.key || !it.value) {
                free(it.key);
                free(it.value);
                return error_set(err, -ENOMEM, "out of memory");
        }
        for (char *p = it.key; *p; p++)
                if (*p >= 'A' && *p <= 'Z')
                        *p = (char) (*p + 32);
        m->items[m->n++] = it;
        m->total += kn + vn;
        return 0;
}

static void remove_old(int fd) {
        _cleanup_free_ char *list = malloc(LIST_MAX);
        ssize_t n = list ? flistxattr(fd, list, LIST_MAX) : -1;
        for (ssize_t i = 0; i < n; i += (ssize_t) strlen(list + i) + 1)
                if (str_has_prefix(list + i, PREFIX))
                        (void) fremovexattr(fd, list + i);
}

int metadata_write(int fd, const struct metadata *m, struct error *err) {
        remove_old(fd);
        for (size_t i = 0; i < m->n; i++) {
                char name[sizeof PREFIX + METADATA_KEY_MAX];
                const struct metadata_item *it = &m->items[i];
                (void) snprintf(name, sizeof name, PREFIX "%s", it->key);
                if (fsetxattr(fd, name, it->value, strlen(it->value), 0) < 0)
                        return error_errno(err, errno, "cannot store metadata '%s'", it->key);
        }
        return 0;
}

int metadata_json(const char *path, struct buf *out) {
        ssize_t total = listxattr(path, NULL, 0);
        if (total <= 0 || total > LIST_MAX)
                return 0;
        _cleanup_free_ char *list = malloc((size_t) total + 1), *value = malloc(VALUE_MAX);
        if (!list || !value)
                return -ENOMEM;
        total = listxattr(path, list, (size_t) total);
        bool first = true;
        int r = 0;
        for (ssize_t i = 0; r == 0 && i < total; i += (ssize_t) strlen(list + i) + 1) {
                if (!str_has_prefix(list + i, PREFIX))
                        continue;
                ssize_t n = getxattr(path, list + i, value, VALUE_MAX - 1);
                if (n < 0)
                        continue;
                value[n] = '\0';
                r = first ? buf_puts(out, ",\"metadata\":{") : 0;
                if (r == 0)
                        r = jsonw_member(out, first, list + i + sizeof PREFIX - 1, value);
                first = false;
        }
        return r == 0 && !first ? buf_puts(out, "}") : r;
}
