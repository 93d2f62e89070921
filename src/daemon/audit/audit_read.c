/* SPDX-License-Identifier: Apache-2.0 */

#include "audit_read.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "audit_log.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/str.h"

#define PIECE (256u * 1024) /* read at a time; longer than any line */
static_assert(PIECE > AUDIT_LINE_MAX);

/* ---- places -------------------------------------------------------------------------------- */

int audit_place_parse(const char *text, struct audit_place *ret) {
        const char *dot = strchr(text, '.');
        char segment[AUDIT_CURSOR_SIZE];
        struct audit_place p;
        if (!dot || (size_t) (dot - text) >= sizeof segment)
                return -EINVAL;
        memcpy(segment, text, (size_t) (dot - text));
        segment[dot - text] = 0;
        if (str_to_u64(segment, AUDIT_SEGMENT_LAST, &p.segment) < 0 || str_to_u64(dot + 1, INT64_MAX, &p.offset) < 0)
                return -EINVAL;
        *ret = p;
        return 0;
}

void audit_place_text(const struct audit_place *p, char out[AUDIT_CURSOR_SIZE]) {
        (void) snprintf(out, AUDIT_CURSOR_SIZE, "%llu.%llu", (unsigned long long) p->segment, (unsigned long long) p->offset);
}

/* ---- filter -------------------------------------------------------------------------------- */

int audit_query_set(struct audit_query *q, const char *key, const char *value, struct error *err) {
        bool time = str_eq(key, "since") || str_eq(key, "until");
        if (str_eq(key, "kind") && str_eq(value, "lost")) {
                q->lost = true;
                return 0;
        }
        if (!q->filter && audit_filter_new(&q->filter) < 0)
                return error_set(err, -ENOMEM, "out of memory");
        q->narrow = q->narrow || !time;
        return audit_filter_set(q->filter, key, value, clock_real_ms(), err);
}

void audit_query_done(struct audit_query *q) {
        audit_filter_free(q->filter);
        *q = (struct audit_query){ .filter = NULL };
}

/* {"time":"...","kind":"lost",...}, as audit_store.c writes it: a record with nothing but a time. */
static bool read_lost(const char *line, size_t n, struct audit *ret) {
        static const char begin[] = "{\"time\":\"", kind[] = "\",\"kind\":\"lost\"";
        char time[RFC3339_SIZE];
        const char *end = n > sizeof begin && memcmp(line, begin, sizeof begin - 1) == 0
                                  ? memmem(line, n, kind, sizeof kind - 1) : NULL;
        size_t len = end ? (size_t) (end - line) - (sizeof begin - 1) : sizeof time;
        if (len >= sizeof time)
                return false;
        memcpy(time, line + sizeof begin - 1, len);
        time[len] = 0;
        audit_init(ret, AUDIT_CONNECT, 0, NULL);
        return clock_parse_rfc3339(time, &ret->time_ms) == 0;
}

bool audit_query_match(const struct audit_query *q, const char *line, size_t n) {
        struct audit a;
        if (!q->filter && !q->lost)
                return true;
        if (read_lost(line, n, &a))
                return !q->narrow && audit_filter_match(q->filter, &a);
        return !q->lost && audit_parse(line, n, &a, NULL) == 0 && audit_filter_match(q->filter, &a);
}

/* ---- segments ------------------------------------------------------------------------------ */

static int by_number(const void *a, const void *b) {
        uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;
        return x < y ? -1 : x > y;
}

static int segment_number(const char *name, uint64_t *ret) {
        char digits[AUDIT_SEGMENT_NAME_SIZE];
        if (strlen(name) != 16 || strcmp(name + 10, ".jsonl") != 0)
                return -EINVAL;
        memcpy(digits, name, 10);
        digits[10] = 0;
        return str_to_u64(digits, AUDIT_SEGMENT_LAST, ret);
}

int audit_segments(int dirfd, const char *id, uint64_t ret[AUDIT_SEGMENTS_MAX], size_t *ret_n) {
        struct error e = ERROR_INIT;
        int fd = fd_open_beneath(dirfd, id, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0, &e);
        DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
        const struct dirent *de;
        size_t n = 0;
        if (!d) {
                (void) fd_close(fd);
                return fd < 0 ? fd : -EIO;
        }
        while ((de = readdir(d)) && n < AUDIT_SEGMENTS_MAX)
                if (segment_number(de->d_name, &ret[n]) >= 0)
                        n++;
        (void) closedir(d);
        qsort(ret, n, sizeof *ret, by_number);
        *ret_n = n;
        return 0;
}

/* ---- reading ------------------------------------------------------------------------------- */

struct scan {
        const struct audit_query *q;
        struct audit_page *page;
        size_t limit;
        uint64_t looked_at;
        bool full; /* limit, or a bound on what one go may cost */
};

/* The whole lines of a piece; returns how many bytes are done with. */
static size_t take_lines(struct scan *s, const char *data, size_t n) {
        size_t at = 0;
        while (!s->full) {
                const char *end = memchr(data + at, '\n', n - at);
                if (!end)
                        break;
                size_t len = (size_t) (end - data) - at;
                if (len > 0 && data[at] == '{' && end[-1] == '}' && audit_query_match(s->q, data + at, len)) {
                        if (buf_append(&s->page->lines, data + at, len + 1) < 0) {
                                s->full = true;
                                break;
                        }
                        s->full = ++s->page->n >= s->limit;
                }
                at += len + 1;
        }
        s->looked_at += at;
        if (s->looked_at >= AUDIT_SCAN_MAX)
                s->full = true;
        return at;
}

/* One segment from *offset on. -ENOENT: it was dropped meanwhile. */
static int scan_segment(struct scan *s, int dirfd, const char *id, uint64_t segment, uint64_t *offset,
                        char *piece) {
        char path[ID_SIZE + AUDIT_SEGMENT_NAME_SIZE];
        struct stat st;
        (void) snprintf(path, sizeof path, "%s/%010llu.jsonl", id, (unsigned long long) segment % (AUDIT_SEGMENT_LAST + 1));
        _cleanup_fd_ int fd = fd_open_beneath(dirfd, path, O_RDONLY | O_CLOEXEC, 0, NULL);
        if (fd < 0)
                return fd;
        if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
                return -EIO;
        if (*offset > (uint64_t) st.st_size)
                return -EINVAL;
        while (!s->full) {
                ssize_t n = pread(fd, piece, PIECE, (off_t) *offset);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        return n < 0 ? -errno : 0;
                size_t used = take_lines(s, piece, (size_t) n);
                if (used == 0 && (size_t) n == PIECE)
                        used = PIECE; /* no line is so long: damaged */
                *offset += used;
                if (used == 0)
                        return 0; /* a line under way, or torn */
        }
        return 0;
}

int audit_read(int dirfd, const char *id, const struct audit_query *q, struct audit_place from, size_t limit,
               struct audit_page *ret, struct error *err) {
        _cleanup_free_ uint64_t *segments = calloc(AUDIT_SEGMENTS_MAX, sizeof *segments);
        _cleanup_free_ char *piece = malloc(PIECE);
        struct scan s = { .q = q, .page = ret, .limit = limit };
        size_t n = 0;
        if (!segments || !piece)
                return error_set(err, -ENOMEM, "out of memory");
        int r = audit_segments(dirfd, id, segments, &n);
        if (r < 0)
                return error_errno(err, r, "the audit log could not be read");
        ret->next = from;
        for (size_t i = 0; i < n && !s.full; i++) {
                if (segments[i] < from.segment)
                        continue;
                uint64_t offset = segments[i] == from.segment ? from.offset : 0;
                r = scan_segment(&s, dirfd, id, segments[i], &offset, piece);
                if (r == -EINVAL)
                        return error_set(err, r, "the cursor is not one that this log gave");
                if (r < 0 && r != -ENOENT)
                        return error_errno(err, r, "the audit log could not be read");
                ret->next = (struct audit_place){ segments[i], offset };
        }
        ret->end = !s.full;
        return 0;
}
