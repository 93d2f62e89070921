/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* ctl.sock: cspaced gives the configuration, asks for the state, and takes records and names away. It may come and go;
 * the gateway goes on with what it has. Who may connect is decided by the socket's mode. */

#include "gateway.h"

#define CTL_CONNECTIONS_MAX 4
#define CTL_BATCH_DELAY_MS 100  /* records are gathered for so long */
#define CTL_NAMES_DELAY_MS 1000 /* so are changes of the table of names */
#define CTL_ANSWER_MS 30000     /* a batch that is not acknowledged by then is sent again */

struct ctl;
/* Takes listen_fd. first: when the first configuration is in force. */
int ctl_new(struct gateway *gw, int listen_fd, void (*first)(void *arg), void *arg, struct ctl **ret, struct error *err);
void ctl_free(struct ctl *c); /* NULL is fine */
