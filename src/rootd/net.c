/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/net.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <linux/if_tun.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"

/* The output chain too: a program that was taken over in this namespace has no more of a network
 * than the guest. */
static const char net_rules[] =
        "table inet cspace {\n"
        "  counter in_dropped {}\n"
        "  counter forward_dropped {}\n"
        "  counter out_dropped {}\n"
        "  chain input { type filter hook input priority filter; policy drop; counter name in_dropped; }\n"
        "  chain forward { type filter hook forward priority filter; policy drop; counter name "
        "forward_dropped; }\n"
        "  chain output { type filter hook output priority filter; policy drop; counter name out_dropped; }\n"
        "}\n";

static int make_tap(int *ret, struct error *err) {
        _cleanup_fd_ int tap = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
        if (tap < 0)
                return error_errno(err, errno, "cannot open /dev/net/tun");
        struct ifreq ifr = { .ifr_name = NET_TAP };
        ifr.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
        if (ioctl(tap, TUNSETIFF, &ifr) < 0)
                return error_errno(err, errno, "cannot make the tap");
        *ret = fd_steal(&tap);
        return 0;
}

static int set_up(struct error *err) {
        _cleanup_fd_ int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (s < 0)
                return error_errno(err, errno, "cannot open a socket");
        struct ifreq mac = { .ifr_name = NET_TAP };
        mac.ifr_hwaddr.sa_family = ARPHRD_ETHER;
        memcpy(mac.ifr_hwaddr.sa_data, NET_HOST_MAC, 6);
        if (ioctl(s, SIOCSIFHWADDR, &mac) < 0)
                return error_errno(err, errno, "cannot set the tap's address");
        struct ifreq up = { .ifr_name = NET_TAP };
        up.ifr_flags = IFF_UP;
        if (ioctl(s, SIOCSIFFLAGS, &up) < 0)
                return error_errno(err, errno, "cannot bring the tap up");
        return 0;
}

static int put_sysctl(const char *path, const char *value, struct error *err) {
        _cleanup_fd_ int fd = open(path, O_WRONLY | O_CLOEXEC);
        if (fd < 0)
                return errno == ENOENT ? 0
                                       : error_errno(err, errno, "cannot open %s", path); /* no IPv6 at all */
        if (write(fd, value, strlen(value)) < 0)
                return error_errno(err, errno, "cannot write %s", path);
        return 0;
}

static int load_rules(struct error *err) {
        int in[2];
        if (pipe2(in, O_CLOEXEC) < 0)
                return error_errno(err, errno, "cannot make a pipe");
        _cleanup_fd_ int rd = in[0], wr = in[1];
        pid_t pid = fork();
        if (pid < 0)
                return error_errno(err, errno, "cannot start nft");
        if (pid == 0) {
                if (dup2(rd, 0) < 0)
                        _exit(126);
                char *const argv[] = { (char[]){ "nft" }, (char[]){ "-f" }, (char[]){ "-" }, NULL };
                char *const envp[] = { (char[]){ "PATH=/usr/sbin:/usr/bin:/sbin:/bin" }, NULL };
                (void) execve("/usr/sbin/nft", argv, envp);
                (void) execve("/sbin/nft", argv, envp);
                _exit(127);
        }
        rd = fd_close(rd);
        int r = fd_write_all(wr, net_rules, sizeof net_rules - 1, err);
        wr = fd_close(wr);
        int status;
        while (waitpid(pid, &status, 0) < 0)
                if (errno != EINTR)
                        return error_errno(err, errno, "cannot wait for nft");
        if (r < 0)
                return error_wrap(err, "nft");
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
                return error_set(err, -EIO, "nft %s",
                                 WIFEXITED(status) && WEXITSTATUS(status) == 127 ? "is not installed"
                                                                                 : "refused the rules");
        return 0;
}

int net_prepare(int *ret_tap, struct error *err) {
        _cleanup_fd_ int tap = -EBADF;
        int r = put_sysctl("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1", err);
        if (r == 0)
                r = put_sysctl("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1", err);
        if (r == 0)
                r = put_sysctl("/proc/sys/net/ipv4/ip_forward", "0", err);
        if (r == 0)
                r = load_rules(err); /* before there is an interface to come in by */
        if (r == 0)
                r = make_tap(&tap, err);
        if (r == 0)
                r = set_up(err);
        if (r < 0)
                return r;
        *ret_tap = fd_steal(&tap);
        return 0;
}
