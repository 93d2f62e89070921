/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* out/manifest.json: what the template was made of and how it is run (docs/architecture.md, "Build"). */

#include <jansson.h>

#include "build.h"

int describe_write(struct build *b, struct error *err);

/* Adds "name": "version" of every installed package of a dpkg status file to an object. */
void describe_packages(const char *status, json_t *into);
