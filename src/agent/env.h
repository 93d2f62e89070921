/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "identity.h"
#include "user.h"

#define ENV_DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

/* A command's environment: the system's variables, then the sandbox's, then the request's (extra
 * may be NULL); later ones win. NULL-terminated, free with env_free(). */
char **env_build(const struct identity *id, const struct user *u, json_t *extra, bool pty);
void env_free(char **env);
void env_freep(char ***env);
const char *env_get(char *const *env, const char *key);
