/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "base/error.h"

#define CONNS_MAX 4096 /* connections looked at */

/* After a restore: connections out of the machine whose other end is gone are made to notice. What is connected within
 * the machine is not touched. Without any, nothing is sent. */
int conns_probe(struct error *err);
