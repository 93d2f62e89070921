/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Content-Disposition as it is met in form uploads (RFC 7578, 4.2; RFC 2183): parameters are
 * tokens or quoted strings. Browsers write a quote as %22 and put no other escapes; some tools
 * write \" and \\; a lone backslash is part of a name (old Windows browsers sent paths). The
 * extended form filename* must not be used here and is passed over.
 */

#include "wire/multipart_head.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "base/str.h"
#include "wire/http1_chars.h"
#include "wire/http1_head.h"

static const char *skip_blank(const char *s) {
        while (*s == ' ' || *s == '\t')
                s++;
        return s;
}

/* Reads a quoted string in place; returns what follows it, or NULL when it does not end. */
static char *unquote(char *s) {
        char *to = s;
        char *from = s + 1;
        while (*from && *from != '"') {
                if (*from == '\\' && (from[1] == '"' || from[1] == '\\'))
                        from++;
                *to++ = *from++;
        }
        if (*from != '"')
                return NULL;
        *to = '\0';
        return from + 1;
}

struct cursor {
        char *s;
        bool semicolon; /* the separator in front was overwritten by the NUL of the last value */
};

/* Takes the next `; name=value`, in place. 1 taken, 0 none left, -1 malformed. */
static int next_param(struct cursor *c, char **name, char **value) {
        char *p = c->s;
        p += skip_blank(p) - p;
        if (*p == ';' && !c->semicolon) {
                c->semicolon = true;
                p++;
                p += skip_blank(p) - p;
        }
        c->s = p;
        if (*p == '\0') /* a trailing semicolon is common and harmless */
                return 0;
        size_t n = strcspn(p, "= \t;");
        if (!c->semicolon || p[n] != '=' || !http1_is_token(p, n))
                return -1;
        c->semicolon = false;
        *name = p;
        p[n] = '\0';
        p += n + 1;
        *value = p;
        if (*p == '"') {
                c->s = unquote(p);
                return c->s ? 1 : -1;
        }
        n = strcspn(p, "; \t");
        if (!http1_is_token(p, n))
                return -1;
        c->semicolon = p[n] == ';';
        c->s = p[n] ? p + n + 1 : p + n;
        p[n] = '\0';
        return 1;
}

static bool is_boundary(const char *s) {
        size_t n = strlen(s);
        if (n == 0 || n > MULTIPART_BOUNDARY_MAX || s[n - 1] == ' ')
                return false;
        for (size_t i = 0; i < n; i++)
                if (!http1_is((uint8_t) s[i], C_DIGIT | C_HOST) && !strchr("'()+_,-./:=? ", s[i]))
                        return false;
        return true;
}

int multipart_boundary(const char *content_type, char ret[MULTIPART_BOUNDARY_MAX + 1], struct error *err) {
        static const char type[] = "multipart/form-data";
        char text[1024];
        if (str_copy(text, sizeof text, content_type) < 0)
                return error_set(err, -EINVAL, "the Content-Type is too long");
        char *s = text + (skip_blank(text) - text);
        size_t n = strcspn(s, "; \t");
        if (!str_case_eq_n(s, n, type))
                return error_set(err, -EINVAL, "the Content-Type is not %s", type);
        struct cursor c = { .s = s + n };
        const char *boundary = NULL;
        char *name, *value;
        int r;
        while ((r = next_param(&c, &name, &value)) > 0)
                if (strcasecmp(name, "boundary") == 0) {
                        if (boundary)
                                return error_set(err, -EINVAL, "the Content-Type has two boundaries");
                        boundary = value;
                }
        if (r < 0 || !boundary || !is_boundary(boundary))
                return error_set(err, -EINVAL, "the Content-Type has no valid boundary");
        return str_copy(ret, MULTIPART_BOUNDARY_MAX + 1, boundary);
}

/* What browsers encode in a name, and nothing else (HTML, "multipart/form-data encoding"). */
static void decode_name(const char *s, char *to) {
        while (*s) {
                char c = *s;
                if (strncmp(s, "%22", 3) == 0)
                        c = '"';
                else if (strncasecmp(s, "%0d", 3) == 0)
                        c = '\r';
                else if (strncasecmp(s, "%0a", 3) == 0)
                        c = '\n';
                s += c == *s ? 1 : 3;
                *to++ = c;
        }
        *to = '\0';
}

static const char *parse_disposition(char *value, char *extra, struct multipart_part *part) {
        size_t n = strcspn(value, "; \t");
        if (!str_case_eq_n(value, n, "form-data"))
                return "a part's Content-Disposition is not form-data";
        struct cursor c = { .s = value + n };
        char *name, *v;
        int r;
        while ((r = next_param(&c, &name, &v)) > 0) {
                bool is_name = strcasecmp(name, "name") == 0;
                if ((is_name && part->name) || (strcasecmp(name, "filename") == 0 && part->filename))
                        return "a part's Content-Disposition repeats a parameter";
                if (is_name)
                        part->name = v;
                else if (strcasecmp(name, "filename") == 0) {
                        part->filename_raw = v;
                        decode_name(v, extra);
                        part->filename = extra;
                }
        }
        if (r < 0)
                return "a part's Content-Disposition is malformed";
        return part->name ? NULL : "a part has no name";
}

static bool is_plain_encoding(const char *v) {
        return strcasecmp(v, "binary") == 0 || strcasecmp(v, "8bit") == 0 || strcasecmp(v, "7bit") == 0;
}

const char *multipart_head_parse(char *text, size_t n, char *extra, struct multipart_part *part) {
        *part = (struct multipart_part){ 0 };
        char *line = text, *end = text + n;
        bool seen = false;
        size_t count = 0;
        while (line < end) {
                char *nl = memchr(line, '\n', (size_t) (end - line));
                if (!nl || nl == line)
                        return "a part's header line does not end in CRLF";
                struct http1_field f;
                struct http1_fault fault = { 0 };
                if (!http1_field_parse(line, (size_t) (nl - line) - 1, &f, &fault))
                        return fault.reason;
                if (++count > MULTIPART_HEADERS_MAX)
                        return "a part has too many header lines";
                if (strcasecmp(f.name, "content-disposition") == 0) {
                        if (seen)
                                return "a part has two Content-Dispositions";
                        seen = true;
                        /* http1_field_parse() has cut the value within the line. */
                        const char *wrong = parse_disposition(line + (f.value - line), extra, part);
                        if (wrong)
                                return wrong;
                } else if (strcasecmp(f.name, "content-type") == 0)
                        part->content_type = f.value;
                else if (strcasecmp(f.name, "content-transfer-encoding") == 0 && !is_plain_encoding(f.value))
                        return "a part has a transfer encoding that is not supported";
                line = nl + 1;
        }
        return seen ? NULL : "a part has no Content-Disposition";
}
