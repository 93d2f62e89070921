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
        void (*on_event)(void *arg, const char *name, const json_t *data); /* data may be NULL */
        void (*on_close)(void *arg, int err, const char *why); /* after all commands got err; owner frees */
};

/* err 0 and the "return" member, or a negative errno with QEMU's text in e. */
typedef void (*qmp_cb)(void *arg, int err, const struct error *e, const json_t *ret);

/* Connects to a Unix socket and takes what comes as a QMP server; a server that has not yet accepted
 * is waited for, one that dies is on_close. */
int qmp_connect(uv_loop_t *loop, const char *path, const struct qmp_handler *h, void *arg, struct qmp **ret,
                struct error *err);
void qmp_free(struct qmp *q); /* commands get -ECANCELED; NULL is fine */

/* arguments: a jansson pack format and its values, or NULL. cb may be NULL; it is the only place for
 * an error, also for one found while sending. */
void qmp_send(struct qmp *q, qmp_cb cb, void *arg, const char *command, const char *fmt, ...);
/* "getfd": hands fd over under a name, for URIs of the form fd:NAME. fd stays open here. */
void qmp_send_fd(struct qmp *q, qmp_cb cb, void *arg, int fd, const char *name);
/* "add-fd": the same under a number, for file names of the form /dev/fdset/SET. */
void qmp_add_fd(struct qmp *q, qmp_cb cb, void *arg, int fd, int set);
