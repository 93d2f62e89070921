/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * <run>/sandboxes/<id>/placement: what rootd must undo, in key=value lines, one version of the file
 * replacing the other whole. It is there before the first thing it speaks of and goes last.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/id.h"

/*
 *             what it means for the next start
 * PLACING     not answered: undone
 * LIVE        answered: adopted, its processes watched
 * REMOVING    being removed: finished
 */
enum record_state { RECORD_PLACING, RECORD_LIVE, RECORD_REMOVING, RECORD_STATE_MAX_ };

struct record {
        enum record_state state;
        char id[ID_SIZE];
        char mode[16];
        char digest[DIGEST_LEN + 1];
        char engine[16];
        uint32_t memory_mb, cpus;
        uint64_t disk_bytes;
        uint32_t slot;
        uint32_t warden_uid, vm_uid, gateway_uid;
        uint32_t warden_pid, vm_pid, gateway_pid; /* 0: none */
        uint64_t warden_start, vm_start, gateway_start;
};

#define RECORD_NAME "placement"
#define RECORD_SIZE_MAX 4096

int record_write(int dirfd, const struct record *r, struct error *err);
int record_parse(const char *text, struct record *ret, struct error *err);
int record_read(int dirfd, struct record *ret, struct error *err);
