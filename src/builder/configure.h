/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Step "configure": checks that the root filesystem can be used at all, gives it its users and settings, and
 * removes what differs from build to build.
 */

#include "build.h"

int configure_rootfs(struct build *b, struct error *err);
