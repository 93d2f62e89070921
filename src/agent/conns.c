/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A restored machine, or a copy of one, has TCP connections of which the other end (the gateway of then) knows nothing. Whoever
 * writes to one is reset; whoever waits for an answer would wait for ever. So each is asked for: a SYN that
 * seems to come from its other end makes the kernel send that end an ACK (RFC 5961, 4.2), which an end that
 * does not have the connection answers with a reset, and one that has it ignores. So nothing need be known
 * about where the other end is: connections within the machine and between its own networks stay as they are.
 *
 * The packet goes by the loopback, where the kernel delivers it to the socket whatever address it claims to come from.
 */
#include "conns.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/fd.h"

#define MAPPED_WORD 0xffff0000u /* of ::ffff:0:0/96, as /proc has it on a little-endian machine */

/* States in which somebody may wait for the other end. */
enum { ESTABLISHED = 1, FIN_WAIT1 = 4, FIN_WAIT2 = 5, CLOSE_WAIT = 8 };

struct conn {
        uint32_t local, remote; /* network order */
        unsigned local_port, remote_port;
};

static bool wanted(unsigned state) {
        return state == ESTABLISHED || state == FIN_WAIT1 || state == FIN_WAIT2 || state == CLOSE_WAIT;
}

static bool read_v4(const char *line, struct conn *c, unsigned *state) {
        return sscanf(line, " %*u: %8x:%4x %8x:%4x %2x", &c->local, &c->local_port, &c->remote, &c->remote_port, state) == 5;
}

/* IPv4 over a socket of IPv6; of IPv6 itself the machine has nothing but its loopback. */
static bool read_v6(const char *line, struct conn *c, unsigned *state) {
        uint32_t l[3], r[3];
        if (sscanf(line, " %*u: %8x%8x%8x%8x:%4x %8x%8x%8x%8x:%4x %2x", &l[0], &l[1], &l[2], &c->local, &c->local_port, &r[0],
                   &r[1], &r[2], &c->remote, &c->remote_port, state) != 11)
                return false;
        return (r[0] | r[1]) == 0 && r[2] == MAPPED_WORD;
}

static uint32_t sum(const void *data, size_t n, uint32_t so_far) {
        const uint8_t *p = data;
        for (size_t i = 0; i + 1 < n; i += 2)
                so_far += (uint32_t) p[i] << 8 | p[i + 1];
        return so_far;
}

static uint16_t checksum(const struct conn *c, const struct tcphdr *t) {
        const uint8_t rest[4] = { 0, IPPROTO_TCP, 0, sizeof *t };
        uint32_t s = sum(&c->remote, 4, 0);
        s = sum(&c->local, 4, s);
        s = sum(rest, sizeof rest, s);
        s = sum(t, sizeof *t, s);
        while (s >> 16)
                s = (s & 0xffff) + (s >> 16);
        return htons((uint16_t) ~s);
}

static int probe(int fd, const struct conn *c) {
        struct {
                struct iphdr ip;
                struct tcphdr tcp;
        } p = {
                .ip = { .version = 4, .ihl = 5, .ttl = 1, .protocol = IPPROTO_TCP, .saddr = c->remote, .daddr = c->local },
                .tcp = { .source = htons((uint16_t) c->remote_port), .dest = htons((uint16_t) c->local_port), .doff = 5, .syn = 1 },
        };
        const struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = c->local };
        p.tcp.check = checksum(c, &p.tcp);
        return sendto(fd, &p, sizeof p, 0, (const struct sockaddr *) &to, sizeof to) < 0 ? -errno : 0;
}

static int probe_listed(const char *path, bool (*read)(const char *line, struct conn *c, unsigned *state), int *fd,
                        unsigned *left, struct error *err) {
        char line[512];
        FILE *f = fopen(path, "re");
        int r = 0;
        if (!f)
                return errno == ENOENT ? 0 : error_errno(err, errno, "%s", path);
        while (r == 0 && fgets(line, sizeof line, f)) {
                struct conn c;
                unsigned state;
                if (!read(line, &c, &state) || !wanted(state) || (ntohl(c.remote) >> 24) == IN_LOOPBACKNET || (*left)-- == 0)
                        continue;
                if (*fd < 0 && (*fd = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW)) < 0)
                        r = error_errno(err, errno, "cannot open a raw socket");
                else if ((r = probe(*fd, &c)) < 0)
                        (void) error_errno(err, r, "cannot probe a connection");
        }
        (void) fclose(f);
        return r;
}

int conns_probe(struct error *err) {
        _cleanup_fd_ int fd = -EBADF;
        unsigned left = CONNS_MAX;
        int r = probe_listed("/proc/net/tcp", read_v4, &fd, &left, err);
        return r < 0 ? r : probe_listed("/proc/net/tcp6", read_v6, &fd, &left, err);
}
