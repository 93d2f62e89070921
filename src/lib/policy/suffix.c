/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/suffix.h"

#include <libpsl.h>

bool public_suffix_is(const char *suffix) {
        /* Without the default rule "*", by which each single label is one. */
        return psl_is_public_suffix2(psl_builtin(), suffix, PSL_TYPE_ANY | PSL_TYPE_NO_STAR_RULE) == 1;
}
