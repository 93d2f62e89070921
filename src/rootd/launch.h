/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Launchers: children of rootd that have already entered what takes time to make (cgroup,
 * namespaces, folder) and wait for the order to become a program. A create then costs two
 * messages instead of two set-ups.
 *
 *   rootd --clone3--> launcher: enter, prepare ... LAUNCH_READY (+ descriptors) --> rootd
 *   rootd --struct launch_order + descriptors--> launcher: confine, exec
 *
 * The socket closes with exec, so its end says "the program runs"; a failure comes as LAUNCH_ERROR
 * before it. When rootd dies, a waiting launcher sees the end and goes too.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "rootd/cgroup.h"
#include "rootd/view.h"

#define LAUNCH_FDS_MAX 16
#define LAUNCH_ARGV_BYTES 1024
#define LAUNCH_ARGV_MAX 24

enum launch_kind {
        LAUNCH_VM,     /* makes the network namespace; ready comes with tap and namespace */
        LAUNCH_WARDEN, /* joins it; has the sandbox's folder as its working directory */
        LAUNCH_GATEWAY, /* runs in the host's; its sockets come with the order */
};

/* What a launcher is made with. */
struct launch_setup {
        enum launch_kind kind;
        const struct cgroups *cgroups;
        const char *leaf;
        const struct views *views;
        int netns; /* LAUNCH_WARDEN */
        int dir;   /* LAUNCH_WARDEN: the sandbox's run folder */
};

struct launch_order {
        uid_t uid;
        uint32_t files;      /* RLIMIT_NOFILE */
        uint64_t file_bytes; /* RLIMIT_FSIZE, 0 none */
        uint32_t processes;
        int32_t oom_score_adj;
        bool kvm; /* the view with /dev/kvm */
        bool text_log; /* descriptor 2 is sent along and is a log */
        uint32_t argc, argv_bytes;
        char argv[LAUNCH_ARGV_BYTES]; /* NUL-terminated strings; the first is the path to execute */
        uint32_t n_fds;
        int32_t fds[LAUNCH_FDS_MAX]; /* number in the program of each descriptor sent along */
};

struct launcher {
        pid_t pid;
        int pidfd, sock;
};

/* What comes from a launcher. */
enum launch_event { LAUNCH_NOTHING, LAUNCH_READY, LAUNCH_RUNS, LAUNCH_ERROR };

int launcher_start(const struct launch_setup *s, struct launcher *ret, struct error *err);
/* Reads one message without waiting. LAUNCH_READY of a VM gives descriptors;
 * LAUNCH_RUNS is the end of the socket; LAUNCH_ERROR fills err. */
#define LAUNCH_READY_FDS 5 /* of a VM: tap, namespace, the gateway's three sockets; -EBADF of the others */
enum launch_event launcher_read(struct launcher *l, int ret_fds[LAUNCH_READY_FDS], struct error *err);
int launcher_order(struct launcher *l, const struct launch_order *o, const int *fds, struct error *err);
/* Closes the descriptors (the process, if it still waits, ends by itself). */
void launcher_done(struct launcher *l);

int launch_order_arg(struct launch_order *o, const char *arg); /* 0 or -E2BIG */
