/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The compressed kernel inside a bzImage: where it is, by the setup header of the Linux/x86 boot
 * protocol (Documentation/arch/x86/boot.rst in the kernel's source), and which program unpacks it. QEMU's
 * microvm starts the ELF file directly, which is faster and keeps less memory than a bzImage.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct bzimage_payload {
        size_t offset, length;  /* without the size that the kernel's build appends */
        const char *unpacker;   /* program that unpacks stdin to stdout with "-dc"; NULL: not compressed */
        const char *package;    /* Debian package that has it */
};

/* -EBADMSG when the bytes are no bzImage or the header points out of them. */
int bzimage_find(const uint8_t *data, size_t n, struct bzimage_payload *ret, struct error *err);
