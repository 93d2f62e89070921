/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The schema, as steps: row i takes a database of version i to i + 1 (pragma user_version). A step
 * that was ever released is never changed; a new one is added. Each runs in a transaction.
 */

#include "db_schema.h"

#include <errno.h>
#include <stdio.h>

#include "base/cleanup.h"

static const char *const steps[] = {
        /* 0 -> 1 */
        "CREATE TABLE keys ("
        "  id TEXT PRIMARY KEY, hash TEXT NOT NULL UNIQUE, name TEXT NOT NULL, prefix TEXT NOT NULL,"
        "  created_ms INTEGER NOT NULL) STRICT;"
        "CREATE TABLE templates ("
        "  digest TEXT PRIMARY KEY, created_ms INTEGER NOT NULL, disk_bytes INTEGER NOT NULL,"
        "  manifest TEXT, removing INTEGER NOT NULL DEFAULT 0) STRICT;"
        "CREATE TABLE tags ("
        "  ref TEXT PRIMARY KEY, digest TEXT NOT NULL REFERENCES templates(digest),"
        "  updated_ms INTEGER NOT NULL) STRICT;"
        "CREATE TABLE variants ("
        "  digest TEXT NOT NULL, name TEXT NOT NULL, engine TEXT NOT NULL, memory_mb INTEGER NOT NULL,"
        "  cpus INTEGER NOT NULL, created_ms INTEGER NOT NULL, PRIMARY KEY (digest, name)) STRICT;"
        "CREATE TABLE sandboxes ("
        "  id TEXT PRIMARY KEY, name TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,"
        "  template_ref TEXT NOT NULL, digest TEXT NOT NULL, memory_mb INTEGER NOT NULL,"
        "  cpus INTEGER NOT NULL, disk_bytes INTEGER NOT NULL, token TEXT NOT NULL, owner TEXT NOT NULL,"
        "  metadata TEXT, env TEXT, ext TEXT, created_ms INTEGER NOT NULL, started_ms INTEGER NOT NULL,"
        "  expires_ms INTEGER NOT NULL) STRICT;"
        "CREATE TABLE operations ("
        "  id TEXT PRIMARY KEY, kind TEXT NOT NULL, state TEXT NOT NULL, sandbox_id TEXT NOT NULL,"
        "  subject TEXT NOT NULL, owner TEXT NOT NULL, created_ms INTEGER NOT NULL,"
        "  finished_ms INTEGER NOT NULL, code TEXT, message TEXT, result TEXT, log TEXT) STRICT;"
        "CREATE TABLE idems ("
        "  scope TEXT PRIMARY KEY, hash TEXT NOT NULL, op_id TEXT, status INTEGER NOT NULL, body TEXT,"
        "  created_ms INTEGER NOT NULL) STRICT;"
        "CREATE TABLE events ("
        "  id INTEGER PRIMARY KEY, sandbox_id TEXT NOT NULL, time_ms INTEGER NOT NULL,"
        "  level TEXT NOT NULL, event TEXT NOT NULL, message TEXT NOT NULL) STRICT;"
        "CREATE INDEX events_by_sandbox ON events (sandbox_id, id);",
        /* what a sandbox that has no VM goes on from */
        "ALTER TABLE sandboxes ADD COLUMN image TEXT NOT NULL DEFAULT '';",
        /* what happens to it by itself, JSON */
        "ALTER TABLE sandboxes ADD COLUMN rules TEXT;",
        /* what a sandbox may reach, and what its gateway needs; default policies by name or digest of a template */
        "CREATE TABLE egress ("
        "  sandbox_id TEXT PRIMARY KEY, policy TEXT, ca_seed TEXT NOT NULL, names TEXT) STRICT;"
        "CREATE TABLE policies ("
        "  ref TEXT PRIMARY KEY, policy TEXT NOT NULL, updated_ms INTEGER NOT NULL) STRICT;",
        /* credentials, and who may use them */
        "CREATE TABLE credentials ("
        "  name TEXT PRIMARY KEY, sealed TEXT NOT NULL, created_ms INTEGER NOT NULL, updated_ms INTEGER NOT NULL,"
        "  expires_ms INTEGER NOT NULL) STRICT;"
        "ALTER TABLE egress ADD COLUMN bindings TEXT;",
        /* history */
        "CREATE TABLE checkpoints ("
        "  id TEXT PRIMARY KEY, sandbox_id TEXT NOT NULL, parent TEXT NOT NULL, name TEXT NOT NULL,"
        "  kind TEXT NOT NULL, consistent INTEGER NOT NULL, created_ms INTEGER NOT NULL,"
        "  written_bytes INTEGER NOT NULL) STRICT;"
        "CREATE INDEX checkpoints_by_sandbox ON checkpoints (sandbox_id);"
        "ALTER TABLE sandboxes ADD COLUMN head TEXT NOT NULL DEFAULT '';",
        /* checkpoints that were taken by a sandbox's rules */
        "ALTER TABLE checkpoints ADD COLUMN automatic INTEGER NOT NULL DEFAULT 0;",
        /* forks under way, and what a sandbox was forked from */
        "CREATE TABLE forks (op_id TEXT PRIMARY KEY, members TEXT NOT NULL) STRICT;"
        "ALTER TABLE sandboxes ADD COLUMN forked_from TEXT NOT NULL DEFAULT '';",
        /* where a credential's token comes from */
        "ALTER TABLE credentials ADD COLUMN provider TEXT NOT NULL DEFAULT 'static';"
        "ALTER TABLE credentials ADD COLUMN settings TEXT;",
        /* the boot of the host that a fork's image does not outlive; '' of one that does */
        "ALTER TABLE forks ADD COLUMN boot TEXT NOT NULL DEFAULT '';",
        /* when a key was used last, so that one in use does not look as if it never was after a restart; 0: never */
        "ALTER TABLE keys ADD COLUMN last_used_ms INTEGER NOT NULL DEFAULT 0;",
};

static int read_version(void *arg, struct db_row *row, struct error *err) {
        (void) err;
        *(int64_t *) arg = db_row_int(row, 0);
        return 0;
}

int db_migrate(struct db_conn *c, struct error *err) {
        int64_t version = 0;
        int r = db_query(c, read_version, &version, err, "PRAGMA user_version", "");
        if (r < 0)
                return r;
        if (version < 0 || version > (int64_t) ARRAY_SIZE(steps))
                return error_set(err, -ENOTSUP, "state.db has version %lld, this cspaced knows up to %zu", (long long) version,
                                 ARRAY_SIZE(steps));
        for (size_t i = (size_t) version; i < ARRAY_SIZE(steps); i++) {
                char set[64];
                (void) snprintf(set, sizeof set, "PRAGMA user_version = %zu", i + 1);
                r = db_script(c, "BEGIN IMMEDIATE", err);
                if (r >= 0)
                        r = db_script(c, steps[i], err);
                if (r >= 0)
                        r = db_script(c, set, err);
                if (r >= 0)
                        r = db_script(c, "COMMIT", err);
                if (r < 0) {
                        (void) db_script(c, "ROLLBACK", NULL);
                        return error_wrap(err, "could not bring state.db to version %zu", i + 1);
                }
        }
        return 0;
}
