/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The context that everything in the agent is given. */

#include <uv.h>

#include "identity.h"
#include "io/http_server.h"

struct agent {
        uv_loop_t *loop;
        struct identity identity;
        struct cgroups *cgroups;
        struct procs *procs;
        struct sessions *sessions;
        struct watchers *watchers;
        struct polled_watchers *polled;
        struct gate *gate;
        struct http_server *api;     /* port 49983 */
        struct http_server *control; /* authority "control" */
        struct guest *guest;         /* NULL: no guest stream */
        struct timer *fs_timer; /* while the root filesystem is frozen: when it goes on by itself */
        struct trim *trim;      /* NULL: the machine is not the agent's */
        bool pid1;
        bool stopping;
        bool trust_listen;           /* connections to the TCP listener count as the guest stream's */
};

/* Tags of connections to the API (http_x_conn_tag()). */
#define TAG_LINK ((void *) 1)
#define TAG_TCP ((void *) 2)
