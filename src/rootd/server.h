/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * rootd.sock: who may connect, which requests there are, how they are answered. A handler gets a
 * decoded packet's body and a ticket; it answers by the ticket now or later, once. The client may
 * be gone by then, and the answer with it: the work is done all the same.
 */

#include "ipc/ipc.h"
#include "ipc/messages.h"
#include "rootd/net_counters.h"
#include "rootd/rootd.h"

#define SERVER_CLIENTS_MAX 8

struct ticket {
        uint64_t client;           /* number of the connection */
        struct ipc_packet request; /* type and seq alone are kept */
        uint64_t received_us;
};

int server_new(struct rootd *r, struct server **ret, struct error *err);
void server_free(struct server *s);

void ticket_ok(struct rootd *r, const struct ticket *t);
void ticket_error(struct rootd *r, const struct ticket *t, const struct error *e);
void ticket_end(struct rootd *r, const struct ticket *t, const struct error *e); /* ok, or an error where e is not NULL */
void ticket_fd(struct rootd *r, const struct ticket *t, int fd); /* stays the caller's */
void ticket_send(struct rootd *r, const struct ticket *t, const void *body, size_t n);

/* To every client that said HELLO; one that says it later is told of all processes that are gone. */
void server_exited(struct rootd *r, const char *id, const char *what);
/* The same: a gateway is being started. One that says HELLO later is told of all that are there. */
void server_gateway(struct rootd *r, const char *id);
/* False: nobody was there to be told. */
bool server_packets(struct rootd *r, const char *id, const struct net_counts *dropped);

/* Handlers. fds is the packet's; what is taken is replaced by -EBADF. */
void place_handle(struct rootd *r, const struct ticket *t, const struct ipc_place *m);
void remove_handle(struct rootd *r, const struct ticket *t, const struct ipc_remove *m);
void usage_handle(struct rootd *r, const struct ticket *t, const struct ipc_usage *m);
void list_handle(struct rootd *r, const struct ticket *t);
void build_handle(struct rootd *r, const struct ticket *t, const struct ipc_build *m, int fds[2]);
void publish_handle(struct rootd *r, const struct ticket *t, const struct ipc_publish *m, int fds[2]);
void build_remove_handle(struct rootd *r, const struct ticket *t, const struct ipc_build_remove *m);
void template_commit_handle(struct rootd *r, const struct ticket *t, const struct ipc_template_commit *m);
void template_remove_handle(struct rootd *r, const struct ticket *t, const struct ipc_template_remove *m);
void image_begin_handle(struct rootd *r, const struct ticket *t, const struct ipc_image_begin *m);
void image_commit_handle(struct rootd *r, const struct ticket *t, const struct ipc_image_commit *m);
void image_remove_handle(struct rootd *r, const struct ticket *t, const struct ipc_image_remove *m);
void image_usage_handle(struct rootd *r, const struct ticket *t, const struct ipc_image_usage *m);
void images_handle(struct rootd *r, const struct ticket *t, const struct ipc_images *m);
void variant_commit_handle(struct rootd *r, const struct ticket *t, const struct ipc_variant_commit *m);
void variant_freeze_handle(struct rootd *r, const struct ticket *t, const struct ipc_variant_freeze *m);
void variant_remove_handle(struct rootd *r, const struct ticket *t, const struct ipc_variant_remove *m);
void history_handle(struct rootd *r, const struct ticket *t, const struct ipc_history *m);
void token_handle(struct rootd *r, const struct ticket *t, const struct ipc_token *m, int request); /* takes request */
