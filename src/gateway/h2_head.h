/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A list of fields, collected one by one, within the limits of a head. */

#include <nghttp2/nghttp2.h>

#include "base/buf.h"
#include "base/limits.h"
#include "wire/http1.h"

struct h2_head {
        struct buf text; /* name NUL value NUL ... */
        size_t n;
};

int h2_head_add(struct h2_head *h, const void *name, size_t name_n, const void *value, size_t value_n); /* -ENOBUFS: a limit */
void h2_head_done(struct h2_head *h); /* wipes: it may have a secret in it */
const char *h2_head_get(const struct h2_head *h, const char *name); /* the only value, or the first; or NULL */
size_t h2_head_count(const struct h2_head *h, const char *name);
/* Calls f with each until it says false. */
void h2_head_each(const struct h2_head *h, bool (*f)(void *arg, const char *name, const char *value), void *arg);
/* Arrays over the text; valid until it changes. */
void h2_head_fields(const struct h2_head *h, struct http1_field out[LIMIT_HTTP_HEADERS]);
void h2_head_nv(const struct h2_head *h, nghttp2_nv out[LIMIT_HTTP_HEADERS]);
