/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Character classes of RFC 9110 and RFC 3986, shared by the parser and the writers. */

#include <stdbool.h>
#include <stdint.h>

enum {
        C_TOKEN = 1 << 0,  /* tchar */
        C_VALUE = 1 << 1,  /* field-vchar, SP, HTAB, obs-text */
        C_TARGET = 1 << 2, /* visible ASCII without "#": bytes of a request target */
        C_HOST = 1 << 3,   /* of a registered name or IPv4 address */
        C_DIGIT = 1 << 4,
};

extern const uint8_t http1_classes[256];

static inline bool http1_is(uint8_t c, unsigned class) {
        return (http1_classes[c] & class) != 0;
}

static inline bool http1_all(const char *s, size_t n, unsigned class) {
        for (size_t i = 0; i < n; i++)
                if (!http1_is((uint8_t) s[i], class))
                        return false;
        return true;
}
