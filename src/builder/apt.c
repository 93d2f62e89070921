/* SPDX-License-Identifier: Apache-2.0 */

/*
 * apt runs with a configuration of the build's own: the root filesystem's folders for its state, none of
 * the host's hooks and settings but those that say how to reach the archive (proxies and the like).
 */
#include "apt.h"

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
#include "cache.h"
#include "child.h"
#include "sources.h"

#define KEYRING "/usr/share/keyrings/debian-archive-keyring.gpg"
#define SOURCES_NAME "0000debian.sources" /* where mmdebstrap puts the first sources file */
#define PACKAGES_MAX 512
#define NAME_MAX_ 128

const char *const apt_base_packages[] = {
        /* asked for by whoever types in a shell */
        "bash", "coreutils", "procps", "ncurses-bin", "ncurses-base", "sudo", "less", "file", "iproute2", "kmod",
        /* what agents fetch and unpack with */
        "ca-certificates", "curl", "git", "patch", "unzip", "xz-utils", "jq", "ripgrep",
        /* Python as its users expect it */
        "python3", "python3-pip", "python3-venv", "python-is-python3",
        /* uuidgen */
        "uuid-runtime",
        NULL,
};

static bool package_ok(const char *w, size_t n) {
        if (n < 2 || n > NAME_MAX_ || w[n - 1] == '-')
                return false;
        if (!((w[0] >= 'a' && w[0] <= 'z') || (w[0] >= '0' && w[0] <= '9')))
                return false;
        return strspn(w, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-:=~") >= n;
}

int apt_check_packages(const char *packages, struct error *err) {
        size_t count = 0;

        for (const char *p = packages; *p;) {
                p += strspn(p, " ");
                size_t n = strcspn(p, " ");
                if (n == 0)
                        break;
                if (!package_ok(p, n))
                        return error_set(err, -EINVAL, "\"%.*s\" is not a package name", (int) (n < 200 ? n : 200), p);
                if (++count > PACKAGES_MAX)
                        return error_set(err, -EINVAL, "more than %d packages", PACKAGES_MAX);
                p += n;
        }
        return 0;
}

/* ---- configuration --------------------------------------------------------------------------- */

/* Host settings that decide how the archive is reached. */
static bool wanted_setting(const char *line) {
        static const char *const wanted[] = { "Acquire::http::", "Acquire::https::", "Acquire::Check-Valid-Until ",
                                              "Acquire::Check-Date ", "Acquire::Retries ", "Acquire::ForceIPv4 ",
                                              "Acquire::ForceIPv6 ", "Acquire::AllowInsecure" };

        for (size_t i = 0; i < ARRAY_SIZE(wanted); i++)
                if (str_has_prefix(line, wanted[i]))
                        return true;
        return false;
}

static int host_settings(struct build *b, struct buf *out, struct error *err) {
        static const char *const argv[] = { "apt-config", "dump", NULL };
        struct child c = CHILD_INIT;
        _cleanup_free_ char *text = NULL;

        c.argv = argv;
        int r = child_output(b, &c, SOURCES_TEXT_MAX * 4, &text, err);
        if (r < 0)
                return r;
        for (char *save = NULL, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
                if (wanted_setting(line) && buf_printf(out, "%s\n", line) < 0)
                        return error_set(err, -ENOMEM, "apt's configuration is too long");
        return 0;
}

static void apt_root(const struct build *b, char *out, size_t cap) {
        (void) snprintf(out, cap, "%s%s", b->source == SOURCE_PACKAGES ? b->rootfs : b->work,
                        b->source == SOURCE_PACKAGES ? "" : "/apt");
}

static int write_config(struct build *b, const char *root, struct error *err) {
        _cleanup_buf_ struct buf text = BUF_INIT(SOURCES_TEXT_MAX);

        int r = host_settings(b, &text, err);
        if (r < 0)
                return r;
        r = buf_printf(&text,
                       "Dir \"%s\";\n"
                       "Dir::State::status \"%s/var/lib/dpkg/status\";\n"
                       "APT::Architecture \"%s\";\nAPT::Architectures { \"%s\"; };\n"
                       "APT::Install-Recommends \"false\";\n"
                       "APT::Sandbox::User \"root\";\n" /* this is an unprivileged user already */
                       "Acquire::Languages \"none\";\n"
                       "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled \"false\";\n"
                       "APT::Get::Assume-Yes \"true\";\n"
                       "Dpkg::Use-Pty \"false\";\n",
                       root, root, b->arch, b->arch);
        if (r < 0)
                return error_set(err, -ENOMEM, "apt's configuration is too long");
        return fd_replace_file_at(b->dirfd, "work/apt.conf", buf_data(&text), text.len, 0644, err);
}

/* apt on behalf of the build: its configuration by environment, so that Dir is settled before options. */
static int run_apt(struct build *b, const char *const *argv, const char *cwd, void (*on_line)(void *, const char *),
                   char **ret_output, struct error *err) {
        char config[BUILD_PATH_MAX + 64];
        const char *const env[] = { config, NULL };
        struct child c = CHILD_INIT;

        (void) snprintf(config, sizeof config, "APT_CONFIG=%s/apt.conf", b->work);
        c.argv = argv;
        c.env = env;
        c.on_line = on_line;
        c.line_arg = b;
        c.unlogged = "dlstatus:"; /* thousands of them, and in an error the last lines should say something */
        if (cwd && chdir(cwd) < 0)
                return error_errno(err, errno, "cannot enter %s", cwd);
        int r = ret_output ? child_output(b, &c, 1 << 20, ret_output, err) : child_run(b, &c, err);
        if (chdir("/") < 0 && r == 0)
                r = error_errno(err, errno, "cannot enter /");
        return r;
}

/* ---- sources --------------------------------------------------------------------------------- */

static int host_codename(char *out, size_t cap, struct error *err) {
        _cleanup_free_ char *text = NULL;

        int r = fd_read_file_at(AT_FDCWD, "/etc/os-release", 64 * 1024, &text, NULL, err);
        if (r == 0)
                sources_codename(text, out, cap);
        return r;
}

static bool suite_ok(const char *s) {
        size_t n = strlen(s);

        return n > 0 && n < 64 && strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == n && s[0] != '-';
}

static int choose_sources(struct build *b, struct buf *text, struct error *err) {
        char codename[64] = "";
        struct sources *s = NULL;

        int r = host_codename(codename, sizeof codename, err);
        if (r < 0)
                return r;
        const char *suite = b->suite[0] ? b->suite : codename;
        if (!suite_ok(suite))
                return build_error(b, "bad_argument", err, -EINVAL, "\"%s\" is not the name of a Debian suite", suite);
        if (str_copy(b->suite_used, sizeof b->suite_used, suite) < 0)
                return error_set(err, -EINVAL, "suite name too long");
        if (b->sources) {
                _cleanup_free_ char *own = NULL;
                r = fd_read_file_at(AT_FDCWD, b->sources, SOURCES_TEXT_MAX, &own, NULL, err);
                if (r == 0)
                        r = buf_puts(text, own);
                return r;
        }
        if (access(KEYRING, R_OK) < 0)
                return build_error(b, "no_sources", err, -ENOENT, "%s is missing: install debian-archive-keyring", KEYRING);
        s = calloc(1, sizeof *s);
        if (!s)
                return error_set(err, -ENOMEM, "out of memory");
        r = sources_read_host(s, "/etc/apt", err);
        if (r == 0)
                r = sources_select(s, codename, suite, KEYRING, text, err);
        free(s);
        if (r < 0)
                b->code = "no_sources";
        return r;
}

static int write_sources(struct build *b, int rootfd, struct error *err) {
        _cleanup_buf_ struct buf text = BUF_INIT(SOURCES_TEXT_MAX);

        int r = choose_sources(b, &text, err);
        if (r < 0)
                return r;
        const char *name = "etc/apt/sources.list.d/" SOURCES_NAME;
        if (b->sources && str_has_suffix(b->sources, ".list"))
                name = "etc/apt/sources.list.d/0000debian.list";
        build_log(b, (const char *) buf_data(&text), text.len);
        return fd_replace_file_at(rootfd, name, buf_data(&text), text.len, 0644, err);
}

static int make_apt_root(struct build *b, const char *root, struct error *err) {
        static const char *const dirs[] = { "etc/apt/sources.list.d", "etc/apt/apt.conf.d", "etc/apt/preferences.d",
                                            "var/lib/apt/lists/partial", "var/cache/apt/archives/partial",
                                            "var/lib/dpkg" };

        _cleanup_fd_ int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return error_errno(err, errno, "cannot open %s", root);
        for (size_t i = 0; i < ARRAY_SIZE(dirs); i++) {
                int r = fd_mkdir_p_at(fd, dirs[i], 0755, err);
                if (r < 0)
                        return r;
        }
        int r = fd_replace_file_at(fd, "var/lib/dpkg/status", "", 0, 0644, err);
        return r < 0 ? r : write_sources(b, fd, err);
}

/* ---- packages as files ----------------------------------------------------------------------- */

uint64_t apt_deb_date(int dirfd, const char *name) {
        char head[61] = "", digits[13];
        uint64_t date = 0;

        /* ar(5): "!<arch>\n", then a header of 60 bytes: name 16, date 12, ... */
        _cleanup_fd_ int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0 || pread(fd, head, 60, 0) != 60 || memcmp(head, "!<arch>\ndebian-binary", 21) != 0)
                return 0;
        memcpy(digits, head + 24, 12);
        digits[12] = '\0';
        digits[strcspn(digits, " ")] = '\0';
        return str_to_u64(digits, UINT32_MAX, &date) < 0 ? 0 : date;
}

static void closedirp(DIR **d) {
        if (*d)
                closedir(*d);
}

static int open_archives(const char *root, struct error *err) {
        char path[BUILD_PATH_MAX + 64];

        (void) snprintf(path, sizeof path, "%s/var/cache/apt/archives", root);
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? error_errno(err, errno, "cannot open %s", path) : fd;
}

static int open_cache(const struct build *b) {
        return b->cache ? open(b->cache, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -EBADF;
}

/* ---- downloading ----------------------------------------------------------------------------- */

/* "dlstatus:3:41.6:Retrieving file 3 of 9 (2s remaining)" from apt's status descriptor. */
static void on_update_line(void *arg, const char *line) {
        if (str_has_prefix(line, "dlstatus:"))
                build_progress(arg, 5, "reading the archive's package lists");
}

static void on_download_line(void *arg, const char *line) {
        unsigned n, percent;
        const char *text;
        char message[160];

        if (sscanf(line, "dlstatus:%u:%u", &n, &percent) != 2 || !(text = strrchr(line, ':')))
                return;
        (void) snprintf(message, sizeof message, "downloading packages: %.120s", text + 1);
        build_progress(arg, 15 + percent * 70 / 100, message);
}

/* What apt printed on its error stream names the kind of failure. */
static int download_error(struct build *b, struct error *err) {
        const char *tail = b->tail;
        size_t n = b->tail_n;

        if (err->code == -ETIMEDOUT || err->code == -ENOSPC)
                return err->code;
        const char *missing = memmem(tail, n, "Unable to locate package ", 25);
        if (missing) {
                missing += 25;
                size_t len = 0;
                while (missing + len < tail + n && missing[len] != '\n' && len < NAME_MAX_)
                        len++;
                return build_error(b, "package_not_found", err, -ENOENT, "the archive has no package \"%.*s\"", (int) len,
                                   missing);
        }
        const char *failed = memmem(tail, n, "E: Failed to fetch ", 19);
        if (failed) {
                size_t len = 0;
                while (failed + len < tail + n && failed[len] != '\n' && len < ERROR_MSG_MAX / 2)
                        len++;
                return build_error(b, "download_failed", err, -EIO, "cannot download from the Debian archive: %.*s", (int) len - 3,
                                   failed + 3);
        }
        if (memmem(tail, n, "has no installation candidate", 29) || memmem(tail, n, "was not found", 13))
                b->code = "package_not_found";
        else
                b->code = "download_failed";
        return error_wrap(err, "cannot download from the Debian archive");
}

/*
 * Asks apt what the command argv (n words, room for two more) would download, and takes from the cache what is
 * there. Each line: 'URI' NAME SIZE HASH:VALUE
 */
static int fetch_cached(struct build *b, const char **argv, size_t n, int cachefd, int to, struct error *err) {
        _cleanup_free_ char *text = NULL;
        unsigned taken = 0, wanted = 0;

        argv[n] = "--print-uris";
        argv[n + 1] = "-oAcquire::ForceHash=SHA256"; /* MD5 is printed otherwise */
        int r = run_apt(b, argv, NULL, NULL, &text, err);
        argv[n] = NULL;
        if (r < 0)
                return r;
        for (char *save = NULL, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
                char name[256], hash[160];
                if (line[0] != '\'' || sscanf(line, "'%*[^']' %255s %*s %159s", name, hash) != 2)
                        continue;
                wanted++;
                if (str_has_prefix(hash, "SHA256:") && cache_get(cachefd, to, name, hash + 7))
                        taken++;
        }
        build_logf(b, "%u of %u packages are in the cache\n", taken, wanted);
        return 0;
}

static int download_rootfs(struct build *b, int cachefd, int archives, struct error *err) {
        const char *argv[PACKAGES_MAX + 64] = { "apt-get",        "-q",         "-o",        "APT::Status-Fd=1",
                                                "--download-only", "install",    "?essential", "?priority(required)",
                                                "apt" };
        size_t n = 9;
        _cleanup_free_ char *words = strdup(b->packages);

        if (!words)
                return error_set(err, -ENOMEM, "out of memory");
        for (const char *const *p = apt_base_packages; *p; p++)
                argv[n++] = *p;
        for (char *save = NULL, *w = strtok_r(words, " ", &save); w && n < ARRAY_SIZE(argv) - 3;
             w = strtok_r(NULL, " ", &save))
                argv[n++] = w;
        int r = fetch_cached(b, argv, n, cachefd, archives, err);
        return r < 0 ? r : run_apt(b, argv, NULL, on_download_line, NULL, err);
}

/* The metapackage's dependency is the kernel of the day. */
static int find_kernel(struct build *b, struct error *err) {
        char meta[64];
        const char *argv[] = { "apt-cache", "depends", "--important", meta, NULL };
        _cleanup_free_ char *text = NULL;

        (void) snprintf(meta, sizeof meta, "linux-image-cloud-%s", b->arch);
        int r = run_apt(b, argv, NULL, NULL, &text, err);
        if (r < 0)
                return r;
        const char *p = strstr(text, "Depends: linux-image-");
        if (!p)
                return build_error(b, "package_not_found", err, -ENOENT, "the archive has no package \"%s\"", meta);
        p += strlen("Depends: ");
        size_t n = strcspn(p, "\n");
        if (n >= sizeof b->kernel_package || !package_ok(p, n))
                return error_set(err, -EBADMSG, "%s depends on no package that can be used", meta);
        memcpy(b->kernel_package, p, n);
        b->kernel_package[n] = '\0';
        return 0;
}

static int download_kernel(struct build *b, int cachefd, struct error *err) {
        char dir[BUILD_PATH_MAX + 64];
        const char *argv[] = { "apt-get", "-q", "download", b->kernel_package, NULL, NULL, NULL };

        (void) snprintf(dir, sizeof dir, "%s/kernel-deb", b->work);
        int r = fd_mkdir_p_at(b->dirfd, "work/kernel-deb", 0755, err);
        if (r < 0)
                return r;
        _cleanup_fd_ int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return error_errno(err, errno, "cannot open %s", dir);
        build_progress(b, 88, "downloading the kernel");
        r = fetch_cached(b, argv, 4, cachefd, fd, err);
        if (r == 0)
                r = run_apt(b, argv, dir, NULL, NULL, err);
        if (r == 0)
                cache_put_all(cachefd, fd);
        return r;
}

static void note_dates(struct build *b, int archives) {
        _cleanup_(closedirp) DIR *d = NULL;
        int fd = openat(archives, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        if (fd < 0 || !(d = fdopendir(fd))) {
                (void) fd_close(fd);
                return;
        }
        b->n_debs = 0;
        for (struct dirent *e; (e = readdir(d));) {
                if (!str_has_suffix(e->d_name, ".deb"))
                        continue;
                b->n_debs++;
                uint64_t date = apt_deb_date(archives, e->d_name);
                if (date > b->epoch)
                        b->epoch = date;
        }
}

static int download_packages(struct build *b, const char *root, int cachefd, struct error *err) {
        _cleanup_fd_ int archives = open_archives(root, err);

        if (archives < 0)
                return archives;
        int r = download_rootfs(b, cachefd, archives, err);
        if (r < 0)
                return r;
        cache_put_all(cachefd, archives);
        note_dates(b, archives);
        return 0;
}

int apt_download(struct build *b, struct error *err) {
        static const char *const update[] = { "apt-get", "-q", "-o", "APT::Status-Fd=1", "update", "--error-on=any", NULL };
        _cleanup_fd_ int cachefd = open_cache(b);
        char root[BUILD_PATH_MAX + 32];

        build_step(b, STEP_DOWNLOAD, "reading the archive's package lists");
        apt_root(b, root, sizeof root);
        if (mkdir(root, 0755) < 0 && errno != EEXIST)
                return error_errno(err, errno, "cannot make %s", root);
        int r = make_apt_root(b, root, err);
        if (r == 0)
                r = write_config(b, root, err);
        if (r < 0)
                return r;
        r = run_apt(b, update, NULL, on_update_line, NULL, err);
        if (r == 0 && b->source == SOURCE_PACKAGES)
                r = download_packages(b, root, cachefd, err);
        if (r == 0)
                r = find_kernel(b, err);
        if (r == 0)
                r = download_kernel(b, cachefd, err);
        if (r < 0)
                return b->code ? r : download_error(b, err);
        cache_trim(cachefd);
        build_progress(b, 100, "everything is downloaded");
        return 0;
}
