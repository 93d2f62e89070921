/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What `cspace up`, `down` and `doctor` share: the configuration, the host's user, folders and data
 * filesystem, and the two services. The rest of cspace(1) only speaks to the API; this part is root
 * on the host. It trusts no file that the user cspace can write.
 */

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "conf/conf.h"

#define SETUP_USER "cspace"

struct setup {
        struct conf conf;
        const char *config;        /* --config, NULL: the default file */
        const char *data, *run;    /* options, NULL: as configured */
        bool plain;                /* not the installed units' own configuration, or no systemd wanted */
        uid_t uid;                 /* of the user cspace; valid after setup_user() */
        gid_t gid;
        int lock;                  /* held while `up` or `down` works */
};

#define SETUP_INIT ((struct setup){ .lock = -EBADF })

/* Configuration and options. */
int setup_load(struct setup *s, struct error *err);
/* The same for who must get on with a file that has become wrong: 1 then, and ret_why says what is wrong in it. */
int setup_load_running(struct setup *s, struct error *ret_why);
/* After that, under the lock: the configuration that the services were started with, if it was noted. */
bool setup_take_noted(struct setup *s);
/* -EBUSY when the data folder is another one than that of sandboxes which run. */
int setup_check_moved(const struct setup *s, struct error *err);
/* One `up` or `down` at a time on a run folder; makes <run>/services, which only root can enter. */
int setup_lock(struct setup *s, struct error *err);
void setup_done(struct setup *s);

/* Tells what was done: a line on stdout, nothing with --json or --quiet. */
void setup_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
extern bool setup_quiet;

/* Runs a tool to its end; its output is shown only in the error. */
int setup_exec(const char *const *argv, struct error *err);
/* The beginning of a tool's output, NUL-terminated; -EIO when it fails. */
int setup_exec_text(const char *const *argv, char *out, size_t cap, struct error *err);
/* First line of a tool's output; -EIO when it fails. */
int setup_exec_line(const char *const *argv, char *out, size_t cap, struct error *err);

/* ---- host ------------------------------------------------------------------------------------ */

int setup_user(struct setup *s, bool create, struct error *err);
int setup_config(struct setup *s, struct error *err);  /* the default file, if there is none */
int setup_dirs(struct setup *s, struct error *err);    /* data, run and log folder */

/* ---- data folder (setup_storage.c) ------------------------------------------------------------ */

/* Makes sure that the data folder is on a filesystem with reflinks, mounting an image where it is not. */
int setup_storage(struct setup *s, struct error *err);
/* Unmounts the image if the data folder is one of ours; not mounted is fine. */
int setup_storage_end(struct setup *s, struct error *err);
void setup_image_path(const struct setup *s, char *out, size_t cap);
/* 1: files on path can share blocks, 0: no. */
int setup_has_reflinks(const char *path, struct error *err);
/* Attaches image to a free loop device that detaches itself after the last use. The path of the device goes
 * to device; the descriptor returned must stay open until it is mounted. (setup_loop.c) */
int setup_loop_attach(const char *image, char *device, size_t cap, struct error *err);
/* Whether `device` is a loop device over this file. */
bool setup_loop_is(dev_t device, const char *image);

/* ---- services (setup_service.c) --------------------------------------------------------------- */

int setup_services_start(struct setup *s, struct error *err);
int setup_services_stop(struct setup *s, struct error *err);
/* 0 when the API answers on <run>/api.sock. */
int setup_health(const struct setup *s, struct error *err);
/* Whether units of an installed cspace are to be used. */
bool setup_use_systemd(const struct setup *s);

struct service_state {
        const char *name;
        pid_t pid;        /* 0: does not run */
        bool outdated;    /* its program was replaced since */
};
/* State of both services when they run without systemd; i is 0 or 1. */
int setup_service_state(const struct setup *s, unsigned i, struct service_state *ret);
#define SETUP_SERVICES 2

/* Ends what sandboxes have left running once the services are stopped; the number of processes
 * that were killed, or a negative errno. (setup_sweep.c) */
int setup_sweep(const struct setup *s, struct error *err);
/* Number of sandboxes with processes. */
int setup_count_sandboxes(const struct setup *s);
