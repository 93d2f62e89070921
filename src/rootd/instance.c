/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/instance.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"

#define DEFAULT_RUN "/run/cspace"

_Static_assert((uint64_t) UID_BASE + (uint64_t) SLOT_UIDS * SLOTS_MAX * INSTANCES_MAX <= BUILD_UID_BASE,
               "ranges do not touch");
_Static_assert((uint64_t) BUILD_UID_BASE + (uint64_t) BUILD_UID_COUNT * BUILD_RANGES_MAX < 1ull << 31,
               "int32");

_Static_assert((uint64_t) BUILD_UID_BASE + (uint64_t) BUILD_UID_COUNT * BUILD_RANGES_MAX <= HISTORY_UID_BASE,
               "ranges do not touch");
_Static_assert((uint64_t) HISTORY_UID_BASE + (uint64_t) HISTORY_UIDS * INSTANCES_MAX <= TOKEN_UID_BASE, "ranges do not touch");
_Static_assert((uint64_t) TOKEN_UID_BASE + (uint64_t) TOKEN_UIDS * INSTANCES_MAX < 1ull << 31, "int32");

/*
 * Record locks of the classic kind: they belong to the process, so they end with it whatever its
 * children still hold open. (They would also end with the close of any other descriptor of the file:
 * there is none.)
 */
static int set_lock(int fd, short type, unsigned byte) {
        struct flock l = { .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t) byte, .l_len = 1 };
        if (fcntl(fd, F_SETLK, &l) == 0)
                return 0;
        return errno == EACCES || errno == EAGAIN ? -EADDRINUSE : -errno;
}

static unsigned first_choice(const char *run) {
        if (str_eq(run, DEFAULT_RUN))
                return 0;
        uint32_t h = 2166136261u; /* FNV-1a: spreads folders over the numbers, no more is asked of it */
        for (const char *p = run; *p; p++)
                h = (h ^ (uint8_t) *p) * 16777619u;
        return 1 + h % (INSTANCES_MAX - 1);
}

int instance_take(struct instance *i, int run_fd, const char *run_path, struct error *err) {
        _cleanup_free_ char *text = NULL;
        uint64_t number;
        i->locks = open(INSTANCE_LOCKS, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (i->locks < 0)
                return error_errno(err, errno, "cannot open \"%s\"", INSTANCE_LOCKS);
        if (fd_read_file_at(run_fd, "instance", 64, &text, NULL, NULL) == 0) {
                text[strcspn(text, "\n")] = 0;
                if (str_to_u64(text, INSTANCES_MAX - 1, &number) < 0)
                        return error_set(err, -EINVAL, "\"%s/rootd/instance\" holds no instance number",
                                         run_path);
                int r = set_lock(i->locks, F_WRLCK, (unsigned) number);
                if (r < 0)
                        return error_errno(err, r, "instance %s of \"%s\" is taken", text, run_path);
                i->number = (unsigned) number;
                return 0;
        }
        unsigned n = first_choice(run_path);
        for (unsigned tries = 0; tries < INSTANCES_MAX; tries++, n = n + 1 < INSTANCES_MAX ? n + 1 : 1) {
                int r = set_lock(i->locks, F_WRLCK, n);
                if (r == -EADDRINUSE)
                        continue;
                if (r < 0)
                        return error_errno(err, r, "cannot take an instance number");
                char line[16];
                int len = snprintf(line, sizeof line, "%u\n", n);
                i->number = n;
                return fd_replace_file_at(run_fd, "instance", line, (size_t) len, 0644, err);
        }
        return error_set(err, -EBUSY, "all %u instance numbers are taken", INSTANCES_MAX);
}

void instance_drop(struct instance *i) {
        i->locks = fd_close(i->locks);
}

uid_t instance_warden_uid(const struct instance *i, unsigned slot) {
        return UID_BASE + (i->number * SLOTS_MAX + slot) * SLOT_UIDS;
}

uid_t instance_vm_uid(const struct instance *i, unsigned slot) {
        return instance_warden_uid(i, slot) + 1;
}

uid_t instance_gateway_uid(const struct instance *i, unsigned slot) {
        return instance_warden_uid(i, slot) + 2;
}

uid_t instance_history_uid(const struct instance *i, unsigned n) {
        return HISTORY_UID_BASE + i->number * HISTORY_UIDS + n;
}

uid_t instance_token_uid(const struct instance *i, unsigned n) {
        return TOKEN_UID_BASE + i->number * TOKEN_UIDS + n;
}

int build_range_take(struct instance *i, unsigned *ret_range, uid_t *ret_base, struct error *err) {
        for (unsigned n = 0; n < BUILD_RANGES_MAX; n++) {
                if (i->building[n])
                        continue;
                int r = set_lock(i->locks, F_WRLCK, INSTANCES_MAX + n);
                if (r == -EADDRINUSE)
                        continue;
                if (r < 0)
                        return error_errno(err, r, "cannot take a range of user ids");
                i->building[n] = true;
                *ret_range = n;
                *ret_base = BUILD_UID_BASE + n * BUILD_UID_COUNT;
                return 0;
        }
        return error_set(err, -EBUSY, "all %u ranges of user ids are in use", BUILD_RANGES_MAX);
}

void build_range_drop(struct instance *i, unsigned range) {
        (void) set_lock(i->locks, F_UNLCK, INSTANCES_MAX + range);
        i->building[range] = false;
}
