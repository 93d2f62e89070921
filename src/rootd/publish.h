/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * PUBLISH: an image as the files of a template, in builds/<id>/out/, as a build would have left them but root's alone:
 *
 *   1 folder made   2 disk cloned   3 kernel and initrd of the sandbox's template cloned
 *   4 full: memory and devices cloned   5 manifest.json and MANIFEST written
 *
 * Nothing of it is visible before TEMPLATE_COMMIT; BUILD_REMOVE removes it at any time, but waits while it is being made.
 */

#include <stdbool.h>

#include "rootd/rootd.h"

bool publish_running(const struct rootd *r, const char *id);
