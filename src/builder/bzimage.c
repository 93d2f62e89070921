/* SPDX-License-Identifier: Apache-2.0 */
#include "bzimage.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"

/* Offsets in the setup header. */
enum {
        SETUP_SECTS = 0x1f1,
        HEADER_MAGIC = 0x202,
        VERSION = 0x206,
        PAYLOAD_OFFSET = 0x248,
        PAYLOAD_LENGTH = 0x24c,
        HEADER_END = 0x250,
};
#define VERSION_WITH_PAYLOAD 0x0208
#define SECTOR 512u
#define SIZE_SUFFIX 4u /* unpacked size, appended for every method but gzip, whose format ends with it */

static const struct {
        const char *magic;
        size_t n;
        const char *unpacker, *package;
        size_t suffix;
} methods[] = {
        { "\x1f\x8b\x08", 3, "gzip", "gzip", 0 },
        { "\xfd" "7zXZ\0", 6, "xz", "xz-utils", SIZE_SUFFIX },
        { "\x28\xb5\x2f\xfd", 4, "zstd", "zstd", SIZE_SUFFIX },
        { "\x02\x21\x4c\x18", 4, "lz4", "lz4", SIZE_SUFFIX },
        { "BZh", 3, "bzip2", "bzip2", SIZE_SUFFIX },
        { "\x7f" "ELF", 4, NULL, NULL, 0 },
};

static uint32_t le16(const uint8_t *p) {
        return (uint32_t) p[0] | (uint32_t) p[1] << 8;
}
static uint32_t le32(const uint8_t *p) {
        return le16(p) | le16(p + 2) << 16;
}

int bzimage_find(const uint8_t *data, size_t n, struct bzimage_payload *ret, struct error *err) {
        if (n < HEADER_END || memcmp(data + HEADER_MAGIC, "HdrS", 4) != 0)
                return error_set(err, -EBADMSG, "not a Linux/x86 kernel image");
        if (le16(data + VERSION) < VERSION_WITH_PAYLOAD)
                return error_set(err, -EBADMSG, "kernel image of boot protocol %u.%02u, older than 2.08",
                                 le16(data + VERSION) >> 8, le16(data + VERSION) & 0xff);
        uint64_t sectors = data[SETUP_SECTS] ? data[SETUP_SECTS] : 4;
        uint64_t offset = (sectors + 1) * SECTOR + le32(data + PAYLOAD_OFFSET);
        uint64_t length = le32(data + PAYLOAD_LENGTH);
        if (length < 16 || offset > n || length > n - offset)
                return error_set(err, -EBADMSG, "the kernel image's header points beyond its end");
        const uint8_t *payload = data + offset;
        for (size_t i = 0; i < ARRAY_SIZE(methods); i++) {
                if (memcmp(payload, methods[i].magic, methods[i].n) != 0)
                        continue;
                *ret = (struct bzimage_payload){ .offset = (size_t) offset,
                                                 .length = (size_t) length - methods[i].suffix,
                                                 .unpacker = methods[i].unpacker,
                                                 .package = methods[i].package };
                return 0;
        }
        return error_set(err, -EBADMSG, "the kernel is compressed by an unknown method (%02x %02x %02x %02x)", payload[0],
                         payload[1], payload[2], payload[3]);
}
