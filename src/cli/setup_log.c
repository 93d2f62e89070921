/* SPDX-License-Identifier: Apache-2.0 */

/*
 * `cspace __log FILE`: copies its stdin to a file and keeps that small: above LOG_FILE_MAX it becomes
 * FILE.1, the one before goes. It ends when the last writer does, which is after the service has
 * ended and all that the service started.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "cli.h"
#include "command.h"

#define LOG_FILE_MAX (8ll * 1024 * 1024)
#define LOG_PATH_MAX 400

static int open_log(const char *path) {
        return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0640);
}

static int rotate(const char *path, int fd) {
        char old[LOG_PATH_MAX + 8];

        (void) snprintf(old, sizeof old, "%s.1", path);
        (void) rename(path, old);
        (void) fd_close(fd);
        return open_log(path);
}

static int run(int argc, char **argv) {
        char chunk[65536];
        struct stat st;

        /* argv[0] is "__log". */
        if (argc != 2 || strlen(argv[1]) >= LOG_PATH_MAX)
                return CLI_USAGE;
        int fd = open_log(argv[1]);
        off_t size = fd >= 0 && fstat(fd, &st) == 0 ? st.st_size : 0;
        for (;;) {
                ssize_t n = read(STDIN_FILENO, chunk, sizeof chunk);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        break;
                /* A full disk loses lines; it must not stop the service, whose pipe would fill. */
                if (fd >= 0 && fd_write_all(fd, chunk, (size_t) n, NULL) == 0)
                        size += n;
                if (size > LOG_FILE_MAX || fd < 0) {
                        fd = rotate(argv[1], fd);
                        size = 0;
                }
        }
        return CLI_OK;
}

const struct command command_log_pump = {
        .name = "__log",
        .synopsis = "FILE",
        .summary = "Copy stdin to a log file of bounded size.",
        .command_at = 0,
        .raw = true,
        .max_args = -1,
        .run = run,
};
