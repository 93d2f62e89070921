/* SPDX-License-Identifier: Apache-2.0 */

/* capem SEED: the certificate that a guest trusts whose gateway has this seed (base64), as cspaced gives it to the guest. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "ca/ca.h"

int main(int argc, char **argv) {
        uint8_t seed[64];
        struct ca *ca;
        struct error e = ERROR_INIT;
        if (argc != 2 || strlen(argv[1]) > 48 || base64_decode(argv[1], strlen(argv[1]), seed) != CA_SEED_BYTES) {
                fputs("usage: capem SEED\n", stderr);
                return EXIT_FAILURE;
        }
        const char *pem = ca_new(seed, &ca, &e) < 0 ? NULL : ca_pem(ca, &e);
        if (!pem) {
                fprintf(stderr, "%s\n", e.msg);
                return EXIT_FAILURE;
        }
        fputs(pem, stdout);
        ca_free(ca);
        return EXIT_SUCCESS;
}
