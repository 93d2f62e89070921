/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A path is decoded once into bytes; an encoded slash becomes the byte ENCODED_SLASH, which no decoded path
 * can hold otherwise (control bytes are refused). The readings are then made from that by three choices:
 * whether an encoded slash is a slash, whether empty segments are merged, and whether what follows ";" in a
 * segment belongs to it. A choice that makes no difference to this path is not made.
 */

#include "policy/path.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/str.h"

#define ENCODED_SLASH 0x01
#define N_CHOICES 3
#define N_READINGS_MAX (1 << N_CHOICES)

enum { SPLIT_ENCODED = 1 << 0, MERGE_EMPTY = 1 << 1, CUT_PARAMS = 1 << 2 };

struct path {
        const char *trouble;
        size_t n_readings;
        char *readings[N_READINGS_MAX];
};

static int hex(char c) {
        if (c >= '0' && c <= '9')
                return c - '0';
        if (c >= 'a' && c <= 'f')
                return c - 'a' + 10;
        return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool is_escape(const char *s, size_t n) {
        return n >= 3 && s[0] == '%' && hex(s[1]) >= 0 && hex(s[2]) >= 0;
}

/* What a server that decodes again would take for an escape, however its bytes were written; "%uXXXX" too. */
static bool has_second_escape(const char *s, size_t n) {
        for (size_t i = 0; i < n; i++) {
                if (is_escape(s + i, n - i))
                        return true;
                if (n - i >= 6 && s[i] == '%' && (s[i + 1] == 'u' || s[i + 1] == 'U') && hex(s[i + 2]) >= 0 && hex(s[i + 3]) >= 0 &&
                    hex(s[i + 4]) >= 0 && hex(s[i + 5]) >= 0)
                        return true;
        }
        return false;
}

/* Full-width ".", "/", "\\", "%" and ";", which some servers fold to the plain ones (NFKC, best fit). */
static bool has_lookalike(const char *s) {
        static const char *const forms[] = { "\xef\xbc\x8e", "\xef\xbc\x8f", "\xef\xbc\xbc", "\xef\xbc\x85", "\xef\xbc\x9b" };

        for (size_t i = 0; i < ARRAY_SIZE(forms); i++)
                if (strstr(s, forms[i]))
                        return true;
        return false;
}

/* Decodes s into out (n + 1 bytes). NULL, or what is wrong with it. */
static const char *decode(const char *s, size_t n, char *out) {
        size_t len = 0;

        for (size_t i = 0; i < n; i++) {
                unsigned char c = (unsigned char) s[i];
                bool escaped = c == '%';
                if (escaped) {
                        if (!is_escape(s + i, n - i))
                                return "a malformed escape";
                        c = (unsigned char) (hex(s[i + 1]) << 4 | hex(s[i + 2]));
                        i += 2;
                }
                if (c < 0x20 || c == 0x7f)
                        return "a control byte";
                if (c == '\\')
                        return "a backslash";
                out[len++] = escaped && c == '/' ? ENCODED_SLASH : (char) c;
        }
        out[len] = '\0';
        if (!str_is_utf8(out, len))
                return "bytes that are not UTF-8";
        return has_second_escape(out, len) ? "a doubled escape" : has_lookalike(out) ? "a look-alike of a separator" : NULL;
}

static bool is_slash(char c) {
        return c == '/' || c == ENCODED_SLASH;
}

/* Seen as widely as a server could: any slash ends a segment, ";" ends its name. */
static bool has_dot_segment(const char *s) {
        while (*s) {
                size_t n = 0;
                while (s[n] && !is_slash(s[n]) && s[n] != ';')
                        n++;
                if ((n == 1 && s[0] == '.') || (n == 2 && s[0] == '.' && s[1] == '.'))
                        return true;
                s += n;
                while (*s && !is_slash(*s))
                        s++;
                if (*s)
                        s++;
        }
        return false;
}

static char *make_reading(const char *s, unsigned choices) {
        char *out = malloc(strlen(s) + 1);
        size_t n = 0;
        bool cut = false;

        if (!out)
                return NULL;
        for (; *s; s++) {
                char c = *s == ENCODED_SLASH && (choices & SPLIT_ENCODED) ? '/' : *s;
                if (c == '/')
                        cut = false;
                else if (c == ';' && (choices & CUT_PARAMS))
                        cut = true;
                if (cut || (c == '/' && n > 0 && out[n - 1] == '/' && (choices & MERGE_EMPTY)))
                        continue;
                out[n++] = c;
        }
        out[n] = '\0';
        return out;
}

/* Which choices can matter for s. */
static unsigned open_choices(const char *s) {
        unsigned c = 0;

        for (const char *p = s; *p; p++) {
                if (*p == ENCODED_SLASH)
                        c |= SPLIT_ENCODED;
                if (*p == ';')
                        c |= CUT_PARAMS;
                /* Empty once its parameters are cut, too. */
                if (is_slash(*p) && (is_slash(p[1]) || p[1] == ';'))
                        c |= MERGE_EMPTY;
        }
        return c;
}

static int make_readings(struct path *p, const char *decoded) {
        unsigned open = open_choices(decoded);

        for (unsigned choices = 0; choices < N_READINGS_MAX; choices++) {
                if (choices & ~open)
                        continue;
                char *r = make_reading(decoded, choices);
                if (!r)
                        return -ENOMEM;
                p->readings[p->n_readings++] = r;
        }
        return 0;
}

/* Start of the path in the target, or NULL. */
static const char *path_start(const char *t) {
        if (t[0] == '/')
                return t;
        size_t scheme = strncasecmp(t, "http://", 7) == 0 ? 7 : strncasecmp(t, "https://", 8) == 0 ? 8 : 0;
        if (!scheme)
                return NULL;
        t += scheme + strcspn(t + scheme, "/?");
        return *t == '/' ? t : "/";
}

struct path *path_read(const char *target) {
        _cleanup_(path_freep) struct path *p = calloc(1, sizeof *p);
        _cleanup_free_ char *decoded = NULL;

        if (!p)
                return NULL;
        const char *start = path_start(target);
        size_t n = start ? strcspn(start, "?") : 0;
        if (!start || n > PATH_READ_MAX) {
                p->trouble = start ? "a path that is too long" : "no path";
                return STEAL(p);
        }
        decoded = malloc(n + 1);
        if (!decoded)
                return NULL;
        p->trouble = memchr(start, '#', n) ? "a fragment" : decode(start, n, decoded);
        if (!p->trouble && has_dot_segment(decoded))
                p->trouble = "a dot segment";
        if (!p->trouble && open_choices(decoded) && strlen(decoded) > PATH_ODD_MAX)
                p->trouble = "a path that is too long for all its readings";
        if (!p->trouble && make_readings(p, decoded) < 0)
                return NULL;
        return STEAL(p);
}

void path_free(struct path *p) {
        if (!p)
                return;
        for (size_t i = 0; i < p->n_readings; i++)
                free(p->readings[i]);
        free(p);
}

void path_freep(struct path **p) {
        path_free(*p);
}

const char *path_trouble(const struct path *p) {
        return p->trouble;
}

static const char *pattern_trouble(const char *s) {
        size_t n = strlen(s);

        if (s[0] != '/')
                return "it does not begin with \"/\"";
        if (n > PATH_PATTERN_MAX)
                return "it has more than 256 bytes";
        if (!str_is_utf8(s, n))
                return "it is not UTF-8";
        for (size_t i = 0; i < n; i++) {
                unsigned char c = (unsigned char) s[i];
                if (c < 0x20 || c == 0x7f || strchr("?#;\\", c))
                        return "it has a byte that no pattern may have (? # ; \\ or a control byte)";
                if (c == '%' && strncasecmp(s + i, "%2f", 3) != 0)
                        return "it has an escape other than %2f; patterns are written decoded";
        }
        if (strstr(s, "//"))
                return "it has an empty segment";
        return strstr(s, "***") ? "it has \"***\"" : NULL;
}

int path_pattern(const char *text, char **ret, struct error *err) {
        const char *trouble = pattern_trouble(text);
        _cleanup_free_ char *out = NULL;
        size_t n = 0;

        if (!trouble) {
                out = malloc(strlen(text) + 1);
                if (!out)
                        return error_set(err, -ENOMEM, "out of memory");
                for (const char *s = text; *s; s++) {
                        out[n++] = *s == '%' ? ENCODED_SLASH : *s;
                        if (*s == '%')
                                s += 2;
                }
                out[n] = '\0';
                if (has_dot_segment(out))
                        trouble = "it has a dot segment";
        }
        if (trouble)
                return error_set(err, -EINVAL, "\"%.64s\": %s", text, trouble);
        *ret = STEAL(out);
        return 0;
}

#define STATE_WORDS ((PATH_PATTERN_MAX + 64) / 64)

struct states {
        uint64_t w[STATE_WORDS];
};

/* Adds position i, and what is reached from it without a byte. A "*" may be empty. */
static void state_add(struct states *s, const char *pattern, size_t n, size_t i) {
        for (;;) {
                s->w[i / 64] |= 1ull << (i % 64);
                if (i >= n || pattern[i] != '*')
                        return;
                i += pattern[i + 1] == '*' ? 2 : 1;
        }
}

/* All positions of the pattern are followed at once, so no pattern takes exponential time. */
static bool glob_match(const char *pattern, const char *s) {
        size_t n = strlen(pattern);
        bool below = n > 0 && pattern[n - 1] == '/'; /* "/x/": everything below */
        struct states now = { 0 };

        state_add(&now, pattern, n, 0);
        for (; *s; s++) {
                struct states next = { 0 };
                bool any = false;
                for (size_t w = 0; w < STATE_WORDS; w++) {
                        for (uint64_t bits = now.w[w]; bits; bits &= bits - 1) {
                                size_t i = w * 64 + (size_t) __builtin_ctzll(bits);
                                if (i == n) {
                                        if (below)
                                                return true;
                                        continue;
                                }
                                bool deep = pattern[i] == '*' && pattern[i + 1] == '*';
                                if (pattern[i] == '*' ? deep || *s != '/' : pattern[i] == *s) {
                                        state_add(&next, pattern, n, pattern[i] == '*' ? i : i + 1);
                                        any = true;
                                }
                        }
                }
                if (!any)
                        return false;
                now = next;
        }
        return now.w[n / 64] >> (n % 64) & 1;
}

static bool any_match(const char *reading, const char *const *patterns, size_t n) {
        for (size_t i = 0; i < n; i++)
                if (glob_match(patterns[i], reading))
                        return true;
        return false;
}

enum path_match path_match(const struct path *p, const char *const *patterns, size_t n) {
        if (p->trouble)
                return PATH_AMBIGUOUS;
        bool first = any_match(p->readings[0], patterns, n);
        for (size_t i = 1; i < p->n_readings; i++)
                if (any_match(p->readings[i], patterns, n) != first)
                        return PATH_AMBIGUOUS;
        return first ? PATH_YES : PATH_NO;
}
