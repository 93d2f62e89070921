/* SPDX-License-Identifier: Apache-2.0 */
#include "procimage/host.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/str.h"
#include "procimage/format.h"

#define CPUINFO_MAX (16u << 20)
#define HASH_START 0xcbf29ce484222325ull /* FNV-1a: tells hosts apart, resists nobody */
#define HASH_PRIME 0x100000001b3ull

static uint64_t mix(uint64_t h, const char *s, size_t n) {
        for (size_t i = 0; i < n; i++)
                h = (h ^ (uint8_t) s[i]) * HASH_PRIME;
        return h;
}

int procimage_host(char out[PROCIMAGE_HOST_SIZE], struct error *err) {
        static const char *const lines[] = { "vendor_id", "cpu family", "model\t", "model name", "stepping", "flags" };
        struct utsname u;
        _cleanup_free_ char *text = NULL;
        if (uname(&u) < 0)
                return error_errno(err, errno, "uname");
        int r = fd_read_file_at(AT_FDCWD, "/proc/cpuinfo", CPUINFO_MAX, &text, NULL, err);
        if (r < 0)
                return r;
        uint64_t kernel = mix(mix(HASH_START, u.release, strlen(u.release)), u.version, strlen(u.version));
        uint64_t cpu = HASH_START;
        for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
                const char *at = strstr(text, lines[i]);
                if (at)
                        cpu = mix(cpu, at, strcspn(at, "\n"));
        }
        (void) snprintf(out, PROCIMAGE_HOST_SIZE, "kernel-%016llx-cpu-%016llx", (unsigned long long) kernel, (unsigned long long) cpu);
        return 0;
}

bool procimage_usable(int fd, const char *host) {
        struct {
                uint64_t magic;
                char host[PROCIMAGE_HOST_SIZE];
                uint64_t bytes;
        } h;
        struct stat st;
        _Static_assert(sizeof h.host == sizeof ((struct procimage_head *) NULL)->host &&
                               offsetof(struct procimage_head, bytes) == sizeof h.magic + sizeof h.host, "read at once");
        return fstat(fd, &st) == 0 && pread(fd, &h, sizeof h, 0) == (ssize_t) sizeof h && h.magic == PROCIMAGE_MAGIC &&
               memchr(h.host, '\0', sizeof h.host) && str_eq(h.host, host) && (uint64_t) st.st_size == h.bytes;
}
