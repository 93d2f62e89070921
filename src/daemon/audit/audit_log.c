/* SPDX-License-Identifier: Apache-2.0 */

#include "audit_log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "audit_read.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/str.h"
#include "map.h"

#define FOLDER_MODE 0700
#define FILE_MODE 0600
#define PATH_SIZE (ID_SIZE + AUDIT_SEGMENT_NAME_SIZE)

/* What there is of one sandbox. */
struct entry {
        char id[ID_SIZE];
        uint64_t first, last; /* segments; 0: none */
        uint64_t bytes;       /* of all segments */
        uint64_t last_bytes;  /* of the last one */
        int fd;               /* of the last one, until it is synced */
        bool torn;            /* the last one ends with a part of a line, which readers leave alone: begin another */
};

struct audit_log {
        int dirfd;
        uint64_t sandbox_bytes, total_bytes, segment_bytes;
        uint64_t bytes;
        struct map *entries;
};

int audit_log_dirfd(const struct audit_log *l) {
        return l->dirfd;
}

uint64_t audit_log_bytes(const struct audit_log *l) {
        return l->bytes;
}

static void path_of(char out[PATH_SIZE], const char *id, uint64_t segment) {
        (void) snprintf(out, PATH_SIZE, "%s/%010llu.jsonl", id, (unsigned long long) segment % (AUDIT_SEGMENT_LAST + 1));
}

/* ---- entries ------------------------------------------------------------------------------- */

static void entry_free(struct entry *e) {
        (void) fd_close(e->fd);
        free(e);
}

static struct entry *entry_get(struct audit_log *l, const char *id, bool make) {
        struct entry *e = map_get(l->entries, id);
        if (e || !make)
                return e;
        e = calloc(1, sizeof *e);
        if (!e)
                return NULL;
        e->fd = -EBADF;
        if (str_copy(e->id, sizeof e->id, id) < 0 || map_put(l->entries, e->id, e) < 0) {
                free(e);
                return NULL;
        }
        return e;
}

/* What an earlier cspaced left: also a line that a power cut tore apart. */
static int entry_look(struct audit_log *l, struct entry *e) {
        uint64_t segments[AUDIT_SEGMENTS_MAX];
        size_t n = 0;
        int r = audit_segments(l->dirfd, e->id, segments, &n);
        for (size_t i = 0; r >= 0 && i < n; i++) {
                char path[PATH_SIZE], tail = '\n';
                struct stat st;
                path_of(path, e->id, segments[i]);
                _cleanup_fd_ int fd = fd_open_beneath(l->dirfd, path, O_RDONLY | O_CLOEXEC, 0, NULL);
                if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
                        return -EIO;
                e->first = i == 0 ? segments[i] : e->first;
                e->last = segments[i];
                e->last_bytes = (uint64_t) st.st_size;
                e->bytes += e->last_bytes;
                e->torn = st.st_size > 0 && pread(fd, &tail, 1, st.st_size - 1) == 1 && tail != '\n';
        }
        l->bytes += e->bytes;
        return r;
}

static int look(struct audit_log *l, struct error *err) {
        int fd = openat(l->dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
        const struct dirent *de;
        int r = 0;
        if (!d) {
                (void) fd_close(fd);
                return error_errno(err, EIO, "could not look at the audit log");
        }
        while (r >= 0 && (de = readdir(d))) {
                if (!id_valid(de->d_name))
                        continue;
                struct entry *e = entry_get(l, de->d_name, true);
                r = e ? entry_look(l, e) : -ENOMEM;
        }
        (void) closedir(d);
        return r < 0 ? error_errno(err, r, "could not look at the audit log") : 0;
}

/* ---- bounds -------------------------------------------------------------------------------- */

static void drop_oldest(struct audit_log *l, struct entry *e) {
        char path[PATH_SIZE];
        struct stat st;
        path_of(path, e->id, e->first);
        uint64_t size = fstatat(l->dirfd, path, &st, AT_SYMLINK_NOFOLLOW) == 0 ? (uint64_t) st.st_size : 0;
        if (unlinkat(l->dirfd, path, 0) < 0 && errno != ENOENT)
                return; /* tried again at the next append */
        if (size > e->bytes)
                size = e->bytes;
        e->bytes -= size;
        l->bytes -= size;
        if (e->first != e->last) {
                e->first++;
                return;
        }
        e->fd = fd_close(e->fd);
        e->first = e->last + 1; /* numbers are not used twice: cursors hold them */
        e->last_bytes = 0;
        e->torn = false;
}

static struct entry *largest(struct audit_log *l) {
        struct entry *best = NULL, *e;
        size_t pos = 0;
        while ((e = map_next(l->entries, &pos)))
                if (e->bytes > 0 && (!best || e->bytes > best->bytes))
                        best = e;
        return best;
}

/* Makes room for n more bytes of e. */
static void make_room(struct audit_log *l, struct entry *e, size_t n) {
        while (e->first < e->last && e->bytes + n > l->sandbox_bytes)
                drop_oldest(l, e);
        /* Never what has just been begun: the newest segment of e stays. */
        for (struct entry *big; l->bytes + n > l->total_bytes && (big = largest(l));) {
                uint64_t before = l->bytes;
                if (big == e && e->first == e->last)
                        break;
                drop_oldest(l, big);
                if (l->bytes == before)
                        break;
        }
}

/* ---- writing ------------------------------------------------------------------------------- */

static int open_segment(struct audit_log *l, struct entry *e, size_t n, struct error *err) {
        char path[PATH_SIZE];
        bool fresh = e->last == 0 || e->first > e->last || e->torn || (e->last_bytes > 0 && e->last_bytes + n > l->segment_bytes);
        if (!fresh && e->fd >= 0)
                return 0;
        if (e->last == 0 && mkdirat(l->dirfd, e->id, FOLDER_MODE) < 0 && errno != EEXIST)
                return error_errno(err, errno, "could not make a folder for the audit log");
        uint64_t segment = fresh ? e->last + 1 : e->last;
        if (segment > AUDIT_SEGMENT_LAST)
                return error_set(err, -EOVERFLOW, "the audit log has no numbers left");
        path_of(path, e->id, segment);
        int fd = fd_open_beneath(l->dirfd, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, FILE_MODE, err);
        if (fd < 0)
                return fd;
        if (fresh) { /* its name is as durable as its lines */
                _cleanup_fd_ int dir = fd_open_beneath(l->dirfd, e->id, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0, NULL);
                if (dir < 0 || fsync(dir) < 0 || (e->last == 0 && fsync(l->dirfd) < 0)) {
                        (void) fd_close(fd);
                        return error_set(err, -EIO, "could not store a new part of the audit log");
                }
                if (e->fd >= 0 && fdatasync(e->fd) < 0) {
                        (void) fd_close(fd);
                        return error_set(err, -EIO, "could not store a part of the audit log");
                }
                if (e->last == 0)
                        e->first = segment;
                e->last = segment;
                e->last_bytes = 0;
                e->torn = false;
        }
        (void) fd_close(e->fd);
        e->fd = fd;
        return 0;
}

static int write_lines(struct audit_log *l, struct entry *e, const void *lines, size_t n, struct error *err) {
        int r = fd_write_all(e->fd, lines, n, err);
        if (r < 0) {
                e->torn = ftruncate(e->fd, (off_t) e->last_bytes) < 0;
                return r;
        }
        e->last_bytes += n;
        e->bytes += n;
        l->bytes += n;
        return 0;
}

int audit_log_append(struct audit_log *l, const char *id, const void *lines, size_t n, struct error *err) {
        if (!id_valid(id))
                return error_set(err, -EINVAL, "not the id of a sandbox");
        struct entry *e = entry_get(l, id, true);
        if (!e)
                return error_set(err, -ENOMEM, "out of memory");
        if (n == 0)
                return 0;
        make_room(l, e, n);
        int r = open_segment(l, e, n, err);
        return r < 0 ? r : write_lines(l, e, lines, n, err);
}

int audit_log_sync(struct audit_log *l, const char *id, struct error *err) {
        struct entry *e = entry_get(l, id, false);
        if (!e || e->fd < 0)
                return 0;
        int r = fdatasync(e->fd) < 0 ? error_errno(err, errno, "could not store the audit log") : 0;
        e->fd = fd_close(e->fd);
        return r;
}

/* ---- end ----------------------------------------------------------------------------------- */

void audit_log_retire(struct audit_log *l, const char *id) {
        if (id_valid(id))
                (void) utimensat(l->dirfd, id, NULL, AT_SYMLINK_NOFOLLOW);
}

static int64_t touched_ms(const struct audit_log *l, const struct entry *e) {
        char path[PATH_SIZE];
        struct stat folder, file;
        path_of(path, e->id, e->last);
        if (fstatat(l->dirfd, e->id, &folder, AT_SYMLINK_NOFOLLOW) < 0)
                return INT64_MIN;
        int64_t s = folder.st_mtim.tv_sec;
        if (fstatat(l->dirfd, path, &file, AT_SYMLINK_NOFOLLOW) == 0 && file.st_mtim.tv_sec > s)
                s = file.st_mtim.tv_sec;
        return s * 1000;
}

size_t audit_log_sweep(struct audit_log *l, int64_t before_ms, bool (*wanted)(void *arg, const char *id), void *arg) {
        struct entry *e;
        size_t pos = 0, n = 0;
        while ((e = map_next(l->entries, &pos))) {
                if (wanted(arg, e->id) || touched_ms(l, e) >= before_ms ||
                    fd_remove_tree_at(l->dirfd, e->id, NULL) < 0)
                        continue;
                l->bytes -= e->bytes;
                (void) map_remove(l->entries, e->id);
                entry_free(e);
                n++;
        }
        return n;
}

int audit_log_open(const char *path, uint64_t sandbox_bytes, uint64_t total_bytes, struct audit_log **ret,
                   struct error *err) {
        if (mkdir(path, FOLDER_MODE) < 0 && errno != EEXIST)
                return error_errno(err, errno, "could not make \"%s\"", path);
        struct audit_log *l = calloc(1, sizeof *l);
        if (!l)
                return error_set(err, -ENOMEM, "out of memory");
        l->sandbox_bytes = sandbox_bytes;
        l->total_bytes = total_bytes;
        l->segment_bytes = sandbox_bytes / AUDIT_SEGMENTS;
        if (l->segment_bytes < AUDIT_SEGMENT_MIN)
                l->segment_bytes = AUDIT_SEGMENT_MIN;
        l->entries = map_new();
        l->dirfd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int r = l->dirfd < 0 ? error_errno(err, errno, "could not open \"%s\"", path)
                             : l->entries ? look(l, err) : error_set(err, -ENOMEM, "out of memory");
        if (r < 0) {
                audit_log_free(l);
                return r;
        }
        *ret = l;
        return 0;
}

void audit_log_free(struct audit_log *l) {
        if (!l)
                return;
        struct entry *e;
        size_t pos = 0;
        while (l->entries && (e = map_next(l->entries, &pos))) {
                (void) map_remove(l->entries, e->id);
                entry_free(e);
        }
        map_free(l->entries);
        (void) fd_close(l->dirfd);
        free(l);
}
