/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the parts of the program share: made in main(), passed to all. */

#include <uv.h>

#include "procimage/host.h"
#include "rootd/cgroup.h"
#include "rootd/dirs.h"
#include "rootd/host.h"
#include "rootd/instance.h"
#include "rootd/options.h"
#include "rootd/view.h"

struct pool;
struct placement;
struct commit;
struct publish;
struct build;
struct errand;
struct image;
struct reap;
struct server;

struct rootd {
        uv_loop_t *loop;
        struct options opt;
        struct dirs dirs;
        struct instance instance;
        struct cgroups cgroups;
        struct views views;
        struct host host;
        char process_host[PROCIMAGE_HOST_SIZE]; /* which images of processes are of use; "": none */
        struct pool *pool;
        struct placement *placements;
        unsigned n_placements;
        struct build *builds;
        struct errand *errands;
        struct image *images;      /* being made */
        struct publish *publishes; /* being made */
        struct commit *template_commits; /* under way */
        struct reap *reaps;
        struct server *server;
        uv_timer_t *packets_timer; /* packets.c */
        uint64_t packets_round;
};
