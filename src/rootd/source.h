/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The files of a template or variant that a sandbox starts from, opened beneath the templates folder. */

#include "base/id.h"
#include "ipc/messages.h"
#include "manifest/variant.h"
#include "rootd/rootd.h"

struct source {
        int disk, mem, state; /* mem and state: "restore" */
        bool thaw;            /* state is the image of a process */
        int kernel, initrd;   /* "boot" */
        int base, delta;      /* thaw: `mem` is that of the base, whose process this is; and the memory of the image */
};

/* True for "qemu-kvm", "qemu-tcg", "fake". */
bool engine_valid(const char *engine);

/* -ENOENT when the template or variant is not there. */
int source_open(const struct rootd *r, const struct ipc_place *m, struct source *ret, struct error *err);
void source_close(struct source *s);
