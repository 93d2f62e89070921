/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The name of a template's variant: "<engine>-<memory>m-<cpus>c", and for QEMU "-" and eight hex digits
 * more. A snapshot loads only into the same devices and kernel command line, made by the same QEMU,
 * as it was taken from, and neither the microvm machine nor the saved state says which those were. The
 * digits stand for both (this build's command line, size and date of the installed QEMU), so that after
 * an upgrade of either a variant is made anew instead of one being found that does not load. Under emulation they stand for
 * the host's kernel and CPU too, for which the process in it was made (procimage/host.h).
 */

#include <stdint.h>

#define VARIANT_NAME_MAX 63

void variant_name(const char *engine, uint32_t memory_mb, uint32_t cpus, char out[VARIANT_NAME_MAX + 1]);
