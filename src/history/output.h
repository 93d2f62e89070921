/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The answer: JSON lines and raw bytes on a descriptor. */

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

struct output {
        int fd;
        struct buf pending;
};

void output_init(struct output *o, int fd);
void output_done(struct output *o);
int output_bytes(struct output *o, const void *data, size_t n, struct error *err);
int output_zeros(struct output *o, uint64_t n, struct error *err);
/* Takes the reference. */
int output_line(struct output *o, json_t *line, struct error *err);
int output_flush(struct output *o, struct error *err);

/* A file name is bytes. obj[key] is its text, with U+FFFD for what is no UTF-8; then obj[key "_b64"] has the bytes. */
int output_set_name(json_t *obj, const char *key, const char *bytes, size_t n);
