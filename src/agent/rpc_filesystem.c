/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc_filesystem.h"

const struct rpc_method rpc_filesystem_methods[] = {
        { NULL, false, NULL },
};
