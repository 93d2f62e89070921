/* SPDX-License-Identifier: Apache-2.0 */
#include "boot.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "identity.h"
#include "net.h"
#include "trust.h"

#define MODULES_LIST "/modules.list"
#define NEW_ROOT "/newroot"
#define ROOT_DEFAULT "/dev/vda"
#define ROOT_WAIT_MS 20000
#define CMDLINE_MAX 4096
#define FREE_FDS 64
#define NOFILE_HARD 524288 /* as Debian's init has it */
#define SPARE_PROCESSES 512 /* of the kernel's, which no command gets (a quarter in a small machine) */
#define BOOT_ID_FILE IDENTITY_DIR "/boot_id"

/* --- early ---------------------------------------------------------------------------------- */

static void mount_at(const char *what, const char *where, const char *type, unsigned long flags, const char *opts) {
        (void) mkdir(where, 0755);
        if (mount(what, where, type, flags, opts) < 0 && errno != EBUSY)
                log_warn("cannot mount %s on %s: %m", type, where);
}

void boot_early(void) {
        (void) mkdir("/dev", 0755);
        (void) mount("devtmpfs", "/dev", "devtmpfs", MS_NOSUID, "mode=0755");
        int fd = open("/dev/console", O_RDWR | O_NOCTTY);
        if (fd < 0)
                fd = open("/dev/null", O_RDWR);
        for (int i = 0; fd >= 0 && i <= 2; i++)
                if (fd != i)
                        (void) dup2(fd, i);
        if (fd > 2)
                close(fd);
        mount_at("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
        mount_at("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
}

/* Value of key=value in the kernel's command line, or whether a word stands there (value ""). */
static bool cmdline_get(const char *key, char *out, size_t cap) {
        _cleanup_free_ char *text = NULL;
        if (fd_read_file_at(AT_FDCWD, "/proc/cmdline", CMDLINE_MAX, &text, NULL, NULL) < 0)
                return false;
        size_t kn = strlen(key);
        for (char *save = NULL, *w = strtok_r(text, " \n", &save); w; w = strtok_r(NULL, " \n", &save))
                if (strncmp(w, key, kn) == 0 && (w[kn] == '=' || !w[kn]))
                        return str_copy(out, cap, w[kn] ? w + kn + 1 : "") == 0;
        return false;
}

/* --- initramfs ------------------------------------------------------------------------------ */

static bool is_initramfs(void) {
        struct statfs fs;
        return statfs("/", &fs) == 0 && (fs.f_type == RAMFS_MAGIC || fs.f_type == TMPFS_MAGIC) &&
               access("/init", F_OK) == 0;
}

bool boot_is_machine(void) {
        return getpid() == 1 && is_initramfs();
}

static int load_module(const char *path, struct error *err) {
        _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                return error_errno(err, errno, "cannot open module '%s'", path);
        if (syscall(SYS_finit_module, fd, "", 0) < 0 && errno != EEXIST)
                return error_errno(err, errno, "cannot load module '%s'", path);
        return 0;
}

static void load_modules(void) {
        _cleanup_free_ char *list = NULL;
        if (fd_read_file_at(AT_FDCWD, MODULES_LIST, 64 * 1024, &list, NULL, NULL) < 0)
                return; /* a kernel with everything built in */
        for (char *save = NULL, *p = strtok_r(list, "\n", &save); p; p = strtok_r(NULL, "\n", &save)) {
                struct error e = ERROR_INIT;
                if (load_module(p, &e) < 0)
                        log_warn("%s", e.msg);
        }
}

/* devtmpfs makes the node when the driver has found the disk; inotify says so. */
static int wait_for(const char *path, struct error *err) {
        _cleanup_fd_ int in = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
        if (in >= 0)
                (void) inotify_add_watch(in, "/dev", IN_CREATE);
        uint64_t end = clock_mono_ms() + ROOT_WAIT_MS;
        while (access(path, F_OK) < 0) {
                if (clock_mono_ms() >= end)
                        return error_set(err, -ETIMEDOUT, "the root disk %s has not appeared", path);
                struct pollfd p = { .fd = in, .events = POLLIN };
                char events[4096];
                (void) poll(&p, in >= 0 ? 1 : 0, 200);
                (void) !read(in, events, sizeof events);
        }
        return 0;
}

static int delete_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
        (void) st;
        (void) type;
        if (ftw->level > 0)
                (void) remove(path);
        return 0;
}

/* The initramfs stays as the hidden root of all mounts; its files would keep their memory. */
static void free_initramfs(void) {
        (void) nftw("/", delete_entry, FREE_FDS, FTW_DEPTH | FTW_MOUNT | FTW_PHYS);
}

static int switch_root(struct error *err) {
        char disk[256] = ROOT_DEFAULT;
        if (cmdline_get("root", disk, sizeof disk) && !str_has_prefix(disk, "/dev/"))
                (void) str_copy(disk, sizeof disk, ROOT_DEFAULT);
        int r = wait_for(disk, err);
        if (r < 0)
                return r;
        (void) mkdir(NEW_ROOT, 0755);
        /* Reading a file in a clone must not make it write to its disk. */
        if (mount(disk, NEW_ROOT, "ext4", MS_NOATIME, NULL) < 0)
                return error_errno(err, errno, "cannot mount the root disk %s", disk);
        static const char *const moved[] = { "/dev", "/proc", "/sys" };
        for (size_t i = 0; i < ARRAY_SIZE(moved); i++) {
                char to[64];
                (void) snprintf(to, sizeof to, NEW_ROOT "%s", moved[i]);
                (void) mkdir(to, 0755);
                if (mount(moved[i], to, NULL, MS_MOVE, NULL) < 0)
                        return error_errno(err, errno, "cannot move %s to the new root", moved[i]);
        }
        free_initramfs();
        if (chdir(NEW_ROOT) < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 || chdir("/") < 0)
                return error_errno(err, errno, "cannot switch to the new root");
        return 0;
}

/* --- the machine ---------------------------------------------------------------------------- */

static void put(const char *path, const char *text) {
        _cleanup_fd_ int fd = open(path, O_WRONLY | O_CLOEXEC);
        if (fd < 0 || write(fd, text, strlen(text)) < 0)
                log_debug("cannot write %s: %m", path);
}

static void set_sysctls(void) {
        static const struct {
                const char *path, *value;
        } values[] = {
                { "/proc/sys/fs/protected_hardlinks", "1" },
                { "/proc/sys/fs/protected_symlinks", "1" },
                { "/proc/sys/fs/protected_fifos", "1" },
                { "/proc/sys/fs/protected_regular", "2" },
                { "/proc/sys/fs/inotify/max_user_instances", "8192" },
                { "/proc/sys/fs/inotify/max_user_watches", "1048576" },
                { "/proc/sys/net/ipv4/ping_group_range", "0 2147483647" },
                /* Tables of neighbours are looked through this often (seconds), also when nothing is in them; the
                 * interface has its own value for what the name says. */
                { "/proc/sys/net/ipv4/neigh/default/delay_first_probe_time", "3600" },
                { "/proc/sys/net/ipv6/neigh/default/delay_first_probe_time", "3600" },
                /* No IPv6 leaves the machine, and soliciting routers would wake an idle one; "lo" keeps ::1. */
                { "/proc/sys/net/ipv6/conf/default/disable_ipv6", "1" },
                { "/proc/sys/net/ipv6/conf/" NET_INTERFACE "/disable_ipv6", "1" },
                { "/proc/sys/kernel/printk", "3 4 1 3" },
        };
        for (size_t i = 0; i < ARRAY_SIZE(values); i++)
                put(values[i].path, values[i].value);
}

static void mount_all(void) {
        mount_at("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=20%");
        (void) mkdir("/dev/pts", 0755);
        (void) mkdir("/dev/shm", 01777);
        mount_at("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=0620,ptmxmode=0666");
        mount_at("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
        mount_at("mqueue", "/dev/mqueue", "mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
        mount_at("cgroup2", BOOT_CGROUP_DIR, "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
        (void) mkdir("/run/lock", 01777);
        (void) chmod("/run/lock", 01777);
        (void) mkdir(IDENTITY_DIR, 0755);
        (void) mkdir("/tmp", 01777);
        static const struct {
                const char *target, *link;
        } links[] = { { "/proc/self/fd", "/dev/fd" },
                      { "/proc/self/fd/0", "/dev/stdin" },
                      { "/proc/self/fd/1", "/dev/stdout" },
                      { "/proc/self/fd/2", "/dev/stderr" } };
        for (size_t i = 0; i < ARRAY_SIZE(links); i++)
                (void) !symlink(links[i].target, links[i].link);
        (void) !symlink("/proc/self/mounts", "/etc/mtab");
}

/* So that a fork bomb leaves the agent room to start a command that ends it, and its half of the
 * CPU: with the cpu controller all commands together weigh as much as the agent, and each command as much as any
 * other. How many processes each may have is for cgroup.c. */
static void limit_processes(void) {
        static const char *const parents[] = { BOOT_CGROUP_DIR "/cgroup.subtree_control",
                                               BOOT_CGROUP_DIR "/cspace/cgroup.subtree_control" };
        (void) mkdir(BOOT_CGROUP_DIR "/cspace", 0755);
        for (size_t i = 0; i < ARRAY_SIZE(parents); i++) {
                put(parents[i], "+pids");
                put(parents[i], "+cpu");
        }
        _cleanup_free_ char *text = NULL;
        if (fd_read_file_at(AT_FDCWD, "/proc/sys/kernel/threads-max", 64, &text, NULL, NULL) < 0)
                return;
        long max = strtol(text, NULL, 10), spare = max / 4 < SPARE_PROCESSES ? max / 4 : SPARE_PROCESSES;
        if (max > 0) {
                char line[32];
                (void) snprintf(line, sizeof line, "%ld", max - spare);
                put(BOOT_CGROUP_DIR "/cspace/pids.max", line);
        }
}

/* The kernel's boot_id is in the memory image and so the same in all clones; a file with an own
 * value lies over it (identity.c writes it). */
static void cover_boot_id(void) {
        _cleanup_fd_ int fd = open(BOOT_ID_FILE, O_WRONLY | O_CREAT | O_CLOEXEC, 0444);
        _cleanup_free_ char *text = NULL;
        if (fd < 0 || fd_read_file_at(AT_FDCWD, "/proc/sys/kernel/random/boot_id", 64, &text, NULL, NULL) < 0)
                return;
        if (write(fd, text, strlen(text)) < 0 ||
            mount(BOOT_ID_FILE, "/proc/sys/kernel/random/boot_id", NULL, MS_BIND, NULL) < 0)
                log_warn("cannot cover boot_id: %m");
}

/* What says who this machine is (identity.c writes it) lies in memory, behind links: a clone's first act must
 * not be to write to its disk. Unlike a mount on the file, a link can be replaced by whoever edits it; what is written through it
 * into hosts, identity_settle() puts on the disk. */
static void move_to_run(const char *name, const char *otherwise) {
        char etc[64], run[64];
        (void) snprintf(etc, sizeof etc, "/etc/%s", name);
        (void) snprintf(run, sizeof run, IDENTITY_DIR "/%s", name);
        _cleanup_free_ char *text = NULL;
        if (fd_read_regular_at(AT_FDCWD, etc, IDENTITY_FILE_MAX, &text, NULL, NULL) < 0)
                text = strdup(otherwise);
        _cleanup_fd_ int fd = open(run, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (fd < 0 || !text || write(fd, text, strlen(text)) < 0)
                return;
        char old[64];
        ssize_t n = readlink(etc, old, sizeof old);
        if (n > 0 && (size_t) n == strlen(run) && memcmp(old, run, (size_t) n) == 0)
                return;
        if ((unlink(etc) < 0 && errno != ENOENT) || symlink(run, etc) < 0)
                log_warn("cannot make %s a link: %m", etc);
}

static void move_identity(void) {
        move_to_run("hostname", "sandbox\n");
        move_to_run("hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n");
        move_to_run("machine-id", "");
}

static void write_resolv_conf(void) {
        struct stat st;
        if (stat("/etc/resolv.conf", &st) == 0 && st.st_size > 0)
                return;
        (void) unlink("/etc/resolv.conf"); /* a link to a file of an init that is not there */
        _cleanup_fd_ int fd = open("/etc/resolv.conf", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        static const char text[] = "nameserver " NET_GATEWAY "\n";
        if (fd < 0 || write(fd, text, sizeof text - 1) < 0)
                log_warn("cannot write /etc/resolv.conf: %m");
}

static void set_limits(void) {
        struct rlimit r = { .rlim_cur = NOFILE_HARD, .rlim_max = NOFILE_HARD };
        (void) setrlimit(RLIMIT_NOFILE, &r);
        r = (struct rlimit){ .rlim_cur = 0, .rlim_max = RLIM_INFINITY };
        (void) setrlimit(RLIMIT_CORE, &r);
}

int boot_machine(struct error *err) {
        load_modules();
        int r = switch_root(err);
        if (r < 0)
                return r;
        mount_all();
        set_sysctls();
        set_limits();
        limit_processes();
        cover_boot_id();
        move_identity();
        trust_prepare();
        struct error e = ERROR_INIT;
        if (net_setup(&e) < 0)
                log_warn("network: %s", e.msg);
        write_resolv_conf();
        return 0;
}

/* A machine without ACPI cannot be switched off; with QEMU's -no-reboot a reset ends it as well. */
void boot_power_off(void) {
        char value[32];
        bool no_acpi = cmdline_get("acpi", value, sizeof value) && str_eq(value, "off");
        (void) reboot(no_acpi ? RB_AUTOBOOT : RB_POWER_OFF);
        for (;;)
                (void) pause();
}
