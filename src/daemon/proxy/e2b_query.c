/* SPDX-License-Identifier: Apache-2.0 */
#include "e2b_query.h"

#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/str.h"
#include "wire/http1.h"

#define FILTER_MAX (LIMIT_METADATA_ITEMS * (LIMIT_METADATA_KEY + LIMIT_METADATA_VALUE))

static int unescape(const char *s, size_t n, struct buf *out, struct error *err) {
        *out = BUF_INIT(FILTER_MAX);
        int r = http1_percent_decode(s, n, true, out);

        if (r < 0) {
                buf_done(out);
                return error_set(err, -EINVAL, "metadata: \"%.*s\" is not percent-encoded text",
                                 (int) (n > 100 ? 100 : n), s);
        }
        return 0;
}

static int add_pair(json_t *to, const char *s, size_t n, struct error *err) {
        _cleanup_buf_ struct buf key = { 0 }, value = { 0 };
        const char *eq = memchr(s, '=', n), *k, *v;

        if (!eq)
                return error_set(err, -EINVAL, "metadata: \"%.*s\" is no key=value pair", (int) (n > 100 ? 100 : n), s);
        int r = unescape(s, (size_t) (eq - s), &key, err);
        if (r == 0)
                r = unescape(eq + 1, n - (size_t) (eq - s) - 1, &value, err);
        if (r < 0)
                return r;
        k = buf_str(&key);
        v = buf_str(&value);
        if (!k || !v)
                return error_set(err, -ENOMEM, "no memory for the metadata filter");
        if (!str_is_utf8(k, key.len) || !str_is_utf8(v, value.len))
                return error_set(err, -EINVAL, "metadata: not UTF-8");
        const char *before = json_string_value(json_object_get(to, k));
        if (before && strcmp(before, v) != 0)
                return error_set(err, -EINVAL, "metadata: key \"%s\" is there twice with different values", k);
        if (json_object_set_new(to, k, json_string(v)) < 0)
                return error_set(err, -ENOMEM, "no memory for the metadata filter");
        return 0;
}

int e2b_parse_metadata(const char *value, json_t **ret, struct error *err) {
        _cleanup_buf_ struct buf once = { 0 };
        _cleanup_json_ json_t *j = json_object();
        unsigned pairs = 0;

        int r = unescape(value, strlen(value), &once, err);
        if (r < 0)
                return r;
        const char *s = buf_str(&once);
        if (!s || !j)
                return error_set(err, -ENOMEM, "no memory for the metadata filter");
        while (*s) {
                size_t n = strcspn(s, "&");
                if (n > 0) {
                        if (++pairs > LIMIT_METADATA_ITEMS)
                                return error_set(err, -EINVAL, "metadata: more than %d pairs", LIMIT_METADATA_ITEMS);
                        r = add_pair(j, s, n, err);
                        if (r < 0)
                                return r;
                }
                s += n;
                s += *s == '&';
        }
        *ret = STEAL(j);
        return 0;
}

int e2b_parse_states(const char *value, unsigned *ret, struct error *err) {
        unsigned states = 0;

        while (*value) {
                size_t n = strcspn(value, ",");
                if (n == strlen("running") && memcmp(value, "running", n) == 0)
                        states |= E2B_STATE_RUNNING;
                else if (n == strlen("paused") && memcmp(value, "paused", n) == 0)
                        states |= E2B_STATE_PAUSED;
                else
                        return error_set(err, -EINVAL, "state: \"%.*s\" is not one of running, paused",
                                         (int) (n > 100 ? 100 : n), value);
                value += n;
                value += *value == ',';
        }
        *ret = states ? states : E2B_STATE_RUNNING | E2B_STATE_PAUSED;
        return 0;
}
