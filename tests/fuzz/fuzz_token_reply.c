/* SPDX-License-Identifier: Apache-2.0 */

/* What a token endpoint answers, or a command writes. Holds: a token that is accepted can be told to cspaced, and no
 * failure quotes what was read. */

#include "fuzz.h"

#include "token/reply.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        static struct token t;
        struct error err = ERROR_INIT;
        if (n == 0)
                return 0;
        uint8_t *copy = piece_of(data + 1, n - 1);
        int r = data[0] & 1 ? reply_read_oauth2(copy, n - 1, &t, &err) : reply_read_command(copy, n - 1, &t, &err);
        const char *code = reply_error_code(copy, n - 1);
        free(copy);
        REQUIRE(!code || strlen(code) < 40);
        if (r < 0) {
                REQUIRE(err.code == r && err.msg[0] && strlen(err.msg) < 80);
                return 0;
        }
        REQUIRE(t.n == strlen(t.text) && t.n >= TOKEN_LENGTH_MIN && t.n <= TOKEN_LENGTH_MAX);
        REQUIRE(t.seconds > 0 && t.seconds <= TOKEN_SECONDS_MAX);
        return 0;
}
