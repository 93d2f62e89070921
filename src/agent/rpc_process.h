/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "rpc.h"

/* The methods of process.Process, ended by one without a name. */
extern const struct rpc_method rpc_process_methods[];
