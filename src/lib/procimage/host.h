/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>

#include "base/error.h"

#define PROCIMAGE_HOST_SIZE 72

/* Which hosts an image made on this one is good for, as a word: the same kernel, the same kind of CPU. */
int procimage_host(char out[PROCIMAGE_HOST_SIZE], struct error *err);

/* Whether the image of a process behind fd was made on such a host, and is all there. */
bool procimage_usable(int fd, const char *host);
