/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Sandboxes outlive the services on purpose, so `down` has to end them itself. Each sandbox has two
 * uids that no other live process on the host has (one for its warden, one for its VM): they are in the
 * placement that cspace-rootd wrote, and whatever runs under them is killed. Network namespaces and taps
 * end with their processes; disks and records stay, and the next start of cspace-rootd finds them.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/str.h"
#include "setup.h"

#define PLACEMENT_MAX 4096
#define UID_LOWEST 100000u /* a placement that names a uid of the host's own is not believed */
#define SWEEP_LIMIT_MS 10000

static void closedirp(DIR **d) {
        if (*d)
                closedir(*d);
}

/* key=value lines. */
static uid_t uid_of(const char *text, const char *key) {
        size_t n = strlen(key);
        uint64_t v = 0;
        char digits[16];

        for (const char *p = text; *p;) {
                size_t len = strcspn(p, "\n");
                if (len > n + 1 && strncmp(p, key, n) == 0 && p[n] == '=' && len - n - 1 < sizeof digits) {
                        memcpy(digits, p + n + 1, len - n - 1);
                        digits[len - n - 1] = '\0';
                        if (str_to_u64(digits, UINT32_MAX - 1, &v) == 0 && v >= UID_LOWEST)
                                return (uid_t) v;
                }
                p += len + (p[len] == '\n');
        }
        return 0;
}

/* Real uid of a process; the owner of /proc/PID is the effective one, or root. */
static bool process_uid(int proc, const char *pid, uid_t *ret) {
        _cleanup_free_ char *text = NULL;
        char path[32];
        unsigned uid;

        (void) snprintf(path, sizeof path, "%.16s/status", pid);
        if (fd_read_file_at(proc, path, 64 * 1024, &text, NULL, NULL) < 0)
                return false;
        const char *line = strstr(text, "\nUid:");
        if (!line || sscanf(line, "\nUid: %u", &uid) != 1)
                return false;
        *ret = uid;
        return true;
}

struct uids {
        uid_t *list;
        size_t n;
};

static bool has_uid(const struct uids *u, uid_t uid) {
        for (size_t i = 0; i < u->n; i++)
                if (u->list[i] == uid)
                        return true;
        return false;
}

/* Sends the signal (0: counts only) to every process under these uids; how many there were. */
static int signal_all(const struct uids *u, int sig) {
        _cleanup_(closedirp) DIR *d = opendir("/proc");
        int n = 0;

        for (struct dirent *e; d && u->n > 0 && (e = readdir(d));) {
                uint64_t pid;
                uid_t uid;
                if (str_to_u64(e->d_name, INT32_MAX, &pid) < 0 || pid <= 1 || !process_uid(dirfd(d), e->d_name, &uid))
                        continue;
                if (!has_uid(u, uid))
                        continue;
                n++;
                if (sig)
                        (void) kill((pid_t) pid, sig);
        }
        return n;
}

static int collect(const struct setup *s, struct uids *u, unsigned *sandboxes) {
        char path[CONF_STR_MAX + 32];
        struct stat st;

        (void) snprintf(path, sizeof path, "%s/sandboxes", s->conf.run);
        _cleanup_(closedirp) DIR *d = opendir(path);
        *sandboxes = 0;
        /* The folder is root's; one that is not was put there by somebody else. */
        if (!d || fstat(dirfd(d), &st) < 0 || st.st_uid != 0)
                return 0;
        for (struct dirent *e; (e = readdir(d));) {
                _cleanup_free_ char *text = NULL;
                char file[ID_LEN + 16];
                if (!id_valid(e->d_name))
                        continue;
                (void) snprintf(file, sizeof file, "%.26s/placement", e->d_name);
                if (fd_read_file_at(dirfd(d), file, PLACEMENT_MAX, &text, NULL, NULL) < 0)
                        continue;
                uid_t *more = realloc(u->list, (u->n + 3) * sizeof *more);
                if (!more)
                        return -ENOMEM;
                u->list = more;
                ++*sandboxes;
                uid_t all[] = { uid_of(text, "warden_uid"), uid_of(text, "vm_uid"), uid_of(text, "gateway_uid") };
                for (size_t i = 0; i < ARRAY_SIZE(all); i++)
                        if (all[i] != 0)
                                u->list[u->n++] = all[i];
        }
        return 0;
}

int setup_count_sandboxes(const struct setup *s) {
        struct uids u = { 0 };
        unsigned sandboxes = 0;

        int r = collect(s, &u, &sandboxes);
        free(u.list);
        return r < 0 ? r : (int) sandboxes;
}

int setup_sweep(const struct setup *s, struct error *err) {
        const struct timespec pause = { .tv_nsec = 10 * 1000 * 1000 };
        struct uids u = { 0 };
        unsigned sandboxes = 0;

        int r = collect(s, &u, &sandboxes);
        int n = r < 0 ? 0 : signal_all(&u, SIGKILL);
        for (uint64_t end = clock_mono_ms() + SWEEP_LIMIT_MS; r == 0 && n > 0 && signal_all(&u, SIGKILL) > 0;) {
                if (clock_mono_ms() > end)
                        r = error_set(err, -EBUSY, "processes of sandboxes cannot be ended");
                (void) nanosleep(&pause, NULL);
        }
        free(u.list);
        if (r < 0)
                return err && err->code ? r : error_set(err, r, "cannot end the sandboxes");
        if (n > 0)
                setup_say("%u sandbox%s ended", sandboxes, sandboxes == 1 ? "" : "es");
        return n;
}
