/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The command line of QEMU. */

#include "base/buf.h"
#include "vmm/vmm.h"

/* Numbers of the descriptors in the QEMU process, whether or not all are there. */
enum qemu_fd {
        QEMU_FD_QMP = 10,
        QEMU_FD_PORT,
        QEMU_FD_TAP,
        QEMU_FD_DISK,
        QEMU_FD_MEM,
        QEMU_FD_STATE,
        QEMU_FD_KERNEL,
        QEMU_FD_INITRD,
        QEMU_FD_CONSOLE,
};

#define QEMU_MEM_PATH "/cspace/mem" /* exists nowhere: ropen.so answers it */

/* Appends NUL-terminated arguments, argv[0] first; *ret_n is their number. tsc_khz (0: not told)
 * is for the guest's kernel. */
int qemu_args(const struct vmm_config *c, bool boot, unsigned tsc_khz, struct buf *out, size_t *ret_n,
              struct error *err);
/* The environment, in the same form. */
int qemu_env(const struct vmm_config *c, struct buf *out, size_t *ret_n, struct error *err);

/* The host's time stamp counter in kHz, measured; 0 when it is not usable. Takes 20 ms. */
unsigned tsc_khz(void);
