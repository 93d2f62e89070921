/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A native command session: a command with a journal of its output (outlog.h) and at most one
 * attached client, which speaks the frames of wire/attach.h. The client may go and come back; the
 * journal makes up for what it missed.
 *
 * While a client is attached and does not acknowledge, the command is held back when the journal
 * is full. Without a client that lasts SESSION_HOLD_MS; then the oldest output is dropped, so that
 * a forgotten command goes on, and a client that comes later is told with ATTACH_GAP.
 *
 * A session that nobody needs any more is forgotten. That ends nothing: what its command left running in the
 * background goes on until it ends, is killed, or the sandbox ends.
 */

#include "agent.h"
#include "proc.h"

#define SESSION_HOLD_MS 30000
#define SESSION_PREPARED_MS 600000  /* prepared and never attached: forgotten */
#define SESSION_UNSEEN_MS 300000    /* ended, but no client has had the exit: kept for so long */
#define SESSION_SEEN_MS 30000       /* ended, and a client has had it */
#define SESSIONS_LOG_MAX (64u * 1024 * 1024) /* all journals together */

struct session;
struct sessions;

struct sessions *sessions_new(struct agent *a); /* NULL: no memory */
void sessions_free(struct sessions *all);
/* Forgets every session; running commands are killed. */
void sessions_forget(struct sessions *all);

/* Takes a prepared command. On failure the command is deleted. */
int session_new(struct sessions *all, struct proc *p, struct session **ret);
struct session *session_by_id(struct sessions *all, const char *id);
struct proc *session_proc(struct session *s);
/* Takes conn; starts the command if it is only prepared. -ERANGE (conn is not taken): offset lies
 * beyond the output so far. */
int session_check_offset(const struct session *s, uint64_t offset);
void session_attach(struct session *s, struct stream *conn, uint64_t offset);
/* Kills the command's tree and forgets both. */
void session_delete(struct session *s);
