/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "db.h"

/* Brings the schema to the newest version. -ENOTSUP: the file is of a newer cspaced. */
int db_migrate(struct db_conn *c, struct error *err);
