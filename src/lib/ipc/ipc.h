/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Typed messages between the programs of one host, over SOCK_SEQPACKET with descriptors beside
 * them (SCM_RIGHTS). One message is one packet:
 *
 *   type u16 | flags u16 | seq u32 | fields...        all little-endian, same machine
 *
 * A field is fixed-width for U32/U64 and length u32 + bytes for STR and BLOB. A request carries a
 * seq of its sender's choice; the answer repeats it with IPC_FLAG_REPLY, or with IPC_FLAG_ERROR
 * and a `struct ipc_error`. Messages without a request (events) have seq 0.
 *
 * The messages are tables (ipc/messages.h): one row gives the struct member, the encoder, the
 * decoder and its limit. Decoding is total: a short, long or over-limit packet is -EPROTO and no
 * member is ever read from beyond the packet.
 */

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "base/error.h"

#define IPC_PACKET_MAX (192u * 1024)
#define IPC_FDS_MAX 8

#define IPC_FLAG_REPLY 0x1
#define IPC_FLAG_ERROR 0x2

struct ipc_packet {
        uint16_t type, flags;
        uint32_t seq;
        const uint8_t *body;
        size_t body_n;
        int fds[IPC_FDS_MAX]; /* owned by the receiver; -EBADF where empty or taken */
        size_t n_fds;
};

/* Sockets: path is a SOCK_SEQPACKET Unix socket. A socket file that nobody listens on is replaced;
 * -EADDRINUSE when somebody does. */
int ipc_listen(const char *path, mode_t mode, int *ret_fd, struct error *err);
/* The same for a file name in a directory, of any socket type. */
int ipc_listen_at(int dirfd, const char *name, int type, mode_t mode, int *ret_fd, struct error *err);
int ipc_connect(const char *path, int *ret_fd, struct error *err);
/* Never waits: -EAGAIN when who listens there has not accepted for too long. The descriptor does not block. */
int ipc_connect_now(const char *path, int *ret_fd, struct error *err);

/* Descriptors given to a sending function stay the caller's.
 * Blocking or non-blocking send and receive of one packet. recv stores into buf (IPC_PACKET_MAX
 * bytes); 0: peer closed; 1: a packet; negative errno (-EAGAIN when nothing is there). */
int ipc_send(int fd, uint16_t type, uint16_t flags, uint32_t seq, const void *body, size_t body_n,
             const int *fds, size_t n_fds, struct error *err);
int ipc_recv(int fd, uint8_t *buf, struct ipc_packet *ret, struct error *err);
void ipc_packet_close_fds(struct ipc_packet *p);

/* A connection on the loop, with outstanding requests. */
struct ipc_conn;
struct ipc_conn_handler {
        /* Requests (seq not 0) and events. p and its body live until the return; a descriptor that
         * is taken is replaced by -EBADF, the others are closed. To answer later, keep a copy of
         * *p: a reply needs only its type and seq. */
        void (*on_packet)(void *arg, struct ipc_conn *c, struct ipc_packet *p);
        /* After all reply callbacks got their error; err 0: the peer closed. The owner frees c. */
        void (*on_close)(void *arg, struct ipc_conn *c, int err);
        const char *peer; /* who is at the other end, for errors; NULL: "the other program" */
};
/* Called once: err 0 and the reply, or a negative errno (with p NULL and err text in e). A reply
 * has the type of its request. */
typedef void (*ipc_reply_cb)(void *arg, int err, const struct error *e, struct ipc_packet *p);

int ipc_conn_new(uv_loop_t *loop, int fd, const struct ipc_conn_handler *h, void *arg, struct ipc_conn **ret,
                 struct error *err); /* takes fd */
/* Outstanding callbacks get -ECANCELED, on_close is not called; fine in any callback; NULL is fine. */
void ipc_conn_free(struct ipc_conn *c);
/* Sends a request; timeout_ms 0 means none. */
int ipc_conn_call(struct ipc_conn *c, uint16_t type, const void *body, size_t body_n, const int *fds,
                  size_t n_fds, unsigned timeout_ms, ipc_reply_cb cb, void *arg);
int ipc_conn_reply(struct ipc_conn *c, const struct ipc_packet *request, const void *body, size_t body_n,
                   const int *fds, size_t n_fds);
int ipc_conn_reply_error(struct ipc_conn *c, const struct ipc_packet *request, const struct error *e);
int ipc_conn_event(struct ipc_conn *c, uint16_t type, const void *body, size_t body_n);
/* Peer's uid and pid by SO_PEERCRED. */
int ipc_peer(int fd, uid_t *ret_uid, pid_t *ret_pid);
