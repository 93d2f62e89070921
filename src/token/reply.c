/* SPDX-License-Identifier: Apache-2.0 */
#include "reply.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/str.h"

/* A number, also with a fraction, or its digits as a string: servers send all of these. */
static int read_seconds(const json_t *j, uint64_t *ret, struct error *err) {
        const json_t *v = json_object_get(j, "expires_in");
        double d = json_is_number(v) ? json_number_value(v) : 0;
        uint64_t n = TOKEN_SECONDS_DEFAULT;
        if (json_is_number(v) && isfinite(d) && d >= 1)
                n = d > TOKEN_SECONDS_MAX ? TOKEN_SECONDS_MAX : (uint64_t) d;
        else if (v && !json_is_null(v) && (!json_is_string(v) || str_to_u64(json_string_value(v), UINT64_MAX, &n) < 0 || n < 1))
                return error_set(err, -EPROTO, "\"expires_in\" is not a number of seconds");
        *ret = n > TOKEN_SECONDS_MAX ? TOKEN_SECONDS_MAX : n;
        return 0;
}

/* VSCHAR of RFC 6749, but no blank: it has to fit into a header. */
static int read_token(const json_t *j, const char *key, struct token *ret, struct error *err) {
        const json_t *v = json_object_get(j, key);
        const char *s = json_string_value(v);
        size_t n = json_string_length(v);
        if (!s)
                return error_set(err, -EPROTO, "there is no \"%s\" in it", key);
        if (n < TOKEN_LENGTH_MIN || n > TOKEN_LENGTH_MAX)
                return error_set(err, -EPROTO, "\"%s\" has not %d to %d bytes", key, TOKEN_LENGTH_MIN, TOKEN_LENGTH_MAX);
        for (size_t i = 0; i < n; i++)
                if (s[i] < 0x21 || s[i] > 0x7e)
                        return error_set(err, -EPROTO, "\"%s\" has bytes that no token may have", key);
        memcpy(ret->text, s, n);
        ret->text[n] = '\0';
        ret->n = n;
        return 0;
}

static int read_object(const void *data, size_t n, json_t **ret, struct error *err) {
        /* The parser's own words may quote what it read. */
        if (json_parse(data, n, REPLY_MAX, ret, NULL) < 0 || !json_is_object(*ret))
                return error_set(err, -EPROTO, "it is no JSON object");
        return 0;
}

int reply_read_oauth2(const void *data, size_t n, struct token *ret, struct error *err) {
        static const char bearer[] = "bearer";
        _cleanup_json_ json_t *j = NULL;
        int r = read_object(data, n, &j, err);
        if (r < 0)
                return r;
        const json_t *type = json_object_get(j, "token_type");
        if (type && (!json_is_string(type) || !str_case_eq_n(json_string_value(type), json_string_length(type), bearer)))
                return error_set(err, -EPROTO, "\"token_type\" is not Bearer");
        r = read_token(j, "access_token", ret, err);
        return r < 0 ? r : read_seconds(j, &ret->seconds, err);
}

int reply_read_command(const void *data, size_t n, struct token *ret, struct error *err) {
        _cleanup_json_ json_t *j = NULL;
        int r = read_object(data, n, &j, err);
        if (r == 0)
                r = read_token(j, "token", ret, err);
        return r < 0 ? r : read_seconds(j, &ret->seconds, err);
}

const char *reply_error_code(const void *data, size_t n) {
        static const char *const known[] = { "invalid_request", "invalid_client", "invalid_grant", "unauthorized_client",
                                             "unsupported_grant_type", "invalid_scope", "invalid_target", "access_denied", "server_error",
                                             "temporarily_unavailable" };
        _cleanup_json_ json_t *j = NULL;
        if (read_object(data, n, &j, NULL) < 0)
                return NULL;
        for (size_t i = 0; i < ARRAY_SIZE(known); i++)
                if (str_eq(json_string_value(json_object_get(j, "error")), known[i]))
                        return known[i];
        return NULL;
}

int reply_write(const struct token *t, struct buf *out) {
        int r = buf_printf(out, "token %llu %zu\n", (unsigned long long) t->seconds, t->n);
        if (r == 0)
                r = buf_append(out, t->text, t->n);
        return r == 0 ? buf_puts(out, "\n") : r;
}
