/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The rows below are the file: writer and reader both walk them. An unknown or missing key is an
 * error; the reader of a record written by another version must not guess what to remove.
 */
#include "rootd/record.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/str.h"

enum kind { KIND_STATE, KIND_STR, KIND_U32, KIND_U64 };

static const struct row {
        const char *key;
        enum kind kind;
        size_t offset, cap;
} rows[] = {
#define STR(m) { #m, KIND_STR, offsetof(struct record, m), sizeof((struct record *) 0)->m }
#define U32(m) { #m, KIND_U32, offsetof(struct record, m), 0 }
#define U64(m) { #m, KIND_U64, offsetof(struct record, m), 0 }
        { "state", KIND_STATE, offsetof(struct record, state), 0 },
        STR(id), STR(mode), STR(digest), STR(engine),
        U32(memory_mb), U32(cpus), U64(disk_bytes),
        U32(slot), U32(warden_uid), U32(vm_uid), U32(gateway_uid),
        U32(warden_pid), U32(vm_pid), U32(gateway_pid), U64(warden_start), U64(vm_start), U64(gateway_start),
#undef STR
#undef U32
#undef U64
};

static const char *const state_names[] = { "placing", "live", "removing" };
_Static_assert(ARRAY_SIZE(state_names) == RECORD_STATE_MAX_, "one name per state");
_Static_assert(ARRAY_SIZE(rows) <= 32, "one bit per row");

static int format(const struct record *r, struct buf *b) {
        int res = 0;
        for (size_t i = 0; i < ARRAY_SIZE(rows) && res == 0; i++) {
                const void *at = (const char *) r + rows[i].offset;
                uint32_t u32;
                uint64_t u64;
                switch (rows[i].kind) {
                case KIND_STATE:
                        res = buf_printf(b, "state=%s\n", state_names[r->state]);
                        break;
                case KIND_STR:
                        res = buf_printf(b, "%s=%s\n", rows[i].key, (const char *) at);
                        break;
                case KIND_U32:
                        memcpy(&u32, at, sizeof u32);
                        res = buf_printf(b, "%s=%u\n", rows[i].key, u32);
                        break;
                case KIND_U64:
                        memcpy(&u64, at, sizeof u64);
                        res = buf_printf(b, "%s=%llu\n", rows[i].key, (unsigned long long) u64);
                        break;
                }
        }
        return res;
}

/* No fsync: after a power cut there are no processes, namespaces or cgroups either. */
int record_write(int dirfd, const struct record *r, struct error *err) {
        _cleanup_buf_ struct buf b = BUF_INIT(RECORD_SIZE_MAX);
        if (format(r, &b) < 0)
                return error_set(err, -ENOMEM, "out of memory");
        int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW;
        _cleanup_fd_ int fd = openat(dirfd, RECORD_NAME ".new", flags, 0600);
        if (fd < 0)
                return error_errno(err, errno, "cannot write the placement record");
        int res = fd_write_all(fd, buf_data(&b), b.len, err);
        if (res < 0)
                return error_wrap(err, "cannot write the placement record");
        if (renameat(dirfd, RECORD_NAME ".new", dirfd, RECORD_NAME) < 0)
                return error_errno(err, errno, "cannot write the placement record");
        return 0;
}

static int parse_value(const struct row *row, const char *value, struct record *r) {
        void *at = (char *) r + row->offset;
        uint64_t u64;
        uint32_t u32;
        switch (row->kind) {
        case KIND_STATE:
                for (unsigned s = 0; s < RECORD_STATE_MAX_; s++)
                        if (str_eq(value, state_names[s])) {
                                r->state = (enum record_state) s;
                                return 0;
                        }
                return -EINVAL;
        case KIND_STR:
                return str_copy(at, row->cap, value);
        case KIND_U32:
                if (str_to_u64(value, UINT32_MAX, &u64) < 0)
                        return -EINVAL;
                u32 = (uint32_t) u64;
                memcpy(at, &u32, sizeof u32);
                return 0;
        case KIND_U64:
                if (str_to_u64(value, UINT64_MAX, &u64) < 0)
                        return -EINVAL;
                memcpy(at, &u64, sizeof u64);
                return 0;
        }
        return -EINVAL;
}

int record_parse(const char *text, struct record *ret, struct error *err) {
        struct record r = {};
        uint32_t seen = 0;
        _cleanup_free_ char *copy = strdup(text);
        if (!copy)
                return error_set(err, -ENOMEM, "out of memory");
        char *save = NULL;
        for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
                char *eq = strchr(line, '=');
                if (!eq)
                        return error_set(err, -EBADMSG, "placement record has the line \"%s\"", line);
                *eq = 0;
                size_t i = 0;
                while (i < ARRAY_SIZE(rows) && !str_eq(rows[i].key, line))
                        i++;
                if (i == ARRAY_SIZE(rows) || (seen & 1u << i) || parse_value(&rows[i], eq + 1, &r) < 0)
                        return error_set(err, -EBADMSG, "placement record has a wrong \"%s\"", line);
                seen |= 1u << i;
        }
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
                if (!(seen & 1u << i))
                        return error_set(err, -EBADMSG, "placement record lacks \"%s\"", rows[i].key);
        if (!id_valid(r.id))
                return error_set(err, -EBADMSG, "placement record has a wrong \"id\"");
        *ret = r;
        return 0;
}

int record_read(int dirfd, struct record *ret, struct error *err) {
        _cleanup_free_ char *text = NULL;
        int r = fd_read_file_at(dirfd, RECORD_NAME, RECORD_SIZE_MAX, &text, NULL, err);
        return r < 0 ? r : record_parse(text, ret, err);
}
