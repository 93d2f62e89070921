/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "rpc.h"

/* The watching methods of filesystem.Filesystem: as a stream, and as a watcher that is polled. */

#define RPC_WATCH_QUEUE_MAX 65536 /* events of a polled watcher that nobody has fetched */

struct polled_watchers;
struct polled_watchers *polled_watchers_new(void); /* NULL: no memory */
void polled_watchers_forget(struct polled_watchers *all);
void polled_watchers_free(struct polled_watchers *all);

void rpc_watch_dir(struct rpc *r, json_t *req);
void rpc_create_watcher(struct rpc *r, json_t *req);
void rpc_get_watcher_events(struct rpc *r, json_t *req);
void rpc_remove_watcher(struct rpc *r, json_t *req);
