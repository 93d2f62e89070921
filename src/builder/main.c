/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cspace-builder: makes the files of a template in a folder of its own (docs/architecture.md, "Build").
 *
 * It is root of a user namespace and nobody outside of it. It downloads, then runs what came with
 * the packages without a network, then turns the tree into an image. Progress goes to stdout as
 * JSON lines; the last one says how it ended.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apt.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "build.h"
#include "child.h"
#include "configure.h"
#include "describe.h"
#include "disk.h"
#include "isolate.h"
#include "kernel.h"
#include "manifest/manifest.h"
#include "rootfs.h"

#define TAR_FD 3

static const char usage[] =
        "usage: cspace-builder --dir DIR --source packages|tar --disk-bytes N --agent PATH\n"
        "                      [--packages \"NAME...\"] [--suite SUITE] [--cache DIR] [--sources FILE] [--timeout SECONDS]\n"
        "                      [--checkpoint-every SECONDS] [--checkpoint-keep N]\n"
        "Run by cspace-rootd as root of a user namespace; the archive of source \"tar\" is descriptor 3.\n";

static int absolute(const char *name, const char *value, struct error *err) {
        if (value[0] != '/' || strlen(value) >= BUILD_PATH_MAX)
                return error_set(err, -EINVAL, "--%s must be an absolute path of less than %d bytes", name, BUILD_PATH_MAX);
        return 0;
}

static int set_option(struct build *b, int opt, const char *value, struct error *err) {
        uint64_t n;

        switch (opt) {
        case 'd':
                return absolute("dir", value, err) < 0 ? err->code : str_copy(b->dir, sizeof b->dir, value);
        case 's':
                if (!str_eq(value, "packages") && !str_eq(value, "tar"))
                        return error_set(err, -EINVAL, "--source must be packages or tar");
                b->source = str_eq(value, "tar") ? SOURCE_TAR : SOURCE_PACKAGES;
                return 0;
        case 'p':
                b->packages = value;
                return apt_check_packages(value, err);
        case 'u':
                b->suite = value;
                return 0;
        case 'b':
                if (str_to_u64(value, 1ULL << 44, &b->disk_bytes) < 0)
                        return error_set(err, -EINVAL, "--disk-bytes must be a number of bytes");
                return 0;
        case 'a':
                b->agent = value;
                return absolute("agent", value, err);
        case 'c':
                b->cache = value;
                return absolute("cache", value, err);
        case 'o':
                b->sources = value;
                return absolute("sources", value, err);
        case 't':
                if (str_to_u64(value, 86400, &n) < 0 || n == 0)
                        return error_set(err, -EINVAL, "--timeout must be 1 to 86400 seconds");
                b->deadline_ms = clock_mono_ms() + n * 1000;
                return 0;
        case 'e':
                if (str_to_u64(value, UINT32_MAX, &b->checkpoint_every_s) < 0)
                        return error_set(err, -EINVAL, "--checkpoint-every must be a number of seconds");
                return 0;
        case 'k':
                if (str_to_u64(value, UINT32_MAX, &b->checkpoint_keep) < 0)
                        return error_set(err, -EINVAL, "--checkpoint-keep must be a number");
                return 0;
        default:
                return error_set(err, -EINVAL, "wrong arguments");
        }
}

static int parse(struct build *b, int argc, char **argv, struct error *err) {
        static const struct option options[] = {
                { "dir", required_argument, NULL, 'd' },        { "source", required_argument, NULL, 's' },
                { "packages", required_argument, NULL, 'p' },   { "suite", required_argument, NULL, 'u' },
                { "disk-bytes", required_argument, NULL, 'b' }, { "agent", required_argument, NULL, 'a' },
                { "cache", required_argument, NULL, 'c' },      { "sources", required_argument, NULL, 'o' },
                { "timeout", required_argument, NULL, 't' },    { "checkpoint-every", required_argument, NULL, 'e' },
                { "checkpoint-keep", required_argument, NULL, 'k' }, { 0 },
        };

        for (int opt; (opt = getopt_long(argc, argv, "", options, NULL)) != -1;) {
                int r = set_option(b, opt, optarg, err);
                if (r < 0)
                        return r;
        }
        if (optind != argc || !b->dir[0] || !b->agent || b->disk_bytes == 0)
                return error_set(err, -EINVAL, "wrong arguments: --dir, --source, --disk-bytes and --agent are needed");
        (void) snprintf(b->rootfs, sizeof b->rootfs, "%s/rootfs", b->dir);
        (void) snprintf(b->work, sizeof b->work, "%s/work", b->dir);
        return 0;
}

/* Before anything is opened, which could get its number. */
static int take_tar(struct build *b, struct error *err) {
        if (fcntl(TAR_FD, F_GETFD) >= 0) {
                b->tar_fd = TAR_FD;
                return fd_cloexec(TAR_FD, 1, err);
        }
        if (b->source == SOURCE_TAR)
                return error_set(err, -EINVAL, "source \"tar\" needs the archive on descriptor %d", TAR_FD);
        return 0;
}

/* An empty --sources or --cache is none. */
static void drop_empty(struct build *b) {
        if (b->cache && !b->cache[0])
                b->cache = NULL;
        if (b->sources && !b->sources[0])
                b->sources = NULL;
}

static int open_folders(struct build *b, struct error *err) {
        static const char *const dirs[] = { "rootfs", "work", "out" };

        b->dirfd = open(b->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (b->dirfd < 0)
                return error_errno(err, errno, "cannot open %s", b->dir);
        b->log_fd = openat(b->dirfd, "build.log", O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (b->log_fd < 0)
                return error_errno(err, errno, "cannot make %s/build.log", b->dir);
        for (size_t i = 0; i < ARRAY_SIZE(dirs); i++)
                if (mkdirat(b->dirfd, dirs[i], 0755) < 0)
                        return error_errno(err, errno, "cannot make %s/%s", b->dir, dirs[i]);
        b->outfd = openat(b->dirfd, "out", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return b->outfd < 0 ? error_errno(err, errno, "cannot open %s/out", b->dir) : 0;
}

static int find_arch(struct build *b, struct error *err) {
        static const char *const argv[] = { "dpkg", "--print-architecture", NULL };
        _cleanup_free_ char *text = NULL;
        struct child c = CHILD_INIT;

        c.argv = argv;
        int r = child_output(b, &c, sizeof b->arch - 1, &text, err);
        if (r < 0)
                return r;
        text[strcspn(text, "\n")] = '\0';
        if (!str_eq(text, "amd64"))
                return build_error(b, "wrong_architecture", err, -ENOTSUP, "templates can be built on amd64, not on \"%s\"", text);
        return str_copy(b->arch, sizeof b->arch, text);
}

/* The tree is large and has served; its owner is this namespace, so here it goes most easily. */
static int finish(struct build *b, char digest[DIGEST_LEN + 1], struct error *err) {
        build_step(b, STEP_FINISH, "describing the template");
        int r = describe_write(b, err);
        if (r == 0)
                r = manifest_write(b->outfd, digest, err);
        if (r < 0)
                return r;
        build_progress(b, 50, "cleaning up");
        (void) fd_remove_tree_at(b->dirfd, "rootfs", NULL);
        (void) fd_remove_tree_at(b->dirfd, "work", NULL);
        build_progress(b, 100, "the template's files are complete");
        return 0;
}

static int prepare(struct build *b, struct error *err) {
        const char *keep[ISOLATE_KEEP_MAX] = { b->dir, b->agent };
        size_t n = 2;

        int r = isolate_check_uids(err);
        if (r < 0)
                return r;
        if (b->cache)
                keep[n++] = b->cache;
        if (b->sources)
                keep[n++] = b->sources;
        r = isolate_mounts(keep, err);
        if (r < 0)
                return r;
        r = open_folders(b, err);
        return r < 0 ? r : find_arch(b, err);
}

static int run(struct build *b, char digest[DIGEST_LEN + 1], struct error *err) {
        int r = prepare(b, err);

        if (r == 0)
                r = apt_download(b, err);
        if (r == 0)
                r = b->source == SOURCE_PACKAGES ? rootfs_from_packages(b, err) : rootfs_from_tar(b, err);
        if (r == 0)
                r = configure_rootfs(b, err);
        if (r == 0)
                r = kernel_make(b, err);
        if (r == 0)
                r = disk_make(b, err);
        return r < 0 ? r : finish(b, digest, err);
}

int main(int argc, char **argv) {
        static struct build b = { .dirfd = -EBADF, .outfd = -EBADF, .log_fd = -EBADF, .tar_fd = -EBADF, .packages = "",
                                  .suite = "" };
        struct error err = ERROR_INIT;
        char digest[DIGEST_LEN + 1] = "";

        log_setup("cspace-builder", LOG_LVL_INFO);
        (void) signal(SIGPIPE, SIG_IGN);
        (void) umask(022);
        if (argc == 2 && str_eq(argv[1], "--help")) {
                (void) fputs(usage, stdout);
                return 0;
        }
        int r = parse(&b, argc, argv, &err);
        if (r == 0)
                r = take_tar(&b, &err);
        if (r == 0) {
                drop_empty(&b);
                r = run(&b, digest, &err);
        }
        if (r < 0) {
                build_failed(&b, &err);
                log_error("%s", err.msg);
                return 1;
        }
        build_done(&b, digest);
        return 0;
}
