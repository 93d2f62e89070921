/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Having cspace-rootd remove something, for as long as that takes. */

#include <stdbool.h>

#include "base/error.h"

struct app;
struct removals;

enum removal_kind { REMOVAL_PLACEMENT, REMOVAL_BUILD, REMOVAL_TEMPLATE, REMOVAL_IMAGE, REMOVAL_VARIANT, REMOVAL_PROCESS };

int removals_new(struct app *app, struct removals **ret, struct error *err);
void removals_free(struct removals *r);

/* cb (may be NULL) comes once it is gone, never from inside; several requests for one id are one
 * removal. id: of the placement, build or image (PROCESS: whose process goes), the digest of the template, or "<digest>/<variant>". */
int removal_start(struct app *app, enum removal_kind kind, const char *id, void (*cb)(void *arg), void *arg);
bool removal_active(struct app *app, enum removal_kind kind, const char *id);
