/* SPDX-License-Identifier: Apache-2.0 */
#include "history_line.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/str.h"

/* Names are bytes that may have been made text with U+FFFD (three bytes) for each. */
#define PATH_TEXT_MAX (3 * LIMIT_PATH)
#define PATH_B64_MAX (LIMIT_PATH / 3 * 4 + 8)
#define WORD_MAX 63
#define WORDS_MAX 16

enum form { TEXT, PATH, WORD, NUMBER, WORDS, META, DEVICE, ANY_TEXT };

struct member {
        const char *name;
        enum form form;
        bool required;
        uint64_t max; /* of a text its bytes, of a number its value */
};

static const struct member device_members[] = {
        { "major", NUMBER, true, UINT32_MAX },
        { "minor", NUMBER, true, UINT32_MAX },
        { NULL, TEXT, false, 0 },
};

#define META_MEMBERS                                         \
        { "type", WORD, true, WORD_MAX },                    \
        { "size", NUMBER, true, INT64_MAX },                 \
        { "mode", NUMBER, true, 07777 },                     \
        { "uid", NUMBER, true, UINT32_MAX },                 \
        { "gid", NUMBER, true, UINT32_MAX },                 \
        { "modified_at", TEXT, true, WORD_MAX },             \
        { "inode", NUMBER, true, UINT32_MAX },               \
        { "links", NUMBER, true, UINT32_MAX },               \
        { "link_target", ANY_TEXT, false, PATH_TEXT_MAX },   \
        { "link_target_b64", TEXT, false, PATH_B64_MAX },    \
        { "device", DEVICE, false, 0 }

static const struct member meta_members[] = { META_MEMBERS, { NULL, TEXT, false, 0 } };
static const struct member file_members[] = {
        META_MEMBERS,
        { "path", PATH, true, PATH_TEXT_MAX },
        { "path_b64", TEXT, false, PATH_B64_MAX },
        { NULL, TEXT, false, 0 },
};
static const struct member change_members[] = {
        { "status", WORD, true, WORD_MAX },
        { "path", PATH, true, PATH_TEXT_MAX },
        { "path_b64", TEXT, false, PATH_B64_MAX },
        { "from", PATH, false, PATH_TEXT_MAX },
        { "from_b64", TEXT, false, PATH_B64_MAX },
        { "by", WORD, false, WORD_MAX },
        { "what", WORDS, false, WORDS_MAX },
        { "old", META, false, 0 },
        { "new", META, false, 0 },
        { "patch", ANY_TEXT, false, HISTORY_PATCH_MAX },
        { "patch_b64", TEXT, false, HISTORY_PATCH_MAX },
        { "patch_omitted", WORD, false, WORD_MAX },
        { "error", WORD, false, WORD_MAX },
        { NULL, TEXT, false, 0 },
};
static const struct member end_members[] = {
        { "cursor", TEXT, false, PATH_B64_MAX },
        { NULL, TEXT, false, 0 },
};
static const struct member error_members[] = {
        { "error", ANY_TEXT, true, HISTORY_MESSAGE_MAX },
        { "code", WORD, true, WORD_MAX },
        { NULL, TEXT, false, 0 },
};

static bool is_word(const char *s) {
        return s[0] && strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(s);
}

/* Printable ASCII: a time, base64. */
static bool is_plain(const char *s) {
        for (; *s; s++)
                if (*s < ' ' || *s > '~')
                        return false;
        return true;
}

static int copy_members(const json_t *from, const struct member *all, json_t **ret, struct error *err);

static int copy_text(const json_t *from, const struct member *m, json_t **ret, struct error *err) {
        const char *s = NULL;
        int r = json_read_str(from, m->name, m->required, m->max, &s, err);
        if (r < 0)
                return r;
        if ((m->form == WORD && !is_word(s)) || (m->form == TEXT && !is_plain(s)) || (m->form == PATH && s[0] != '/'))
                return error_set(err, -EPROTO, "\"%s\" is not of its form", m->name);
        *ret = json_string(s);
        return *ret ? 0 : -ENOMEM;
}

static int copy_words(const json_t *from, const struct member *m, json_t **ret, struct error *err) {
        _cleanup_json_ json_t *out = json_array();
        json_t *list = NULL, *item;
        size_t i;
        int r = json_read_array(from, m->name, m->required, m->max, &list, err);
        if (r < 0)
                return r;
        json_array_foreach(list, i, item) {
                const char *s = json_string_value(item);
                if (!s || strlen(s) > WORD_MAX || !is_word(s))
                        return error_set(err, -EPROTO, "\"%s\" is not of its form", m->name);
                if (json_array_append_new(out, json_string(s)) < 0)
                        return error_set(err, -ENOMEM, "out of memory");
        }
        *ret = STEAL(out);
        return 0;
}

static int copy_one(const json_t *from, const struct member *m, json_t **ret, struct error *err) {
        json_t *o = NULL;
        uint64_t n = 0;
        int r;
        switch (m->form) {
        case NUMBER:
                r = json_read_u64(from, m->name, true, 0, m->max, &n, err);
                if (r >= 0)
                        *ret = json_integer((json_int_t) n);
                return r;
        case WORDS:
                return copy_words(from, m, ret, err);
        case META:
        case DEVICE:
                r = json_read_obj(from, m->name, true, &o, err);
                return r < 0 ? r : copy_members(o, m->form == META ? meta_members : device_members, ret, err);
        case TEXT:
        case PATH:
        case WORD:
        case ANY_TEXT:
        default:
                return copy_text(from, m, ret, err);
        }
}

static int copy_members(const json_t *from, const struct member *all, json_t **ret, struct error *err) {
        _cleanup_json_ json_t *out = json_object();
        if (!out)
                return error_set(err, -ENOMEM, "out of memory");
        for (const struct member *m = all; m->name; m++) {
                json_t *value = NULL;
                if (!json_object_get(from, m->name)) {
                        if (m->required)
                                return error_set(err, -EPROTO, "\"%s\" is missing", m->name);
                        continue;
                }
                int r = copy_one(from, m, &value, err);
                if (r < 0)
                        return r;
                if (json_object_set_new(out, m->name, value) < 0)
                        return error_set(err, -ENOMEM, "out of memory");
        }
        *ret = STEAL(out);
        return 0;
}

/* {"warnings"} of both images, each once. */
static int add_warnings(const json_t *line, json_t *out, struct error *err) {
        static const struct member member = { "warnings", WORDS, false, WORDS_MAX };
        static const char *const sides[] = { "old", "new" };
        _cleanup_json_ json_t *all = json_object(), *list = json_array();
        const char *name;
        json_t *item;
        size_t at;
        for (size_t i = 0; i < ARRAY_SIZE(sides); i++) {
                _cleanup_json_ json_t *words = NULL;
                const json_t *side = json_object_get(line, sides[i]);
                if (!json_object_get(side, "warnings"))
                        continue;
                int r = copy_words(side, &member, &words, err);
                if (r < 0)
                        return r;
                json_array_foreach(words, at, item)
                        (void) json_object_set_new(all, json_string_value(item), json_true());
        }
        json_object_foreach(all, name, item)
                (void) json_array_append_new(list, json_string(name));
        return json_array_size(list) == 0 || json_object_set(out, "warnings", list) >= 0 ? 0 : error_set(err, -ENOMEM, "out of memory");
}

static int read_end(const json_t *line, json_t **ret, struct error *err) {
        _cleanup_json_ json_t *out = NULL;
        bool end = false, more = false;
        int r = json_read_bool(line, "end", true, &end, err);
        if (r >= 0)
                r = json_read_bool(line, "more", true, &more, err);
        if (r >= 0)
                r = copy_members(line, end_members, &out, err);
        if (r >= 0)
                r = add_warnings(line, out, err);
        if (r < 0)
                return r;
        if (!end || more != (json_object_get(out, "cursor") != NULL))
                return error_set(err, -EPROTO, "its end contradicts itself");
        if (json_object_set_new(out, "more", json_boolean(more)) < 0)
                return error_set(err, -ENOMEM, "out of memory");
        *ret = STEAL(out);
        return 0;
}

static int read_change(const json_t *line, json_t **ret, struct error *err) {
        static const char *const known[] = { "added", "deleted", "changed", "renamed", "unreadable" };
        _cleanup_json_ json_t *out = NULL;
        int r = copy_members(line, change_members, &out, err);
        if (r < 0)
                return r;
        const char *status = json_string_value(json_object_get(out, "status"));
        for (size_t i = 0; i < ARRAY_SIZE(known); i++)
                if (str_eq(status, known[i])) {
                        *ret = STEAL(out);
                        return 0;
                }
        return error_set(err, -EPROTO, "\"%s\" is not a status", status);
}

int history_line_read(const void *line, size_t n, enum history_kind *ret_kind, json_t **ret, struct error *err) {
        _cleanup_json_ json_t *j = NULL;
        enum history_kind kind;
        int r = json_parse(line, n, HISTORY_LINE_MAX, &j, err);
        if (r >= 0 && !json_is_object(j))
                r = error_set(err, -EPROTO, "it is not an object");
        if (r < 0)
                return r == -ENOMEM ? r : error_wrap(err, "cspace-history wrote a line that cannot be read");
        if (json_object_get(j, "end")) {
                kind = HISTORY_END;
                r = read_end(j, ret, err);
        } else if (json_object_get(j, "status")) {
                kind = HISTORY_CHANGE;
                r = read_change(j, ret, err);
        } else if (json_object_get(j, "kind")) {
                kind = HISTORY_FILE;
                r = copy_members(j, file_members, ret, err);
        } else {
                kind = HISTORY_ERROR;
                r = copy_members(j, error_members, ret, err);
        }
        if (r < 0)
                return error_wrap(err, "cspace-history wrote a line that cannot be read");
        *ret_kind = kind;
        return 0;
}
