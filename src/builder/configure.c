/* SPDX-License-Identifier: Apache-2.0 */
#include "configure.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "child.h"
#include "configure_internal.h"

#define SHELL_MACHINE_OFFSET 18 /* e_machine in an ELF header */
#define EM_X86_64_ 62

int configure_fail(struct configure *c, const char *code, int errnum, const char *fmt, ...) {
        char text[ERROR_MSG_MAX];
        va_list ap;

        va_start(ap, fmt);
        (void) vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        (void) str_copy(c->code, sizeof c->code, code);
        return error_set(&c->err, errnum, "%s", text);
}

int image_read(const char *path, size_t max, char **ret) {
        struct stat st;

        /* Not blocked by a FIFO, not fooled by a device. */
        _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd < 0)
                return -errno;
        if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
                return -EINVAL;
        if (st.st_size < 0 || (size_t) st.st_size > max)
                return -EFBIG;
        size_t size = (size_t) st.st_size, got = 0;
        char *text = malloc(size + 1);
        if (!text)
                return -ENOMEM;
        while (got < size) {
                ssize_t n = read(fd, text + got, size - got);
                if (n <= 0)
                        break;
                got += (size_t) n;
        }
        text[got] = '\0';
        *ret = text;
        return 0;
}

int image_write(const char *path, const char *text, size_t n, unsigned mode) {
        char temp[300];
        struct stat st;
        uid_t uid = 0;
        gid_t gid = 0;

        if (stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
                mode = st.st_mode & 07777u;
                uid = st.st_uid;
                gid = st.st_gid;
        }
        int len = snprintf(temp, sizeof temp, "%s.cspace", path);
        if (len < 0 || (size_t) len >= sizeof temp)
                return -ENAMETOOLONG;
        (void) unlink(temp);
        _cleanup_fd_ int fd = open(temp, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
                return -errno;
        if (fd_write_all(fd, text, n, NULL) < 0 || fchown(fd, uid, gid) < 0 || fchmod(fd, mode) < 0 || rename(temp, path) < 0) {
                int r = -errno;
                (void) unlink(temp);
                return r;
        }
        return 0;
}

int image_mkdir(const char *path, unsigned mode) {
        struct stat st;

        if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
                return 0;
        /* A dangling link or a file where the system needs a folder. */
        if (lstat(path, &st) == 0 && unlink(path) < 0)
                return -errno;
        if (mkdir(path, mode) < 0 || chmod(path, mode) < 0)
                return -errno;
        return 0;
}

bool image_exists(const char *path) {
        return access(path, F_OK) == 0;
}

static int no_shell(struct configure *c) {
        if (c->looks_like_image)
                return configure_fail(c, "not_a_root_filesystem", -EINVAL,
                                      "the archive is a container image, not a root filesystem: export a container's "
                                      "filesystem instead (docker export, podman export)");
        if (!image_exists("/etc") && !image_exists("/bin") && !image_exists("/usr"))
                return configure_fail(c, "not_a_root_filesystem", -EINVAL,
                                      "the archive has no /etc, /bin or /usr: it must hold a root filesystem, not a folder of one");
        return configure_fail(c, "no_shell", -ENOEXEC,
                              "the root filesystem has no /bin/sh: commands in a sandbox need a shell");
}

int configure_check(struct configure *c) {
        uint8_t head[20] = { 0 };

        _cleanup_fd_ int fd = open("/bin/sh", O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        struct stat st;
        if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || (st.st_mode & 0111) == 0)
                return no_shell(c);
        if (read(fd, head, sizeof head) != (ssize_t) sizeof head || memcmp(head, "\x7f" "ELF", 4) != 0)
                return configure_fail(c, "no_shell", -ENOEXEC, "/bin/sh of the root filesystem is not a program");
        unsigned machine = (unsigned) head[SHELL_MACHINE_OFFSET] | (unsigned) head[SHELL_MACHINE_OFFSET + 1] << 8;
        if (machine != EM_X86_64_)
                return configure_fail(c, "wrong_architecture", -ENOEXEC,
                                      "the root filesystem is for another processor (ELF machine %u, not x86-64)", machine);
        bool bash = access("/bin/bash", X_OK) == 0;
        (void) str_copy(c->shell, sizeof c->shell, bash ? "/bin/bash" : "/bin/sh");
        return 0;
}

static int child_main(void *arg) {
        struct configure *c = arg;

        umask(022);
        int r = configure_check(c);
        if (r == 0)
                r = configure_users(c);
        if (r == 0)
                r = configure_tidy(c);
        if (r == 0)
                r = configure_settings(c);
        return r < 0 ? 1 : 0;
}

/* The code strings of struct build are static. */
static const char *static_code(const char *code) {
        static const char *const codes[] = { "not_a_root_filesystem", "no_shell", "wrong_architecture", "no_space" };

        for (size_t i = 0; i < ARRAY_SIZE(codes); i++)
                if (str_eq(codes[i], code))
                        return codes[i];
        return NULL;
}

static int take_result(struct build *b, const struct configure *c, struct error *err) {
        if (c->err.code) {
                b->code = static_code(c->code);
                if (err)
                        *err = c->err;
                return c->err.code;
        }
        b->uid = c->uid;
        b->gid = c->gid;
        (void) str_copy(b->user, sizeof b->user, c->user);
        (void) str_copy(b->shell, sizeof b->shell, c->shell);
        (void) str_copy(b->os_id, sizeof b->os_id, c->os_id);
        (void) str_copy(b->os_version, sizeof b->os_version, c->os_version);
        (void) str_copy(b->os_name, sizeof b->os_name, c->os_name);
        return 0;
}

/* What apt in the sandbox shall use is what it was built from. */
static char *read_sources(const struct build *b) {
        char *text = NULL;

        if (b->source != SOURCE_PACKAGES || (b->sources && str_has_suffix(b->sources, ".list")))
                return NULL;
        if (fd_read_file_at(b->dirfd, "rootfs/etc/apt/sources.list.d/0000debian.sources", 256 * 1024, &text, NULL, NULL) < 0)
                return NULL;
        return text;
}

int configure_rootfs(struct build *b, struct error *err) {
        struct configure *job = mmap(NULL, sizeof *job, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        struct child c = CHILD_INIT;
        int status = 0;

        build_step(b, STEP_CONFIGURE, "users and settings");
        if (job == MAP_FAILED)
                return error_set(err, -ENOMEM, "out of memory");
        _cleanup_free_ char *sources = read_sources(b);
        job->packages = b->source == SOURCE_PACKAGES;
        job->looks_like_image = b->looks_like_image;
        job->epoch = b->epoch;
        job->sources = sources;
        c.call = child_main;
        c.call_arg = job;
        c.root = b->rootfs;
        c.no_network = true;
        int r = child_run_status(b, &c, &status, err);
        if (r == 0 && status != 0 && job->err.code == 0)
                r = error_set(err, -EIO, "configuring the root filesystem ended with status %d", status);
        if (r == 0)
                r = take_result(b, job, err);
        (void) munmap(job, sizeof *job);
        if (r == 0)
                build_progress(b, 100, "users and settings are done");
        return r;
}
