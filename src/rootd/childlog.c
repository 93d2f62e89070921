/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/childlog.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/id.h"
#include "base/str.h"
#include "rootd/watch.h"

#define READ_BYTES 4096

struct childlog {
        int fd, writer; /* both ends are ours, so that there is no end of file when the program ends */
        struct watch *watch;
        uv_loop_t *loop;
        uv_timer_t *timer; /* runs while nothing is read */
        char program[24], id[ID_SIZE];
        char line[CHILDLOG_LINE_MAX + 1];
        size_t n;
        struct log_limit limit;
        uint64_t window_ms; /* loop time at which the present window began */
        size_t bytes;       /* read in it */
};

enum log_level childlog_parse(const char *line, const char **ret_message) {
        const char *level = strchr(line, ' '), *program = level ? strchr(level + 1, ' ') : NULL;
        const char *message = program ? strstr(program, ": ") : NULL;
        char name[8];
        enum log_level l;
        if (message && (size_t) (program - level - 1) < sizeof name) {
                memcpy(name, level + 1, (size_t) (program - level - 1));
                name[program - level - 1] = '\0';
                if (log_level_parse(name, &l) == 0) {
                        *ret_message = message + 2;
                        return l;
                }
        }
        *ret_message = line;
        return LOG_LVL_WARN;
}

static void end_line(struct childlog *l) {
        const char *message;
        unsigned dropped = 0;
        l->line[l->n] = '\0';
        if (l->n > 0 && log_limit_pass(&l->limit, CHILDLOG_LINES, &dropped)) {
                if (dropped)
                        log_warn("%s of sandbox %s: %u lines were left out", l->program, l->id, dropped);
                enum log_level level = childlog_parse(l->line, &message);
                log_at(level, "%s of sandbox %s: %s", l->program, l->id, message);
        }
        l->n = 0;
}

static void take(struct childlog *l, const char *data, size_t n) {
        for (size_t i = 0; i < n; i++)
                if (data[i] == '\n')
                        end_line(l);
                else if (l->n < CHILDLOG_LINE_MAX && data[i])
                        l->line[l->n++] = data[i];
}

static void on_readable(void *arg);

static void on_window_over(uv_timer_t *t) {
        struct childlog *l = t->data;
        struct error e = ERROR_INIT;
        if (watch_new(l->loop, l->fd, on_readable, l, &l->watch, &e) < 0)
                log_warn("%s of sandbox %s: its log is not read any more: %s", l->program, l->id, e.msg);
}

static void on_readable(void *arg) {
        struct childlog *l = arg;
        char data[READ_BYTES];
        ssize_t n = read(l->fd, data, sizeof data);
        if (n <= 0)
                return;
        uint64_t now = uv_now(l->loop);
        if (now - l->window_ms >= CHILDLOG_WINDOW_MS) {
                l->window_ms = now;
                l->bytes = 0;
        }
        l->bytes += (size_t) n;
        take(l, data, (size_t) n);
        if (l->bytes < CHILDLOG_BYTES)
                return;
        log_warn("%s of sandbox %s writes more than %d KiB to its log in %d s; the rest waits", l->program, l->id,
                 CHILDLOG_BYTES / 1024, CHILDLOG_WINDOW_MS / 1000);
        l->watch = watch_free(l->watch);
        (void) uv_timer_start(l->timer, on_window_over, l->window_ms + CHILDLOG_WINDOW_MS - now, 0);
}

/* Made by us alone: the folder is root's, and nobody else writes to it. */
static int open_fifo(int dir, const char *name, int flags) {
        struct stat st;
        _cleanup_fd_ int fd = openat(dir, name, flags | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        if (fstat(fd, &st) < 0 || !S_ISFIFO(st.st_mode))
                return -ENOTSUP;
        return fd_steal(&fd);
}

int childlog_new(uv_loop_t *loop, int dir, const char *name, const char *program, const char *id, struct childlog **ret,
                 struct error *err) {
        struct childlog *l = calloc(1, sizeof *l);
        uv_timer_t *timer = calloc(1, sizeof *timer);
        if (!l || !timer) {
                free(l);
                free(timer);
                return error_set(err, -ENOMEM, "out of memory");
        }
        (void) uv_timer_init(loop, timer);
        timer->data = l;
        *l = (struct childlog){ .fd = -EBADF, .writer = -EBADF, .loop = loop, .timer = timer, .window_ms = uv_now(loop) };
        (void) str_copy(l->program, sizeof l->program, program);
        (void) str_copy(l->id, sizeof l->id, id);
        if (mkfifoat(dir, name, 0600) == 0 || errno == EEXIST) {
                l->fd = open_fifo(dir, name, O_RDONLY);
                l->writer = l->fd < 0 ? l->fd : open_fifo(dir, name, O_WRONLY);
        } else
                l->fd = -errno;
        int r = l->fd < 0 ? l->fd : l->writer < 0 ? l->writer : 0;
        if (r < 0)
                (void) error_errno(err, r, "cannot make the FIFO \"%s\"", name);
        else
                r = watch_new(loop, l->fd, on_readable, l, &l->watch, err);
        if (r < 0) {
                childlog_free(l);
                return r;
        }
        *ret = l;
        return 0;
}

/* Another opening, not a duplicate: flags that the program sets are its own. */
int childlog_writer(const struct childlog *l) {
        char path[32];
        (void) snprintf(path, sizeof path, "/proc/self/fd/%d", l->writer);
        int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

static void on_timer_closed(uv_handle_t *h) {
        free(h);
}

void childlog_free(struct childlog *l) {
        if (!l)
                return;
        if (l->watch)
                on_readable(l); /* its last words */
        l->watch = watch_free(l->watch);
        (void) uv_timer_stop(l->timer);
        uv_close((uv_handle_t *) l->timer, on_timer_closed);
        l->fd = fd_close(l->fd);
        l->writer = fd_close(l->writer);
        free(l);
}
