/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * cspace.conf(5): one INI file read by cspace-rootd, cspaced and the CLI. Every key has a compiled-in
 * default, so a missing file is a complete configuration. An unknown section or key, a value
 * outside its limits and a line that is no assignment are errors with the line number: a
 * misspelt key must never mean "the default, silently".
 *
 * The keys are rows of the table in conf.c; its comments are what the man page says.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "base/id.h"

#define CONF_FILE "/etc/cspace/cspace.conf"
#define CONF_STR_MAX 255
#define CONF_FILE_MAX (64 * 1024)
#define CONF_WARM_MAX 16

/* "NAME[:TAG]=COUNT": sandboxes of that template kept restored and waiting. */
struct conf_warm {
        char ref[2 * TEMPLATE_NAME_MAX + 2];
        uint32_t count;
};

struct conf {
        /* [paths] */
        char data[CONF_STR_MAX + 1];
        char run[CONF_STR_MAX + 1];
        char libexec[CONF_STR_MAX + 1];
        char log[CONF_STR_MAX + 1];
        /* [api] */
        char listen[CONF_STR_MAX + 1];      /* IP:PORT, [IP6]:PORT */
        char domain[CONF_STR_MAX + 1];      /* host names PORT-ID.DOMAIN reach sandboxes; "" off */
        bool insecure_listen;               /* allow a listen address that is not loopback */
        /* [sandbox] */
        uint32_t memory_mb, cpus;
        uint32_t max_memory_mb, max_cpus;   /* of one sandbox; 0: what the host has */
        uint64_t disk_bytes;                /* 0: as the template's */
        uint64_t ttl_s;                     /* 0: no limit */
        uint64_t ttl_max_s;
        uint32_t max_sandboxes;             /* alive on this host at one time */
        /* [pool] */
        uint32_t pool_namespaces;
        struct conf_warm warm[CONF_WARM_MAX];
        size_t n_warm;
        /* [engine] */
        char engine[16];                    /* "auto", "kvm", "tcg", "fake" */
        char qemu[CONF_STR_MAX + 1];        /* "": qemu-system-x86_64 on the system path */
        bool process_images;                /* under emulation: start VMs from the image of a process */
        /* [egress] */
        char trust_store[CONF_STR_MAX + 1]; /* PEM certificates that upstream servers are verified by */
        char resolv_conf[CONF_STR_MAX + 1]; /* whose nameservers gateways ask */
        char open_ranges[CONF_STR_MAX + 1]; /* private or reserved ranges that count as public, blank-separated */
        /* [credentials] */
        char token_commands[CONF_STR_MAX + 1]; /* folder of the programs that provider "command" may name */
        char token_user[32];                   /* whom they run as; "": a user that owns nothing */
        char token_open[CONF_STR_MAX + 1];     /* as open_ranges, for token endpoints */
        uint64_t token_timeout_s;              /* until a token must be there */
        /* [audit] */
        uint64_t audit_sandbox_bytes;       /* kept of one sandbox */
        uint64_t audit_total_bytes;         /* kept of all */
        uint64_t audit_packets_s;           /* how often what the namespaces dropped is recorded */
        uint64_t audit_keep_s;              /* after the sandbox is deleted */
        /* [build] */
        uint64_t build_timeout_s;
        uint64_t build_disk_bytes;
        uint32_t builds;                    /* builders at one time */
        char sources[CONF_STR_MAX + 1];     /* apt sources file to build from; "": the host's Debian ones */
        /* [storage]: the image made where the data folder has no reflinks */
        char image[CONF_STR_MAX + 1];       /* "": <data>.btrfs */
        uint64_t image_bytes;               /* 0: chosen by `cspace up` from the free space */
        /* [log] */
        char log_level[16];
};

void conf_defaults(struct conf *c);

/* Defaults, then the file. path NULL means CONF_FILE, which may be missing; a path that the user
 * named must exist. */
int conf_load(struct conf *c, const char *path, struct error *err);
/* As above, but what is wrong in the file is passed over: for who must get on without it. The first wrong thing is
 * returned as conf_load() would. */
int conf_load_lenient(struct conf *c, const char *path, struct error *err);
/* Defaults, then this text; name is what errors call it. */
int conf_parse(struct conf *c, const char *text, const char *name, struct error *err);

/* One key, as options do: conf_set(&c, "paths", "data", "/srv/cspace", &err). */
int conf_set(struct conf *c, const char *section, const char *key, const char *value, struct error *err);

/* Prints every key with its value, in the file's own form. */
int conf_print(const struct conf *c, FILE *out);

/* "<run>/api.sock" and so on; -ENAMETOOLONG when it does not fit. */
int conf_run_path(const struct conf *c, const char *name, char *out, size_t cap);
int conf_data_path(const struct conf *c, const char *name, char *out, size_t cap);
int conf_libexec_path(const struct conf *c, const char *name, char *out, size_t cap);
