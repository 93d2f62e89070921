/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/vmm.h"

#include <errno.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/str.h"

static const struct {
        const char *engine;
        int (*make)(struct vmm_config *cfg, struct vmm **ret, struct error *err);
} drivers[] = {
        { "qemu-tcg", vmm_qemu_new },
        { "qemu-kvm", vmm_qemu_new },
        { "fake", vmm_fake_new },
};

void vmm_config_close(struct vmm_config *c) {
        int *const fds[] = { &c->stub,   &c->tap,    &c->disk,       &c->mem,        &c->state,
                             &c->kernel, &c->initrd, &c->qmp_listen, &c->port_listen };
        for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
                *fds[i] = fd_close(*fds[i]);
}

int vmm_new(uv_loop_t *loop, struct vmm_config *cfg, const struct vmm_handler *h, void *arg, struct vmm **ret,
            struct error *err) {
        for (size_t i = 0; i < ARRAY_SIZE(drivers); i++) {
                if (!str_eq(cfg->engine, drivers[i].engine))
                        continue;
                struct vmm *v = NULL;
                int r = drivers[i].make(cfg, &v, err);
                if (r < 0)
                        return r;
                v->loop = loop;
                v->handler = h;
                v->arg = arg;
                *ret = v;
                return 0;
        }
        return error_set(err, -EINVAL, "engine \"%s\" is not known", cfg->engine);
}

void vmm_free(struct vmm *v) {
        if (v)
                v->ops->free(v);
}
