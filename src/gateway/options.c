/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/id.h"
#include "base/str.h"

int options_parse(int argc, char **argv, struct options *ret, struct error *err) {
        struct options o = { .gateway = { .n_resolvers = 0 } };
        for (int i = 1; i < argc; i += 2) {
                const char *name = argv[i], *value = argv[i + 1];
                if (!str_eq(name, "--id") && !str_eq(name, "--trust") && !str_eq(name, "--resolver"))
                        return error_set(err, -EINVAL, "\"%s\" is no option", name);
                if (!value)
                        return error_set(err, -EINVAL, "%s needs a value", name);
                if (str_eq(name, "--id"))
                        o.gateway.id = value;
                else if (str_eq(name, "--trust"))
                        o.gateway.trust = value;
                else if (o.gateway.n_resolvers == RESOLVE_SERVERS_MAX)
                        return error_set(err, -EINVAL, "more than %d --resolver", RESOLVE_SERVERS_MAX);
                else
                        o.resolvers[o.gateway.n_resolvers++] = value;
        }
        if (!o.gateway.id || !id_valid(o.gateway.id))
                return error_set(err, -EINVAL, "--id: \"%s\" is no sandbox id", o.gateway.id ? o.gateway.id : "");
        if (!o.gateway.trust)
                return error_set(err, -EINVAL, "--trust is missing");
        if (o.gateway.n_resolvers == 0)
                return error_set(err, -EINVAL, "--resolver is missing");
        o.trust_fd = str_eq(o.gateway.trust, "/proc/self/fd/7");
        *ret = o;
        ret->gateway.resolvers = ret->resolvers;
        return 0;
}

int options_take_fds(struct error *err) {
        for (int fd = GATEWAY_FD_CTL; fd < GATEWAY_FD_TRUST; fd++)
                if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 || fd_nonblock(fd, err) < 0)
                        return error_set(err, -EBADF, "descriptors %d to %d must be ctl.sock, DNS over UDP, DNS over TCP and TCP",
                                         GATEWAY_FD_CTL, GATEWAY_FD_TCP);
        (void) close_range(GATEWAY_FD_END, ~0u, 0);
        return 0;
}
