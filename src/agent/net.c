/* SPDX-License-Identifier: Apache-2.0 */

/* The old ioctls: a handful of calls in place of netlink messages; the agent stays small. */
#include "net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <net/route.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "base/str.h"

static void set_addr(struct sockaddr *sa, const char *ip) {
        struct sockaddr_in in = { .sin_family = AF_INET };
        (void) inet_pton(AF_INET, ip, &in.sin_addr);
        memcpy(sa, &in, sizeof in);
}

static int interface_up(int fd, const char *name, struct error *err) {
        struct ifreq r = { 0 };
        (void) str_copy(r.ifr_name, sizeof r.ifr_name, name);
        if (ioctl(fd, SIOCGIFFLAGS, &r) < 0)
                return error_errno(err, errno, "interface %s", name);
        r.ifr_flags = (short) (r.ifr_flags | IFF_UP | IFF_RUNNING);
        if (ioctl(fd, SIOCSIFFLAGS, &r) < 0)
                return error_errno(err, errno, "cannot bring up %s", name);
        return 0;
}

static int set_address(int fd, const char *name, unsigned long request, const char *ip, struct error *err) {
        struct ifreq r = { 0 };
        (void) str_copy(r.ifr_name, sizeof r.ifr_name, name);
        set_addr(&r.ifr_addr, ip);
        if (ioctl(fd, request, &r) < 0)
                return error_errno(err, errno, "cannot give %s the address %s", name, ip);
        return 0;
}

static int default_route(int fd, struct error *err) {
        struct rtentry rt = { .rt_flags = RTF_UP | RTF_GATEWAY };
        set_addr(&rt.rt_dst, "0.0.0.0");
        set_addr(&rt.rt_genmask, "0.0.0.0");
        set_addr(&rt.rt_gateway, NET_GATEWAY);
        if (ioctl(fd, SIOCADDRT, &rt) < 0 && errno != EEXIST)
                return error_errno(err, errno, "cannot set the default route by %s", NET_GATEWAY);
        return 0;
}

int net_setup(struct error *err) {
        _cleanup_fd_ int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return error_errno(err, errno, "cannot open a socket");
        int r = interface_up(fd, "lo", err);
        if (r < 0 || if_nametoindex(NET_INTERFACE) == 0)
                return r;
        r = set_address(fd, NET_INTERFACE, SIOCSIFADDR, NET_ADDRESS, err);
        if (r == 0)
                r = set_address(fd, NET_INTERFACE, SIOCSIFNETMASK, NET_NETMASK, err);
        if (r == 0)
                r = interface_up(fd, NET_INTERFACE, err);
        return r < 0 ? r : default_route(fd, err);
}
