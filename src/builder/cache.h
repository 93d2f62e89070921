/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Downloaded packages kept for later builds. It only saves time: any failure here means a download, so
 * nothing returns an error, and cachefd may be negative. Files are copied (by reflink where possible),
 * not linked: what later runs as root in a new root filesystem must not be able to write into another
 * build's packages.
 */

#include <stdbool.h>

/* Copies the package into folder `to` if the cache has it with this SHA-256 (hex). */
bool cache_get(int cachefd, int to, const char *name, const char *sha256);
/* Copies every .deb of folder `from` that the cache lacks. */
void cache_put_all(int cachefd, int from);
/* Drops the packages that were taken out longest ago, above CACHE_MAX bytes. */
void cache_trim(int cachefd);
