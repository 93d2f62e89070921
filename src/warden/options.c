/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/limits.h"
#include "base/str.h"

#ifndef CSPACE_LIBEXECDIR
#define CSPACE_LIBEXECDIR "/usr/local/libexec/cspace"
#endif

struct raw {
        const char *id, *mode, *engine, *memory, *cpus, *qemu, *ropen, *thaw, *disk;
};

static int collect(int argc, char **argv, struct raw *raw, bool *ret_adopt, struct error *err) {
        const struct {
                const char *name;
                const char **to;
        } options[] = {
                { "--id", &raw->id },         { "--mode", &raw->mode }, { "--engine", &raw->engine },
                { "--memory", &raw->memory }, { "--cpus", &raw->cpus }, { "--qemu", &raw->qemu },
                { "--ropen", &raw->ropen },   { "--thaw", &raw->thaw },
                { "--disk-bytes", &raw->disk },
        };
        for (int i = 1; i < argc; i++) {
                size_t o = 0;
                if (str_eq(argv[i], "--adopt")) {
                        *ret_adopt = true;
                        continue;
                }
                while (o < ARRAY_SIZE(options) && !str_eq(argv[i], options[o].name))
                        o++;
                if (o == ARRAY_SIZE(options))
                        return error_set(err, -EINVAL, "\"%s\" is no option", argv[i]);
                if (++i == argc)
                        return error_set(err, -EINVAL, "%s needs a value", options[o].name);
                *options[o].to = argv[i];
        }
        return 0;
}

int options_parse(int argc, char **argv, struct warden_config *ret, struct error *err) {
        struct raw raw = { .ropen = CSPACE_LIBEXECDIR "/ropen.so", .qemu = "" };
        bool adopt = false;
        uint64_t memory, cpus, disk = 0;
        int r = collect(argc, argv, &raw, &adopt, err);
        if (r < 0)
                return r;
        if (!raw.id || !id_valid(raw.id))
                return error_set(err, -EINVAL, "--id: \"%s\" is no sandbox id", raw.id ? raw.id : "");
        bool start = str_eq(raw.mode, "start"), boot = start || str_eq(raw.mode, "boot");
        if (!boot && !str_eq(raw.mode, "restore"))
                return error_set(err, -EINVAL, "--mode is \"boot\", \"start\" or \"restore\"");
        if (!raw.engine)
                return error_set(err, -EINVAL, "--engine is missing");
        if (!raw.memory || str_to_u64(raw.memory, LIMIT_MEMORY_MAX_MB, &memory) < 0 || memory < LIMIT_MEMORY_MIN_MB)
                return error_set(err, -EINVAL, "--memory is a number of MiB from %d to %d", LIMIT_MEMORY_MIN_MB,
                                 LIMIT_MEMORY_MAX_MB);
        if (!raw.cpus || str_to_u64(raw.cpus, LIMIT_CPUS_MAX, &cpus) < 0 || cpus == 0)
                return error_set(err, -EINVAL, "--cpus is a number from 1 to %d", LIMIT_CPUS_MAX);
        if (raw.disk && (str_to_u64(raw.disk, INT64_MAX, &disk) < 0 || disk == 0))
                return error_set(err, -EINVAL, "--disk-bytes is a number of bytes");
        *ret = (struct warden_config){
                .id = raw.id,
                .mode = adopt ? WARDEN_ADOPT : boot ? WARDEN_BOOT : WARDEN_RESTORE,
                .vmm = {
                        .engine = raw.engine,
                        .qemu = raw.qemu,
                        .ropen = raw.ropen,
                        .thaw = raw.thaw,
                        .memory_mb = (uint32_t) memory,
                        .cpus = (uint32_t) cpus,
                        .disk_bytes = disk,
                        .keep = start,
                },
        };
        return 0;
}

static int take(int fd) {
        return fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 ? -EBADF : fd;
}

int options_take_fds(struct warden_config *cfg, struct error *err) {
        cfg->ctl = take(WARDEN_FD_CTL);
        cfg->data = take(WARDEN_FD_DATA);
        cfg->vmm.stub = take(WARDEN_FD_STUB);
        cfg->vmm.tap = take(WARDEN_FD_TAP);
        cfg->vmm.disk = take(WARDEN_FD_DISK);
        cfg->vmm.mem = take(WARDEN_FD_MEM);
        cfg->vmm.state = take(WARDEN_FD_STATE);
        cfg->vmm.kernel = take(WARDEN_FD_KERNEL);
        cfg->vmm.initrd = take(WARDEN_FD_INITRD);
        cfg->vmm.qmp_listen = take(WARDEN_FD_QMP);
        cfg->vmm.port_listen = take(WARDEN_FD_PORT);
        (void) close_range(WARDEN_FD_END, ~0u, 0);
        if (cfg->ctl < 0 || cfg->data < 0)
                return error_set(err, -EBADF, "descriptors %d and %d must be ctl.sock and data.sock", WARDEN_FD_CTL,
                                 WARDEN_FD_DATA);
        return 0;
}
