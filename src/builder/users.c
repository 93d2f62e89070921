/* SPDX-License-Identifier: Apache-2.0 */
#include "users.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"

struct field {
        const char *at;
        size_t n;
};

/* Field i of the line at p, which ends before the line does. */
static bool get_field(const char *p, unsigned i, struct field *ret) {
        size_t line = strcspn(p, "\n");
        const char *end = p + line;

        for (; i > 0; i--) {
                const char *colon = memchr(p, ':', (size_t) (end - p));
                if (!colon)
                        return false;
                p = colon + 1;
        }
        const char *colon = memchr(p, ':', (size_t) (end - p));
        *ret = (struct field){ p, (size_t) ((colon ? colon : end) - p) };
        return true;
}

static bool field_is(const char *line, unsigned i, const char *value) {
        struct field f;

        return get_field(line, i, &f) && f.n == strlen(value) && memcmp(f.at, value, f.n) == 0;
}

static bool field_number(const char *line, unsigned i, uint32_t *ret) {
        struct field f;
        char digits[16];
        uint64_t v;

        if (!get_field(line, i, &f) || f.n == 0 || f.n >= sizeof digits)
                return false;
        memcpy(digits, f.at, f.n);
        digits[f.n] = '\0';
        if (str_to_u64(digits, UINT32_MAX, &v) < 0)
                return false;
        *ret = (uint32_t) v;
        return true;
}

static const char *next_line(const char *p) {
        p += strcspn(p, "\n");
        return *p ? p + 1 : p;
}

int users_find(const char *passwd, const char *name, uint32_t *ret_uid, uint32_t *ret_gid) {
        for (const char *p = passwd; *p; p = next_line(p)) {
                uint32_t uid, gid;
                if (!field_is(p, 0, name) || !field_number(p, 2, &uid) || !field_number(p, 3, &gid))
                        continue;
                *ret_uid = uid;
                *ret_gid = gid;
                return 0;
        }
        return -ENOENT;
}

int users_find_group(const char *group, const char *name, uint32_t *ret_gid) {
        for (const char *p = group; *p; p = next_line(p)) {
                uint32_t gid;
                if (!field_is(p, 0, name) || !field_number(p, 2, &gid))
                        continue;
                *ret_gid = gid;
                return 0;
        }
        return -ENOENT;
}

static bool id_used(const char *file, uint32_t id) {
        for (const char *p = file; *p; p = next_line(p)) {
                uint32_t v;
                if (field_number(p, 2, &v) && v == id)
                        return true;
        }
        return false;
}

uint32_t users_free_id(const char *passwd, const char *group) {
        for (uint32_t id = USERS_UID_FIRST; id <= USERS_UID_LAST; id++)
                if (!id_used(passwd, id) && !id_used(group, id))
                        return id;
        return 0;
}

int users_set_dates(const char *shadow, uint64_t day, struct buf *out) {
        int r = 0;

        for (const char *p = shadow; *p && r == 0; p = next_line(p)) {
                size_t n = strcspn(p, "\n");
                struct field f;
                if (get_field(p, 2, &f) && f.n > 0)
                        r = buf_printf(out, "%.*s%llu%.*s\n", (int) (f.at - p), p, (unsigned long long) day,
                                       (int) (p + n - (f.at + f.n)), f.at + f.n);
                else
                        r = buf_printf(out, "%.*s\n", (int) n, p);
        }
        return r;
}
