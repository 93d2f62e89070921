/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The messages. Rows: X(kind, name, limit); kind U32 or U64 (limit is the largest legal value),
 * STR (limit is the longest legal length; NUL-free, stored NUL-terminated in char[limit + 1]) or
 * BLOB (pointer and length into the packet, limit is the longest legal length).
 *
 * For a message `foo` there are: struct ipc_foo, IPC_FOO (its type number),
 *   int ipc_foo_encode(const struct ipc_foo *m, uint8_t *out, size_t cap, size_t *ret_n);
 *   int ipc_foo_decode(const void *body, size_t n, struct ipc_foo *m);
 */

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/id.h"
#include "base/limits.h"

#define IPC_ERROR_FIELDS(X)     \
        X(U32, code, 4095)      /* positive errno */ \
        X(STR, message, ERROR_MSG_MAX - 1)

/* ---- cspaced to cspace-rootd --------------------------------------------------------------- */

/* First message on a connection. Answer: host_info. */
#define IPC_HELLO_FIELDS(X) \
        X(U32, version, 65535)

#define IPC_HOST_INFO_FIELDS(X)                                              \
        X(U32, version, 65535)                                               \
        X(STR, engine, 15)          /* "qemu-kvm" or "qemu-tcg" */           \
        X(STR, engine_reason, 255)  /* why, for doctor */                    \
        X(STR, cgroup, 15)          /* "v1", "v2", "none" */                 \
        X(STR, data_fs, 15)         /* "btrfs", "xfs", ... of the data folder */ \
        X(U32, reflink, 1)                                                   \
        X(U32, pool_ready, 65535)   /* namespaces waiting */

/*
 * Starts cspace-builder in a user namespace of its own for a new template. The builder works in
 * <data>/builds/<id>/ and writes progress as JSON lines to the descriptor sent along (fds[0]); the
 * answer comes when it has ended: an error, or empty (its result is <data>/builds/<id>/out/). For
 * source "tar" fds[1] is the opened archive.
 */
#define IPC_BUILD_FIELDS(X)                                                  \
        X(STR, id, ID_LEN)                                                   \
        X(STR, source, 15)          /* "packages" or "tar" */                \
        X(STR, packages, 16383)     /* space-separated, beyond the base set */ \
        X(STR, suite, 63)           /* Debian suite, "" for the host's own */ \
        X(U64, disk_bytes, 1ULL << 44)                                       \
        X(U32, timeout_s, 86400)                                             \
        X(U32, checkpoint_every_s, LIMIT_TTL_MAX_S) /* of its sandboxes; 0: the manifest says nothing of it */ \
        X(U32, checkpoint_keep, 100)

/* Makes builds/<id>/out/ the template <digest>: checks that the digest is that of the files,
 * fixes ownership, fsync, rename to templates/<digest>/. Already there: fine. */
#define IPC_TEMPLATE_COMMIT_FIELDS(X) \
        X(STR, id, ID_LEN)            \
        X(STR, digest, DIGEST_LEN)    \
        X(STR, engine, 15)          /* of a published memory, which becomes the variant of that engine and size; else "" */ \
        X(U32, memory_mb, LIMIT_MEMORY_MAX_MB)                               \
        X(U32, cpus, LIMIT_CPUS_MAX)
#define IPC_TEMPLATE_REMOVE_FIELDS(X) \
        X(STR, digest, DIGEST_LEN)
/* Removes builds/<id>/, stopping its builder if one runs. */
#define IPC_BUILD_REMOVE_FIELDS(X) \
        X(STR, id, ID_LEN)

/*
 * Gives a sandbox its namespace, tap, cgroup, uids, disk and warden. mode "restore" uses
 * templates/<digest>/variants/<variant>/ and fails with ENOENT when that is missing; mode "boot"
 * boots the template's kernel on a copy of its disk, to make that variant. With an image, "restore" is of its
 * memory and disk, and "start" boots the template's kernel on a copy of its disk. The answer comes when
 * the warden has been started, not when the VM runs: cspaced then connects to
 * <run>/sandboxes/<id>/ctl.sock. EPIPE: one of its processes was ended from outside before it was anything; all is undone, and
 * may be asked for again.
 */
#define IPC_PLACE_FIELDS(X)                                                  \
        X(STR, id, ID_LEN)                                                   \
        X(STR, mode, 15)            /* "restore", "boot" or "start" */       \
        X(STR, digest, DIGEST_LEN)                                           \
        X(STR, engine, 15)          /* "qemu-kvm", "qemu-tcg", "fake" */     \
        X(U32, memory_mb, LIMIT_MEMORY_MAX_MB)                               \
        X(U32, cpus, LIMIT_CPUS_MAX)                                         \
        X(U64, disk_bytes, 1ULL << 44) /* 0: as the template's or image's */ \
        X(STR, image, ID_LEN)       /* start from this one; "" none */       \
        X(U32, snapshot, 1)         /* from the devices' state, although the image of a process is there */
#define IPC_PLACED_FIELDS(X)                                                 \
        X(U32, warden_pid, UINT32_MAX)                                       \
        X(U32, warden_uid, UINT32_MAX)                                       \
        X(U32, vm_uid, UINT32_MAX)                                           \
        X(U64, place_us, UINT64_MAX) /* time spent here */                   \
        X(U32, thawed, 1)           /* from the image of a process: where that fails, `snapshot` is the other way */

/* Kills every process of the sandbox and removes all it has on this host. Works in every state,
 * also when only part of it exists; missing altogether is success. */
#define IPC_REMOVE_FIELDS(X) \
        X(STR, id, ID_LEN)

/* Moves mem, state and disk of a "boot" sandbox whose warden reported the snapshot to
 * templates/<digest>/variants/<variant>/, made read-only and durable. */
#define IPC_VARIANT_COMMIT_FIELDS(X)  \
        X(STR, id, ID_LEN)            \
        X(STR, digest, DIGEST_LEN)    \
        X(STR, variant, 63)
/* Adds to templates/<digest>/variants/<variant>/ the image of a process: that of a "restore" sandbox of that variant which
 * was parked, with its memory and disk as they are now. Sandboxes start from it from then on. EOPNOTSUPP: not on this
 * host, or not of this engine. */
#define IPC_VARIANT_FREEZE_FIELDS(X)  \
        X(STR, id, ID_LEN)            \
        X(STR, digest, DIGEST_LEN)    \
        X(STR, variant, 63)
/* Removes templates/<digest>/variants/<variant>/, whatever its name stands for (an earlier QEMU's too). VMs that were
 * restored from it hold its files open. Missing is success. */
#define IPC_VARIANT_REMOVE_FIELDS(X)  \
        X(STR, digest, DIGEST_LEN)    \
        X(STR, variant, 63)

/*
 * Images, <data>/checkpoints/<image>/{disk.img[,mem,state]}: what a sandbox can be started from again; never
 * changed once it is there, and there only as a whole.
 *
 * IMAGE_BEGIN makes the place for one of a sandbox with its memory; the answer has the descriptor for
 * SAVE. IMAGE_COMMIT takes the disk as it is (of a placement whose VM is gone or of a folder without a placement
 * too), for kind "full" the memory of the VM, which must be paused, and makes it visible and durable. With `halt` the
 * processes of the sandbox are ended before. With `from` it is a copy of that image, and `id` counts for nothing. In two parts
 * the VM need stand still for the first alone, which copies; the second makes it durable and visible. A fleeting one is
 * visible and not durable: for what would not outlive the host's power either.
 * One that is there already: fine.
 */
#define IPC_IMAGE_BEGIN_FIELDS(X) \
        X(STR, id, ID_LEN)        \
        X(STR, image, ID_LEN)
#define IPC_IMAGE_COMMIT_FIELDS(X)                                           \
        X(STR, id, ID_LEN)                                                   \
        X(STR, image, ID_LEN)                                                \
        X(STR, kind, 15)            /* "disk" or "full" */                   \
        X(U32, halt, 1)                                                      \
        X(STR, from, ID_LEN)        /* "" none */                            \
        X(U32, part, 2)             /* 0: all; of "full" alone 1, then 2 */     \
        X(U32, fleeting, 1)
#define IPC_IMAGE_INFO_FIELDS(X)                                             \
        X(U64, private_bytes, UINT64_MAX) /* of the VM's memory: not shared with what it began with */ \
        X(U64, written_bytes, UINT64_MAX) /* of memory and devices */        \
        X(U64, freeze_us, UINT64_MAX)     /* the disk's part: how long the VM must stand still for it */ \
        X(U64, took_us, UINT64_MAX)
/* Not there is fine; one that a VM has mapped stays as long as that, without a name. */
#define IPC_IMAGE_REMOVE_FIELDS(X) \
        X(STR, image, ID_LEN)      \
        X(STR, what, 15)      /* "" all of it, "process" the image of its process alone */
/* Answer: `usage_info` with disk_bytes alone: what would be free without it. */
#define IPC_IMAGE_USAGE_FIELDS(X) \
        X(STR, image, ID_LEN)
/* Answer: a `placement_list` of images after `after` in order, at most IPC_IMAGES_PAGE; fewer: the last page. */
#define IPC_IMAGES_FIELDS(X) \
        X(STR, after, ID_LEN) \
        X(STR, what, 15)      /* "" images, "builds" the folders of builds */
#define IPC_IMAGES_PAGE 4096

/* Answer: one `placement_list`, newline-separated ids in BLOB. */
#define IPC_LIST_FIELDS(X)
#define IPC_PLACEMENT_LIST_FIELDS(X) \
        X(BLOB, ids, 160 * 1024)

/* Host-side usage, from cgroups and /proc; also true when the guest lies. */
#define IPC_USAGE_FIELDS(X) \
        X(STR, id, ID_LEN)
#define IPC_USAGE_INFO_FIELDS(X)                                             \
        X(U64, cpu_us, UINT64_MAX)                                           \
        X(U64, memory_bytes, UINT64_MAX)   /* Anonymous of all host processes */ \
        X(U64, disk_bytes, UINT64_MAX)     /* allocated to the disk alone, not shared */ \
        X(U32, processes, UINT32_MAX)                                        \
        X(U64, written_ns, UINT64_MAX)     /* when the disk's file was last written to, Unix time */

/* Event from rootd: a warden, VM or gateway ended. After HELLO also "gateway" of each sandbox that has none. */
#define IPC_EXITED_FIELDS(X)                                                 \
        X(STR, id, ID_LEN)                                                   \
        X(STR, what, 15)            /* "warden", "vm", "gateway" */

/* Event from rootd: the sandbox's gateway is being started, or (after HELLO) is there. It, or the queue of its socket, takes
 * a connection to <run>/sandboxes/<id>/gw.sock. */
#define IPC_GATEWAY_FIELDS(X) \
        X(STR, id, ID_LEN)

/* Event from rootd: what a sandbox's namespace dropped since the last one about it. */
#define IPC_PACKETS_FIELDS(X)                                                \
        X(STR, id, ID_LEN)                                                   \
        X(U64, spoofed, UINT64_MAX)     /* with another source than the sandbox's */ \
        X(U64, not_carried, UINT64_MAX) /* neither TCP nor DNS */            \
        X(U64, flooded, UINT64_MAX)     /* beyond the limits of connections */

/* Generic empty answer. */
#define IPC_OK_FIELDS(X)

/* ---- cspaced to cspace-warden (ctl.sock) ---------------------------------------------------- */

/* Gives the VM its identity; the warden adds time and entropy and passes it to the agent. json is
 * what the agent's control service takes (docs/architecture.md, "Identity"). Answer: ready. */
#define IPC_IDENTIFY_FIELDS(X) \
        X(BLOB, json, LIMIT_IDENTITY_JSON)
#define IPC_READY_FIELDS(X)                                                  \
        X(U64, spawn_us, UINT64_MAX)    /* fork to VMM's first answer */     \
        X(U64, load_us, UINT64_MAX)     /* snapshot load, or boot */         \
        X(U64, link_us, UINT64_MAX)     /* run to link ready */              \
        X(U64, identify_us, UINT64_MAX) /* identity sent to answered */

/* Answer: warden_state. */
#define IPC_QUERY_FIELDS(X)
#define IPC_WARDEN_STATE_FIELDS(X)                                           \
        X(STR, state, 15)               /* "starting", "running", "paused", "failed", "exited" */ \
        X(STR, reason, ERROR_MSG_MAX - 1)                                    \
        X(U32, identified, 1)           /* got its identity */               \
        X(U32, link_up, 1)                                                   \
        X(U64, bytes_in, UINT64_MAX)                                         \
        X(U64, bytes_out, UINT64_MAX)

/* "boot" only: quiesce the agent, write the snapshot, end the VM. Answer: ok when all is on disk. */
#define IPC_SNAPSHOT_FIELDS(X)

/* Graceful end: agent told to stop processes (TERM, then KILL), sync, power off. Answer: ok. */
#define IPC_STOP_FIELDS(X) \
        X(U32, timeout_ms, 600000)

/* The commands are frozen in the guest and what they wrote is synced (where the agent answers), and the VM stops; RESUME is the way
 * back, with the clock set before the commands go on. Answer: held, also when it is so already. */
#define IPC_PAUSE_FIELDS(X)
#define IPC_RESUME_FIELDS(X)
#define IPC_HELD_FIELDS(X)                                                   \
        X(U64, vm_us, UINT64_MAX)       /* the VMM's part; 0: there was nothing to do */ \
        X(U32, synced, 1)               /* PAUSE: all that the guest had written is on its disk; 0 also when it was paused already */
/* As PAUSE, and then the state of the VM's devices is written to the descriptor sent along (write-only, empty; it
 * is IMAGE_BEGIN's). Answer: ok; the VM stays paused. */
#define IPC_SAVE_FIELDS(X)

/* All processes of the guest end, its identity is forgotten, and the VM stops, without a connection to anybody: what
 * VARIANT_FREEZE is for. keep: the commands are frozen, as by SAVE, and the guest remembers who it is. After either it
 * can be given an identity again, with which it goes on. Answer: ok. */
#define IPC_PARK_FIELDS(X) \
        X(U32, keep, 1)

/* The guest's filesystem is synced and frozen (on), or goes on (off). The agent lets it go on by itself after a few
 * seconds. Answer: ok. */
#define IPC_FSFREEZE_FIELDS(X) \
        X(U32, on, 1)

/* Event from the warden: its state changed. */
#define IPC_WARDEN_EVENT_FIELDS(X)                                           \
        X(STR, state, 15)                                                    \
        X(STR, reason, ERROR_MSG_MAX - 1)

/* ---- cspaced and cspace-gateway (ctl.sock of the gateway) ----------------------------------- */

/*
 * All that the gateway works by, as JSON in a sealed memfd (fds[0], at most GW_CONFIG_MAX bytes; its form is in
 * src/gateway/config.h). Applied whole or not at all, and before the answer (gw_configured): from
 * the first one on the gateway lets through what the policy allows. The connection that sent it last
 * gets the records and names.
 */
#define GW_CONFIG_MAX (8u * 1024 * 1024)
#define IPC_GW_CONFIG_FIELDS(X) \
        X(U64, generation, UINT64_MAX) /* of cspaced's choice, told again by gw_state */
#define IPC_GW_CONFIGURED_FIELDS(X)                                          \
        X(STR, ca_pem, 8191)            /* of earlier gateways; empty */     \
        X(U32, rules, UINT32_MAX)

/* A credential's secret is another one now (renewed, rotated), or not to be used any more. Answer: ok, when the old
 * one is not used any more. */
#define IPC_GW_SECRET_FIELDS(X)                                              \
        X(STR, credential, 64)                                               \
        X(BLOB, secret, 8192)           /* empty: revoked */                 \
        X(U64, expires_ms, INT64_MAX)   /* Unix time; 0: good until told otherwise */

/* Answer: gw_state. A table of names that has changed is sent before. */
#define IPC_GW_QUERY_FIELDS(X)
#define IPC_GW_STATE_FIELDS(X)                                               \
        X(U32, configured, 1)                                                \
        X(U64, generation, UINT64_MAX)                                       \
        X(U64, connections, UINT64_MAX) /* open now */                       \
        X(U64, requests, UINT64_MAX)                                         \
        X(U64, bytes_out, UINT64_MAX)   /* from the sandbox */               \
        X(U64, bytes_in, UINT64_MAX)                                         \
        X(U64, names, UINT64_MAX)       /* with an address */                \
        X(U64, records_dropped, UINT64_MAX)

/* From the gateway: audit records, JSON lines. Answer: ok, when they are kept; the next batch waits for it. */
#define IPC_GW_AUDIT_FIELDS(X)                                               \
        X(U64, dropped, UINT64_MAX)     /* records that found no room since the last batch */ \
        X(BLOB, lines, 160 * 1024)

/* From the gateway: its table of names (fds[0], a memfd of JSON) has changed; to be given back as "names" to
 * the next gateway of this sandbox. Answer: ok. */
#define IPC_GW_NAMES_FIELDS(X) \
        X(U64, version, UINT64_MAX)

/*
 * cspaced to cspace-rootd: starts cspace-history on disk images; the answer (empty) has one descriptor, from which what it
 * writes can be read, up to the end of file. Closing that ends it. The answer comes when it has been started: what
 * fails later is told in what it writes (docs/architecture.md, "History").
 * An image is "template" (that of `variant`, or of the template itself where that is "" or gone), "now" (the sandbox's disk as
 * it is at that moment) or the id of an image. EALREADY: one runs for this sandbox; EAGAIN: too many on this host.
 */
#define IPC_HISTORY_FIELDS(X)                                                \
        X(STR, id, ID_LEN)          /* sandbox */                            \
        X(STR, digest, DIGEST_LEN)  /* its template */                       \
        X(STR, variant, 63)                                                  \
        X(STR, verb, 15)            /* "diff", "cat" or "extract" */         \
        X(STR, from, ID_LEN)        /* the image; of diff the older one */   \
        X(STR, to, ID_LEN)          /* diff: the newer one; else "" */       \
        X(STR, path, LIMIT_PATH - 1) /* of diff the prefix; absolute */      \
        X(STR, cursor, 5503)        /* diff; "" from the start */            \
        X(U32, count, 100000)       /* diff: changes at most; 0: its default */ \
        X(U32, patch, 1)            /* diff */                               \
        X(U64, max_bytes, 1ULL << 40) /* cat, extract; 0: its default */

/*
 * cspaced to cspace-rootd: makes builds/<id>/out/ of an image (its disk, for kind "full" also memory and devices), the kernel and
 * initrd of template `digest`, and a manifest.json (fds[0], a file of at most PUBLISH_MANIFEST_MAX bytes). TEMPLATE_COMMIT makes it a
 * template, BUILD_REMOVE removes it. Answer: published.
 */
#define PUBLISH_MANIFEST_MAX (1024 * 1024)
#define IPC_PUBLISH_FIELDS(X)                                                \
        X(STR, id, ID_LEN)                                                   \
        X(STR, image, ID_LEN)                                                \
        X(STR, kind, 15)            /* "disk" or "full" */                   \
        X(STR, digest, DIGEST_LEN)
#define IPC_PUBLISHED_FIELDS(X)                                              \
        X(STR, digest, DIGEST_LEN)  /* of the new template */                \
        X(U64, disk_bytes, 1ULL << 44)

/*
 * cspaced to cspace-rootd: starts cspace-token for a credential; the answer (empty) has one descriptor, from which what it
 * writes can be read, up to the end of file (docs/architecture.md, "Tokens"). For "oauth2" fds[0] is a sealed memfd with the
 * request, which goes to the program unread. EALREADY: one runs for this credential; EAGAIN: too many on this host.
 */
#define IPC_TOKEN_FIELDS(X)                                                  \
        X(STR, credential, 64)                                               \
        X(STR, provider, 15)        /* "oauth2" or "command" */              \
        X(STR, command, 64)         /* a name in [credentials] commands; "" with oauth2 */

/*
 * A message's number is for ever: after an upgrade a new cspaced speaks with wardens and gateways that have run since before.
 * A new one gets the next number at the end; that of one that has gone is not given again. Fields are positional: what cspaced and
 * a warden or gateway say to each other keeps its fields, and what needs another is another message. Between cspaced and rootd a
 * PROTOCOL_VERSION does for fields. tests/unit/ipc/test_messages.c holds both.
 */
#define IPC_MESSAGES(M)                          \
        M(1, ERROR, error)                       \
        M(2, OK, ok)                             \
        M(3, HELLO, hello)                       \
        M(4, HOST_INFO, host_info)               \
        M(5, BUILD, build)                       \
        M(6, BUILD_REMOVE, build_remove)         \
        M(7, TEMPLATE_COMMIT, template_commit)   \
        M(8, TEMPLATE_REMOVE, template_remove)   \
        M(9, PLACE, place)                       \
        M(10, PLACED, placed)                    \
        M(11, REMOVE, remove)                    \
        M(12, VARIANT_COMMIT, variant_commit)    \
        M(13, VARIANT_REMOVE, variant_remove)    \
        M(14, IMAGE_BEGIN, image_begin)          \
        M(15, IMAGE_COMMIT, image_commit)        \
        M(16, IMAGE_INFO, image_info)            \
        M(17, IMAGE_REMOVE, image_remove)        \
        M(18, IMAGE_USAGE, image_usage)          \
        M(19, IMAGES, images)                    \
        M(20, LIST, list)                        \
        M(21, PLACEMENT_LIST, placement_list)    \
        M(22, USAGE, usage)                      \
        M(23, USAGE_INFO, usage_info)            \
        M(24, EXITED, exited)                    \
        M(25, IDENTIFY, identify)                \
        M(26, READY, ready)                      \
        M(27, QUERY, query)                      \
        M(28, WARDEN_STATE, warden_state)        \
        M(29, SNAPSHOT, snapshot)                \
        M(30, STOP, stop)                        \
        M(31, PAUSE, pause)                      \
        M(32, RESUME, resume)                    \
        M(33, SAVE, save)                        \
        M(34, FSFREEZE, fsfreeze)                \
        M(35, WARDEN_EVENT, warden_event)        \
        M(36, GW_CONFIG, gw_config)              \
        M(37, GW_CONFIGURED, gw_configured)      \
        M(38, GW_SECRET, gw_secret)              \
        M(39, GW_QUERY, gw_query)                \
        M(40, GW_STATE, gw_state)                \
        M(41, GW_AUDIT, gw_audit)                \
        M(42, GW_NAMES, gw_names)                \
        M(43, HISTORY, history)                  \
        M(44, PUBLISH, publish)                  \
        M(45, PUBLISHED, published)              \
        M(46, TOKEN, token)                      \
        M(47, PARK, park)                        \
        M(48, VARIANT_FREEZE, variant_freeze)    \
        M(49, HELD, held)                        \
        M(50, PACKETS, packets)                  \
        M(51, GATEWAY, gateway)

enum ipc_type {
        IPC_NONE = 0,
#define M(number, UPPER, lower) IPC_##UPPER = (number),
        IPC_MESSAGES(M)
#undef M
};
const char *ipc_type_name(uint16_t type); /* "place"; "?" for others */

#define IPC_MEMBER_U32(name, limit) uint32_t name;
#define IPC_MEMBER_U64(name, limit) uint64_t name;
#define IPC_MEMBER_STR(name, limit) char name[(limit) + 1];
#define IPC_MEMBER_BLOB(name, limit) \
        const void *name;            \
        size_t name##_n;
#define IPC_MEMBER(kind, name, limit) IPC_MEMBER_##kind(name, limit)

#define M(number, UPPER, lower)                                                                         \
        struct ipc_##lower {                                                                            \
                IPC_##UPPER##_FIELDS(IPC_MEMBER)                                                        \
        };                                                                                              \
        int ipc_##lower##_encode(const struct ipc_##lower *m, uint8_t *out, size_t cap, size_t *ret_n); \
        int ipc_##lower##_decode(const void *body, size_t n, struct ipc_##lower *m);
IPC_MESSAGES(M)
#undef M
