/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/tar.h"

#include <stdlib.h>
#include <string.h>

#include "wire/tar_header.h"

/*
 *          what comes next                    goes to
 * HEADER   a header, or the end mark          EXT (an extension), DATA, SKIP
 * EXT      the records of an extension        SKIP, then HEADER
 * DATA     the entry's bytes                  SKIP
 * SKIP     padding                            HEADER
 * ENDING   the second block of zeros          DONE
 * DONE     anything                           -
 * DEAD     -                                  -
 */
enum state { HEADER, EXT, DATA, SKIP, ENDING, DONE, DEAD };

struct tar_reader {
        enum state state;
        uint8_t block[TAR_BLOCK];
        size_t have;         /* bytes in block */
        uint64_t left;       /* of EXT, DATA or SKIP */
        uint64_t size;       /* of what is being read, for its padding */
        unsigned extensions; /* before the entry to come */
        char ext_type;
        bool in_entry; /* TAR_ENTRY_END is due */
        struct buf ext;
        struct tar_ext over; /* what the extensions say of the entry to come */
        struct tar_entry entry;
        bool over_used;      /* by the entry that was told last, which points into it */
        char name[TAR_NAME_MAX + 1], link[TAR_NAME_MAX + 1];
        struct tar_xattr xattrs[TAR_XATTRS_MAX];
};

struct tar_reader *tar_reader_new(void) {
        struct tar_reader *r = calloc(1, sizeof *r);

        if (r) {
                r->ext = BUF_INIT(TAR_EXT_MAX);
                tar_ext_init(&r->over);
        }
        return r;
}

void tar_reader_free(struct tar_reader *r) {
        if (!r)
                return;
        buf_done(&r->ext);
        tar_ext_clear(&r->over);
        free(r);
}

bool tar_reader_complete(const struct tar_reader *r) {
        return r->state == DONE;
}

static void fail(struct tar_reader *r, struct tar_event *ev, const char *reason) {
        r->state = DEAD;
        *ev = (struct tar_event) { .type = TAR_ERROR, .reason = reason };
}

static void begin_skip(struct tar_reader *r) {
        r->state = SKIP;
        r->left = (TAR_BLOCK - r->size % TAR_BLOCK) % TAR_BLOCK;
}

/* Reads the header in block. True: ev is set. */
static bool take_header(struct tar_reader *r, struct tar_event *ev) {
        struct tar_entry *e = &r->entry;
        const char *reason = NULL;
        char type;

        if (r->over_used)
                tar_ext_clear(&r->over);
        r->over_used = false;
        if (tar_header_is_zero(r->block)) {
                if (r->extensions) {
                        fail(r, ev, "the archive ends between an extension header and its entry");
                        return true;
                }
                r->state = ENDING;
                return false;
        }
        e->name = r->name;
        e->link = r->link;
        reason = tar_header_parse(r->block, e, r->name, r->link, &type);
        if (reason) {
                fail(r, ev, reason);
                return true;
        }
        if (tar_header_is_extension(type)) {
                if (e->size > TAR_EXT_MAX || ++r->extensions > TAR_EXT_COUNT) {
                        fail(r, ev, "extension headers larger or more than the limit");
                        return true;
                }
                r->ext_type = type;
                r->state = EXT;
                r->left = r->size = e->size;
                buf_clear(&r->ext);
                return false;
        }
        reason = tar_ext_apply(&r->over, e, r->name, r->link, r->xattrs);
        if (reason) {
                fail(r, ev, reason);
                return true;
        }
        r->over_used = r->extensions > 0;
        r->extensions = 0;
        r->in_entry = true;
        r->left = r->size = e->size;
        r->state = DATA;
        *ev = (struct tar_event) { .type = TAR_ENTRY, .entry = e };
        return true;
}

/* Collects a block. True when it is whole. */
static bool fill_block(struct tar_reader *r, const uint8_t *data, size_t n, size_t *used) {
        size_t take = TAR_BLOCK - r->have < n - *used ? TAR_BLOCK - r->have : n - *used;

        if (take > 0)
                memcpy(r->block + r->have, data + *used, take);
        r->have += take;
        *used += take;
        if (r->have < TAR_BLOCK)
                return false;
        r->have = 0;
        return true;
}

static bool step_ext(struct tar_reader *r, const uint8_t *data, size_t n, size_t *used,
                     struct tar_event *ev) {
        size_t take = r->left < n - *used ? (size_t) r->left : n - *used;

        if (take > 0 && buf_append(&r->ext, data + *used, take) < 0) {
                fail(r, ev, "out of memory");
                return true;
        }
        *used += take;
        r->left -= take;
        if (r->left > 0)
                return false;
        const char *reason =
                tar_ext_parse(&r->over, r->ext_type, (const char *) buf_data(&r->ext), r->ext.len);
        if (reason) {
                fail(r, ev, reason);
                return true;
        }
        begin_skip(r);
        return false;
}

static bool step_data(struct tar_reader *r, const uint8_t *data, size_t n, size_t *used,
                      struct tar_event *ev) {
        if (r->left == 0) {
                begin_skip(r);
                r->in_entry = false;
                *ev = (struct tar_event) { .type = TAR_ENTRY_END };
                return true;
        }
        size_t take = r->left < n - *used ? (size_t) r->left : n - *used;
        if (take == 0)
                return false;
        *ev = (struct tar_event) { .type = TAR_DATA, .data = data + *used, .n = take };
        *used += take;
        r->left -= take;
        return true;
}

/* One step; true when ev is set. */
static bool step(struct tar_reader *r, const uint8_t *data, size_t n, size_t *used, struct tar_event *ev) {
        size_t take;

        switch (r->state) {
        case HEADER:
                return fill_block(r, data, n, used) && take_header(r, ev);
        case EXT:
                return step_ext(r, data, n, used, ev);
        case DATA:
                return step_data(r, data, n, used, ev);
        case SKIP:
                take = r->left < n - *used ? (size_t) r->left : n - *used;
                *used += take;
                r->left -= take;
                if (r->left == 0)
                        r->state = HEADER;
                return false;
        case ENDING:
                if (!fill_block(r, data, n, used))
                        return false;
                if (!tar_header_is_zero(r->block)) {
                        fail(r, ev, "a lone block of zeros inside the archive");
                        return true;
                }
                r->state = DONE;
                *ev = (struct tar_event) { .type = TAR_END };
                return true;
        case DONE:
                *used = n;
                return false;
        case DEAD:
        default:
                fail(r, ev, "the archive was refused before");
                return true;
        }
}

void tar_read(struct tar_reader *r, const uint8_t *data, size_t n, size_t *used, struct tar_event *ev) {
        *used = 0;
        /* An entry or extension without data and padding is complete without further input. */
        while (*used < n || (r->state == DATA && r->left == 0) || (r->state == SKIP && r->left == 0) ||
               (r->state == EXT && r->left == 0) || r->state == DEAD)
                if (step(r, data, n, used, ev))
                        return;
        *ev = (struct tar_event) { .type = TAR_NEED_DATA };
}
