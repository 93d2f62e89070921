/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Client of QEMU's machine protocol: JSON values, one a line. Commands may be sent before earlier
 * ones are answered; QEMU runs them in order. A line over QMP_LINE_MAX, an answer nobody asked for
 * and anything that is no JSON object are the end of the connection: a VM that was taken over
 * speaks here.
 */

#include <jansson.h>
#include <uv.h>

#include "base/error.h"
#include "io/stream.h"

#define QMP_LINE_MAX (256u * 1024)
#define QMP_COMMANDS_MAX 64 /* sent and not answered */

struct qmp;

struct qmp_handler {
        void (*on_greeting)(void *arg);
        void (*on_event)(void *arg, const char *name, const json_t *data); /* data may be NULL */
        void (*on_close)(void *arg, int err, const char *why); /* after all commands got err; owner frees */
};

/* err 0 and the "return" member, or a negative errno with QEMU's text in e. */
typedef void (*qmp_cb)(void *arg, int err, const struct error *e, const json_t *ret);

/* Takes s. */
struct qmp *qmp_new(struct stream *s, const struct qmp_handler *h, void *arg);
void qmp_free(struct qmp *q); /* commands get -ECANCELED; NULL is fine */

/* arguments: a jansson pack format and its values, or NULL. cb may be NULL; it is the only place for
 * an error, also for one found while sending. */
void qmp_send(struct qmp *q, qmp_cb cb, void *arg, const char *command, const char *fmt, ...);
