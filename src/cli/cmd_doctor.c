/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cspace doctor: what this host has and lacks, a line for each thing, with what to do about it. It changes nothing, runs
 * for any user, and asks the services where they answer: what they found counts more than a look from outside.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pwd.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli.h"
#include "client.h"
#include "command.h"
#include "doctor_mirrors.h"
#include "mem.h"
#include "output.h"
#include "setup.h"
#include "setup_report.h"
#include "template.h"
#include "text.h"

#define DISK_WARN (4ULL << 30)
#define MEMORY_WARN (1ULL << 30)
#define DOCTOR_FAILED 1
#define CGROUP "/sys/fs/cgroup"
#define KEYRING "/usr/share/keyrings/debian-archive-keyring.gpg"
#define CPUINFO_MAX (8u << 20)
#define UP "start the services: sudo cspace up"

struct doctor {
        struct setup setup;
        struct report report;
        struct client *client; /* NULL: the services do not answer */
        json_t *host;          /* answer of /v1/host */
};

/* ---- engine ---------------------------------------------------------------------------------- */

/* A whole word of /proc/cpuinfo's first line of flags. */
static bool cpu_has(const char *cpuinfo, const char *flag) {
        const char *line = strstr(cpuinfo, "\nflags");
        size_t n = strlen(flag);

        if (!line)
                return false;
        const char *end = line + 1 + strcspn(line + 1, "\n");
        for (const char *p = line + 1; p < end; p += strspn(p, " \t:")) {
                size_t word = strcspn(p, " \t:\n");
                if (word == n && memcmp(p, flag, n) == 0)
                        return true;
                p += word;
                if (*p == '\n')
                        break;
        }
        return false;
}

static void check_cpu(struct doctor *d) {
        _cleanup_free_ char *text = NULL;
        struct report *r = &d->report;

        if (fd_read_file_at(AT_FDCWD, "/proc/cpuinfo", CPUINFO_MAX, &text, NULL, NULL) < 0) {
                report_add(r, VERDICT_WARN, "cpu", NULL, "/proc/cpuinfo cannot be read");
                return;
        }
        const char *virt = cpu_has(text, "svm") ? "svm" : cpu_has(text, "vmx") ? "vmx" : NULL;
        int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
        int why = errno;
        if (virt && kvm >= 0)
                report_add(r, VERDICT_OK, "cpu", NULL, "hardware virtualisation (%s), /dev/kvm opens", virt);
        else if (virt && why == EACCES)
                report_add(r, VERDICT_OK, "cpu", NULL, "hardware virtualisation (%s); /dev/kvm is not for this user, which is fine", virt);
        else if (virt)
                report_add(r, VERDICT_WARN, "cpu", "load the module: modprobe kvm_intel or kvm_amd; see whether the firmware has it enabled",
                           "hardware virtualisation (%s), but /dev/kvm does not open: %s", virt, strerror(why));
        else if (kvm >= 0)
                report_add(r, VERDICT_WARN, "cpu", "virtual machines are emulated here: slower, but complete",
                           "/dev/kvm opens, but the CPU shows neither vmx nor svm: it cannot boot a stock kernel");
        else
                report_add(r, VERDICT_WARN, "cpu", "virtual machines are emulated here: slower, but complete",
                           "no hardware virtualisation (neither vmx nor svm)");
        (void) fd_close(kvm);
}

static void check_engine(struct doctor *d) {
        if (d->host) {
                const char *engine = member_str(d->host, "engine");
                report_add(&d->report, VERDICT_OK, "engine", NULL, "%s: %s", engine, member_str(d->host, "engine_reason"));
                return;
        }
        if (setup_health(&d->setup, NULL) == -EACCES) {
                report_add(&d->report, VERDICT_OK, "engine", NULL, "set to \"%s\"; which one that is, only those learn who may ask cspaced",
                           d->setup.conf.engine);
                return;
        }
        report_add(&d->report, VERDICT_WARN, "engine", UP, "set to \"%s\"; which one that is, cspace-rootd tells when it runs",
                   d->setup.conf.engine);
}

static void check_qemu(struct doctor *d) {
        const char *program = d->setup.conf.qemu[0] ? d->setup.conf.qemu : "qemu-system-x86_64";
        const char *const argv[] = { program, "--version", NULL };
        char line[160];
        struct error err = ERROR_INIT;
        unsigned major;

        if (setup_exec_line(argv, line, sizeof line, &err) < 0) {
                report_add(&d->report, VERDICT_FAIL, "qemu", "apt-get install qemu-system-x86", "%s", err.msg);
                return;
        }
        const char *v = strstr(line, "version ");
        bool old = v && sscanf(v, "version %u", &major) == 1 && major < 7;
        report_add(&d->report, old ? VERDICT_WARN : VERDICT_OK, "qemu", "cspace is tested with QEMU 7.2 and later", "%s", line);
}

/* ---- kernel ---------------------------------------------------------------------------------- */

static bool can_unshare(int flags) {
        int status = 0;
        pid_t pid = fork();

        if (pid == 0)
                _exit(unshare(flags) == 0 ? 0 : 1);
        return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void check_network(struct doctor *d) {
        static const char *const nft[] = { "nft", "--version", NULL };
        char line[160];
        struct report *r = &d->report;

        if (access("/dev/net/tun", F_OK) == 0)
                report_add(r, VERDICT_OK, "tun", NULL, "/dev/net/tun is there");
        else
                report_add(r, VERDICT_FAIL, "tun", "load the module: modprobe tun", "/dev/net/tun is missing");
        if (geteuid() != 0)
                report_add(r, access("/proc/self/ns/net", F_OK) == 0 ? VERDICT_OK : VERDICT_FAIL, "namespaces", NULL,
                           "the kernel has network namespaces (run as root to try one)");
        else if (can_unshare(CLONE_NEWNET | CLONE_NEWNS) && can_unshare(CLONE_NEWUSER))
                report_add(r, VERDICT_OK, "namespaces", NULL, "network, mount and user namespaces can be made");
        else
                report_add(r, VERDICT_FAIL, "namespaces", "a container needs CAP_SYS_ADMIN and user.max_user_namespaces above 0",
                           "network, mount or user namespaces cannot be made: %s", strerror(EPERM));
        if (setup_exec_line(nft, line, sizeof line, NULL) == 0)
                report_add(r, VERDICT_OK, "nftables", NULL, "%s", line);
        else
                report_add(r, VERDICT_FAIL, "nftables", "apt-get install nftables", "the program nft is missing");
}

static void check_cgroup(struct doctor *d) {
        struct report *r = &d->report;
        struct statfs st;

        if (statfs(CGROUP, &st) == 0 && (unsigned long) st.f_type == CGROUP2_SUPER_MAGIC)
                report_add(r, VERDICT_OK, "cgroup", NULL, "version 2");
        else if (access(CGROUP "/memory", F_OK) == 0 || access(CGROUP "/cpu", F_OK) == 0)
                report_add(r, VERDICT_OK, "cgroup", NULL, "version 1");
        else
                report_add(r, VERDICT_WARN, "cgroup", "mount -t cgroup2 none " CGROUP,
                           "none is mounted: sandboxes are limited by their VM's size alone");
}

/* ---- space ----------------------------------------------------------------------------------- */

static void check_data(struct doctor *d) {
        const char *data = d->setup.conf.data;
        struct report *r = &d->report;
        char image[CONF_STR_MAX + 16];

        setup_image_path(&d->setup, image, sizeof image);
        if (d->host) {
                const char *fs = member_str(d->host, "data_fs");
                if (json_is_true(json_object_get(d->host, "reflink")))
                        report_add(r, VERDICT_OK, "data", NULL, "%s is on %s, with reflinks", data, *fs ? fs : "a filesystem");
                else
                        report_add(r, VERDICT_FAIL, "data", UP, "%s is on %s, which has no reflinks", data, *fs ? fs : "a filesystem");
                return;
        }
        if (access(data, F_OK) < 0) {
                report_add(r, VERDICT_WARN, "data", UP, "%s does not exist yet", data);
                return;
        }
        if (geteuid() != 0) {
                report_add(r, VERDICT_OK, "data", NULL, "%s is there (run as root to test it for reflinks)", data);
                return;
        }
        int has = setup_has_reflinks(data, NULL);
        if (has == 1)
                report_add(r, VERDICT_OK, "data", NULL, "%s is on a filesystem with reflinks", data);
        else
                report_add(r, VERDICT_WARN, "data", "cspace up mounts an image there", "%s is on a filesystem without reflinks%s%s", data,
                           access(image, F_OK) == 0 ? "; not mounted: " : "", access(image, F_OK) == 0 ? image : "");
}

static void report_space(struct doctor *d, const char *name, const char *path) {
        char free_text[TEXT_SIZE], all_text[TEXT_SIZE];
        struct statvfs v;

        if (statvfs(path, &v) < 0)
                return;
        uint64_t left = (uint64_t) v.f_bavail * v.f_frsize;
        text_size(left, free_text);
        text_size((uint64_t) v.f_blocks * v.f_frsize, all_text);
        report_add(&d->report, left < DISK_WARN ? VERDICT_WARN : VERDICT_OK, name, "make room: a full disk stops sandboxes that write",
                   "%s of %s free on %s", free_text, all_text, path);
}

static void check_space(struct doctor *d) {
        _cleanup_free_ char *text = NULL;
        char image[CONF_STR_MAX + 16], size[TEXT_SIZE];
        unsigned long long kib = 0;

        report_space(d, "disk", access(d->setup.conf.data, F_OK) == 0 ? d->setup.conf.data : "/");
        setup_image_path(&d->setup, image, sizeof image);
        /* The image grows as it is used: what it lies on matters as much. */
        if (access(image, F_OK) == 0) {
                *strrchr(image, '/') = '\0';
                report_space(d, "image", image[0] ? image : "/");
        }
        if (fd_read_file_at(AT_FDCWD, "/proc/meminfo", 64 * 1024, &text, NULL, NULL) < 0)
                return;
        const char *line = strstr(text, "MemAvailable:");
        if (!line || sscanf(line, "MemAvailable: %llu", &kib) != 1)
                return;
        text_size((uint64_t) kib << 10, size);
        report_add(&d->report, kib << 10 < MEMORY_WARN ? VERDICT_WARN : VERDICT_OK, "memory", "little is left for sandboxes",
                   "%s available", size);
}

/* ---- installation ---------------------------------------------------------------------------- */

static void check_programs(struct doctor *d) {
        static const char *const names[] = { "cspaced", "cspace-rootd", "cspace-warden", "cspace-builder",
                                             "cspace-history", "cspace-token", "cspace-agent", "ropen.so" };
        char path[CONF_STR_MAX + 64], missing[256] = "";

        for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
                size_t n = strlen(missing);
                if (conf_libexec_path(&d->setup.conf, names[i], path, sizeof path) == 0 && access(path, R_OK) == 0)
                        continue;
                (void) snprintf(missing + n, sizeof missing - n, " %s", names[i]);
        }
        if (missing[0])
                report_add(&d->report, VERDICT_FAIL, "programs", "install again: ./quickstart.sh, or meson install", "missing in %s:%s",
                           d->setup.conf.libexec, missing);
        else
                report_add(&d->report, VERDICT_OK, "programs", NULL, "complete in %s", d->setup.conf.libexec);
}

static bool on_path(const char *program) {
        static const char *const dirs[] = { "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin" };
        char path[128];

        for (size_t i = 0; i < ARRAY_SIZE(dirs); i++) {
                (void) snprintf(path, sizeof path, "%s/%s", dirs[i], program);
                if (access(path, X_OK) == 0)
                        return true;
        }
        return false;
}

static void check_builder(struct doctor *d) {
        static const struct {
                const char *program, *package;
        } tools[] = {
                { "mmdebstrap", "mmdebstrap" }, { "mke2fs", "e2fsprogs" }, { "depmod", "kmod" },        { "dpkg-deb", "dpkg" },
                { "lz4", "lz4" },               { "zstd", "zstd" },        { "mkfs.btrfs", "btrfs-progs" }, { "xz", "xz-utils" },
        };
        char missing[256] = "";

        for (size_t i = 0; i < ARRAY_SIZE(tools); i++) {
                size_t n = strlen(missing);
                if (!on_path(tools[i].program))
                        (void) snprintf(missing + n, sizeof missing - n, " %s", tools[i].package);
        }
        if (!d->setup.conf.sources[0] && access(KEYRING, R_OK) < 0)
                (void) snprintf(missing + strlen(missing), sizeof missing - strlen(missing), " debian-archive-keyring");
        if (missing[0])
                report_add(&d->report, VERDICT_FAIL, "builder", "install them with apt-get install", "packages that building templates needs:%s",
                           missing);
        else
                report_add(&d->report, VERDICT_OK, "builder", NULL, "all tools for building templates are there");
}

static void check_user(struct doctor *d) {
        struct error err = ERROR_INIT;

        if (setup_user(&d->setup, false, &err) < 0)
                report_add(&d->report, VERDICT_FAIL, "user", UP, "%s", err.msg);
        else
                report_add(&d->report, VERDICT_OK, "user", NULL, SETUP_USER " (uid %u)", d->setup.uid);
}

static void check_owner(struct doctor *d, const char *path, mode_t forbidden) {
        struct stat st;

        if (lstat(path, &st) < 0)
                return;
        if (st.st_uid == 0 && (st.st_mode & forbidden) == 0)
                return;
        report_add(&d->report, VERDICT_FAIL, "owner", "give it to root: chown root PATH; chmod go-w PATH", "%s belongs to uid %u with mode %04o",
                   path, st.st_uid, (unsigned) (st.st_mode & 07777));
}

static void check_owners(struct doctor *d) {
        unsigned before = d->report.fails;
        char path[CONF_STR_MAX + 64];
        const char *config = cli()->config ? cli()->config : CONF_FILE;

        check_owner(d, config, S_IWGRP | S_IWOTH);
        check_owner(d, d->setup.conf.data, S_IWOTH);
        check_owner(d, d->setup.conf.run, S_IWOTH);
        check_owner(d, d->setup.conf.libexec, S_IWGRP | S_IWOTH);
        (void) conf_data_path(&d->setup.conf, "templates", path, sizeof path);
        check_owner(d, path, S_IWGRP | S_IWOTH);
        if (d->report.fails == before)
                report_add(&d->report, VERDICT_OK, "owner", NULL, "configuration, programs and folders are root's");
}

/* ---- services -------------------------------------------------------------------------------- */

static void check_services(struct doctor *d) {
        struct error err = ERROR_INIT;
        struct report *r = &d->report;

        for (unsigned i = 0; geteuid() == 0 && i < SETUP_SERVICES; i++) {
                struct service_state s;
                (void) setup_service_state(&d->setup, i, &s);
                if (s.pid == 0)
                        report_add(r, VERDICT_FAIL, s.name, UP, "does not run");
                else
                        report_add(r, s.outdated ? VERDICT_WARN : VERDICT_OK, s.name, "restart it: sudo cspace up",
                                   s.outdated ? "runs (pid %d), but its program was replaced since" : "runs (pid %d)", (int) s.pid);
        }
        if (setup_health(&d->setup, &err) == 0)
                report_add(r, VERDICT_OK, "api", NULL, "answers on %s/api.sock", d->setup.conf.run);
        else if (err.code == -EACCES)
                report_add(r, VERDICT_WARN, "api", "join the group " SETUP_USER ", or use --api http://ADDRESS:PORT with a key", "%s", err.msg);
        else
                report_add(r, VERDICT_FAIL, "api", UP, "%s", err.msg);
}

/* Templates keep the agent they were built with. */
static void check_agents(struct doctor *d) {
        _cleanup_json_ json_t *answer = NULL;
        struct api_error e;
        const json_t *one;
        size_t i;

        if (client_call(d->client, "GET", "/v1/templates", NULL, 0, &answer, &e) < 0)
                return;
        json_array_foreach(json_object_get(answer, "templates"), i, one) {
                _cleanup_free_ char *todo = template_renew(one), *hint = todo ? mem_printf("build it again: %s", todo) : NULL;
                if (hint)
                        report_add(&d->report, VERDICT_WARN, "template", hint, "the agent in %s is not the installed one",
                                   template_shown(one));
        }
}

static void check_template(struct doctor *d) {
        struct api_error e;
        struct report *r = &d->report;
        _cleanup_json_ json_t *t = NULL;

        if (!d->client)
                return;
        if (client_call(d->client, "GET", "/v1/templates/base", NULL, 0, &t, &e) == 0)
                report_add(r, VERDICT_OK, "template", NULL, "base is there (%.12s)", member_str(t, "digest"));
        else if (e.status == 404)
                report_add(r, VERDICT_WARN, "template", "build it: cspace template build base", "there is no template \"base\"");
        else
                report_add(r, VERDICT_WARN, "template", NULL, "cannot ask for the template \"base\": %s", e.message);
        check_agents(d);
}

static void connect_services(struct doctor *d) {
        struct api_error e;

        if (setup_health(&d->setup, NULL) < 0 || client_new(&d->client, NULL) < 0)
                return;
        if (client_call(d->client, "GET", "/v1/host", NULL, 0, &d->host, &e) < 0)
                d->host = NULL;
}

static int run(int argc, char **argv) {
        struct doctor d = { .setup = SETUP_INIT };
        struct error err = ERROR_INIT;

        (void) argc;
        (void) argv;
        if (setup_load(&d.setup, &err) < 0) {
                report_add(&d.report, VERDICT_FAIL, "config", "correct the file", "%s", err.msg);
                report_end(&d.report);
                return DOCTOR_FAILED;
        }
        report_add(&d.report, VERDICT_OK, "config", NULL, "%s", cli()->config          ? cli()->config
                                                              : access(CONF_FILE, F_OK) == 0 ? CONF_FILE
                                                                                             : "defaults, no " CONF_FILE);
        connect_services(&d);
        check_cpu(&d);
        check_engine(&d);
        check_qemu(&d);
        check_network(&d);
        check_cgroup(&d);
        check_data(&d);
        check_space(&d);
        check_user(&d);
        check_programs(&d);
        check_builder(&d);
        check_owners(&d);
        check_services(&d);
        check_template(&d);
        doctor_mirrors(&d.setup.conf, &d.report);
        report_end(&d.report);
        json_decref(d.host);
        client_free(d.client);
        return d.report.fails ? DOCTOR_FAILED : CLI_OK;
}

const struct command command_doctor = {
        .name = "doctor",
        .synopsis = "",
        .summary = "Check what this host has and lacks.",
        .details = "One line for each thing: ok, warn or fail, and what to do about it. Exit status 1 when something failed. As root it "
                   "sees more.\n\n"
                   "  sudo cspace doctor\n"
                   "  cspace --json doctor",
        .opts = (const struct opt[]){ OPT_END },
        .max_args = 0,
        .command_at = -1,
        .run = run,
};
