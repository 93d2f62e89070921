/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Identifiers. A sandbox id is 26 characters of [a-z2-7] (130 random bits): it may stand in a host
 * name (`49983-<id>.domain`), so it has no upper case, dash or dot (E2B: ^[a-z0-9]+$). The same
 * form serves operations, builds, processes and checkpoints.
 */

#include <stdbool.h>
#include <stddef.h>

#define ID_LEN 26
#define ID_SIZE (ID_LEN + 1)

/* Fills n bytes from the kernel's generator; never short, aborts the call chain with -EIO. */
int random_bytes(void *out, size_t n);

int id_new(char out[ID_SIZE]); /* 0 or -EIO */
bool id_valid(const char *s);

#define DIGEST_LEN 64 /* lowercase hex SHA-256 */
bool digest_valid(const char *s);

/* Template references: NAME or NAME:TAG; name [a-z0-9][a-z0-9._-]{0,62}, tag the same alphabet. */
#define TEMPLATE_NAME_MAX 63
bool template_name_valid(const char *s, size_t n);
