/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the base layer parses from outside: base64, hex, numbers, times, UTF-8 and JSON with its
 * limits. Holds: what decodes, encodes to the same; JSON that is accepted is within the limits and
 * survives being written and read again.
 */

#include "fuzz.h"

#include <errno.h>
#include <stdbool.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"

static void check_base64(const char *s, size_t n) {
        uint8_t *raw = malloc(3 * n / 4 + 1);
        REQUIRE(raw);
        ssize_t len = base64_decode(s, n, raw);
        REQUIRE(len >= 0 || len == -EINVAL);
        if (len >= 0) {
                size_t en = base64_encoded_len((size_t) len);
                char *again = malloc(en + 1);
                REQUIRE(again);
                base64_encode(raw, (size_t) len, again);
                REQUIRE(strlen(again) == en);
                /* Padding is optional when reading. */
                size_t plain = n;
                while (plain > 0 && s[plain - 1] == '=')
                        plain--;
                while (en > 0 && again[en - 1] == '=')
                        en--;
                REQUIRE(en == plain && memcmp(again, s, plain) == 0);
                free(again);
        }
        free(raw);
}

static void check_hex(const char *s, size_t n) {
        uint8_t *raw = malloc(n / 2 + 1);
        char *again = malloc(n + 2);
        REQUIRE(raw && again);
        if (str_unhex(s, n, raw) == 0) {
                str_hex(raw, n / 2, again);
                for (size_t i = 0; i < n; i++)
                        REQUIRE(again[i] == (s[i] >= 'A' && s[i] <= 'F' ? s[i] + 32 : s[i]));
        }
        free(raw);
        free(again);
}

static size_t depth_of(const json_t *j) {
        size_t max = 0;
        const char *key;
        json_t *v;
        size_t i;
        if (json_is_object(j))
                json_object_foreach((json_t *) (uintptr_t) j, key, v) {
                        size_t d = depth_of(v);
                        max = d > max ? d : max;
                }
        else if (json_is_array(j))
                json_array_foreach(j, i, v) {
                        size_t d = depth_of(v);
                        max = d > max ? d : max;
                }
        return max + 1;
}

static void check_json(const uint8_t *data, size_t n) {
        json_t *j = NULL, *again = NULL;
        struct error err = ERROR_INIT;
        if (json_parse(data, n, 4096, &j, &err) < 0) {
                REQUIRE(err.code < 0 && err.msg[0] && !j);
                return;
        }
        REQUIRE(n <= 4096 && depth_of(j) <= JSON_DEPTH_MAX + 1);
        char *text = json_to_str(j);
        REQUIRE(text);
        REQUIRE(json_parse(text, strlen(text), SIZE_MAX, &again, NULL) == 0);
        REQUIRE(json_equal(j, again));
        free(text);

        const char *s = NULL;
        uint64_t u = 0;
        bool b = false;
        json_t *o = NULL, *a = NULL, *m = NULL;
        (void) json_read_str(j, "s", true, 10, &s, &err);
        REQUIRE(!s || strlen(s) <= 10);
        (void) json_read_u64(j, "u", true, 1, 100, &u, &err);
        REQUIRE(u <= 100);
        (void) json_read_bool(j, "b", true, &b, &err);
        (void) json_read_obj(j, "o", true, &o, &err);
        (void) json_read_array(j, "a", true, 3, &a, &err);
        REQUIRE(!a || json_array_size(a) <= 3);
        (void) json_read_str_map(j, "m", 3, 5, 5, &m, &err);
        static const char *const keys[] = { "s", "u", NULL };
        (void) json_only_keys(j, keys, &err);
        json_decref(again);
        json_decref(j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        char *s = strndup((const char *) data, n);
        REQUIRE(s);
        size_t len = strlen(s);
        check_base64(s, len);
        check_hex(s, len);
        check_json(data, n);
        (void) str_is_utf8(data, n);
        uint64_t u;
        (void) str_to_u64(s, UINT64_MAX, &u);
        (void) str_to_size(s, &u);
        (void) str_to_seconds(s, &u);
        int64_t t;
        if (clock_parse_rfc3339(s, &t) == 0) {
                char text[RFC3339_SIZE];
                int64_t again;
                clock_rfc3339(t, text);
                if (t >= 0) {
                        REQUIRE(clock_parse_rfc3339(text, &again) == 0);
                        REQUIRE(again == t);
                }
        }
        free(s);
        return 0;
}
