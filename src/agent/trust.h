/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The certificate authority of the sandbox's gateway, which inspects TLS: every client in the guest is to
 * trust it without its user doing anything. What changes from sandbox to sandbox lies in memory; the disk has
 * links to it, made once, before the snapshot:
 *
 *   /etc/ssl/certs/ca-certificates.crt           the system's bundle and the authority: OpenSSL by file, GnuTLS,
 *                                                curl, git, wget, Go
 *   /etc/ssl/certs/<subject hash>.0              OpenSSL by folder: Python's ssl, Perl, Ruby
 *   /etc/ssl/certs/cspace.pem,
 *   /usr/local/share/ca-certificates/cspace.crt  what update-ca-certificates and its hooks (Java) collect, so that
 *                                                the authority is in what they write anew
 *   /etc/ssl/certs/java/cacerts                  Debian's Java, where the template has it (jks.h)
 *
 * and clients that bring a bundle of their own are told by environment variables (trust_env()).
 */

#include <stddef.h>

#include "base/error.h"

#define TRUST_CA_FILE "/run/cspace/ca.crt"
#define TRUST_JAVA_FILE "/run/cspace/java-cacerts"
#define TRUST_BUNDLE_FILE "/run/cspace/ca-certificates.crt"
#define TRUST_CA_SUBJECT_HASH "20d93aee" /* of "O = cspace, CN = cspace sandbox CA": openssl x509 -subject_hash */
#define TRUST_PEM_MAX 8192

/* As the machine's init, once: the files and links. What cannot be done is logged. */
void trust_prepare(void);
/* pem "" takes the authority away. */
int trust_set(const char *pem, struct error *err);

struct trust_var {
        const char *name, *value;
};
/* Variables for commands while there is an authority; *ret_n of them. */
const struct trust_var *trust_env(size_t *ret_n);
