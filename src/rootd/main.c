/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cspace-rootd: the only root. A fixed list of typed requests on one seqpacket socket from one user,
 * each checked again here; nothing that a guest or a client of the API has written is parsed.
 *
 * Start: folders -> lock -> instance -> cgroups -> probe of the host -> view of wardens and VMs ->
 * reconcile with what an earlier rootd left -> own rights reduced -> socket. The end of the program,
 * also by SIGKILL, leaves every sandbox running; the next one adopts them.
 */
#include <cap-ng.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "rootd/build.h"
#include "rootd/commit.h"
#include "rootd/errand.h"
#include "rootd/packets.h"
#include "rootd/placement.h"
#include "rootd/pool.h"
#include "rootd/server.h"

#define ROOTD_NICE (-10)
#define FILES_MAX 65536

static void on_signal(uv_signal_t *s, int number) {
        log_info("signal %d: ending; sandboxes go on", number);
        uv_stop(s->loop);
}

/*
 * What is left, and for what: SYS_ADMIN namespaces, mounts; SYS_CHROOT setns of a mount namespace; NET_ADMIN
 * taps, nft; CHOWN, FOWNER, FSETID, DAC_OVERRIDE files of sandboxes; SETUID, SETGID, SETPCAP what children
 * become; KILL; SYS_PTRACE memory figures of other users' processes; MKNOD devices of the view; SYS_RESOURCE
 * oom_score_adj.
 */
static int reduce_rights(struct error *err) {
        static const unsigned kept[] = { CAP_SYS_ADMIN, CAP_SYS_CHROOT,  CAP_NET_ADMIN,    CAP_CHOWN,
                                         CAP_FOWNER,    CAP_FSETID,      CAP_DAC_OVERRIDE, CAP_SETUID,
                                         CAP_SETGID,    CAP_SETPCAP,     CAP_KILL,         CAP_SYS_PTRACE,
                                         CAP_MKNOD,     CAP_SYS_RESOURCE };
        capng_get_caps_process();
        bool had[ARRAY_SIZE(kept)];
        for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
                had[i] = capng_have_capability(CAPNG_PERMITTED, kept[i]);
        capng_clear(CAPNG_SELECT_BOTH);
        for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
                if (had[i])
                        (void) capng_update(CAPNG_ADD, CAPNG_EFFECTIVE | CAPNG_PERMITTED | CAPNG_BOUNDING_SET,
                                            kept[i]);
        int r = capng_apply(CAPNG_SELECT_BOTH);
        if (r < 0)
                return error_set(err, -EPERM, "cannot give up capabilities (step %d)", -r);
        return 0;
}

/* Ten descriptors a sandbox and ten a slot at most: more than the usual soft limit at a hundred. */
static void raise_file_limit(void) {
        struct rlimit l;
        if (getrlimit(RLIMIT_NOFILE, &l) < 0)
                return;
        struct rlimit wanted = { FILES_MAX, l.rlim_max > FILES_MAX ? l.rlim_max : FILES_MAX };
        if (setrlimit(RLIMIT_NOFILE, &wanted) == 0)
                return;
        l.rlim_cur = l.rlim_max;
        (void) setrlimit(RLIMIT_NOFILE, &l);
}

/* Whether VMs can be started from the image of a process. */
static int probe_processes(struct rootd *r, struct error *err) {
        char path[CONF_STR_MAX + 32];
        if (!r->opt.conf.process_images || !str_eq(r->host.engine, "qemu-tcg"))
                return 0;
        if (conf_libexec_path(&r->opt.conf, "cspace-thaw", path, sizeof path) < 0 || access(path, X_OK) < 0) {
                log_warn("there is no cspace-thaw: sandboxes start from snapshots alone");
                return 0;
        }
        return procimage_host(r->process_host, err);
}

static int open_parts(struct rootd *r, struct error *err) {
        char name[32];
        int res = dirs_open(&r->dirs, &r->opt, err);
        if (res == 0)
                res = instance_take(&r->instance, r->dirs.run_own, r->opt.conf.run, err);
        if (res < 0)
                return res;
        if (r->opt.cgroup[0])
                (void) snprintf(name, sizeof name, "%.31s", r->opt.cgroup);
        else if (r->instance.number == 0)
                (void) snprintf(name, sizeof name, "cspace");
        else
                (void) snprintf(name, sizeof name, "cspace-%u", r->instance.number);
        res = cgroups_open(&r->cgroups, r->dirs.run_own, name, err);
        if (res == 0)
                res = host_probe_data(&r->host, r->dirs.sandboxes, err);
        if (res < 0)
                return res;
        host_probe_engine(&r->host, r->opt.conf.engine);
        res = probe_processes(r, err);
        if (res < 0)
                return res;
        return views_make(&r->views, &r->opt, str_eq(r->host.engine, "qemu-kvm"), err);
}

static void tell_host(const struct rootd *r) {
        log_info("engine %s (%s), cgroup %s, data on %s%s, instance %u", r->host.engine,
                 r->host.engine_reason, r->cgroups.version, r->host.data_fs,
                 r->host.reflink ? "" : " without reflinks", r->instance.number);
        if (r->cgroups.note[0])
                log_warn("cgroups: %s", r->cgroups.note);
        if (!r->host.reflink)
                log_warn("the data folder has no reflinks: every create copies the template's disk");
}

static void close_parts(struct rootd *r) {
        server_free(r->server);
        r->server = NULL;
        build_free_all(r);
        errand_free_all(r);
        unsigned left = r->n_placements;
        placement_free_all(r);
        pool_free(r->pool);
        views_close(&r->views);
        if (left == 0)
                cgroups_remove_bases(r->dirs.run_own);
        cgroups_close(&r->cgroups);
        instance_drop(&r->instance);
        dirs_close(&r->dirs);
}

static int serve(struct rootd *r, struct error *err) {
        uv_signal_t term, interrupt;
        int res = pool_new(r, &r->pool, err);
        if (res == 0)
                res = reconcile(r, err);
        if (res < 0)
                return res;
        commit_sweep(r);
        res = reduce_rights(err);
        if (res == 0)
                res = packets_start(r, err);
        if (res == 0)
                res = server_new(r, &r->server, err);
        if (res < 0)
                return res;
        (void) uv_signal_init(r->loop, &term);
        (void) uv_signal_init(r->loop, &interrupt);
        (void) uv_signal_start(&term, on_signal, SIGTERM);
        (void) uv_signal_start(&interrupt, on_signal, SIGINT);
        log_info("ready");
        (void) uv_run(r->loop, UV_RUN_DEFAULT);
        uv_close((uv_handle_t *) &term, NULL);
        uv_close((uv_handle_t *) &interrupt, NULL);
        pool_drain(r->pool);
        server_free(r->server);
        r->server = NULL;
        packets_stop(r);
        (void) uv_run(r->loop, UV_RUN_NOWAIT);
        return 0;
}

int main(int argc, char **argv) {
        static struct rootd r;
        struct error e = ERROR_INIT;
        enum log_level level = LOG_LVL_INFO;
        log_setup("cspace-rootd", level);
        int res = options_parse(&r.opt, argc, argv, &e);
        if (res != 0) {
                if (res < 0)
                        log_error("%s", e.msg);
                return res < 0 ? 2 : 0;
        }
        (void) log_level_parse(r.opt.conf.log_level, &level);
        log_setup("cspace-rootd", level);
        if (geteuid() != 0) {
                log_error("must be started by root");
                return 2;
        }
        fault_setup("rootd");
        (void) umask(022);
        (void) signal(SIGPIPE, SIG_IGN);
        (void) prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
        raise_file_limit();
        /* A create waits for us: ahead of busy guests. Children go back to 0. */
        (void) setpriority(PRIO_PROCESS, 0, ROOTD_NICE);
        r.loop = uv_default_loop();
        res = open_parts(&r, &e);
        if (res == 0) {
                tell_host(&r);
                res = serve(&r, &e);
        }
        if (res < 0)
                log_error("%s", e.msg);
        close_parts(&r);
        return res < 0 ? 1 : 0;
}
