/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/host.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"

#ifndef XFS_SUPER_MAGIC
#define XFS_SUPER_MAGIC 0x58465342
#endif
#define CPUINFO_MAX (8 * 1024 * 1024)

bool host_cpuinfo_has_virt(const char *cpuinfo) {
        for (const char *line = cpuinfo; line && *line;
             line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
                if (strncmp(line, "flags", 5) != 0)
                        continue;
                size_t n = strcspn(line, "\n");
                for (const char *p = line; p < line + n; p += strcspn(p, " \n"), p += strspn(p, " "))
                        if ((strncmp(p, "vmx", 3) == 0 || strncmp(p, "svm", 3) == 0) &&
                            (p[3] == ' ' || p[3] == '\n' || !p[3]))
                                return true;
        }
        return false;
}

static bool has_virt(void) {
        _cleanup_free_ char *text = NULL;
        return fd_read_file_at(AT_FDCWD, "/proc/cpuinfo", CPUINFO_MAX, &text, NULL, NULL) == 0 &&
               host_cpuinfo_has_virt(text);
}

static void set(struct host *h, const char *engine, const char *reason) {
        (void) str_copy(h->engine, sizeof h->engine, engine);
        (void) snprintf(h->engine_reason, sizeof h->engine_reason, "%s", reason);
}

void host_probe_engine(struct host *h, const char *wanted) {
        struct error e = ERROR_INIT;
        char text[256];
        if (str_eq(wanted, "fake")) {
                set(h, "fake", "the configuration says so");
                return;
        }
        if (str_eq(wanted, "tcg")) {
                set(h, "qemu-tcg", "the configuration says so");
                return;
        }
        bool forced = str_eq(wanted, "kvm");
        if (!forced && access("/dev/kvm", F_OK) < 0) {
                set(h, "qemu-tcg", "there is no /dev/kvm");
                return;
        }
        if (!forced && !has_virt()) {
                set(h, "qemu-tcg",
                    "/dev/kvm is there, but the CPU shows neither vmx nor svm: a para-virtual KVM, which "
                    "does not boot a stock kernel");
                return;
        }
        if (kvm_try(&e) < 0) {
                (void) snprintf(text, sizeof text, "%s%.200s",
                                forced ? "asked for by the configuration, but " : "", e.msg);
                set(h, forced ? "qemu-kvm" : "qemu-tcg", text);
                return;
        }
        set(h, "qemu-kvm",
            forced ? "the configuration says so, and a small machine ran"
                   : "the CPU has hardware virtualization, and a small machine ran");
}

static void name_fs(int fd, char out[16]) {
        struct statfs st;
        if (fstatfs(fd, &st) < 0) {
                (void) str_copy(out, 16, "unknown");
                return;
        }
        static const struct {
                unsigned long magic;
                const char *name;
        } known[] = { { BTRFS_SUPER_MAGIC, "btrfs" },
                      { XFS_SUPER_MAGIC, "xfs" },
                      { EXT4_SUPER_MAGIC, "ext4" },
                      { TMPFS_MAGIC, "tmpfs" },
                      { OVERLAYFS_SUPER_MAGIC, "overlay" } };
        (void) snprintf(out, 16, "0x%lx", (unsigned long) st.f_type & 0xffffffff);
        for (size_t i = 0; i < ARRAY_SIZE(known); i++)
                if (known[i].magic == (unsigned long) st.f_type)
                        (void) str_copy(out, 16, known[i].name);
}

int host_probe_data(struct host *h, int sandboxes_fd, struct error *err) {
        name_fs(sandboxes_fd, h->data_fs);
        _cleanup_fd_ int a = openat(sandboxes_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        _cleanup_fd_ int b = openat(sandboxes_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (a < 0 || b < 0)
                return error_errno(err, errno, "cannot create a file in the data folder");
        char block[4096] = { 1 };
        int r = fd_write_all(a, block, sizeof block, err);
        if (r < 0)
                return r;
        h->reflink = fd_reflink(a, b, NULL) == 0;
        return 0;
}
