/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "rpc.h"

/* The methods of filesystem.Filesystem, ended by one without a name. */
extern const struct rpc_method rpc_filesystem_methods[];
