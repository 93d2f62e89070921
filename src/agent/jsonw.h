/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* JSON text written straight into a buffer, for answers whose size the guest's data decides
 * (listings, output events): no tree in memory. Bytes that are not UTF-8 become U+FFFD. */

#include <stdbool.h>

#include "base/buf.h"

int jsonw_str(struct buf *b, const char *s, size_t n); /* with the quotes */
int jsonw_cstr(struct buf *b, const char *s);
/* "key":"value" with a leading comma unless first. */
int jsonw_member(struct buf *b, bool first, const char *key, const char *value);
int jsonw_base64(struct buf *b, const void *data, size_t n); /* with the quotes */
