/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/audit.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"

#define TIME_MAX_MS 253402300799999 /* the year 9999 */

static const char *const kind_names[] = { [AUDIT_DNS] = "dns", [AUDIT_CONNECT] = "connect", [AUDIT_REQUEST] = "request", [AUDIT_PACKETS] = "packets" };
static_assert(ARRAY_SIZE(kind_names) == N_AUDIT_KINDS);

/* Record types that people ask for; others are "TYPE123" (RFC 3597). */
static const struct {
        uint16_t type;
        const char *name;
} qtypes[] = { { 1, "A" },     { 2, "NS" },    { 5, "CNAME" },  { 6, "SOA" },    { 10, "NULL" },   { 12, "PTR" },   { 15, "MX" },
               { 16, "TXT" },  { 28, "AAAA" }, { 33, "SRV" },   { 35, "NAPTR" }, { 43, "DS" },     { 48, "DNSKEY" }, { 52, "TLSA" },
               { 64, "SVCB" }, { 65, "HTTPS" }, { 251, "IXFR" }, { 252, "AXFR" }, { 255, "ANY" },  { 257, "CAA" } };

const char *audit_kind_name(enum audit_kind k) {
        return (unsigned) k < N_AUDIT_KINDS ? kind_names[k] : "unknown";
}

void audit_init(struct audit *a, enum audit_kind kind, int64_t now_ms, const char *sandbox) {
        memset(a, 0, sizeof *a);
        a->kind = kind;
        a->time_ms = now_ms;
        strcpy(a->rule, "default");
        if (sandbox)
                (void) str_copy(a->sandbox, sizeof a->sandbox, sandbox);
}

void audit_verdict(struct audit *a, const struct policy_verdict *v) {
        a->allow = v->outcome != POLICY_DENY;
        a->reason = v->reason;
        (void) str_copy(a->rule, sizeof a->rule, v->rule_name ? v->rule_name : "default");
}

void audit_deny(struct audit *a, enum policy_reason why) {
        a->allow = false;
        a->reason = why;
}

static void copy_ascii(char *dst, size_t cap, const char *s, size_t n) {
        size_t i;

        for (i = 0; i < n && i + 1 < cap; i++)
                dst[i] = s[i] > 0x20 && s[i] < 0x7f ? s[i] : '?';
        dst[i] = '\0';
}

void audit_set_host(struct audit *a, const char *s, size_t n) {
        copy_ascii(a->host, sizeof a->host, s, n);
}

void audit_set_method(struct audit *a, const char *s) {
        copy_ascii(a->method, sizeof a->method, s, strlen(s));
}

/* Cuts to AUDIT_PATH_MAX, at the start of a character. */
static void copy_path(struct audit *a, const char *s, size_t n) {
        static const char dots[] = "...";
        bool utf8 = str_is_utf8(s, n), cut = n > AUDIT_PATH_MAX;

        if (cut) {
                n = AUDIT_PATH_MAX - strlen(dots);
                while (utf8 && n > 0 && ((unsigned char) s[n] & 0xc0) == 0x80)
                        n--;
        }
        for (size_t i = 0; i < n; i++) {
                unsigned char c = (unsigned char) s[i];
                a->path[i] = c <= 0x20 || c == 0x7f || (c > 0x7f && !utf8) ? '?' : s[i];
        }
        memcpy(a->path + n, cut ? dots : "", cut ? sizeof dots : 1);
}

void audit_set_path(struct audit *a, const char *target) {
        size_t scheme = strncasecmp(target, "http://", 7) == 0 ? 7 : strncasecmp(target, "https://", 8) == 0 ? 8 : 0;

        /* A user part of an absolute target goes with the authority. */
        if (scheme)
                target += scheme + strcspn(target + scheme, "/?#");
        else if (target[0] != '/' && strcmp(target, "*") != 0)
                target = ""; /* authority-form (CONNECT): no path, but perhaps a user part */
        copy_path(a, target, strcspn(target, "?#"));
        if (scheme && a->path[0] == '\0')
                strcpy(a->path, "/");
}

void audit_set_detail(struct audit *a, const char *fmt, ...) {
        char text[sizeof a->detail];
        va_list ap;

        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        size_t n = strlen(text), i;
        for (i = 0; i < n; i++)
                a->detail[i] = text[i] >= 0x20 && text[i] < 0x7f ? text[i] : '?';
        a->detail[i] = '\0';
}

static void qtype_text(uint16_t t, char out[16]) {
        for (size_t i = 0; i < ARRAY_SIZE(qtypes); i++) {
                if (qtypes[i].type == t) {
                        snprintf(out, 16, "%s", qtypes[i].name);
                        return;
                }
        }
        snprintf(out, 16, "TYPE%u", t);
}

static int qtype_parse(const char *s, uint16_t *ret) {
        uint64_t n;

        for (size_t i = 0; i < ARRAY_SIZE(qtypes); i++) {
                if (str_eq(qtypes[i].name, s)) {
                        *ret = qtypes[i].type;
                        return 0;
                }
        }
        if (!str_has_prefix(s, "TYPE") || str_to_u64(s + 4, UINT16_MAX, &n) < 0)
                return -EINVAL;
        *ret = (uint16_t) n;
        return 0;
}

/* --- JSON -------------------------------------------------------------------------------- */

/* Written by hand: there is one of these for each request, and jansson's way by a tree costs several times as
 * much. All texts are valid UTF-8 here, by the setters or by the kind of thing they are. */
struct writer {
        struct buf *out;
        int r;
};

static void put_raw(struct writer *w, const char *s, size_t n) {
        if (w->r == 0)
                w->r = buf_append(w->out, s, n);
}

static void put_escaped(struct writer *w, const char *s) {
        for (;;) {
                size_t n = 0;
                while ((unsigned char) s[n] >= 0x20 && s[n] != '"' && s[n] != '\\')
                        n++;
                if (n > 0)
                        put_raw(w, s, n);
                s += n;
                if (*s == '\0' || w->r < 0)
                        return;
                char escape[8];
                int len = snprintf(escape, sizeof escape, *s == '"' || *s == '\\' ? "\\%c" : "\\u%04x", *s);
                put_raw(w, escape, (size_t) len);
                s++;
        }
}

/* key is `,"name":` so that it is one piece. */
static void put_str(struct writer *w, const char *key, const char *s) {
        if (s[0] == '\0')
                return;
        put_raw(w, key, strlen(key));
        put_raw(w, "\"", 1);
        put_escaped(w, s);
        put_raw(w, "\"", 1);
}

static void put_u64(struct writer *w, const char *key, uint64_t n) {
        char digits[20];
        size_t at = sizeof digits;

        if (n == 0)
                return;
        for (; n > 0; n /= 10)
                digits[--at] = (char) ('0' + n % 10);
        put_raw(w, key, strlen(key));
        put_raw(w, digits + at, sizeof digits - at);
}

static void put_members(struct writer *w, const struct audit *a) {
        char time[RFC3339_SIZE], type[16];

        clock_rfc3339(a->time_ms, time);
        put_str(w, "{\"time\":", time);
        put_str(w, ",\"kind\":", audit_kind_name(a->kind));
        put_str(w, ",\"verdict\":", a->allow ? "allow" : "deny");
        put_str(w, ",\"rule\":", a->rule);
        put_str(w, ",\"reason\":", policy_reason_name(a->reason));
        put_str(w, ",\"sandbox\":", a->sandbox);
        put_str(w, ",\"host\":", a->host);
        put_u64(w, ",\"port\":", a->port);
        if (a->protocol != POLICY_UNKNOWN)
                put_str(w, ",\"protocol\":", policy_protocol_name(a->protocol));
        put_str(w, ",\"address\":", a->address);
        if (a->class != ADDRESS_PUBLIC)
                put_str(w, ",\"class\":", address_class_name(a->class));
        if (a->kind == AUDIT_DNS) {
                qtype_text(a->qtype, type);
                put_str(w, ",\"type\":", type);
        }
        put_str(w, ",\"method\":", a->method);
        put_str(w, ",\"path\":", a->path);
        put_u64(w, ",\"status\":", a->status);
        put_str(w, ",\"binding\":", a->binding);
        put_u64(w, ",\"bytes_out\":", a->bytes_out);
        put_u64(w, ",\"bytes_in\":", a->bytes_in);
        put_u64(w, ",\"duration_us\":", a->duration_us);
        put_u64(w, ",\"repeated\":", a->repeated);
        put_str(w, ",\"detail\":", a->detail);
}

int audit_json(const struct audit *a, struct buf *out) {
        struct writer w = { .out = out };
        size_t before = out->len;

        put_members(&w, a);
        put_raw(&w, "}\n", 2);
        /* Whole or not at all. */
        if (w.r < 0)
                out->len = before;
        return w.r;
}

static int read_text(const json_t *j, const char *key, char *dst, size_t cap, struct error *err) {
        const char *s = NULL;

        int r = json_read_str(j, key, false, cap - 1, &s, err);
        if (r < 0 || !s)
                return r;
        return str_copy(dst, cap, s);
}

static int read_u16(const json_t *j, const char *key, uint16_t *ret, struct error *err) {
        uint64_t n = 0;

        int r = json_read_u64(j, key, false, 0, UINT16_MAX, &n, err);
        if (r == 0)
                *ret = (uint16_t) n;
        return r;
}

static int bad_value(const char *key, struct error *err) {
        return error_set(err, -EINVAL, "\"%s\" has a value that is not known", key);
}

static int read_enums(const json_t *j, struct audit *a, struct error *err) {
        static const char *const keys[] = { "kind", "verdict", "reason", "protocol", "class", "type" };
        const char *v[ARRAY_SIZE(keys)] = { 0 };
        size_t i;

        for (i = 0; i < ARRAY_SIZE(keys); i++) {
                int r = json_read_str(j, keys[i], i < 3, 32, &v[i], err);
                if (r < 0)
                        return r;
        }
        for (i = 0; i < N_AUDIT_KINDS && !str_eq(v[0], kind_names[i]); i++)
                ;
        if (i == N_AUDIT_KINDS)
                return bad_value("kind", err);
        a->kind = (enum audit_kind) i;
        a->allow = str_eq(v[1], "allow");
        if (!a->allow && !str_eq(v[1], "deny"))
                return bad_value("verdict", err);
        if (policy_reason_parse(v[2], &a->reason) < 0)
                return bad_value("reason", err);
        if (v[3]) {
                a->protocol = str_eq(v[3], "http") ? POLICY_HTTP : str_eq(v[3], "tls") ? POLICY_TLS : POLICY_TCP;
                if (!str_eq(v[3], policy_protocol_name(a->protocol)))
                        return bad_value("protocol", err);
        }
        for (i = 0; v[4] && i < N_ADDRESS_CLASSES && !str_eq(v[4], address_class_name((enum address_class) i)); i++)
                ;
        if (i == N_ADDRESS_CLASSES)
                return bad_value("class", err);
        a->class = v[4] ? (enum address_class) i : ADDRESS_PUBLIC;
        if (v[5] && (a->kind != AUDIT_DNS || qtype_parse(v[5], &a->qtype) < 0))
                return bad_value("type", err);
        return 0;
}

static int read_times(const json_t *j, struct audit *a, struct error *err) {
        const char *time = NULL;

        int r = json_read_str(j, "time", true, RFC3339_SIZE, &time, err);
        if (r == 0 && (clock_parse_rfc3339(time, &a->time_ms) < 0 || a->time_ms < 0 || a->time_ms > TIME_MAX_MS))
                r = bad_value("time", err);
        if (r == 0)
                r = json_read_u64(j, "duration_us", false, 0, INT64_MAX, &a->duration_us, err);
        if (r == 0)
                r = json_read_u64(j, "bytes_out", false, 0, INT64_MAX, &a->bytes_out, err);
        if (r == 0)
                r = json_read_u64(j, "bytes_in", false, 0, INT64_MAX, &a->bytes_in, err);
        return r == 0 ? json_read_u64(j, "repeated", false, 0, INT64_MAX, &a->repeated, err) : r;
}

int audit_parse(const char *line, size_t n, struct audit *ret, struct error *err) {
        _cleanup_json_ json_t *j = NULL;
        struct audit a;

        int r = json_parse(line, n, AUDIT_LINE_MAX, &j, err);
        audit_init(&a, AUDIT_DNS, 0, NULL);
        if (r == 0)
                r = read_times(j, &a, err);
        if (r == 0)
                r = read_enums(j, &a, err);
        const struct {
                const char *key;
                char *dst;
                size_t cap;
        } texts[] = {
                { "sandbox", a.sandbox, sizeof a.sandbox }, { "rule", a.rule, sizeof a.rule },
                { "host", a.host, sizeof a.host },          { "address", a.address, sizeof a.address },
                { "method", a.method, sizeof a.method },    { "path", a.path, sizeof a.path },
                { "binding", a.binding, sizeof a.binding }, { "detail", a.detail, sizeof a.detail },
        };
        for (size_t i = 0; r == 0 && i < ARRAY_SIZE(texts); i++)
                r = read_text(j, texts[i].key, texts[i].dst, texts[i].cap, err);
        if (r == 0)
                r = read_u16(j, "port", &a.port, err);
        if (r == 0)
                r = read_u16(j, "status", &a.status, err);
        if (r == 0 && a.rule[0] == '\0')
                r = bad_value("rule", err);
        if (r == 0)
                *ret = a;
        return r;
}

/* --- for people -------------------------------------------------------------------------- */

static void what_text(const struct audit *a, char *out, size_t cap) {
        char type[16], port[8] = "";

        if (a->port)
                snprintf(port, sizeof port, ":%u", a->port);
        switch (a->kind) {
        case AUDIT_DNS:
                qtype_text(a->qtype, type);
                snprintf(out, cap, "dns      %s %s", type, a->host);
                break;
        case AUDIT_CONNECT:
                snprintf(out, cap, "connect  %s://%s%s", policy_protocol_name(a->protocol), a->host, port);
                break;
        case AUDIT_REQUEST:
                snprintf(out, cap, "request  %s %s://%s%s%s", a->method, a->protocol == POLICY_TLS ? "https" : "http", a->host, port,
                         a->path);
                break;
        case AUDIT_PACKETS:
                snprintf(out, cap, "packets");
                break;
        case N_AUDIT_KINDS:
                break;
        }
}

/* Bytes above 0x7f are not for terminals: a path may hold any. */
static int put_printable(struct buf *out, const char *s) {
        int r = 0;

        for (; *s && r == 0; s++)
                r = buf_append(out, *s >= 0x20 && *s < 0x7f ? s : "?", 1);
        return r;
}

int audit_text(const struct audit *a, struct buf *out) {
        char time[RFC3339_SIZE], what[AUDIT_PATH_MAX + HOST_SIZE + 128];
        struct buf line = BUF_INIT(AUDIT_LINE_MAX);

        clock_rfc3339(a->time_ms, time);
        what_text(a, what, sizeof what);
        (void) buf_printf(&line, "%s %-5s %s", time, a->allow ? "allow" : "deny", what);
        if (a->status && a->kind == AUDIT_REQUEST)
                (void) buf_printf(&line, " -> %u", a->status);
        if (a->address[0])
                (void) buf_printf(&line, " [%s%s%s]", a->address, a->class != ADDRESS_PUBLIC ? " " : "",
                                  a->class != ADDRESS_PUBLIC ? address_class_name(a->class) : "");
        (void) buf_printf(&line, " rule=%s", a->rule);
        if (a->reason != REASON_RULE)
                (void) buf_printf(&line, " reason=%s", policy_reason_name(a->reason));
        if (a->binding[0])
                (void) buf_printf(&line, " binding=%s", a->binding);
        if (a->bytes_out || a->bytes_in)
                (void) buf_printf(&line, " out=%llu in=%llu", (unsigned long long) a->bytes_out, (unsigned long long) a->bytes_in);
        if (a->duration_us)
                (void) buf_printf(&line, " %llu.%llums", (unsigned long long) a->duration_us / 1000,
                                  (unsigned long long) a->duration_us % 1000 / 100);
        if (a->repeated)
                (void) buf_printf(&line, " (and %llu more)", (unsigned long long) a->repeated);
        if (a->detail[0])
                (void) buf_printf(&line, " %s", a->detail);
        const char *text = buf_str(&line);
        int r = text ? put_printable(out, text) : -ENOMEM;
        buf_done(&line);
        return r == 0 ? buf_puts(out, "\n") : r;
}

bool audit_same(const struct audit *a, const struct audit *b) {
        return a->kind == b->kind && a->allow == b->allow && a->reason == b->reason && a->port == b->port &&
               a->protocol == b->protocol && a->class == b->class && a->qtype == b->qtype && a->status == b->status &&
               str_eq(a->sandbox, b->sandbox) && str_eq(a->rule, b->rule) && str_eq(a->host, b->host) &&
               str_eq(a->address, b->address) && str_eq(a->method, b->method) && str_eq(a->path, b->path) &&
               str_eq(a->binding, b->binding) && str_eq(a->detail, b->detail);
}
