/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <linux/if_tun.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"

#define STR2(x) #x
#define STR(x) STR2(x)
#define GATEWAY_PORTS "{ " STR(NET_DNS_PORT) ", " STR(NET_TCP_PORT) " }"

/*
 * raw: before the kernel keeps books of a packet, so that forged ones cost nothing. input takes only what
 * was redirected (conntrack says so): nothing else in the namespace can be reached. What is for the port of the
 * redirection itself needs none, and conntrack does not say it; the gateway refuses and records it. output lets answers go
 * and no more: a program that was taken over in this namespace has no more of a network than the guest.
 */
static const char net_rules[] =
        "table inet cspace {\n"
        "  counter spoofed {}\n"
        "  counter not_carried {}\n"
        "  counter flooded {}\n"
        "  counter in_dropped {}\n"
        "  counter forward_dropped {}\n"
        "  counter out_dropped {}\n"
        "  chain raw {\n"
        "    type filter hook prerouting priority raw; policy drop;\n"
        "    iifname != \"" NET_TAP "\" counter name spoofed drop\n"
        "    ether saddr != " NET_GUEST_MAC " counter name spoofed drop\n"
        "    meta protocol != ip counter name not_carried drop\n"
        "    ip saddr != " NET_GUEST_ADDRESS " counter name spoofed drop\n"
        "    fib daddr type { broadcast, multicast } counter name not_carried drop\n"
        "    meta l4proto tcp accept\n"
        "    udp dport 53 accept\n"
        "    counter name not_carried\n"
        "  }\n"
        "  chain redirected {\n"
        "    type nat hook prerouting priority dstnat;\n"
        "    ct state new ct count over " STR(NET_FLOWS_MAX) " counter name flooded drop\n"
        "    limit rate over " STR(NET_NEW_FLOWS_SECOND) "/second burst " STR(NET_NEW_FLOWS_SECOND) " packets counter "
        "name flooded drop\n"
        "    udp dport 53 redirect to :" STR(NET_DNS_PORT) "\n"
        "    tcp dport 53 redirect to :" STR(NET_DNS_PORT) "\n"
        "    meta l4proto tcp redirect to :" STR(NET_TCP_PORT) "\n"
        "  }\n"
        "  chain input {\n"
        "    type filter hook input priority filter; policy drop;\n"
        "    iifname \"" NET_TAP "\" ct status dnat tcp dport " GATEWAY_PORTS " accept\n"
        "    iifname \"" NET_TAP "\" tcp dport " STR(NET_TCP_PORT) " accept\n"
        "    iifname \"" NET_TAP "\" ct status dnat udp dport " STR(NET_DNS_PORT) " accept\n"
        "    counter name in_dropped\n"
        "  }\n"
        "  chain forward { type filter hook forward priority filter; policy drop; counter name "
        "forward_dropped; }\n"
        "  chain output {\n"
        "    type filter hook output priority filter; policy drop;\n"
        "    oifname \"" NET_TAP "\" ip daddr " NET_GUEST_ADDRESS " ct state established,related accept\n"
        "    counter name out_dropped\n"
        "  }\n"
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

static int set_address(int s, struct error *err) {
        struct ifreq r = { .ifr_name = NET_TAP };
        struct sockaddr_in in = { .sin_family = AF_INET };
        (void) inet_pton(AF_INET, NET_HOST_ADDRESS, &in.sin_addr);
        memcpy(&r.ifr_addr, &in, sizeof in);
        if (ioctl(s, SIOCSIFADDR, &r) < 0)
                return error_errno(err, errno, "cannot give the tap its address");
        in.sin_addr.s_addr = htonl(0xfffffffc); /* /30 */
        memcpy(&r.ifr_netmask, &in, sizeof in);
        if (ioctl(s, SIOCSIFNETMASK, &r) < 0)
                return error_errno(err, errno, "cannot set the tap's netmask");
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
                return error_errno(err, errno, "cannot set the tap's MAC");
        int r = set_address(s, err);
        if (r < 0)
                return r;
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

static int listen_on(int type, uint16_t port, int *ret, struct error *err) {
        _cleanup_fd_ int fd = socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(port) };
        const int on = 1;
        (void) inet_pton(AF_INET, NET_HOST_ADDRESS, &in.sin_addr);
        if (fd < 0 || (type == SOCK_STREAM && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0) ||
            bind(fd, (struct sockaddr *) &in, sizeof in) < 0 || (type == SOCK_STREAM && listen(fd, SOMAXCONN) < 0))
                return error_errno(err, errno, "cannot listen on port %u of the sandbox's namespace", port);
        *ret = fd_steal(&fd);
        return 0;
}

int net_listen(int ret[NET_SOCKETS], struct error *err) {
        _cleanup_fd_ int udp = -EBADF, dns = -EBADF, tcp = -EBADF;
        int r = listen_on(SOCK_DGRAM, NET_DNS_PORT, &udp, err);
        if (r == 0)
                r = listen_on(SOCK_STREAM, NET_DNS_PORT, &dns, err);
        if (r == 0)
                r = listen_on(SOCK_STREAM, NET_TCP_PORT, &tcp, err);
        if (r < 0)
                return r;
        ret[0] = fd_steal(&udp);
        ret[1] = fd_steal(&dns);
        ret[2] = fd_steal(&tcp);
        return 0;
}

/* ---- in another process's namespace ---------------------------------------------------------- */

struct within {
        int pidfd;
        int (*fn)(void *arg);
        void *arg;
        int result;
};

static void *enter(void *arg) {
        struct within *w = arg;
        w->result = setns(w->pidfd, CLONE_NEWNET) < 0 ? -errno : w->fn(w->arg);
        return NULL;
}

int net_within(int pidfd, int (*fn)(void *arg), void *arg) {
        struct within w = { .pidfd = pidfd, .fn = fn, .arg = arg };
        pthread_t thread;
        int r = pthread_create(&thread, NULL, enter, &w);
        if (r != 0)
                return -r;
        (void) pthread_join(thread, NULL);
        return w.result;
}

struct listening {
        int *ret;
        struct error *err;
};

static int listen_there(void *arg) {
        struct listening *l = arg;
        return net_listen(l->ret, l->err);
}

int net_listen_in(int pidfd, int ret[NET_SOCKETS], struct error *err) {
        struct error e = ERROR_INIT;
        struct listening l = { ret, &e };
        int r = net_within(pidfd, listen_there, &l);
        if (r < 0 && e.code == 0)
                return error_errno(err, r, "cannot enter the VM's network namespace");
        return r < 0 ? error_set(err, e.code, "%s", e.msg) : 0;
}
