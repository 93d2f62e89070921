/* SPDX-License-Identifier: Apache-2.0 */
#include "fs_http.h"

#include "api.h"

void fs_http(struct agent *a, struct http_x *x, const char *rest) {
        (void) a;
        (void) rest;
        api_fail(x, 501, "not_implemented", "not implemented");
}
