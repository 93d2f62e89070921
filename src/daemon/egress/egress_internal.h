/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Between egress.c (policy, rows) and egress_link.c (connection to the gateway). */

#include "ca/ca.h"
#include "egress.h"
#include "ipc/ipc.h"
#include "timer.h"

struct egress_waiter {
        struct egress_waiter *next;
        struct egress *egress;
        uint64_t generation; /* of the policy that is waited for */
        struct timer *timer;
        egress_cb cb;
        void *arg;
};

struct egress {
        struct app *app;
        struct sandbox *s;    /* whose this is */
        json_t *policy;       /* object; NULL: deny all */
        json_t *bindings;     /* array; NULL: none */
        json_t *applied_bindings;
        json_t *applied;      /* what the gateway acknowledged last; NULL with applied_known: deny all */
        bool applied_known;   /* the gateway that there is acknowledged something */
        uint8_t seed[CA_SEED_BYTES];
        json_t *names;        /* NULL: none yet */
        uint64_t generation;  /* of policy */
        uint32_t rules;
        char *ca;             /* PEM, made from the seed when it is first wanted */
        /* the link */
        enum egress_state state;
        char reason[ERROR_MSG_MAX]; /* of REFUSED and AWAY */
        bool there;           /* a gateway runs, or is on its way */
        bool early;           /* found before egress_start() */
        struct ipc_conn *conn;
        uint64_t serial;      /* of conn */
        uint64_t sent;        /* generation that is out, or was acknowledged */
        bool asked;           /* GW_CONFIG is out */
        bool storing_audit, storing_names; /* one at a time */
        struct timer *retry;
        uint64_t retry_ms;
        struct egress_waiter *waiters;
};

/* Looks for a gateway of one that was not started yet. */
void egress_find(struct egress *e);
/* The policy is another one: the gateway gets it as soon as it can. */
void egress_push(struct egress *e);
void egress_waiters_done(struct egress *e, uint64_t up_to, int err, const struct error *why);
/* The policy is again the one that the gateway acknowledged last; who waits is told why when that is stored. */
int egress_revert(struct egress *e, const struct error *why);
void egress_store(struct egress *e, egress_cb cb, void *arg); /* writes the row; cb may be NULL */
/* The configuration, in a sealed memfd. */
int egress_config_fd(const struct egress *e, int *ret_fd, struct error *err);
