/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "base/error.h"

/* From here on: no file can be opened, no program executed, nothing but TCP over IP connected to. */
int confine(struct error *err);
