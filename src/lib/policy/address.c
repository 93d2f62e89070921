/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/address.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"

struct range {
        struct in6_addr net;
        unsigned bits;
};

struct address_set {
        struct range ranges[ADDRESS_SET_MAX], open[ADDRESS_OPEN_MAX];
        size_t n, n_open;
};

struct special {
        const char *net;
        unsigned bits;
        enum address_class class;
};

/* The first that matches counts, so the narrower ones stand first. */
static const struct special v4_special[] = {
        { "169.254.169.254", 32, ADDRESS_METADATA },
        { "169.254.170.2", 32, ADDRESS_METADATA },
        { "169.254.170.23", 32, ADDRESS_METADATA },
        { "100.100.100.200", 32, ADDRESS_METADATA },
        { "168.63.129.16", 32, ADDRESS_METADATA },
        { "192.0.0.192", 32, ADDRESS_METADATA },
        { "255.255.255.255", 32, ADDRESS_BROADCAST },
        { "0.0.0.0", 8, ADDRESS_UNSPECIFIED },
        { "10.0.0.0", 8, ADDRESS_PRIVATE },
        { "100.64.0.0", 10, ADDRESS_PRIVATE },
        { "127.0.0.0", 8, ADDRESS_LOOPBACK },
        { "169.254.0.0", 16, ADDRESS_LINK_LOCAL },
        { "172.16.0.0", 12, ADDRESS_PRIVATE },
        { "192.0.0.0", 24, ADDRESS_RESERVED },
        { "192.0.2.0", 24, ADDRESS_RESERVED },
        { "192.88.99.0", 24, ADDRESS_RESERVED },
        { "192.168.0.0", 16, ADDRESS_PRIVATE },
        { "198.18.0.0", 15, ADDRESS_RESERVED },
        { "198.51.100.0", 24, ADDRESS_RESERVED },
        { "203.0.113.0", 24, ADDRESS_RESERVED },
        { "224.0.0.0", 4, ADDRESS_MULTICAST },
        { "240.0.0.0", 4, ADDRESS_RESERVED },
};

static const struct special v6_special[] = {
        { "fd00:ec2::254", 128, ADDRESS_METADATA },
        { "fd00:ec2::23", 128, ADDRESS_METADATA },
        { "fd20:ce::254", 128, ADDRESS_METADATA },
        { "fd00:42::42", 128, ADDRESS_METADATA },
        { "::", 128, ADDRESS_UNSPECIFIED },
        { "::1", 128, ADDRESS_LOOPBACK },
        { "fe80::", 10, ADDRESS_LINK_LOCAL },
        { "fc00::", 7, ADDRESS_PRIVATE },
        { "fec0::", 10, ADDRESS_PRIVATE },
        { "ff00::", 8, ADDRESS_MULTICAST },
        { "2001::", 23, ADDRESS_RESERVED },     /* protocol assignments, Teredo among them */
        { "2001:db8::", 32, ADDRESS_RESERVED },
        { "2002::", 16, ADDRESS_RESERVED },     /* 6to4: leads to whatever IPv4 address it carries */
        { "3fff::", 20, ADDRESS_RESERVED },
        { "2000::", 3, ADDRESS_PUBLIC },
        { "::", 0, ADDRESS_RESERVED },
};

static bool in_range(const struct in6_addr *a, const struct in6_addr *net, unsigned bits) {
        unsigned whole = bits / 8, rest = bits % 8;

        if (memcmp(a, net, whole) != 0)
                return false;
        if (rest == 0)
                return true;
        uint8_t mask = (uint8_t) (0xff << (8 - rest));
        return (a->s6_addr[whole] & mask) == (net->s6_addr[whole] & mask);
}

struct address address_of_v4(struct in_addr a) {
        struct address r = { .in6.s6_addr = { [10] = 0xff, [11] = 0xff } };

        memcpy(r.in6.s6_addr + 12, &a, 4);
        return r;
}

bool address_is_v4(const struct address *a) {
        return IN6_IS_ADDR_V4MAPPED(&a->in6);
}

static struct in_addr v4_of(const struct address *a) {
        struct in_addr r;

        memcpy(&r, a->in6.s6_addr + 12, 4);
        return r;
}

struct address address_of_v6(const struct in6_addr *a) {
        static const uint8_t nat64[12] = { 0x00, 0x64, 0xff, 0x9b }, zero[12];
        struct in_addr low;
        bool carries = memcmp(a->s6_addr, nat64, 12) == 0;

        /* ::a.b.c.d, but not :: and ::1. */
        if (memcmp(a->s6_addr, zero, 12) == 0 && !IN6_IS_ADDR_UNSPECIFIED(a) && !IN6_IS_ADDR_LOOPBACK(a))
                carries = true;
        if (!carries)
                return (struct address){ .in6 = *a };
        memcpy(&low, a->s6_addr + 12, 4);
        return address_of_v4(low);
}

int address_of_sockaddr(const struct sockaddr *sa, socklen_t n, struct address *ret) {
        struct sockaddr_in in;
        struct sockaddr_in6 in6;

        if (n >= sizeof in && sa->sa_family == AF_INET) {
                memcpy(&in, sa, sizeof in);
                *ret = address_of_v4(in.sin_addr);
                return 0;
        }
        if (n >= sizeof in6 && sa->sa_family == AF_INET6) {
                memcpy(&in6, sa, sizeof in6);
                *ret = address_of_v6(&in6.sin6_addr);
                return 0;
        }
        return -EAFNOSUPPORT;
}

int address_parse(const char *s, struct address *ret) {
        struct in_addr v4;
        struct in6_addr v6;

        if (inet_pton(AF_INET, s, &v4) == 1) {
                *ret = address_of_v4(v4);
                return 0;
        }
        if (inet_pton(AF_INET6, s, &v6) == 1) {
                *ret = address_of_v6(&v6);
                return 0;
        }
        return -EINVAL;
}

void address_text(const struct address *a, char out[ADDRESS_TEXT_SIZE]) {
        if (address_is_v4(a)) {
                struct in_addr v4 = v4_of(a);
                inet_ntop(AF_INET, &v4, out, ADDRESS_TEXT_SIZE);
        } else {
                inet_ntop(AF_INET6, &a->in6, out, ADDRESS_TEXT_SIZE);
        }
}

enum address_class address_classify(const struct address *a) {
        if (address_is_v4(a)) {
                for (size_t i = 0; i < ARRAY_SIZE(v4_special); i++) {
                        struct in_addr net;
                        inet_pton(AF_INET, v4_special[i].net, &net);
                        struct address m = address_of_v4(net);
                        if (in_range(&a->in6, &m.in6, 96 + v4_special[i].bits))
                                return v4_special[i].class;
                }
                return ADDRESS_PUBLIC;
        }
        for (size_t i = 0; i < ARRAY_SIZE(v6_special); i++) {
                struct in6_addr net;
                inet_pton(AF_INET6, v6_special[i].net, &net);
                if (in_range(&a->in6, &net, v6_special[i].bits))
                        return v6_special[i].class;
        }
        return ADDRESS_RESERVED;
}

static const char *const class_names[] = {
        [ADDRESS_PUBLIC] = "public",       [ADDRESS_UNSPECIFIED] = "unspecified",
        [ADDRESS_LOOPBACK] = "loopback",   [ADDRESS_LINK_LOCAL] = "link_local",
        [ADDRESS_METADATA] = "metadata",   [ADDRESS_PRIVATE] = "private",
        [ADDRESS_RESERVED] = "reserved",   [ADDRESS_MULTICAST] = "multicast",
        [ADDRESS_BROADCAST] = "broadcast", [ADDRESS_HOST] = "host",
};
static_assert(ARRAY_SIZE(class_names) == N_ADDRESS_CLASSES);

const char *address_class_name(enum address_class c) {
        return (unsigned) c < N_ADDRESS_CLASSES ? class_names[c] : "unknown";
}

/* "text/bits" split; without "/" all. */
static int split_prefix(const char *s, char *text, size_t cap, unsigned max, unsigned *ret_bits, bool *ret_given) {
        const char *slash = strchr(s, '/');
        size_t n = slash ? (size_t) (slash - s) : strlen(s);
        uint64_t bits = max;

        if (n >= cap)
                return -EINVAL;
        memcpy(text, s, n);
        text[n] = '\0';
        if (slash && (str_to_u64(slash + 1, max, &bits) < 0 || (slash[1] == '0' && slash[2] != '\0')))
                return -EINVAL;
        *ret_bits = (unsigned) bits;
        *ret_given = slash != NULL;
        return 0;
}

int cidr_parse(const char *s, struct cidr *ret) {
        char text[INET_ADDRSTRLEN];
        struct in_addr a;
        unsigned bits;
        bool given;

        if (split_prefix(s, text, sizeof text, 32, &bits, &given) < 0 || inet_pton(AF_INET, text, &a) != 1)
                return -EINVAL;
        uint32_t mask = bits == 0 ? 0 : UINT32_MAX << (32 - bits), net = ntohl(a.s_addr);
        if (net & ~mask)
                return -EINVAL;
        *ret = (struct cidr){ .net = net, .mask = mask };
        return 0;
}

bool cidr_has(const struct cidr *c, struct in_addr a) {
        return (ntohl(a.s_addr) & c->mask) == c->net;
}

void cidr_text(const struct cidr *c, char out[INET_ADDRSTRLEN + 3]) {
        struct in_addr a = { .s_addr = htonl(c->net) };
        char text[INET_ADDRSTRLEN];

        inet_ntop(AF_INET, &a, text, sizeof text);
        snprintf(out, INET_ADDRSTRLEN + 3, "%s/%d", text, __builtin_popcount(c->mask));
}

bool address_special_next(size_t *pos, struct cidr *ret, enum address_class *ret_class) {
        char text[INET_ADDRSTRLEN + 3];

        if (*pos >= ARRAY_SIZE(v4_special))
                return false;
        const struct special *s = &v4_special[(*pos)++];
        snprintf(text, sizeof text, "%s/%u", s->net, s->bits);
        *ret_class = s->class;
        return cidr_parse(text, ret) == 0;
}

int address_set_new(struct address_set **ret) {
        struct address_set *s = calloc(1, sizeof *s);

        if (!s)
                return -ENOMEM;
        *ret = s;
        return 0;
}

void address_set_free(struct address_set *s) {
        free(s);
}

void address_set_freep(struct address_set **s) {
        address_set_free(*s);
}

static int range_parse(const char *range, struct range *ret, struct error *err) {
        char text[INET6_ADDRSTRLEN];
        struct in_addr v4;
        struct range r;
        unsigned bits;
        bool given;

        if (split_prefix(range, text, sizeof text, 128, &bits, &given) < 0)
                return error_set(err, -EINVAL, "\"%s\" is not an address range", range);
        if (inet_pton(AF_INET, text, &v4) == 1) {
                if (given && bits > 32)
                        return error_set(err, -EINVAL, "\"%s\" is not an address range", range);
                r = (struct range){ .net = address_of_v4(v4).in6, .bits = 96 + (given ? bits : 32) };
        } else if (inet_pton(AF_INET6, text, &r.net) == 1) {
                r.bits = bits;
        } else {
                return error_set(err, -EINVAL, "\"%s\" is not an address range", range);
        }
        *ret = r;
        return 0;
}

int address_set_add(struct address_set *s, const char *range, struct error *err) {
        if (s->n == ADDRESS_SET_MAX)
                return error_set(err, -E2BIG, "more than %d address ranges of this host", ADDRESS_SET_MAX);
        int r = range_parse(range, &s->ranges[s->n], err);
        if (r == 0)
                s->n++;
        return r;
}

int address_set_open(struct address_set *s, const char *range, struct error *err) {
        if (s->n_open == ADDRESS_OPEN_MAX)
                return error_set(err, -E2BIG, "more than %d address ranges that count as public", ADDRESS_OPEN_MAX);
        int r = range_parse(range, &s->open[s->n_open], err);
        if (r == 0)
                s->n_open++;
        return r;
}

static bool any_has(const struct range *r, size_t n, const struct address *a) {
        for (size_t i = 0; i < n; i++)
                if (in_range(&a->in6, &r[i].net, r[i].bits))
                        return true;
        return false;
}

bool address_set_has(const struct address_set *s, const struct address *a) {
        return s && any_has(s->ranges, s->n, a);
}

bool address_set_is_open(const struct address_set *s, const struct address *a) {
        return s && any_has(s->open, s->n_open, a);
}
