/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One record for each DNS query, connection and request: what was wanted, which rule said what, and why; and one a
 * while for the packets of a kind that never became any of these. As
 * a line of JSON (stored, sent, shown by the API) and as a line for people.
 *
 * A secret can never be in it. There is no field for header fields, bodies or queries; audit_set_path() drops
 * the query, and whoever adds a credential to a request records the binding's id only. Everything that a guest
 * chose is bounded and, in the line for people, escaped.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/id.h"
#include "policy/address.h"
#include "policy/policy.h"

#define AUDIT_PATH_MAX 512      /* longer ones are cut, and end in "..." */
#define AUDIT_DETAIL_MAX 160
#define AUDIT_BINDING_MAX 64
#define AUDIT_LINE_MAX 8192     /* a JSON line, with the line end */

enum audit_kind { AUDIT_DNS = 0, AUDIT_CONNECT, AUDIT_REQUEST, AUDIT_PACKETS, N_AUDIT_KINDS };
const char *audit_kind_name(enum audit_kind k); /* "dns", "connect", "request", "packets" */

struct audit {
        int64_t time_ms;             /* Unix time of its beginning */
        uint64_t duration_us;
        char sandbox[ID_SIZE];
        enum audit_kind kind;
        bool allow;
        enum policy_reason reason;
        char rule[POLICY_NAME_MAX + 1]; /* "default" when no rule matched */
        char host[HOST_SIZE];        /* what was asked for; "" unknown */
        uint16_t port;               /* 0: none */
        enum policy_protocol protocol;
        char address[ADDRESS_TEXT_SIZE]; /* DNS: the synthetic one; else the one dialled or refused; "" none */
        enum address_class class;    /* of a refused address */
        uint16_t qtype;              /* DNS */
        uint16_t status;             /* request: what the guest got; 0: nothing. DNS: the rcode */
        char method[POLICY_METHOD_MAX + 1];
        char path[AUDIT_PATH_MAX + 1];
        char binding[AUDIT_BINDING_MAX + 1];
        uint64_t bytes_out, bytes_in; /* out: from the sandbox */
        uint64_t repeated;           /* further ones like it that have no record of their own */
        char detail[AUDIT_DETAIL_MAX + 1]; /* for people: certificate error, upstream's error */
};

/* Everything else is 0, "", or denied by "default". */
void audit_init(struct audit *a, enum audit_kind kind, int64_t now_ms, const char *sandbox);
void audit_verdict(struct audit *a, const struct policy_verdict *v);
/* A verdict that is not the policy's; the rule stays. */
void audit_deny(struct audit *a, enum policy_reason why);

/* Copies with limits; bytes that are not printable ASCII become "?" (a path's are kept when UTF-8). */
void audit_set_host(struct audit *a, const char *s, size_t n);
void audit_set_method(struct audit *a, const char *s);
void audit_set_path(struct audit *a, const char *target); /* origin- or absolute-form; without query */
void audit_set_detail(struct audit *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Appends {"time":...}\n, or nothing. Members that say nothing are left out. */
int audit_json(const struct audit *a, struct buf *out);
/* Appends a line for people, without escapes or colours. */
int audit_text(const struct audit *a, struct buf *out);
/* Reads what audit_json() wrote. */
int audit_parse(const char *line, size_t n, struct audit *ret, struct error *err);

/* Whether b says the same as a but for time, duration and bytes, so that it may be counted in a.repeated. */
bool audit_same(const struct audit *a, const struct audit *b);
