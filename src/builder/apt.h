/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Downloads: the packages of the root filesystem into its own apt cache, and the kernel package. Only
 * apt runs here, no package script; later steps have no network.
 */

#include "build.h"

/* What every package template has. A row is a group with a reason. */
extern const char *const apt_base_packages[];

/* 0, or -EINVAL naming the first word of the list that is no package name. */
int apt_check_packages(const char *packages, struct error *err);

/* Step "download" of both sources. */
int apt_download(struct build *b, struct error *err);

/* Date of a .deb: that of its first archive member, which is its changelog's. 0 when it is no .deb. */
uint64_t apt_deb_date(int dirfd, const char *name);
