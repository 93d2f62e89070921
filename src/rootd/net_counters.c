/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The kernel's own words (nf_tables over netlink) rather than nft(8): a process for each sandbox and minute would cost more
 * than all else that an idle sandbox costs. A netlink socket belongs to the namespace that it was made in.
 */
#include "rootd/net_counters.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/str.h"
#include "rootd/net.h"

#define TABLE "cspace"
#define ANSWER_MAX 16384
#define ANSWERS_MAX 8 /* datagrams of one dump */

/* The kernel's macros for these are of signed types. */
#define ATTR_HEAD sizeof(struct nlattr)
#define MESSAGE_HEAD sizeof(struct nlmsghdr)
#define ALIGNED(n) (((size_t) (n) + 3) & ~(size_t) 3)

static int make_socket(void *arg) {
        (void) arg;
        int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
        return fd < 0 ? -errno : fd;
}

/* ---- the question ---------------------------------------------------------------------------- */

struct question {
        struct nlmsghdr head;
        struct nfgenmsg nf;
        struct nlattr table_attr;
        char table[8];
        struct nlattr type_attr;
        uint32_t type;
};
_Static_assert(sizeof TABLE <= sizeof((struct question *) 0)->table, "the name has its room");

static int ask(int fd) {
        const struct timeval patience = { .tv_sec = 1 };
        struct question q = {
                .head = { .nlmsg_len = sizeof q, .nlmsg_type = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETOBJ, .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP },
                .nf = { .nfgen_family = NFPROTO_INET, .version = NFNETLINK_V0 },
                .table_attr = { .nla_len = ATTR_HEAD + sizeof TABLE, .nla_type = NFTA_OBJ_TABLE },
                .table = TABLE,
                .type_attr = { .nla_len = ATTR_HEAD + sizeof q.type, .nla_type = NFTA_OBJ_TYPE },
                .type = htonl(NFT_OBJECT_COUNTER),
        };
        (void) setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        return send(fd, &q, sizeof q, 0) == (ssize_t) sizeof q ? 0 : -errno;
}

/* ---- the answer ------------------------------------------------------------------------------ */

/* The attribute of that type among n bytes of attributes; NULL: none. */
static const void *find(const uint8_t *at, size_t n, unsigned type, size_t *ret_n) {
        while (n >= ATTR_HEAD) {
                struct nlattr a;
                memcpy(&a, at, sizeof a);
                size_t step = ALIGNED(a.nla_len);
                if (a.nla_len < ATTR_HEAD || a.nla_len > n)
                        return NULL;
                if ((a.nla_type & NLA_TYPE_MASK) == type) {
                        *ret_n = a.nla_len - ATTR_HEAD;
                        return at + ATTR_HEAD;
                }
                if (step >= n)
                        return NULL;
                at += step;
                n -= step;
        }
        return NULL;
}

static uint64_t *counter_of(struct net_counts *c, const char *name, size_t n) {
        const struct {
                const char *name;
                uint64_t *to;
        } all[] = { { "spoofed", &c->spoofed },         { "flooded", &c->flooded },       { "not_carried", &c->not_carried },
                    { "in_dropped", &c->not_carried },  { "forward_dropped", &c->not_carried } };
        for (size_t i = 0; i < ARRAY_SIZE(all); i++)
                if (n == strlen(all[i].name) + 1 && memcmp(name, all[i].name, n) == 0)
                        return all[i].to;
        return NULL;
}

static void take_object(struct net_counts *c, const uint8_t *attrs, size_t n) {
        size_t name_n = 0, data_n = 0, packets_n = 0;
        uint64_t packets;
        const char *name = find(attrs, n, NFTA_OBJ_NAME, &name_n);
        const uint8_t *data = find(attrs, n, NFTA_OBJ_DATA, &data_n);
        const void *number = data ? find(data, data_n, NFTA_COUNTER_PACKETS, &packets_n) : NULL;
        uint64_t *to = name && number && packets_n == sizeof packets ? counter_of(c, name, name_n) : NULL;
        if (!to)
                return;
        memcpy(&packets, number, sizeof packets);
        *to += be64toh(packets);
}

/* 1: that was the end, 0: more comes, negative errno. */
static int take_datagram(struct net_counts *c, const uint8_t *at, size_t n) {
        while (n >= MESSAGE_HEAD) {
                struct nlmsghdr h;
                struct nlmsgerr e;
                memcpy(&h, at, sizeof h);
                size_t step = ALIGNED(h.nlmsg_len), head = MESSAGE_HEAD + sizeof(struct nfgenmsg);
                if (h.nlmsg_len < MESSAGE_HEAD || h.nlmsg_len > n)
                        return -EBADMSG;
                if (h.nlmsg_type == NLMSG_DONE)
                        return 1;
                if (h.nlmsg_type == NLMSG_ERROR) {
                        if (h.nlmsg_len < MESSAGE_HEAD + sizeof e)
                                return -EBADMSG;
                        memcpy(&e, at + MESSAGE_HEAD, sizeof e);
                        return e.error < 0 ? e.error : -EBADMSG;
                }
                if (h.nlmsg_type == (NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWOBJ) && h.nlmsg_len > head)
                        take_object(c, at + head, h.nlmsg_len - head);
                if (step >= n)
                        break;
                at += step;
                n -= step;
        }
        return 0;
}

int net_counters(int pidfd, struct net_counts *ret, struct error *err) {
        static uint8_t answer[ANSWER_MAX];
        struct net_counts c = { 0 };
        _cleanup_fd_ int fd = net_within(pidfd, make_socket, NULL);
        int r = fd < 0 ? fd : ask(fd);
        for (int i = 0; i < ANSWERS_MAX && r == 0; i++) {
                ssize_t n = recv(fd, answer, sizeof answer, 0);
                r = n < 0 ? -errno : take_datagram(&c, answer, (size_t) n);
        }
        if (r <= 0)
                return error_errno(err, r < 0 ? r : -EBADMSG, "cannot read what was dropped");
        *ret = c;
        return 0;
}
