/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The initramfs is the agent and the modules without which it reaches neither its disk nor the host. It is
 * not compressed: it is read from the page cache at a boot that happens once per variant, and unpacking costs more
 * under emulation than reading.
 */
#include "initrd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/str.h"
#include "child.h"
#include "configure_internal.h"
#include "cpio.h"
#include "manifest/manifest.h"
#include "manifest/manifest.h"
#include "modules.h"

#define MODULE_FILE_MAX (16u << 20)
#define MODULES_TEXT_MAX (4u << 20)

/* In the order in which they are wanted; what they depend on comes before. ext4 asks for crc32c by name, which
 * no dependency says. */
static const char *const boot_modules[] = {
        "virtio_mmio", "virtio_blk", "crc32c_generic", "ext4", "virtio_console", "virtio_net", "virtio_rng", "virtio_balloon",
};

/* For programs in the sandbox. Missing ones are fine: kernels differ. */
static const char *const guest_modules[] = {
        "fuse", "overlay", "squashfs", "isofs", "udf", "vfat", "nls_utf8", "nls_ascii", "nls_cp437", "nls_iso8859_1", "loop", "zram",
        "tun", "tap", "veth", "dummy", "macvlan", "ipvlan", "vxlan", "wireguard", "bridge", "br_netfilter", "8021q", "sit", "ip_gre",
        "dm_mod", "dm_crypt", "dm_snapshot", "autofs4", "binfmt_misc", "configs", "btrfs", "xfs", "virtio_mmio", "virtio_blk",
        "crc32c_generic", "ext4", "virtio_console", "virtio_net", "virtio_rng", "virtio_balloon",
};
static const char *const guest_folders[] = { "kernel/net/netfilter/", "kernel/net/ipv4/netfilter/", "kernel/net/ipv6/netfilter/",
                                             "kernel/net/bridge/netfilter/", "kernel/net/sched/" };

static int run_depmod(struct build *b, const char *root, struct error *err) {
        const char *const argv[] = { "depmod", "-b", root, b->kernel_release, NULL };
        struct child c = CHILD_INIT;

        c.argv = argv;
        c.no_network = true;
        int r = child_run(b, &c, err);
        return r < 0 ? error_wrap(err, "depmod (package kmod)") : 0;
}

static int open_modules(struct build *b, struct error *err) {
        char path[256];

        (void) snprintf(path, sizeof path, "work/kernel/lib/modules/%s", b->kernel_release);
        int fd = openat(b->dirfd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? error_errno(err, errno, "cannot open %s", path) : fd;
}

static int load_table(int dir, struct modules *m, struct error *err) {
        _cleanup_free_ char *dep = NULL, *builtin = NULL;

        int r = fd_read_file_at(dir, "modules.dep", MODULES_TEXT_MAX, &dep, NULL, err);
        if (r == 0)
                r = fd_read_file_at(dir, "modules.builtin", MODULES_TEXT_MAX, &builtin, NULL, err);
        return r < 0 ? r : modules_init(m, dep, builtin, err);
}

/* Folders of path, below those already made, which `made` remembers by the previous path. */
static int add_parents(struct cpio *c, const char *path, char *made, size_t cap, struct error *err) {
        char dir[512];
        int r = 0;

        for (const char *slash = strchr(path, '/'); slash && r == 0; slash = strchr(slash + 1, '/')) {
                size_t n = (size_t) (slash - path);
                if (n >= sizeof dir)
                        return error_set(err, -ENAMETOOLONG, "module path too long");
                memcpy(dir, path, n);
                dir[n] = '\0';
                char needle[520];
                (void) snprintf(needle, sizeof needle, "\n%s\n", dir);
                if (strstr(made, needle))
                        continue;
                size_t used = strlen(made);
                if (used + n + 2 > cap)
                        return error_set(err, -ENAMETOOLONG, "too many module folders");
                memcpy(made + used, dir, n);
                memcpy(made + used + n, "\n", 2);
                r = cpio_dir(c, dir, 0755, err);
        }
        return r;
}

static int add_modules(struct build *b, struct cpio *c, struct error *err) {
        _cleanup_(modules_done) struct modules m = { 0 };
        _cleanup_buf_ struct buf list = BUF_INIT(64 * 1024);
        char made[16384] = "\n";
        _cleanup_fd_ int dir = open_modules(b, err);

        if (dir < 0)
                return dir;
        int r = load_table(dir, &m, err);
        for (size_t i = 0; i < ARRAY_SIZE(boot_modules) && r == 0; i++)
                r = modules_want(&m, boot_modules[i], err);
        for (size_t i = 0; i < m.n_order && r == 0; i++) {
                _cleanup_free_ char *data = NULL;
                char path[512];
                size_t n = 0;
                r = fd_read_file_at(dir, m.order[i], MODULE_FILE_MAX, &data, &n, err);
                if (r < 0)
                        return r;
                (void) snprintf(path, sizeof path, "lib/modules/%s/%s", b->kernel_release, m.order[i]);
                r = add_parents(c, path, made, sizeof made, err);
                if (r == 0)
                        r = cpio_file(c, path, 0644, data, n, err);
                if (r == 0 && buf_printf(&list, "/%s\n", path) < 0)
                        r = error_set(err, -ENOMEM, "too many modules");
        }
        return r < 0 ? r : cpio_file(c, "modules.list", 0644, buf_data(&list), list.len, err);
}

static int add_agent(struct build *b, struct cpio *c, struct error *err) {
        _cleanup_free_ char *agent = NULL;
        size_t n = 0;

        int r = fd_read_file_at(AT_FDCWD, b->agent, MANIFEST_AGENT_MAX, &agent, &n, err);
        if (r < 0)
                return error_wrap(err, "agent");
        if (n < 64 || memcmp(agent, "\x7f" "ELF", 4) != 0)
                return error_set(err, -EINVAL, "%s is not a program", b->agent);
        if (manifest_digest(agent, n, b->agent_digest) < 0)
                return error_set(err, -EIO, "cannot hash %s", b->agent);
        return cpio_file(c, "init", 0755, agent, n, err);
}

static int fill(struct build *b, struct cpio *c, struct error *err) {
        static const char *const dirs[] = { "dev", "proc", "sys", "run", "newroot" };
        int r = 0;

        for (size_t i = 0; i < ARRAY_SIZE(dirs) && r == 0; i++)
                r = cpio_dir(c, dirs[i], 0755, err);
        /* The kernel opens it for the first process before that can make anything. */
        if (r == 0)
                r = cpio_char_device(c, "dev/console", 0600, 5, 1, err);
        if (r == 0)
                r = cpio_char_device(c, "dev/null", 0666, 1, 3, err);
        if (r == 0)
                r = add_agent(b, c, err);
        if (r == 0)
                r = add_modules(b, c, err);
        return r < 0 ? r : cpio_end(c, err);
}

int initrd_make(struct build *b, struct error *err) {
        _cleanup_buf_ struct buf out = BUF_INIT((size_t) MANIFEST_FILE_MAX);
        struct cpio c = { .out = &out };
        char root[BUILD_PATH_MAX + 32];

        (void) snprintf(root, sizeof root, "%s/kernel", b->work);
        int r = run_depmod(b, root, err);
        if (r == 0)
                r = fill(b, &c, err);
        return r < 0 ? r : fd_replace_file_at(b->outfd, "initrd", buf_data(&out), out.len, 0644, err);
}

/* ---- modules for the root filesystem --------------------------------------------------------- */

static int copy_module(int from, int to, const char *path, struct error *err) {
        _cleanup_free_ char *data = NULL;
        char dir[512];
        size_t n = 0;

        int r = fd_read_file_at(from, path, MODULE_FILE_MAX, &data, &n, err);
        if (r < 0)
                return r;
        if (str_copy(dir, sizeof dir, path) < 0)
                return error_set(err, -ENAMETOOLONG, "module path too long");
        char *slash = strrchr(dir, '/');
        if (slash) {
                *slash = '\0';
                r = fd_mkdir_p_at(to, dir, 0755, err);
                if (r < 0)
                        return r;
        }
        _cleanup_fd_ int fd = openat(to, path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (fd < 0)
                return error_errno(err, errno, "cannot make %s", path);
        return fd_write_all(fd, data, n, err);
}

static int choose_guest_modules(struct modules *m, struct error *err) {
        for (size_t i = 0; i < ARRAY_SIZE(guest_modules); i++) {
                int r = modules_want(m, guest_modules[i], err);
                if (r < 0 && r != -ENOENT)
                        return r;
        }
        for (size_t i = 0; i < ARRAY_SIZE(guest_folders); i++) {
                int r = modules_want_folder(m, guest_folders[i], err);
                if (r < 0)
                        return r;
        }
        return 0;
}

struct subset {
        struct modules m;
        int fd; /* work/guest/lib/modules/<release> */
        const char *release;
        struct error *err;
};

/*
 * A tree of its own first, so that depmod never works below a root filesystem that came from outside.
 */
static int make_subset(struct build *b, struct subset *s, struct error *err) {
        static const char *const lists[] = { "modules.order", "modules.builtin", "modules.builtin.modinfo" };
        char path[256], root[BUILD_PATH_MAX + 32];

        (void) snprintf(path, sizeof path, "work/guest/lib/modules/%s", b->kernel_release);
        (void) snprintf(root, sizeof root, "%s/guest", b->work);
        _cleanup_fd_ int from = open_modules(b, err);
        if (from < 0)
                return from;
        int r = fd_mkdir_p_at(b->dirfd, path, 0755, err);
        if (r < 0)
                return r;
        s->fd = openat(b->dirfd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (s->fd < 0)
                return error_errno(err, errno, "cannot open %s", path);
        r = load_table(from, &s->m, err);
        if (r == 0)
                r = choose_guest_modules(&s->m, err);
        for (size_t i = 0; i < s->m.n_order && r == 0; i++)
                r = copy_module(from, s->fd, s->m.order[i], err);
        for (size_t i = 0; i < ARRAY_SIZE(lists) && r == 0; i++)
                r = copy_module(from, s->fd, lists[i], err);
        return r < 0 ? r : run_depmod(b, root, err);
}

static void closedirp(DIR **d) {
        if (*d)
                closedir(*d);
}

static int copy_subset(struct subset *s, int to) {
        /* Opened anew: btrfs lists what was there when the folder was opened, and depmod came after that. */
        int again = openat(s->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        _cleanup_(closedirp) DIR *d = again < 0 ? NULL : fdopendir(again);
        int r = 0;

        if (!d)
                return error_errno(s->err, errno, "cannot read the folder of modules");
        for (size_t i = 0; i < s->m.n_order && r == 0; i++)
                r = copy_module(s->fd, to, s->m.order[i], s->err);
        for (struct dirent *e; r == 0 && (e = readdir(d));)
                if (str_has_prefix(e->d_name, "modules."))
                        r = copy_module(s->fd, to, e->d_name, s->err);
        return r;
}

/* The child: its root is the root filesystem, whose /lib may be a link. */
static int install_subset(void *arg) {
        struct subset *s = arg;
        struct error e = ERROR_INIT;
        char path[300];

        umask(022);
        s->err = &e;
        (void) snprintf(path, sizeof path, "/lib/modules/%s", s->release);
        if (image_mkdir("/lib", 0755) < 0 || image_mkdir("/lib/modules", 0755) < 0)
                return 1;
        (void) fd_remove_tree_at(AT_FDCWD, path, NULL);
        if (image_mkdir(path, 0755) < 0)
                return 1;
        _cleanup_fd_ int to = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (to < 0)
                return 1;
        int r = copy_subset(s, to);
        if (r < 0)
                dprintf(STDERR_FILENO, "%s\n", e.msg);
        return r < 0;
}

int initrd_add_modules(struct build *b, struct error *err) {
        struct subset s = { .fd = -EBADF, .release = b->kernel_release };
        struct child c = CHILD_INIT;

        int r = make_subset(b, &s, err);
        if (r == 0) {
                c.call = install_subset;
                c.call_arg = &s;
                c.root = b->rootfs;
                c.no_network = true;
                r = child_run(b, &c, err);
        }
        modules_done(&s.m);
        s.fd = fd_close(s.fd);
        return r;
}
