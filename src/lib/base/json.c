/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include <errno.h>
#include <string.h>

#include "base/buf.h"

/* jansson's own depth limit is 2048 levels of recursion; ours is checked on the text first, so
 * that hostile nesting costs no stack at all. */
static bool too_deep(const char *p, size_t n) {
        unsigned depth = 0;
        bool in_string = false;
        for (size_t i = 0; i < n; i++) {
                if (in_string) {
                        if (p[i] == '\\')
                                i++;
                        else if (p[i] == '"')
                                in_string = false;
                } else if (p[i] == '"') {
                        in_string = true;
                } else if (p[i] == '{' || p[i] == '[') {
                        if (++depth > JSON_DEPTH_MAX)
                                return true;
                } else if ((p[i] == '}' || p[i] == ']') && depth > 0) {
                        depth--;
                }
        }
        return false;
}

int json_parse(const void *data, size_t n, size_t max, json_t **ret, struct error *err) {
        if (n > max)
                return error_set(err, -EFBIG, "JSON of %zu bytes is over the limit of %zu", n, max);
        if (too_deep(data, n))
                return error_set(err, -EINVAL, "JSON is nested more than %d levels deep", JSON_DEPTH_MAX);
        json_error_t je;
        json_t *j = json_loadb(data, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &je);
        if (!j)
                return error_set(err, -EINVAL, "invalid JSON: %s at line %d, column %d", je.text, je.line,
                                 je.column);
        *ret = j;
        return 0;
}

static const char *kind_name(const json_t *j) {
        switch (json_typeof(j)) {
        case JSON_OBJECT:
                return "an object";
        case JSON_ARRAY:
                return "an array";
        case JSON_STRING:
                return "a string";
        case JSON_INTEGER:
        case JSON_REAL:
                return "a number";
        case JSON_TRUE:
        case JSON_FALSE:
                return "a boolean";
        case JSON_NULL:
                return "null";
        }
        return "something else";
}

int json_put_str(struct buf *out, const char *s) {
        int r = buf_puts(out, "\"");
        for (; *s && r >= 0; s++) {
                unsigned char c = (unsigned char) *s;
                if (c == '"' || c == '\\' || c < 0x20)
                        r = buf_printf(out, "\\u%04x", c);
                else
                        r = buf_append(out, s, 1);
        }
        return r < 0 ? r : buf_puts(out, "\"");
}

/* 1: *ret is the member; 0: not there (and not required); negative: error. */
static int member(const json_t *obj, const char *key, bool required, json_t **ret, struct error *err) {
        json_t *v = json_object_get(obj, key);
        if (v && !json_is_null(v)) {
                *ret = v;
                return 1;
        }
        return required ? error_set(err, -EINVAL, "\"%s\" is missing", key) : 0;
}

static int wrong_kind(const char *key, const char *want, const json_t *got, struct error *err) {
        return error_set(err, -EINVAL, "\"%s\" must be %s, not %s", key, want, kind_name(got));
}

int json_read_str(const json_t *obj, const char *key, bool required, size_t max_len, const char **ret,
                  struct error *err) {
        json_t *v = NULL;
        int r = member(obj, key, required, &v, err);
        if (r <= 0)
                return r;
        if (!json_is_string(v))
                return wrong_kind(key, "a string", v, err);
        if (json_string_length(v) > max_len)
                return error_set(err, -EINVAL, "\"%s\" has %zu bytes; the limit is %zu", key,
                                 json_string_length(v), max_len);
        *ret = json_string_value(v);
        return 0;
}

int json_read_u64(const json_t *obj, const char *key, bool required, uint64_t min, uint64_t max,
                  uint64_t *ret, struct error *err) {
        json_t *v = NULL;
        int r = member(obj, key, required, &v, err);
        if (r <= 0)
                return r;
        if (!json_is_integer(v))
                return wrong_kind(key, "a whole number", v, err);
        json_int_t n = json_integer_value(v);
        if (n < 0 || (uint64_t) n < min || (uint64_t) n > max)
                return error_set(err, -EINVAL, "\"%s\" is %lld; it must be from %llu to %llu", key,
                                 (long long) n, (unsigned long long) min, (unsigned long long) max);
        *ret = (uint64_t) n;
        return 0;
}

int json_read_bool(const json_t *obj, const char *key, bool required, bool *ret, struct error *err) {
        json_t *v = NULL;
        int r = member(obj, key, required, &v, err);
        if (r <= 0)
                return r;
        if (!json_is_boolean(v))
                return wrong_kind(key, "true or false", v, err);
        *ret = json_is_true(v);
        return 0;
}

int json_read_obj(const json_t *obj, const char *key, bool required, json_t **ret, struct error *err) {
        json_t *v = NULL;
        int r = member(obj, key, required, &v, err);
        if (r <= 0)
                return r;
        if (!json_is_object(v))
                return wrong_kind(key, "an object", v, err);
        *ret = v;
        return 0;
}

int json_read_array(const json_t *obj, const char *key, bool required, size_t max_items, json_t **ret,
                    struct error *err) {
        json_t *v = NULL;
        int r = member(obj, key, required, &v, err);
        if (r <= 0)
                return r;
        if (!json_is_array(v))
                return wrong_kind(key, "an array", v, err);
        if (json_array_size(v) > max_items)
                return error_set(err, -EINVAL, "\"%s\" has %zu items; the limit is %zu", key,
                                 json_array_size(v), max_items);
        *ret = v;
        return 0;
}

int json_read_str_map(const json_t *obj, const char *key, size_t max_items, size_t max_key, size_t max_val,
                      json_t **ret, struct error *err) {
        json_t *map = NULL, *v;
        int r = json_read_obj(obj, key, false, &map, err);
        if (r < 0 || !map)
                return r;
        if (json_object_size(map) > max_items)
                return error_set(err, -EINVAL, "\"%s\" has %zu items; the limit is %zu", key,
                                 json_object_size(map), max_items);
        const char *k;
        json_object_foreach(map, k, v) {
                if (strlen(k) == 0 || strlen(k) > max_key)
                        return error_set(err, -EINVAL, "a name in \"%s\" has %zu bytes; it must have 1 to %zu",
                                         key, strlen(k), max_key);
                if (!json_is_string(v))
                        return error_set(err, -EINVAL, "\"%s\" in \"%s\" must be a string, not %s", k, key,
                                         kind_name(v));
                if (json_string_length(v) > max_val)
                        return error_set(err, -EINVAL, "\"%s\" in \"%s\" has %zu bytes; the limit is %zu", k,
                                         key, json_string_length(v), max_val);
        }
        *ret = map;
        return 0;
}

int json_only_keys(const json_t *obj, const char *const *keys, struct error *err) {
        const char *k;
        json_t *v = NULL;
        /* jansson's iterator is not const-correct; nothing is changed here. */
        json_t *o = json_incref((json_t *) (uintptr_t) obj);
        int r = 0;
        json_object_foreach(o, k, v) {
                size_t i = 0;
                while (keys[i] && strcmp(keys[i], k) != 0)
                        i++;
                if (!keys[i]) {
                        r = error_set(err, -EINVAL, "unknown member \"%s\"", k);
                        break;
                }
        }
        json_decref(o);
        return r;
}

char *json_to_str(const json_t *j) {
        return json_dumps(j, JSON_COMPACT | JSON_ENCODE_ANY);
}
