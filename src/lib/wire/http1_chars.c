/* SPDX-License-Identifier: Apache-2.0 */

#include <stddef.h>

#include "wire/http1.h"
#include "wire/http1_chars.h"

#define V C_VALUE
#define VT (C_VALUE | C_TARGET)
#define TOK (C_VALUE | C_TARGET | C_TOKEN)
#define ALPHA (C_VALUE | C_TARGET | C_TOKEN | C_HOST)
#define DIGIT (C_VALUE | C_TARGET | C_TOKEN | C_HOST | C_DIGIT)

const uint8_t http1_classes[256] = {
        ['\t'] = V,
        [' '] = V,
        ['!'] = TOK,
        ['"'] = VT,
        ['#'] = V | C_TOKEN,
        ['$'] = TOK,
        ['%'] = TOK,
        ['&'] = TOK,
        ['\''] = TOK,
        ['('] = VT,
        [')'] = VT,
        ['*'] = TOK,
        ['+'] = TOK,
        [','] = VT,
        ['-'] = ALPHA,
        ['.'] = ALPHA,
        ['/'] = VT,
        ['0' ... '9'] = DIGIT,
        [':' ... '@'] = VT,
        ['A' ... 'Z'] = ALPHA,
        ['[' ... ']'] = VT,
        ['^'] = TOK,
        ['_'] = ALPHA,
        ['`'] = TOK,
        ['a' ... 'z'] = ALPHA,
        ['{'] = VT,
        ['|'] = TOK,
        ['}'] = VT,
        ['~'] = TOK,
        [0x80 ... 0xff] = V,
};

bool http1_is_token(const char *s, size_t n) {
        return n > 0 && http1_all(s, n, C_TOKEN);
}

bool http1_is_value(const char *s, size_t n) {
        return http1_all(s, n, C_VALUE);
}
