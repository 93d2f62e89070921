/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A line that a warden or gateway which was taken over writes to its log, which cspace-rootd reads. Holds: the message is
 * the end of the line, and all of it where the line has not the form of base/log.h.
 */

#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "rootd/childlog.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        const char *message = NULL;
        char *line = malloc(n + 1);
        REQUIRE(line != NULL);
        memcpy(line, data, n);
        line[n] = '\0';
        enum log_level level = childlog_parse(line, &message);
        REQUIRE(message >= line && message <= line + strlen(line));
        REQUIRE(level == LOG_LVL_ERROR || level == LOG_LVL_WARN || level == LOG_LVL_INFO || level == LOG_LVL_DEBUG);
        REQUIRE(message == line ? level == LOG_LVL_WARN : memcmp(message - 2, ": ", 2) == 0);
        free(line);
        return 0;
}
