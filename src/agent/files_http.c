/* SPDX-License-Identifier: Apache-2.0 */
#include "files_http.h"

#include "api.h"

void files_http(struct agent *a, struct http_x *x) {
        (void) a;
        api_fail_e2b(x, 501, "not implemented");
}

void files_compose_http(struct agent *a, struct http_x *x) {
        (void) a;
        api_fail_e2b(x, 501, "not implemented");
}
