/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One virtual machine, whatever runs it. A driver is a table of operations; the warden picks one by
 * its engine name and knows nothing else of it.
 *
 *   boot      starts from a kernel                  -> on_running
 *   restore   starts from a snapshot, loaded and
 *             not yet running                       -> on_loaded; then run -> on_running
 *   adopt     takes over a VM that an earlier
 *             warden left running                   -> on_running
 *             or stopped                            -> on_loaded
 *
 * Everything that comes out of a VM is hostile: a driver turns garbage into on_end(VMM_FAILED), and
 * has a limit on whatever it keeps.
 */

#include <stdint.h>
#include <uv.h>

#include "base/error.h"
#include "io/stream.h"

enum vmm_cap {
        VMM_CAP_PAUSE = 1 << 0,
        VMM_CAP_SNAPSHOT = 1 << 1,
        VMM_CAP_RESET = 1 << 2, /* a guest that hangs while booting can be started over */
        VMM_CAP_ADOPT = 1 << 3,
        VMM_CAP_SAVE = 1 << 4,
};

enum vmm_end {
        VMM_EXITED, /* the guest powered off or rebooted */
        VMM_FAILED, /* everything else */
};

/* Descriptors are -EBADF where absent; the driver takes them (vmm_config_close() closes the rest). */
struct vmm_config {
        const char *engine, *qemu, *ropen;
        const char *thaw; /* of "restore": `state` is the image of a process, which this program becomes; NULL: a snapshot.
                           * `kernel` and `initrd` are then the base of the image and the memory beside it, if it has one. */
        uint32_t memory_mb, cpus;
        uint64_t disk_bytes; /* of "restore": the disk is larger than the one in the snapshot; 0: as it was */
        int stub, tap, disk, mem, state, kernel, initrd, qmp_listen, port_listen;
        bool keep; /* of "boot": not for a snapshot but a sandbox's own disk, whose memory is nobody else's */
};
void vmm_config_close(struct vmm_config *c);

struct vmm;

struct vmm_handler {
        void (*on_loaded)(void *arg);
        void (*on_running)(void *arg);
        void (*on_end)(void *arg, enum vmm_end how, const char *reason); /* last callback */
        void (*on_port_closed)(void *arg); /* by the guest; may come late or never; may be NULL */
        /* A write of the guest's found no room on the host, and the VM stands still until `resume`, with which that write
         * begins again. */
        void (*on_no_room)(void *arg);
};

struct vmm_stats {
        uint64_t disk_read, disk_written; /* bytes */
};

/* err 0, or a negative errno with its text in e. */
typedef void (*vmm_done)(void *arg, int err, const struct error *e);
typedef void (*vmm_stats_cb)(void *arg, int err, const struct vmm_stats *st);

struct vmm_ops {
        const char *name;
        int (*boot)(struct vmm *v, struct error *err);
        int (*restore)(struct vmm *v, struct error *err);
        int (*adopt)(struct vmm *v, struct error *err);
        void (*run)(struct vmm *v);
        void (*pause)(struct vmm *v, vmm_done cb, void *arg);
        void (*resume)(struct vmm *v, vmm_done cb, void *arg);
        void (*reset)(struct vmm *v, vmm_done cb, void *arg);
        /* Writes memory and device state where the configuration said and ends the VM; the guest's
         * port must be closed before. Done when all is durable; on_end is not called. */
        void (*snapshot)(struct vmm *v, vmm_done cb, void *arg);
        /* Of a paused VM: writes its devices, without memory and disk, to fd (write-only, empty; the caller's,
         * who keeps it open until cb). The VM stays paused. "restore" loads what was written. */
        void (*save)(struct vmm *v, int fd, vmm_done cb, void *arg);
        /* Of a paused VM: lets go of its process, so that an image can be made of that; whatever is asked of it next takes
         * hold again. NULL where there is nothing to let go of. */
        void (*let_go)(struct vmm *v);
        /* Ends the VM without asking the guest; on_end follows. */
        void (*stop)(struct vmm *v);
        void (*stats)(struct vmm *v, vmm_stats_cb cb, void *arg);
        /* From the start to the first answer; from there to loaded. */
        void (*times)(struct vmm *v, uint64_t *ret_spawn_us, uint64_t *ret_load_us);
        /* A new connection to the guest's port; closing it is what the guest sees as "host end
         * closed". cb is called later. */
        int (*open_stream)(struct vmm *v, stream_connect_cb cb, void *arg, struct error *err);
        /* What the VM and the guest's console said last, for the text of an error. */
        const char *(*last_words)(struct vmm *v);
        void (*free)(struct vmm *v);
};

struct vmm {
        const struct vmm_ops *ops;
        unsigned caps;
        uv_loop_t *loop;
        const struct vmm_handler *handler;
        void *arg;
};

/* Picks the driver by cfg->engine and takes the descriptors in cfg. */
int vmm_new(uv_loop_t *loop, struct vmm_config *cfg, const struct vmm_handler *h, void *arg, struct vmm **ret,
            struct error *err);
void vmm_free(struct vmm *v); /* leaves the VM running; NULL is fine */

int vmm_qemu_new(struct vmm_config *cfg, struct vmm **ret, struct error *err);
int vmm_fake_new(struct vmm_config *cfg, struct vmm **ret, struct error *err);
