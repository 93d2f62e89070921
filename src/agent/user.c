/* SPDX-License-Identifier: Apache-2.0 */
#include "user.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/fd.h"
#include "base/str.h"

#define DB_MAX (4 * 1024 * 1024)
#define FIELDS_MAX 7

static const char *etc_dir = "/etc";

void user_set_etc(const char *dir) {
        etc_dir = dir;
}

static int read_db(const char *file, char **ret) {
        char path[PATH_MAX];
        if (snprintf(path, sizeof path, "%s/%s", etc_dir, file) >= (int) sizeof path)
                return -ENAMETOOLONG;
        return fd_read_regular_at(AT_FDCWD, path, DB_MAX, ret, NULL, NULL);
}

/* Cuts the next line of *pos into fields in place. 0 at the end of the text. */
static size_t next_entry(char **pos, char *fields[FIELDS_MAX]) {
        while (*pos && **pos) {
                char *line = *pos, *end = strchr(line, '\n');
                if (end)
                        *end = '\0';
                *pos = end ? end + 1 : line + strlen(line);
                if (!*line || *line == '#')
                        continue;
                size_t n = 0;
                while (n < FIELDS_MAX) {
                        fields[n++] = line;
                        char *colon = strchr(line, ':');
                        if (!colon)
                                break;
                        *colon = '\0';
                        line = colon + 1;
                }
                return n;
        }
        return 0;
}

static int parse_id(const char *s, unsigned *ret) {
        uint64_t v;
        if (str_to_u64(s, UINT32_MAX - 1, &v) < 0)
                return -EINVAL;
        *ret = (unsigned) v;
        return 0;
}

static void add_group(struct user *u, gid_t gid) {
        for (size_t i = 0; i < u->n_groups; i++)
                if (u->groups[i] == gid)
                        return;
        if (u->n_groups < USER_GROUPS_MAX)
                u->groups[u->n_groups++] = gid;
}

static bool in_members(const char *members, const char *name) {
        size_t n = strlen(name);
        for (const char *p = members; *p;) {
                size_t part = strcspn(p, ",");
                if (part == n && memcmp(p, name, n) == 0)
                        return true;
                p += part + (p[part] == ',');
        }
        return false;
}

static void load_groups(struct user *u) {
        u->n_groups = 0;
        add_group(u, u->gid);
        _cleanup_free_ char *db = NULL;
        if (read_db("group", &db) < 0)
                return;
        char *pos = db, *f[FIELDS_MAX];
        for (size_t n; (n = next_entry(&pos, f)) > 0;) {
                unsigned gid;
                if (n >= 4 && in_members(f[3], u->name) && parse_id(f[2], &gid) == 0)
                        add_group(u, gid);
        }
}

static int fill(struct user *u, char *f[FIELDS_MAX], size_t n) {
        unsigned uid, gid;
        if (n < 6 || parse_id(f[2], &uid) < 0 || parse_id(f[3], &gid) < 0 ||
            str_copy(u->name, sizeof u->name, f[0]) < 0)
                return -EINVAL;
        u->uid = uid;
        u->gid = gid;
        if (f[5][0] != '/' || str_copy(u->home, sizeof u->home, f[5]) < 0)
                (void) str_copy(u->home, sizeof u->home, "/");
        return 0;
}

int user_lookup(const char *name, struct user *ret, struct error *err) {
        _cleanup_free_ char *db = NULL;
        unsigned want = 0;
        bool numeric = parse_id(name, &want) == 0;
        struct user u = { .name = "" };
        bool found = false;
        if (read_db("passwd", &db) == 0) {
                char *pos = db, *f[FIELDS_MAX];
                for (size_t n; !found && (n = next_entry(&pos, f)) > 0;) {
                        unsigned uid;
                        bool same = str_eq(f[0], name) ||
                                    (numeric && n >= 3 && parse_id(f[2], &uid) == 0 && uid == want);
                        found = same && fill(&u, f, n) == 0;
                }
        }
        if (!found && (str_eq(name, "root") || (numeric && want == 0))) {
                (void) str_copy(u.name, sizeof u.name, "root");
                (void) str_copy(u.home, sizeof u.home, "/root");
                found = true;
        }
        if (!found)
                return error_set(err, -ENOENT, "user '%s' does not exist in the sandbox", name);
        load_groups(&u);
        *ret = u;
        return 0;
}

/* One cached answer for each kind: a listing mostly repeats the same owner. */
struct user_names {
        char *passwd, *group;
        bool have_uid, have_gid;
        uid_t uid;
        gid_t gid;
        char uid_name[USER_NAME_MAX], gid_name[USER_NAME_MAX];
};

struct user_names *user_names_load(void) {
        struct user_names *n = calloc(1, sizeof *n);
        if (!n)
                return NULL;
        (void) read_db("passwd", &n->passwd);
        (void) read_db("group", &n->group);
        return n;
}

void user_names_free(struct user_names *n) {
        if (!n)
                return;
        free(n->passwd);
        free(n->group);
        free(n);
}

void user_names_freep(struct user_names **n) {
        user_names_free(*n);
}

/* Finds the entry of db whose third field is id, without changing the text. */
static void name_of(const char *db, unsigned id, char out[USER_NAME_MAX]) {
        (void) snprintf(out, USER_NAME_MAX, "%u", id);
        for (const char *line = db; line && *line;) {
                size_t len = strcspn(line, "\n");
                const char *a = memchr(line, ':', len);
                const char *b = a ? memchr(a + 1, ':', len - (size_t) (a + 1 - line)) : NULL;
                if (b) {
                        char num[16];
                        const char *c = memchr(b + 1, ':', len - (size_t) (b + 1 - line));
                        size_t n = c ? (size_t) (c - b - 1) : len - (size_t) (b + 1 - line);
                        unsigned got;
                        if (n < sizeof num && (size_t) (a - line) < USER_NAME_MAX) {
                                memcpy(num, b + 1, n);
                                num[n] = '\0';
                                if (parse_id(num, &got) == 0 && got == id) {
                                        memcpy(out, line, (size_t) (a - line));
                                        out[a - line] = '\0';
                                        return;
                                }
                        }
                }
                line += len + (line[len] == '\n');
        }
}

const char *user_names_uid(struct user_names *n, uid_t uid) {
        if (!n->have_uid || n->uid != uid) {
                name_of(n->passwd, uid, n->uid_name);
                n->uid = uid;
                n->have_uid = true;
        }
        return n->uid_name;
}

const char *user_names_gid(struct user_names *n, gid_t gid) {
        if (!n->have_gid || n->gid != gid) {
                name_of(n->group, gid, n->gid_name);
                n->gid = gid;
                n->have_gid = true;
        }
        return n->gid_name;
}
