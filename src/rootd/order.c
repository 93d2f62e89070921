/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/order.h"

#include <errno.h>
#include <stdio.h>

#include "base/cleanup.h"
#include "base/str.h"

#define WARDEN_PROCESSES_MAX 16
#define VM_PROCESSES_MAX 256           /* vCPUs, and QEMU's pool of I/O threads */
#define STATE_BYTES_MAX (256ull << 20) /* device state written in "boot" */
#define PROGRAM_FILES_MAX 1024
#define GATEWAY_PROCESSES_MAX 8
#define GATEWAY_FILES_MAX 8192 /* two descriptors a connection, and pipes for spliced ones */
#define WARDEN_OOM_ADJ 200
#define GATEWAY_OOM_ADJ 300
#define VM_OOM_ADJ 400

static int add_args(struct launch_order *o, const char *const *args, size_t n, struct error *err) {
        for (size_t i = 0; i < n; i++)
                if (launch_order_arg(o, args[i]) < 0)
                        return error_set(err, -E2BIG, "arguments of \"%s\" are too long", args[0]);
        return 0;
}

static int program_path(const struct rootd *r, const char *name, char out[CONF_STR_MAX + 32], struct error *err) {
        if (conf_libexec_path(&r->opt.conf, name, out, CONF_STR_MAX + 32) < 0)
                return error_set(err, -ENAMETOOLONG, "path of %s is too long", name);
        return 0;
}

int order_warden(const struct rootd *r, const struct record *rec, bool adopt, bool grown, bool thaw,
                 struct launch_order *ret, struct error *err) {
        char program[CONF_STR_MAX + 32], ropen[CONF_STR_MAX + 32], becomes[CONF_STR_MAX + 32], memory[16], cpus[16], disk[24];
        *ret = (struct launch_order){ .uid = rec->warden_uid,
                                      .files = PROGRAM_FILES_MAX,
                                      .processes = WARDEN_PROCESSES_MAX,
                                      .oom_score_adj = WARDEN_OOM_ADJ,
                                      .text_log = true };
        int res = program_path(r, "cspace-warden", program, err);
        if (res < 0)
                return res;
        if (conf_libexec_path(&r->opt.conf, "ropen.so", ropen, sizeof ropen) < 0)
                return error_set(err, -ENAMETOOLONG, "path of ropen.so is too long");
        (void) snprintf(memory, sizeof memory, "%u", rec->memory_mb);
        (void) snprintf(cpus, sizeof cpus, "%u", rec->cpus);
        const char *const args[] = { program,    "--id",      rec->id,    "--mode", rec->mode,
                                     "--engine", rec->engine, "--memory", memory,   "--cpus",
                                     cpus,       "--ropen",   ropen };
        const char *const qemu[] = { "--qemu", r->opt.conf.qemu };
        res = add_args(ret, args, ARRAY_SIZE(args), err);
        if (res == 0 && r->opt.conf.qemu[0])
                res = add_args(ret, qemu, ARRAY_SIZE(qemu), err);
        (void) snprintf(disk, sizeof disk, "%llu", (unsigned long long) rec->disk_bytes);
        if (res == 0 && grown)
                res = add_args(ret, (const char *const[]){ "--disk-bytes", disk }, 2, err);
        if (res == 0 && thaw)
                res = program_path(r, "cspace-thaw", becomes, err);
        if (res == 0 && thaw)
                res = add_args(ret, (const char *const[]){ "--thaw", becomes }, 2, err);
        if (res == 0 && adopt)
                res = add_args(ret, (const char *const[]){ "--adopt" }, 1, err);
        return res;
}

int order_vm(const struct rootd *r, const struct record *rec, struct launch_order *ret, struct error *err) {
        char program[CONF_STR_MAX + 32];
        bool boot = str_eq(rec->mode, "boot");
        uint64_t files = boot ? ((uint64_t) rec->memory_mb << 20) + STATE_BYTES_MAX : 0;
        *ret = (struct launch_order){
                .uid = rec->vm_uid,
                /* A VM that was taken over cannot fill the host's disk through its own. */
                .file_bytes = rec->disk_bytes > files ? rec->disk_bytes : files,
                .files = PROGRAM_FILES_MAX,
                .processes = VM_PROCESSES_MAX,
                .oom_score_adj = VM_OOM_ADJ,
                .kvm = str_eq(rec->engine, "qemu-kvm")
        };
        if (ret->kvm && r->views.kvm < 0)
                return error_set(err, -EOPNOTSUPP, "engine qemu-kvm cannot be used here: %s",
                                 r->host.engine_reason);
        int res = program_path(r, "cspace-warden", program, err);
        if (res < 0)
                return res;
        const char *const args[] = { program, "--stub" };
        return add_args(ret, args, ARRAY_SIZE(args), err);
}

int order_gateway(const struct rootd *r, const struct record *rec, struct launch_order *ret, struct error *err) {
        char program[CONF_STR_MAX + 32];
        *ret = (struct launch_order){ .uid = rec->gateway_uid,
                                      .files = GATEWAY_FILES_MAX,
                                      .processes = GATEWAY_PROCESSES_MAX,
                                      .oom_score_adj = GATEWAY_OOM_ADJ,
                                      .text_log = true };
        int res = program_path(r, "cspace-gateway", program, err);
        if (res < 0)
                return res;
        const char *const args[] = { program, "--id", rec->id, "--trust", "/proc/self/fd/7" };
        return add_args(ret, args, ARRAY_SIZE(args), err);
}

void order_fd(struct launch_order *o, int fds[LAUNCH_FDS_MAX], int number, int fd) {
        if (fd < 0)
                return;
        fds[o->n_fds] = fd;
        o->fds[o->n_fds++] = number;
}
