/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One complete head: start line, fields, and what they say about framing (RFC 9112, 3 to 6 and
 * 9). Everything where two implementations are known to differ is refused rather than repaired.
 */

#include "wire/http1_head.h"

#include <string.h>
#include <strings.h>

#include "base/str.h"
#include "wire/http1_chars.h"

#define METHOD_MAX 32
#define LENGTH_DIGITS_MAX 19 /* of INT64_MAX */

static bool fail(struct http1_fault *f, int status, const char *reason) {
        *f = (struct http1_fault){ .status = status, .reason = reason };
        return false;
}

/* --- fields ----------------------------------------------------------------------------- */

bool http1_field_parse(char *line, size_t n, struct http1_field *ret, struct http1_fault *fault) {
        if (n == 0 || line[0] == ' ' || line[0] == '\t')
                return fail(fault, 400, "a header line is folded or starts with white space");
        char *colon = memchr(line, ':', n);
        if (!colon)
                return fail(fault, 400, "a header line has no colon");
        size_t name_len = (size_t) (colon - line);
        if (!http1_is_token(line, name_len))
                return fail(fault, 400, "a header name has characters that are not allowed");

        char *v = colon + 1, *end = line + n;
        if (!http1_is_value(v, (size_t) (end - v)))
                return fail(fault, 400, "a header value has control characters");
        while (v < end && (*v == ' ' || *v == '\t'))
                v++;
        while (end > v && (end[-1] == ' ' || end[-1] == '\t'))
                end--;
        *colon = '\0';
        *end = '\0';
        *ret = (struct http1_field){ .name = line, .value = v };
        return true;
}

const char *http1_get(const struct http1_head *h, const char *name) {
        for (size_t i = 0; i < h->n_fields; i++)
                if (strcasecmp(h->fields[i].name, name) == 0)
                        return h->fields[i].value;
        return NULL;
}

static bool list_has(const char *list, const char *token) {
        while (*list) {
                while (*list == ' ' || *list == '\t' || *list == ',')
                        list++;
                size_t n = strcspn(list, ",");
                size_t len = n;
                while (len > 0 && (list[len - 1] == ' ' || list[len - 1] == '\t'))
                        len--;
                if (len > 0 && str_case_eq_n(list, len, token))
                        return true;
                list += n;
        }
        return false;
}

bool http1_has_token(const struct http1_head *h, const char *name, const char *token) {
        for (size_t i = 0; i < h->n_fields; i++)
                if (strcasecmp(h->fields[i].name, name) == 0 && list_has(h->fields[i].value, token))
                        return true;
        return false;
}

/* --- framing ---------------------------------------------------------------------------- */

static bool parse_length(const char *v, int64_t *ret) {
        size_t n = strlen(v);
        if (n == 0 || n > LENGTH_DIGITS_MAX || !http1_all(v, n, C_DIGIT))
                return false;
        uint64_t len;
        if (str_to_u64(v, INT64_MAX, &len) < 0)
                return false;
        *ret = (int64_t) len;
        return true;
}

/* Finds the only field of this name; more than one is a fault of its own (*count tells). */
static const char *only(const struct http1_head *h, const char *name, size_t *count) {
        const char *v = NULL;
        *count = 0;
        for (size_t i = 0; i < h->n_fields; i++)
                if (strcasecmp(h->fields[i].name, name) == 0) {
                        v = h->fields[i].value;
                        ++*count;
                }
        return v;
}

static bool read_framing(struct http1_head *h, struct http1_fault *f) {
        size_t n_cl, n_te;
        const char *cl = only(h, "content-length", &n_cl);
        const char *te = only(h, "transfer-encoding", &n_te);
        h->content_length = -1;
        if (n_cl > 0 && n_te > 0)
                return fail(f, 400, "both Content-Length and Transfer-Encoding are given");
        if (n_cl > 1)
                return fail(f, 400, "more than one Content-Length");
        if (n_te > 1)
                return fail(f, 400, "more than one Transfer-Encoding");
        if (cl && !parse_length(cl, &h->content_length))
                return fail(f, 400, "Content-Length is not a plain number");
        if (te) {
                /* RFC 9112, 6.1: a 1.0 message with a transfer coding has faulty framing. */
                if (h->minor == 0)
                        return fail(f, 400, "Transfer-Encoding in an HTTP/1.0 message");
                if (strcasecmp(te, "chunked") != 0)
                        return fail(f, 501, "a transfer coding other than chunked");
                h->chunked = true;
        }

        h->keep_alive = h->minor == 1 ? !http1_has_token(h, "connection", "close")
                                      : http1_has_token(h, "connection", "keep-alive");
        h->upgrade = h->minor == 1 && http1_get(h, "upgrade") && http1_has_token(h, "connection", "upgrade");
        return true;
}

/* host [":" port], host a name, an IPv4 address or an IPv6 address in brackets. */
static bool is_authority(const char *s, size_t n) {
        size_t i = 0;
        if (n > 0 && s[0] == '[') {
                for (i = 1; i < n && s[i] != ']'; i++)
                        if (s[i] != ':' && !http1_is((uint8_t) s[i], C_HOST))
                                return false;
                if (i < 4 || i == n) /* "[::]" is the shortest */
                        return false;
                i++;
        } else
                while (i < n && http1_is((uint8_t) s[i], C_HOST))
                        i++;
        if (i == n)
                return true;
        size_t digits = n - i - 1;
        return i > 0 && s[i] == ':' && digits >= 1 && digits <= 5 && http1_all(s + i + 1, digits, C_DIGIT);
}

static bool check_host(const struct http1_head *h, struct http1_fault *f) {
        size_t n;
        const char *host = only(h, "host", &n);
        if (n > 1)
                return fail(f, 400, "more than one Host");
        if (n == 0)
                return h->minor == 0 || fail(f, 400, "no Host");
        if (!is_authority(host, strlen(host)))
                return fail(f, 400, "Host is not a name or address with an optional port");

        /* A target that names another host than Host does leaves open which one is meant. */
        const char *sep = strstr(h->target, "://");
        if (h->target[0] != '/' && sep) {
                sep += 3;
                if (!str_case_eq_n(sep, strcspn(sep, "/?"), host))
                        return fail(f, 400, "Host differs from the host of the request target");
        }
        return true;
}

/* RFC 9110, 9.3.6: a CONNECT has no body. Parsers differ about one that announces it. */
static bool check_connect(const struct http1_head *h, struct http1_fault *f) {
        if (strcmp(h->method, "CONNECT") == 0 && (h->chunked || h->content_length >= 0))
                return fail(f, 400, "a CONNECT with a body");
        return true;
}

static bool check_expect(struct http1_head *h, struct http1_fault *f) {
        const char *e = http1_get(h, "expect");
        if (!e || h->minor == 0)
                return true;
        if (strcasecmp(e, "100-continue") != 0)
                return fail(f, 417, "an expectation other than 100-continue");
        h->expect_continue = h->chunked || h->content_length > 0;
        return true;
}

/* --- start lines ------------------------------------------------------------------------ */

static bool parse_version(const char *s, size_t n, int *ret_minor) {
        if (n != 8 || memcmp(s, "HTTP/1.", 7) != 0 || (s[7] != '0' && s[7] != '1'))
                return false;
        *ret_minor = s[7] - '0';
        return true;
}

/* RFC 9112, 3.2: origin-form, absolute-form, authority-form (CONNECT only), "*" (OPTIONS only). */
static bool check_target(const char *method, const char *t, struct http1_fault *f) {
        size_t n = strlen(t);
        if (strcmp(method, "CONNECT") == 0) {
                const char *colon = strrchr(t, ':');
                if (!is_authority(t, n) || !colon || strchr(colon, ']'))
                        return fail(f, 400, "CONNECT without host:port");
                return true;
        }
        if (t[0] == '/' || (strcmp(t, "*") == 0 && strcmp(method, "OPTIONS") == 0))
                return true;
        size_t scheme = strncasecmp(t, "http://", 7) == 0 ? 7 : strncasecmp(t, "https://", 8) == 0 ? 8 : 0;
        size_t host = scheme ? strcspn(t + scheme, "/?") : 0;
        if (host == 0 || !is_authority(t + scheme, host))
                return fail(f, 400, "the request target is neither a path nor an http URL");
        return true;
}

static bool parse_request_line(char *line, size_t n, struct http1_head *h, struct http1_fault *f) {
        char *sp1 = memchr(line, ' ', n);
        size_t method_len = sp1 ? (size_t) (sp1 - line) : 0;
        if (!sp1 || method_len > METHOD_MAX || !http1_is_token(line, method_len))
                return fail(f, 400, "the request line has no valid method");
        char *target = sp1 + 1, *end = line + n;
        char *sp2 = memchr(target, ' ', (size_t) (end - target));
        if (!sp2 || sp2 == target)
                return fail(f, 400, "the request line is not \"METHOD TARGET VERSION\"");
        if (!http1_all(target, (size_t) (sp2 - target), C_TARGET))
                return fail(f, 400, "the request target has characters that must be percent-encoded");
        size_t version_len = (size_t) (end - sp2 - 1);
        if (!parse_version(sp2 + 1, version_len, &h->minor)) {
                if (version_len == 8 && memcmp(sp2 + 1, "HTTP/", 5) == 0 &&
                    http1_is((uint8_t) sp2[6], C_DIGIT) && sp2[7] == '.' &&
                    http1_is((uint8_t) sp2[8], C_DIGIT))
                        return fail(f, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
                return fail(f, 400, "the request line does not end in an HTTP version");
        }
        *sp1 = *sp2 = '\0';
        h->method = line;
        h->target = target;
        return check_target(h->method, h->target, f);
}

static bool parse_status_line(char *line, size_t n, struct http1_head *h, struct http1_fault *f) {
        /* "HTTP/1.1 200 OK"; the space before an empty reason is often left out. */
        if (n < 12 || !parse_version(line, 8, &h->minor) || line[8] != ' ')
                return fail(f, 502, "the status line does not start with HTTP/1.0 or HTTP/1.1");
        if (line[9] < '1' || line[9] > '5' || !http1_all(line + 10, 2, C_DIGIT) ||
            (n > 12 && line[12] != ' '))
                return fail(f, 502, "the status line has no valid status");
        h->status = (line[9] - '0') * 100 + (line[10] - '0') * 10 + (line[11] - '0');
        char *reason = n > 12 ? line + 13 : line + n;
        if (!http1_is_value(reason, (size_t) (line + n - reason)))
                return fail(f, 502, "the reason has control characters");
        line[n] = '\0';
        h->reason = reason;
        return true;
}

bool http1_head_parse(char *text, size_t n, bool is_request, struct http1_field *fields,
                      struct http1_head *ret, struct http1_fault *fault) {
        struct http1_head h = { .is_request = is_request, .fields = fields };
        char *line = text, *end = text + n;
        bool first = true;

        while (line < end) {
                char *nl = memchr(line, '\n', (size_t) (end - line)); /* always there, after a CR */
                if (!nl || nl == line)
                        return fail(fault, 400, "a line does not end in CRLF");
                size_t len = (size_t) (nl - line) - 1;
                bool ok;
                if (first)
                        ok = is_request ? parse_request_line(line, len, &h, fault)
                                        : parse_status_line(line, len, &h, fault);
                else if (len == 0)
                        break;
                else if (h.n_fields == LIMIT_HTTP_HEADERS)
                        return fail(fault, 431, "too many header lines");
                else
                        ok = http1_field_parse(line, len, &fields[h.n_fields++], fault);
                if (!ok)
                        return false;
                first = false;
                line = nl + 1;
        }
        if (!read_framing(&h, fault))
                return false;
        if (is_request && (!check_host(&h, fault) || !check_connect(&h, fault) || !check_expect(&h, fault)))
                return false;
        *ret = h;
        return true;
}
