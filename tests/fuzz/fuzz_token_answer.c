/* SPDX-License-Identifier: Apache-2.0 */

/* What a cspace-token that was taken over could send to cspaced. Holds: a token that is accepted is one that a binding can
 * use, and what is told about a failure can stand in a log. */

#include "fuzz.h"

#include "daemon/egress/token_answer.h"

static bool visible(const char *s, char least) {
        for (; *s; s++)
                if (*s < least || *s > 0x7e)
                        return false;
        return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        uint8_t *copy = piece_of(data, n);
        char secret[BINDING_SECRET_MAX + 1] = "";
        struct error err = ERROR_INIT;
        uint64_t seconds = 0;
        int r = token_answer_read(copy, n, secret, &seconds, &err);
        free(copy);
        if (r < 0) {
                REQUIRE(err.code == r && visible(err.msg, 0x20) && secret[0] == 0 && seconds == 0);
                return 0;
        }
        REQUIRE(strlen(secret) >= BINDING_SECRET_MIN && visible(secret, 0x21) && seconds > 0 && seconds <= TOKEN_SECONDS_MAX);
        return 0;
}
