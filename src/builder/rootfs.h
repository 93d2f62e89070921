/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Step "rootfs": fills <dir>/rootfs, from packages already downloaded or from a tar archive. */

#include "build.h"

int rootfs_from_packages(struct build *b, struct error *err);
int rootfs_from_tar(struct build *b, struct error *err);
