/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The journal's format (all big-endian). Every metadata block of the journal begins with 12 bytes: magic, type,
 * sequence of its transaction.
 *
 *   superblock  type 3 or 4, the journal's first block
 *   descriptor  12: tags, one for each data block that follows it in the journal; checksum in the last 4 bytes
 *   revoke      12: bytes in use; 16: numbers of blocks (4 or 8 bytes each); checksum in the last 4 bytes
 *   commit      16: checksum; ends the transaction
 */

#define JBD2_MAGIC 0xC03B3998u

#define JBD2_DESCRIPTOR 1u
#define JBD2_COMMIT 2u
#define JBD2_SUPER_V1 3u
#define JBD2_SUPER_V2 4u
#define JBD2_REVOKE 5u

#define JBD2_HEADER_BYTES 12u
#define JBD2_TAIL_BYTES 4u
#define JBD2_REVOKE_HEADER_BYTES 16u

/* Superblock fields. */
#define JBD2_SB_BLOCK_SIZE 12u
#define JBD2_SB_MAXLEN 16u
#define JBD2_SB_FIRST 20u
#define JBD2_SB_SEQUENCE 24u
#define JBD2_SB_START 28u
#define JBD2_SB_INCOMPAT 40u
#define JBD2_SB_UUID 48u
#define JBD2_SB_CHECKSUM_TYPE 80u
#define JBD2_SB_FC_BLOCKS 84u
#define JBD2_SB_CHECKSUM 252u
#define JBD2_SB_BYTES 1024u

#define JBD2_CHECKSUM_CRC32C 4u
#define JBD2_FC_BLOCKS_DEFAULT 256u

#define JBD2_INCOMPAT_REVOKE 0x01u
#define JBD2_INCOMPAT_64BIT 0x02u
#define JBD2_INCOMPAT_ASYNC_COMMIT 0x04u
#define JBD2_INCOMPAT_CSUM_V2 0x08u
#define JBD2_INCOMPAT_CSUM_V3 0x10u
#define JBD2_INCOMPAT_FAST_COMMIT 0x20u
#define JBD2_INCOMPAT_KNOWN 0x3fu

/* Flags of a tag. */
#define JBD2_TAG_ESCAPED 1u
#define JBD2_TAG_SAME_UUID 2u
#define JBD2_TAG_DELETED 4u
#define JBD2_TAG_LAST 8u
