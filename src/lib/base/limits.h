/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Limits shared by more than one program, each on a quantity that a client or a guest controls.
 * A limit that only one module knows stands at the top of that module.
 */

#define LIMIT_ENV_ITEMS 1024              /* variables in a sandbox's or command's environment */
#define LIMIT_ENV_VALUE (128 * 1024)      /* bytes of one value: MAX_ARG_STRLEN of the guest */
#define LIMIT_IDENTITY_JSON (160 * 1024)  /* what one ipc message to a warden may carry */
#define LIMIT_METADATA_ITEMS 64
#define LIMIT_METADATA_KEY 256
#define LIMIT_METADATA_VALUE 4096
#define LIMIT_MEMORY_MIN_MB 128
#define LIMIT_MEMORY_MAX_MB 65536
#define LIMIT_CPUS_MAX 32
#define LIMIT_DISK_MAX_MB (1u << 24)
#define LIMIT_TEMPLATE_DISK_MIN_MB 256
#define LIMIT_TTL_MAX_S (30ULL * 86400)   /* time to live */
#define LIMIT_HTTP_HEAD (64 * 1024)       /* request or response head, all lines together */
#define LIMIT_HTTP_HEADERS 128
#define LIMIT_JSON_BODY (16 * 1024 * 1024) /* a Start with a 10 MiB argument list still parses */
#define LIMIT_PATH 4096
#define LIMIT_LINK_STREAMS 1024           /* open streams of one sandbox */

#define AGENT_PORT 49983                  /* E2B envd port */
