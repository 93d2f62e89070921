/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Upstream name resolution: c-ares on the loop, asked for A records of exactly one name (no search list, no
 * hosts file). Answers are kept for as long as they say, within RESOLVE_TTL_MIN_S and _MAX_S.
 */

#include <netinet/in.h>
#include <stddef.h>
#include <uv.h>

#include "base/error.h"

#define RESOLVE_ADDRESSES_MAX 16  /* of one name; the others are left out */
#define RESOLVE_TTL_MIN_S 5
#define RESOLVE_TTL_MAX_S 300
#define RESOLVE_CACHE_MAX 256
#define RESOLVE_SERVERS_MAX 8
#define RESOLVE_TRY_MS 2500
#define RESOLVE_TRIES 3
#define RESOLVE_PENDING_MAX 256   /* questions under way */

struct resolver;
/* servers: "a.b.c.d" or "a.b.c.d:port". Before confinement: c-ares reads files when it starts. */
int resolver_new(uv_loop_t *loop, const char *const *servers, size_t n, struct resolver **ret, struct error *err);
void resolver_free(struct resolver *r); /* open questions are answered with -ECANCELED */

/* Called once, maybe from inside resolver_ask(): the number of addresses, or -ENOENT (no such name or
 * no address), -ETIMEDOUT, -EIO, -EBUSY. */
typedef void (*resolve_cb)(void *arg, int n, const struct in_addr *addrs);
struct resolve_query;
/* *ret is NULL when cb was called already; else good for resolver_cancel() until cb is. */
void resolver_ask(struct resolver *r, const char *name, resolve_cb cb, void *arg, struct resolve_query **ret);
void resolver_cancel(struct resolve_query *q); /* cb is not called; NULL is fine */
