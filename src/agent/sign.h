/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define SIGNATURE_SIZE 48 /* "v1_" and 43 characters of base64 */

/* "v1_" + base64(SHA-256("path:operation:user:token[:expiration]")) without padding. expiration may
 * be NULL. */
void sign_files(const char *path, const char *operation, const char *user, const char *token,
                const char *expiration, char out[SIGNATURE_SIZE]);
bool sign_check(const char *signature, const char *path, const char *operation, const char *user,
                const char *token, const char *expiration);
