/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* api/openapi.yaml, put into the program by the build (embed.py). */

#include <stddef.h>

extern const unsigned char openapi_yaml[];
extern const size_t openapi_yaml_n;
