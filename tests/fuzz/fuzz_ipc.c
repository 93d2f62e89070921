/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Every decoder of src/lib/ipc/messages.h on the same bytes. What decodes must encode to what it was
 * decoded from: the format has one form for each message.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/ipc.h"
#include "ipc/messages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        static uint8_t out[IPC_PACKET_MAX];
        if (size > sizeof out)
                return 0;
#define M(number, UPPER, lower)                                                           \
        {                                                                                 \
                struct ipc_##lower m;                                                     \
                size_t n = 0;                                                             \
                if (ipc_##lower##_decode(data, size, &m) == 0 &&                          \
                    (ipc_##lower##_encode(&m, out, sizeof out, &n) < 0 || n != size ||    \
                     (n > 0 && memcmp(out, data, n) != 0)))                               \
                        abort();                                                          \
        }
        IPC_MESSAGES(M)
#undef M
        return 0;
}
