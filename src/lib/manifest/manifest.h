/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What a template's digest is the digest of. A finished build has five files, one that was published from a running
 * sandbox seven:
 *
 *   MANIFEST        lines "<sha256>  <name>\n" of the others, sorted by name
 *   disk.img        ext4 image, sparse      initrd          cpio archive, uncompressed
 *   kernel          vmlinux (ELF)           manifest.json   what it was made of, and how to run it
 *   mem             memory of a VM, sparse  state           of its devices
 *
 * and its digest is the SHA-256 of MANIFEST. The builder writes it; cspace-rootd, which trusts
 * nothing that comes from a build, computes it again before the template becomes visible.
 *
 * disk.img and mem are mostly holes, and hashing gigabytes of zeros takes longer than building the rest.
 * Their lines hold the SHA-256 of this stream instead: for each MANIFEST_BLOCK-aligned block
 * with a byte other than 0: offset u64be, length u32be, the bytes; and at the end the file's size u64be
 * and length 0 u32be. It does not depend on how the filesystem laid out the holes.
 */

#include "base/error.h"
#include "base/id.h"

#define MANIFEST_NAME "MANIFEST"
#define MANIFEST_BLOCK (64 * 1024)
#define MANIFEST_FILE_MAX (256ULL << 20)   /* kernel, initrd, manifest.json */
#define MANIFEST_DISK_MAX (1ULL << 44)

/* manifest.json says with this which agent is in the initrd. Hex SHA-256, as everywhere here; -EIO. */
#define MANIFEST_AGENT_KEY "agent"         /* {"sha256": ...} */
#define MANIFEST_AGENT_MAX (64u << 20)
int manifest_digest(const void *data, size_t n, char ret_digest[DIGEST_LEN + 1]);

/* Computes MANIFEST of the files in dirfd, writes it there, gives the digest. */
int manifest_write(int dirfd, char ret_digest[DIGEST_LEN + 1], struct error *err);

/* -EBADMSG unless MANIFEST in dirfd is that of the files, each a regular file, and has this digest. */
int manifest_check(int dirfd, const char *digest, struct error *err);
