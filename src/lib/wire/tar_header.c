/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/tar_header.h"

#include <string.h>

#include "base/str.h"

bool tar_header_is_zero(const uint8_t block[TAR_BLOCK]) {
        for (size_t i = 0; i < TAR_BLOCK; i++)
                if (block[i])
                        return false;
        return true;
}

bool tar_header_is_extension(char type) {
        return type == 'x' || type == 'g' || type == 'X' || type == 'L' || type == 'K' || type == 'V';
}

uint32_t tar_header_sum(const uint8_t block[TAR_BLOCK]) {
        uint32_t sum = 0;

        for (size_t i = 0; i < TAR_BLOCK; i++)
                sum += i >= 148 && i < 156 ? ' ' : block[i];
        return sum;
}

/* Octal digits between blanks and NULs, or GNU's base 256 (first bit set; negative ones refused). */
static bool parse_number(const uint8_t *block, size_t at, size_t n, uint64_t *ret) {
        const uint8_t *p = block + at;
        uint64_t v = 0;
        size_t i = 0;

        if (p[0] & 0x80) {
                if (p[0] & 0x7f)
                        return false; /* negative, or more than 64 bits could hold */
                for (i = 1; i < n; i++) {
                        if (v >> 56)
                                return false;
                        v = v << 8 | p[i];
                }
                *ret = v;
                return true;
        }
        while (i < n && p[i] == ' ')
                i++;
        for (; i < n && p[i] >= '0' && p[i] <= '7'; i++)
                v = v << 3 | (uint64_t) (p[i] - '0'); /* 12 digits at most */
        for (; i < n; i++)
                if (p[i] != ' ' && p[i] != '\0')
                        return false;
        *ret = v;
        return true;
}

/* Times before 1970 are written in base 256. */
static bool parse_time(const uint8_t *block, size_t at, size_t n, int64_t *ret) {
        const uint8_t *p = block + at;
        uint64_t v = UINT64_MAX;

        if (p[0] == 0xff) {
                for (size_t i = 1; i < n; i++)
                        v = v << 8 | p[i];
                *ret = (int64_t) v;
                return *ret < 0;
        }
        if (!parse_number(block, at, n, &v) || v > INT64_MAX)
                return false;
        *ret = (int64_t) v;
        return true;
}

static void copy_field(char *out, const uint8_t *block, size_t at, size_t n) {
        size_t len = strnlen((const char *) block + at, n);

        memcpy(out, block + at, len);
        out[len] = '\0';
}

static enum tar_type type_of(char type) {
        switch (type) {
        case '\0':
        case '0':
        case '7':
                return TAR_FILE;
        case '1':
                return TAR_HARDLINK;
        case '2':
                return TAR_SYMLINK;
        case '3':
                return TAR_CHARDEV;
        case '4':
                return TAR_BLOCKDEV;
        case '5':
                return TAR_DIR;
        case '6':
                return TAR_FIFO;
        default:
                return TAR_OTHER;
        }
}

const char *tar_header_parse(const uint8_t block[TAR_BLOCK], struct tar_entry *e, char *name, char *link,
                             char *ret_type) {
        uint64_t sum, mode;
        char type = (char) block[TAR_F_TYPE];
        char prefix[156], base[101];

        if (!parse_number(block, TAR_F_CHECKSUM, &sum) || sum != tar_header_sum(block))
                return "a header's checksum is wrong: this is no tar archive, or it is damaged";
        if (!parse_number(block, TAR_F_MODE, &mode) || !parse_number(block, TAR_F_UID, &e->uid) ||
            !parse_number(block, TAR_F_GID, &e->gid) || !parse_number(block, TAR_F_SIZE, &e->size) ||
            !parse_time(block, TAR_F_MTIME, &e->mtime_s))
                return "a header has a number that is none";
        if (e->size > TAR_SIZE_MAX)
                return "a size is over the limit";
        if (type == 'S')
                return "sparse files are not supported; write the archive without --sparse";
        if (type == 'M')
                return "archives of several volumes are not supported";
        copy_field(base, block, TAR_F_NAME);
        copy_field(link, block, TAR_F_LINK);
        prefix[0] = '\0';
        if (memcmp(block + 257, "ustar\0", 6) == 0)
                copy_field(prefix, block, TAR_F_PREFIX);
        size_t pn = strlen(prefix), bn = strlen(base);
        memcpy(name, prefix, pn);
        if (pn > 0)
                name[pn++] = '/';
        memcpy(name + pn, base, bn + 1);
        e->mode = (uint32_t) mode & 07777;
        e->mtime_ns = 0;
        e->type = type_of(type);
        *ret_type = type;
        return NULL;
}

/* --- extensions ------------------------------------------------------------------------------------ */

static const char *set_name(char *out, bool *has, const char *v, size_t n) {
        if (n > TAR_NAME_MAX)
                return "a name is longer than the limit";
        if (memchr(v, '\0', n))
                return "a name has a NUL byte in it";
        memcpy(out, v, n);
        out[n] = '\0';
        *has = true;
        return NULL;
}

static bool digits(const char *v, size_t n, uint64_t *ret) {
        char text[24];

        if (n == 0 || n >= sizeof text)
                return false;
        memcpy(text, v, n);
        text[n] = '\0';
        return str_to_u64(text, UINT64_MAX, ret) == 0;
}

/* "1700000000.123456789", "-1.5" */
static bool parse_pax_time(const char *v, size_t n, int64_t *ret_s, uint32_t *ret_ns) {
        bool negative = n > 0 && v[0] == '-';
        uint64_t s;
        uint32_t ns = 0, unit = 100000000;

        v += negative;
        n -= negative;
        const char *dot = memchr(v, '.', n);
        size_t whole = dot ? (size_t) (dot - v) : n;
        if (!digits(v, whole, &s) || s > INT64_MAX / 2)
                return false;
        for (size_t i = whole + 1; i < n; i++, unit /= 10) {
                if (v[i] < '0' || v[i] > '9')
                        return false;
                ns += (uint32_t) (v[i] - '0') * unit;
        }
        *ret_s = negative ? -(int64_t) s : (int64_t) s;
        if (negative && ns > 0) {
                *ret_s -= 1;
                ns = 1000000000 - ns;
        }
        *ret_ns = ns;
        return true;
}

void tar_ext_init(struct tar_ext *x) {
        memset(x, 0, sizeof *x);
        x->bytes = BUF_INIT(TAR_XATTRS_BYTES_MAX);
}

void tar_ext_clear(struct tar_ext *x) {
        buf_done(&x->bytes);
        tar_ext_init(x);
}

static const char *take_xattr(struct tar_ext *x, const char *name, size_t nn, const char *v, size_t vn) {
        if (nn == 0 || nn > TAR_XATTR_NAME_MAX || memchr(name, '\0', nn))
                return "an extended attribute has a name that is none";
        if (x->n_xattrs == TAR_XATTRS_MAX)
                return "an entry has more extended attributes than the limit";
        size_t at = x->bytes.len;
        if (buf_append(&x->bytes, name, nn) < 0 || buf_append(&x->bytes, "", 1) < 0 || buf_append(&x->bytes, v, vn) < 0)
                return "an entry has larger extended attributes than the limit";
        x->xattrs[x->n_xattrs].name_at = at;
        x->xattrs[x->n_xattrs].value_at = at + nn + 1;
        x->xattrs[x->n_xattrs++].n = vn;
        return NULL;
}

static bool key_is(const char *key, size_t n, const char *name) {
        return strlen(name) == n && memcmp(key, name, n) == 0;
}

static const char *take_record(struct tar_ext *x, const char *key, size_t kn, const char *v, size_t vn) {
        static const char bad[] = "a pax record has a number that is none";

        if (key_is(key, kn, "path"))
                return set_name(x->name, &x->has_name, v, vn);
        if (key_is(key, kn, "linkpath"))
                return set_name(x->link, &x->has_link, v, vn);
        if (key_is(key, kn, "size"))
                return (x->has_size = digits(v, vn, &x->size)) ? NULL : bad;
        if (key_is(key, kn, "uid"))
                return (x->has_uid = digits(v, vn, &x->uid)) ? NULL : bad;
        if (key_is(key, kn, "gid"))
                return (x->has_gid = digits(v, vn, &x->gid)) ? NULL : bad;
        if (key_is(key, kn, "mtime"))
                return (x->has_mtime = parse_pax_time(v, vn, &x->mtime_s, &x->mtime_ns)) ? NULL : bad;
        if (kn > 13 && memcmp(key, "SCHILY.xattr.", 13) == 0)
                return take_xattr(x, key + 13, kn - 13, v, vn);
        if (kn > 11 && memcmp(key, "GNU.sparse.", 11) == 0)
                return "sparse files are not supported; write the archive without --sparse";
        return NULL;
}

/* Records "LENGTH KEY=VALUE\n"; LENGTH counts all of the record. */
static const char *parse_pax(struct tar_ext *x, const char *p, size_t n) {
        static const char bad[] = "a pax header is malformed";

        while (n > 0) {
                const char *blank = memchr(p, ' ', n < 20 ? n : 20);
                uint64_t len;

                if (!blank || !digits(p, (size_t) (blank - p), &len) || len > n)
                        return bad;
                size_t head = (size_t) (blank + 1 - p);
                if (len < head + 2 || p[len - 1] != '\n')
                        return bad;
                const char *key = blank + 1, *end = p + len - 1;
                const char *eq = memchr(key, '=', (size_t) (end - key));
                if (!eq || eq == key)
                        return bad;
                const char *reason =
                        take_record(x, key, (size_t) (eq - key), eq + 1, (size_t) (end - eq - 1));
                if (reason)
                        return reason;
                p += len;
                n -= (size_t) len;
        }
        return NULL;
}

const char *tar_ext_parse(struct tar_ext *x, char type, const char *data, size_t n) {
        switch (type) {
        case 'x':
        case 'X':
                return parse_pax(x, data, n);
        case 'L': /* GNU: the name, with a NUL at its end */
        case 'K':
                while (n > 0 && data[n - 1] == '\0')
                        n--;
                return type == 'L' ? set_name(x->name, &x->has_name, data, n)
                                   : set_name(x->link, &x->has_link, data, n);
        default:
                return NULL; /* a global header or a volume's label: nothing that an entry needs */
        }
}

const char *tar_ext_apply(const struct tar_ext *x, struct tar_entry *e, char *name, char *link, struct tar_xattr *xattrs) {
        const uint8_t *bytes = buf_data(&x->bytes);

        for (size_t i = 0; i < x->n_xattrs; i++)
                xattrs[i] = (struct tar_xattr) { .name = (const char *) bytes + x->xattrs[i].name_at,
                                                 .value = bytes + x->xattrs[i].value_at,
                                                 .n = x->xattrs[i].n };
        e->xattrs = x->n_xattrs > 0 ? xattrs : NULL;
        e->n_xattrs = x->n_xattrs;
        if (x->has_name)
                memcpy(name, x->name, strlen(x->name) + 1);
        /* As before POSIX. Not sooner: a name that an extension replaces may be cut after a slash. */
        if (e->type == TAR_FILE && str_has_suffix(name, "/"))
                e->type = TAR_DIR;
        if (x->has_link)
                memcpy(link, x->link, strlen(x->link) + 1);
        if (x->has_size)
                e->size = x->size;
        if (x->has_uid)
                e->uid = x->uid;
        if (x->has_gid)
                e->gid = x->gid;
        if (x->has_mtime) {
                e->mtime_s = x->mtime_s;
                e->mtime_ns = x->mtime_ns;
        }
        if (e->size > TAR_SIZE_MAX)
                return "a size is over the limit";
        if (!*name)
                return "an entry has no name";
        if ((e->type == TAR_SYMLINK || e->type == TAR_HARDLINK) && !*link)
                return "a link has no target";
        if (e->type != TAR_FILE && e->type != TAR_OTHER && e->size > 0)
                return "something that is no file has data";
        if (e->type != TAR_SYMLINK && e->type != TAR_HARDLINK)
                link[0] = '\0';
        return NULL;
}
