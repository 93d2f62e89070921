/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The first byte chooses how the rest is cut in two. What must hold: both ways of feeding give the
 * same events, all input is consumed or refused, no name is empty or has a length over the limit, and
 * what comes out can be written again.
 */

#include <stdlib.h>
#include <string.h>

#include "wire/tar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* A summary of the events: order and content, not how data was cut. */
struct summary {
        uint64_t hash, bytes;
        bool dead, complete;
};

static void mix(struct summary *s, const void *data, size_t n) {
        const uint8_t *p = data;

        for (size_t i = 0; i < n; i++)
                s->hash = (s->hash ^ p[i]) * 1099511628211u;
}

static void check_entry(struct summary *s, const struct tar_entry *e) {
        struct buf out = BUF_INIT(0);

        if (!*e->name || strlen(e->name) > TAR_NAME_MAX || strlen(e->link) > TAR_NAME_MAX ||
            e->size > TAR_SIZE_MAX)
                abort();
        if (e->type != TAR_OTHER && tar_write_entry(&out, e) < 0)
                abort();
        mix(s, e->name, strlen(e->name) + 1);
        mix(s, e->link, strlen(e->link) + 1);
        mix(s, &e->size, sizeof e->size);
        mix(s, &e->type, sizeof e->type);
        if (e->n_xattrs > TAR_XATTRS_MAX)
                abort();
        for (size_t i = 0; i < e->n_xattrs; i++) {
                if (!*e->xattrs[i].name || strlen(e->xattrs[i].name) > TAR_XATTR_NAME_MAX)
                        abort();
                mix(s, e->xattrs[i].name, strlen(e->xattrs[i].name) + 1);
                mix(s, e->xattrs[i].value, e->xattrs[i].n);
        }
        buf_done(&out);
}

static void feed(struct tar_reader *r, struct summary *s, const uint8_t *data, size_t n) {
        struct tar_event ev = { .type = TAR_NEED_DATA };
        size_t used;

        do {
                tar_read(r, data, n, &used, &ev);
                if (used > n)
                        abort();
                data += used;
                n -= used;
                if (ev.type == TAR_ENTRY)
                        check_entry(s, ev.entry);
                else if (ev.type == TAR_DATA) {
                        mix(s, ev.data, ev.n);
                        s->bytes += ev.n;
                } else if (ev.type == TAR_ENTRY_END)
                        mix(s, "end", 3);
                else if (ev.type == TAR_ERROR)
                        s->dead = true;
        } while (ev.type != TAR_NEED_DATA && !s->dead);
        if (!s->dead && n != 0)
                abort();
}

static struct summary run(const uint8_t *data, size_t n, size_t cut) {
        struct tar_reader *r = tar_reader_new();
        struct summary s = { .hash = 14695981039346656037u };

        if (!r)
                abort();
        feed(r, &s, data, cut);
        if (!s.dead)
                feed(r, &s, data + cut, n - cut);
        s.complete = tar_reader_complete(r);
        tar_reader_free(r);
        return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        if (n == 0)
                return 0;
        size_t cut = (size_t) data[0] * (n - 1) / 255;
        struct summary a = run(data + 1, n - 1, 0), b = run(data + 1, n - 1, cut);

        if (a.hash != b.hash || a.bytes != b.bytes || a.dead != b.dead || a.complete != b.complete)
                abort();
        return 0;
}
