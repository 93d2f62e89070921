/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One build: what it was asked for, where it works, and what the steps learn from one another.
 * Layout of the build folder:
 *
 *   build.log   output of all tools       work/    apt's configuration, the unpacked kernel
 *   rootfs/     the root filesystem       out/     the result
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/id.h"

#define BUILD_STEPS 6
#define BUILD_PATH_MAX 512
#define BUILD_LOG_MAX (8u * 1024 * 1024)
#define BUILD_TAIL 1600 /* bytes of the log's end that go into the error line */

enum build_source { SOURCE_PACKAGES, SOURCE_TAR };

struct build {
        /* asked for */
        char dir[BUILD_PATH_MAX];
        enum build_source source;
        const char *packages; /* blank-separated, checked */
        const char *suite;    /* "" : the host's own */
        const char *agent;
        char agent_digest[DIGEST_LEN + 1]; /* of what is in the initrd */
        const char *cache;    /* NULL: none */
        const char *sources;  /* NULL: the host's Debian sources */
        uint64_t disk_bytes;
        uint64_t checkpoint_every_s, checkpoint_keep; /* of its sandboxes; 0: the manifest says nothing of it */
        int tar_fd;

        /* where */
        int dirfd, outfd;
        char rootfs[BUILD_PATH_MAX + 16];
        char work[BUILD_PATH_MAX + 16];

        /* progress and log */
        unsigned step;         /* index into the table of steps */
        unsigned percent_sent; /* of the step; 101 while none was sent */
        uint64_t deadline_ms;  /* clock_mono_ms(); 0: none */
        int log_fd;
        size_t log_size;
        char tail[BUILD_TAIL];
        size_t tail_n;
        const char *code; /* stable error code, set where it fails; NULL: from the errno */

        /* learnt */
        char suite_used[64];
        char arch[32];
        char kernel_package[128], kernel_version[128], kernel_release[128];
        uint64_t epoch;     /* newest time stamp that the result may have */
        unsigned n_debs;
        bool looks_like_image; /* the tar has the files of a container image's archive */
        char shell[64];     /* login shell of the users */
        char user[33];      /* default user and its ids */
        uint32_t uid, gid;
        char os_id[64], os_version[64], os_name[128];
};

enum build_step { STEP_DOWNLOAD, STEP_ROOTFS, STEP_CONFIGURE, STEP_KERNEL, STEP_DISK, STEP_FINISH };

/* Begins a step: a progress line with 0 percent. */
void build_step(struct build *b, enum build_step step, const char *message);
/* Percent of the running step; a line is written when it has moved. */
void build_progress(struct build *b, unsigned percent, const char *message);
void build_done(const struct build *b, const char *digest);
void build_failed(const struct build *b, const struct error *err);

/* Appends to build.log, up to BUILD_LOG_MAX, and to the tail kept for errors. */
void build_log(struct build *b, const char *data, size_t n);
void build_logf(struct build *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* error_set() that also names the stable code. Returns errnum. */
int build_error(struct build *b, const char *code, struct error *err, int errnum, const char *fmt, ...)
        __attribute__((format(printf, 5, 6)));

int build_timed_out(struct build *b, struct error *err); /* 0, or -ETIMEDOUT past the deadline */
