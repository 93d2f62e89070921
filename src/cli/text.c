/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"

/* Decodes one character; 0 when the bytes are no valid UTF-8. */
static size_t utf8_next(const uint8_t *s, size_t n, uint32_t *ret) {
        static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
        size_t len = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
        uint32_t c;

        if (len == 0 || len > n)
                return 0;
        c = len == 1 ? s[0] : s[0] & (0x7fu >> len);
        for (size_t i = 1; i < len; i++) {
                if (s[i] >> 6 != 2)
                        return 0;
                c = c << 6 | (s[i] & 0x3fu);
        }
        if (c < least[len] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
                return 0;
        *ret = c;
        return len;
}

/* Characters without a shape of their own that change how others are shown: bidirectional
 * controls, zero-width and line separators, tags, the byte order mark. */
static bool is_hidden(uint32_t c) {
        return c == 0xad || c == 0x61c || c == 0x180e || (c >= 0x200b && c <= 0x200f) ||
               (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) || c == 0xfeff ||
               (c >= 0xfff9 && c <= 0xfffb) || (c >= 0xe0000 && c <= 0xe0fff);
}

char *text_safe_n(const void *data, size_t n) {
        const uint8_t *s = data;
        /* The longest form of one byte is "\xNN", of one character of two or more bytes "\u{NNNNN}". */
        char *out = mem_new(6 * n + 1), *w = out;

        for (size_t i = 0; i < n;) {
                uint32_t c = 0;
                size_t len = utf8_next(s + i, n - i, &c);

                if (len == 0) {
                        w += sprintf(w, "\\x%02x", s[i]);
                        i++;
                        continue;
                }
                if (c == '\n')
                        w += sprintf(w, "\\n");
                else if (c == '\t')
                        w += sprintf(w, "\\t");
                else if (c < 0x20 || c == 0x7f)
                        w += sprintf(w, "\\x%02x", c);
                else if ((c >= 0x80 && c < 0xa0) || is_hidden(c))
                        w += sprintf(w, "\\u{%x}", c);
                else {
                        memcpy(w, s + i, len);
                        w += len;
                }
                i += len;
        }
        *w = '\0';
        return out;
}

char *text_safe(const char *s) {
        return text_safe_n(s, strlen(s));
}

void text_put(FILE *f, const char *s) {
        _cleanup_free_ char *safe = text_safe(s);

        fputs(safe, f);
}

size_t text_width(const char *s) {
        size_t width = 0, n = strlen(s);

        for (size_t i = 0; i < n;) {
                uint32_t c = 0;
                size_t len = utf8_next((const uint8_t *) s + i, n - i, &c);
                int w = len == 0 ? 1 : wcwidth((wchar_t) c);

                width += w < 0 ? 1 : (size_t) w;
                i += len ? len : 1;
        }
        return width;
}

size_t text_fit(const char *s, size_t columns) {
        size_t at = 0, width = 0, n = strlen(s);

        while (at < n) {
                uint32_t c = 0;
                size_t len = utf8_next((const uint8_t *) s + at, n - at, &c);
                int w = len == 0 ? 1 : wcwidth((wchar_t) c);

                width += w < 0 ? 1 : (size_t) w;
                if (width > columns)
                        break;
                at += len ? len : 1;
        }
        return at;
}

/* An hour from now is "in 1 hour" for a while, and not "in 59 minutes" as soon as it was asked for. */
static int64_t slack(int64_t unit_s, bool future) {
        return future ? unit_s / 20 : 0;
}

void text_relative(int64_t unix_ms, int64_t now_ms, char out[TEXT_SIZE]) {
        static const struct {
                int64_t s;
                const char *name;
        } units[] = { { 86400, "day" }, { 3600, "hour" }, { 60, "minute" }, { 1, "second" } };
        int64_t s = (now_ms - unix_ms) / 1000;
        bool future = s < 0;

        if (future)
                s = -s;
        if (s == 0) {
                strcpy(out, future || unix_ms > now_ms ? "in a moment" : "just now");
                return;
        }
        size_t i = 0;
        while (s + slack(units[i].s, future) < units[i].s)
                i++;
        long long n = (long long) ((s + slack(units[i].s, future)) / units[i].s);
        snprintf(out, TEXT_SIZE, "%s%lld %s%s%s", future ? "in " : "", n, units[i].name, n == 1 ? "" : "s",
                 future ? "" : " ago");
}

void text_relative_rfc3339(const char *s, char out[TEXT_SIZE]) {
        int64_t t;

        if (!s) {
                strcpy(out, "-");
                return;
        }
        if (clock_parse_rfc3339(s, &t) < 0) {
                _cleanup_free_ char *safe = text_safe(s);
                snprintf(out, TEXT_SIZE, "%.*s", TEXT_SIZE - 1, safe);
                return;
        }
        text_relative(t, clock_real_ms(), out);
}

void text_size(uint64_t bytes, char out[TEXT_SIZE]) {
        static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
        double v = (double) bytes;
        size_t u = 0;

        /* 1023.95 and more would be shown as 1024.0 of the smaller unit. */
        while (v >= (u == 0 ? 1024.0 : 1023.95) && u + 1 < ARRAY_SIZE(units)) {
                v /= 1024;
                u++;
        }
        bool whole = u == 0 || (v < 1024 && v - (double) (uint64_t) v == 0);
        snprintf(out, TEXT_SIZE, whole ? "%.0f %s" : "%.1f %s", v, units[u]);
}

/* "1 h 5 min"; "1 h" where nothing is over. */
static void two_units(unsigned long long n, const char *unit, unsigned long long rest, const char *rest_unit, char out[TEXT_SIZE]) {
        int len = snprintf(out, TEXT_SIZE, "%llu %s", n, unit);

        if (rest > 0)
                snprintf(out + len, TEXT_SIZE - (size_t) len, " %llu %s", rest, rest_unit);
}

void text_duration(uint64_t ms, char out[TEXT_SIZE]) {
        unsigned long long s = ms / 1000;

        if (ms < 10000 && ms % 1000 > 0)
                snprintf(out, TEXT_SIZE, "%llu.%02llu s", s, (unsigned long long) ms % 1000 / 10);
        else if (s < 60)
                snprintf(out, TEXT_SIZE, "%llu s", s);
        else if (s < 3600)
                two_units(s / 60, "min", s % 60, "s", out);
        else
                two_units(s / 3600, "h", s % 3600 / 60, "min", out);
}

static void wrap_paragraph(FILE *f, const char *s, size_t n, unsigned indent, unsigned width) {
        size_t at = 0;

        for (size_t i = 0; i < n;) {
                size_t w = 0;

                while (i < n && (s[i] == ' ' || s[i] == '\n'))
                        i++;
                while (i + w < n && s[i + w] != ' ' && s[i + w] != '\n')
                        w++;
                if (w == 0)
                        break;
                if (at > 0 && at + 1 + w > width) {
                        fputc('\n', f);
                        at = 0;
                }
                if (at == 0) {
                        fprintf(f, "%*s", (int) indent, "");
                        at = indent;
                } else {
                        fputc(' ', f);
                        at++;
                }
                fwrite(s + i, 1, w, f);
                at += w;
                i += w;
        }
        fputc('\n', f);
}

/* How much of s is one paragraph: up to an empty line, or one that begins with a blank. An empty line is one itself. */
static size_t paragraph(const char *s) {
        size_t n = 0;

        for (;;) {
                n += strcspn(s + n, "\n");
                if (n == 0 || s[n] == '\0' || s[n + 1] == '\0' || s[n + 1] == '\n' || s[n + 1] == ' ')
                        return n;
                n++;
        }
}

void text_wrap(FILE *f, const char *s, unsigned indent, unsigned width) {
        while (*s) {
                size_t n;

                if (*s == ' ') {
                        n = strcspn(s, "\n");
                        fprintf(f, "%*s%.*s\n", (int) indent, "", (int) n, s);
                } else {
                        n = paragraph(s);
                        wrap_paragraph(f, s, n, indent, width);
                }
                s += n + (s[n] == '\n');
        }
}

bool text_colour(FILE *f) {
        const char *no = getenv("NO_COLOR"), *term = getenv("TERM");

        return isatty(fileno(f)) && !(no && *no) && term && !str_eq(term, "dumb");
}

unsigned text_columns(int fd) {
        struct winsize w;

        return ioctl(fd, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
}
