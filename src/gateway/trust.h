/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The host's trust store without its memory: the file of PEM certificates is mapped (its pages are shared
 * by all gateways), an index, made when the first chain is verified, knows where the certificate of which subject
 * lies, and one is parsed when a chain needs it.
 */

#include <openssl/ssl.h>

#include "base/error.h"

#define TRUST_FILE_MAX (8u * 1024 * 1024)
#define TRUST_CERTIFICATES_MAX 2048 /* what comes behind is not trusted */

struct trust;
/* Before confinement. -ENOENT: no certificate can be read in it. */
int trust_load(const char *path, struct trust **ret, struct error *err);
void trust_free(struct trust *t);
size_t trust_count(struct trust *t);
/* Contexts keep a pointer: t outlives ctx. */
int trust_use(struct trust *t, SSL_CTX *ctx, struct error *err);
