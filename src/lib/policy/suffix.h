/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The public suffix list, as libpsl has it built in: below "co.uk" or a code host's pages domain anyone can register
 * a name, so a wildcard there allows more than its author thinks. A part of its own in the build (suffix_dep): policies
 * are checked with it where they are set, by cspaced; a gateway only gets checked ones.
 */

#include <stdbool.h>

/* For policy_context.is_public_suffix. */
bool public_suffix_is(const char *suffix);
