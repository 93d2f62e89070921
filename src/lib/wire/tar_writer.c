/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Plain ustar where that has room; else a pax header before it with the records that have none. A
 * name in a pax header is UTF-8 by its definition, or bytes when the record hdrcharset says so.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "wire/tar_header.h"

#define OCTAL_SIZE_MAX 077777777777ULL /* 11 digits */
#define OCTAL_ID_MAX 07777777ULL

static const char type_flags[] = {
        [TAR_FILE] = '0',    [TAR_DIR] = '5',      [TAR_SYMLINK] = '2', [TAR_HARDLINK] = '1',
        [TAR_CHARDEV] = '3', [TAR_BLOCKDEV] = '4', [TAR_FIFO] = '6',
};

static void put_octal(uint8_t block[TAR_BLOCK], size_t at, size_t n, uint64_t v) {
        block[at + n - 1] = '\0';
        for (size_t i = n - 1; i-- > 0; v >>= 3)
                block[at + i] = (uint8_t) ('0' + (v & 7));
}

static void put_text(uint8_t block[TAR_BLOCK], size_t at, size_t n, const char *s) {
        size_t len = strnlen(s, n);

        memcpy(block + at, s, len);
}

static int put_header(struct buf *out, char type, const char *name, const char *link,
                      const struct tar_entry *e, uint64_t size) {
        uint8_t block[TAR_BLOCK] = { 0 };
        bool old = e->mtime_s < 0 || (uint64_t) e->mtime_s > OCTAL_SIZE_MAX;

        put_text(block, TAR_F_NAME, name);
        put_octal(block, TAR_F_MODE, e->mode & 07777);
        put_octal(block, TAR_F_UID, e->uid > OCTAL_ID_MAX ? 0 : e->uid);
        put_octal(block, TAR_F_GID, e->gid > OCTAL_ID_MAX ? 0 : e->gid);
        put_octal(block, TAR_F_SIZE, size > OCTAL_SIZE_MAX ? 0 : size);
        put_octal(block, TAR_F_MTIME, old ? 0 : (uint64_t) e->mtime_s);
        block[TAR_F_TYPE] = (uint8_t) type;
        put_text(block, TAR_F_LINK, link);
        memcpy(block + 257,
               "ustar\0"
               "00",
               8);
        put_octal(block, 148, 7, tar_header_sum(block));
        block[155] = ' ';
        return buf_append(out, block, sizeof block);
}

/* "LENGTH KEY=VALUE\n", where LENGTH counts its own digits. */
static int put_bytes(struct buf *pax, const char *key, const void *value, size_t n) {
        size_t rest = strlen(key) + n + 3, len = rest, digits = 0;

        for (size_t before = SIZE_MAX; before != len;) {
                before = len;
                digits = (size_t) snprintf(NULL, 0, "%zu", len);
                len = rest + digits;
        }
        int r = buf_printf(pax, "%zu %s=", len, key);
        if (r >= 0)
                r = buf_append(pax, value, n);
        return r < 0 ? r : buf_append(pax, "\n", 1);
}

static int put_record(struct buf *pax, const char *key, const char *value) {
        return put_bytes(pax, key, value, strlen(value));
}

static int put_xattrs(struct buf *pax, const struct tar_entry *e) {
        char key[sizeof "SCHILY.xattr." + TAR_XATTR_NAME_MAX];
        int r = 0;

        for (size_t i = 0; r == 0 && i < e->n_xattrs; i++) {
                const struct tar_xattr *a = &e->xattrs[i];
                if (!*a->name || strlen(a->name) > TAR_XATTR_NAME_MAX || strchr(a->name, '='))
                        return -EINVAL; /* a name with "=" has no place in a record */
                snprintf(key, sizeof key, "SCHILY.xattr.%s", a->name);
                r = put_bytes(pax, key, a->value, a->n);
        }
        return r;
}

static int put_number(struct buf *pax, const char *key, uint64_t v) {
        char text[24];

        snprintf(text, sizeof text, "%llu", (unsigned long long) v);
        return put_record(pax, key, text);
}

static int put_mtime(struct buf *pax, int64_t s, uint32_t ns) {
        char text[48];
        bool negative = s < 0;

        if (negative && ns > 0) {
                s += 1;
                ns = 1000000000 - ns;
        }
        int n = snprintf(text, sizeof text, "%s%lld", negative ? "-" : "", (long long) (s < 0 ? -s : s));
        if (ns > 0)
                snprintf(text + n, sizeof text - (size_t) n, ".%09u", ns);
        return put_record(pax, "mtime", text);
}

static int collect(struct buf *pax, const struct tar_entry *e, size_t name_max) {
        bool long_name = strlen(e->name) > name_max, long_link = strlen(e->link) > 100;
        int r = 0;

        if ((long_name && !str_is_utf8(e->name, strlen(e->name))) ||
            (long_link && !str_is_utf8(e->link, strlen(e->link))))
                r = put_record(pax, "hdrcharset", "BINARY");
        if (r == 0 && long_name)
                r = put_record(pax, "path", e->name);
        if (r == 0 && long_link)
                r = put_record(pax, "linkpath", e->link);
        if (r == 0 && e->size > OCTAL_SIZE_MAX)
                r = put_number(pax, "size", e->size);
        if (r == 0 && e->uid > OCTAL_ID_MAX)
                r = put_number(pax, "uid", e->uid);
        if (r == 0 && e->gid > OCTAL_ID_MAX)
                r = put_number(pax, "gid", e->gid);
        if (r == 0 && (e->mtime_ns > 0 || e->mtime_s < 0 || (uint64_t) e->mtime_s > OCTAL_SIZE_MAX))
                r = put_mtime(pax, e->mtime_s, e->mtime_ns);
        return r < 0 ? r : put_xattrs(pax, e);
}

int tar_write_entry(struct buf *out, const struct tar_entry *e) {
        _cleanup_buf_ struct buf pax = BUF_INIT(TAR_EXT_MAX);
        const char *link = e->link ? e->link : "";
        struct tar_entry copy = *e;

        if (!*e->name || strlen(e->name) > TAR_NAME_MAX || strlen(link) > TAR_NAME_MAX ||
            e->size > TAR_SIZE_MAX || e->mtime_ns > 999999999 || e->type >= TAR_OTHER ||
            (e->type != TAR_FILE && e->size > 0) || e->n_xattrs > TAR_XATTRS_MAX)
                return -EINVAL;
        copy.link = link;
        int r = collect(&pax, &copy, 100);
        if (r == 0 && pax.len > 0) {
                r = put_header(out, 'x', "@PaxHeader", "", &copy, pax.len);
                if (r == 0)
                        r = buf_append(out, buf_data(&pax), pax.len);
                if (r == 0)
                        r = tar_write_padding(out, pax.len);
        }
        return r < 0 ? r : put_header(out, type_flags[e->type], e->name, link, &copy, e->size);
}

int tar_write_padding(struct buf *out, uint64_t size) {
        static const uint8_t zeros[TAR_BLOCK];

        return buf_append(out, zeros, (TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK);
}

int tar_write_end(struct buf *out) {
        static const uint8_t zeros[2 * TAR_BLOCK];

        return buf_append(out, zeros, sizeof zeros);
}
