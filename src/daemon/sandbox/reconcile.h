/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* After each connect to cspace-rootd: what it has and what cspaced knows are made one. */

struct app;
void reconcile_start(struct app *app);
/* While loading, before the loop runs: what a crash left half done in the database alone. */
void reconcile_rows(struct app *app);
