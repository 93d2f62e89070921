/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The files of a template or variant that a sandbox starts from, opened beneath the templates folder. */

#include "base/id.h"
#include "ipc/messages.h"
#include "rootd/rootd.h"

#define VARIANT_NAME_SIZE 64

struct source {
        int disk, mem, state; /* mem and state: "restore" */
        int kernel, initrd;   /* "boot" */
};

/* "<engine>-<memory>m-<cpus>c"; the only place a variant's name comes from. */
void variant_name(const char *engine, uint32_t memory_mb, uint32_t cpus, char out[VARIANT_NAME_SIZE]);
/* True for "qemu-kvm", "qemu-tcg", "fake". */
bool engine_valid(const char *engine);

/* -ENOENT when the template or variant is not there. */
int source_open(const struct rootd *r, const struct ipc_place *m, struct source *ret, struct error *err);
void source_close(struct source *s);
