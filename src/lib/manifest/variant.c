/* SPDX-License-Identifier: Apache-2.0 */
#include "manifest/variant.h"

#include <stdio.h>
#include <sys/stat.h>

#include "base/str.h"
#include "manifest/vmm_key.h"
#include "procimage/format.h"
#include "procimage/host.h"

#define QEMU_PATH "/usr/bin/qemu-system-x86_64" /* one Debian package holds all that are used */

/* FNV-1a, 32 bits: tells versions apart, resists nobody. */
static uint32_t mix(uint32_t h, uint64_t v) {
        for (int i = 0; i < 8; i++, v >>= 8)
                h = (h ^ (uint32_t) (v & 0xff)) * 16777619u;
        return h;
}

static uint32_t qemu_key(void) {
        struct stat st;
        uint32_t h = mix(2166136261u, VMM_KEY);
        if (stat(QEMU_PATH, &st) == 0)
                h = mix(mix(h, (uint64_t) st.st_size), (uint64_t) st.st_mtim.tv_sec);
        return h;
}

/* Under emulation a variant has a process with translated code in it, of this host's CPU and kernel. */
static uint32_t host_key(void) {
        static uint32_t key;
        char host[PROCIMAGE_HOST_SIZE] = "";
        if (key == 0 && procimage_host(host, NULL) == 0) {
                key = mix(2166136261u, PROCIMAGE_MAGIC);
                for (const char *p = host; *p; p++)
                        key = mix(key, (uint8_t) *p);
        }
        return key;
}

void variant_name(const char *engine, uint32_t memory_mb, uint32_t cpus, char out[VARIANT_NAME_MAX + 1]) {
        int n = snprintf(out, VARIANT_NAME_MAX + 1, "%s-%um-%uc", engine, memory_mb, cpus);
        if (n > 0 && n < VARIANT_NAME_MAX && str_has_prefix(engine, "qemu"))
                (void) snprintf(out + n, VARIANT_NAME_MAX + 1 - (size_t) n, "-%08x",
                                str_eq(engine, "qemu-tcg") ? mix(qemu_key(), host_key()) : qemu_key());
}
