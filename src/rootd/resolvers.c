/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/resolvers.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fd.h"

#define RESOLV_CONF_MAX (64 * 1024)
#define RESOLVERS_MAX 3

int resolvers_each(const char *path, int (*fn)(void *arg, const char *address), void *arg) {
        _cleanup_free_ char *text = NULL;
        unsigned n = 0;
        int r = 0;
        (void) fd_read_file_at(AT_FDCWD, path, RESOLV_CONF_MAX, &text, NULL, NULL);
        for (char *line = text, *next; line && *line && n < RESOLVERS_MAX && r == 0; line = next) {
                size_t len = strcspn(line, "\n");
                next = line + len + (line[len] == '\n');
                line[len] = '\0';
                char address[64];
                uint8_t raw[16];
                if (sscanf(line, "nameserver %63s", address) != 1 || inet_pton(AF_INET, address, raw) != 1)
                        continue;
                r = fn(arg, address);
                n++;
        }
        return r == 0 && n == 0 ? fn(arg, "127.0.0.1") : r;
}
