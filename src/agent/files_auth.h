/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "agent.h"
#include "user.h"

/* Who asks for which file by E2B's /files, and whether they may. */
struct files_request {
        char *path;       /* as in the URL; NULL: none */
        struct user user;
};

/* By access token, or else by the signature in the URL. True, or false and answered. */
bool files_authorise(struct agent *a, struct http_x *x, const char *operation, struct files_request *ret);
