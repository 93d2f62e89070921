/* SPDX-License-Identifier: Apache-2.0 */
#include "trim.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "timer.h"
#include "work.h"

#define TRIM_DELAY_MS 10000        /* what is deleted is free once ext4's journal says so: 5 s, or what `commit=` was set to */
#define TRIM_WRITTEN (16ull << 20) /* bytes since the last time: some of it may be deleted again */
#define TRIM_FREED (16ull << 20)
#define TRIM_PART (128u << 10)     /* no smaller pieces: each is a request to the host */
#define SECTOR 512u                /* of /sys/dev/block/N:N/stat, whatever the disk's own are */

struct trim {
        struct agent *agent;
        struct timer *timer;
        bool pending, working, orphan;
        uint64_t written, least_free; /* bytes, since the last time */
};

/* Number 7 of Documentation/block/stat.rst: sectors written. */
static uint64_t written(dev_t dev) {
        _cleanup_free_ char *text = NULL;
        char path[64];
        unsigned long long sectors = 0;
        (void) snprintf(path, sizeof path, "/sys/dev/block/%u:%u/stat", major(dev), minor(dev));
        if (fd_read_file_at(AT_FDCWD, path, 512, &text, NULL, NULL) < 0 ||
            sscanf(text, "%*s %*s %*s %*s %*s %*s %llu", &sectors) != 1)
                return 0;
        return sectors * SECTOR;
}

static void look(uint64_t *ret_written, uint64_t *ret_free) {
        struct stat st;
        struct statvfs v;
        bool there = stat("/", &st) == 0 && statvfs("/", &v) == 0;
        *ret_written = there ? written(st.st_dev) : 0;
        *ret_free = there ? (uint64_t) v.f_bfree * v.f_frsize : 0;
}

void trim_note(struct trim *t) {
        timer_stop(t->timer);
        t->pending = false;
        look(&t->written, &t->least_free);
}

static bool due(struct trim *t) {
        uint64_t now, left;
        look(&now, &left);
        bool yes = now >= t->written + TRIM_WRITTEN || left >= t->least_free + TRIM_FREED;
        if (yes)
                t->written = now;
        if (yes || left < t->least_free)
                t->least_free = left;
        return yes;
}

/* On a thread. What the disk does not take is no loss but that. */
static void work(void *arg) {
        (void) arg;
        struct fstrim_range all = { .len = UINT64_MAX, .minlen = TRIM_PART };
        _cleanup_fd_ int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0)
                (void) ioctl(fd, FITRIM, &all);
}

static void done(void *arg) {
        struct trim *t = arg;
        t->working = false;
        if (t->orphan)
                free(t);
}

static void on_timer(void *arg) {
        struct trim *t = arg;
        t->pending = false;
        if (t->agent->fs_timer) { /* frozen, for a moment */
                trim_later(t);
                return;
        }
        if (t->working || !due(t))
                return;
        t->working = work_start(t->agent->loop, NULL, work, done, t) >= 0;
}

/* Only for a sandbox: in a template's VM it would be due in each copy. */
void trim_later(void *trim) {
        struct trim *t = trim;
        if (t->pending || !t->agent->identity.ready)
                return;
        t->pending = true;
        timer_start(t->timer, TRIM_DELAY_MS);
}

int trim_new(struct agent *a, struct trim **ret) {
        struct trim *t = calloc(1, sizeof *t);
        if (t)
                t->timer = timer_new(a->loop, on_timer, t);
        if (!t || !t->timer) {
                free(t);
                return -ENOMEM;
        }
        t->agent = a;
        trim_note(t);
        *ret = t;
        return 0;
}

void trim_free(struct trim *t) {
        if (!t)
                return;
        timer_free(t->timer);
        t->timer = NULL;
        t->orphan = true;
        if (!t->working)
                free(t);
}
