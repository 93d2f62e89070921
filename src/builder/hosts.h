/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Which hosts the package managers inside of the image go to, asked of the managers themselves: what the preset
 * "@packages" of the egress policy stands for. No registry's name is written in this program.
 */

#include <jansson.h>

#include "build.h"

#define HOSTS_MAX 64

/* Array of "host:port", sorted, without doubles. What a manager does not tell is left out. */
int hosts_of_packages(struct build *b, json_t **ret, struct error *err);

/* "host:port" of a URL (http and https have their ports); -EINVAL for what is none or has no plain host name. */
int hosts_of_url(const char *url, char *out, size_t cap);
