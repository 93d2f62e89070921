/* SPDX-License-Identifier: Apache-2.0 */
#include "resolve.h"

#include <ares.h>
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

#define TRY_MS 2000
#define TRIES 3
#define SOCKETS_MAX 8 /* one question, to one server after the other, by UDP or TCP; the macros do not bear 16 */

/* ---- which may be dialled ------------------------------------------------------------------- */

int address_set_make(const struct options *o, struct address_set **ret, struct error *err) {
        struct ifaddrs *list = NULL;
        struct address_set *set = NULL;
        int r = address_set_new(&set);
        if (r < 0)
                return error_set(err, r, "out of memory");
        for (size_t i = 0; i < o->n_open && r == 0; i++)
                r = address_set_open(set, o->open[i], err);
        if (r == 0 && getifaddrs(&list) < 0)
                r = error_errno(err, errno, "cannot read this host's addresses");
        for (struct ifaddrs *a = list; a && r == 0; a = a->ifa_next) {
                char text[INET_ADDRSTRLEN];
                const struct sockaddr_in *in = (const struct sockaddr_in *) (const void *) a->ifa_addr;
                if (in && in->sin_family == AF_INET && inet_ntop(AF_INET, &in->sin_addr, text, sizeof text))
                        r = address_set_add(set, text, err);
        }
        freeifaddrs(list);
        if (r < 0)
                address_set_free(set);
        else
                *ret = set;
        return r;
}

int address_may(const struct address_set *set, const struct address *a, struct error *err) {
        char text[ADDRESS_TEXT_SIZE];
        enum address_class c = address_set_has(set, a) ? ADDRESS_HOST : address_classify(a);
        if (c == ADDRESS_PUBLIC || address_set_is_open(set, a))
                return 0;
        address_text(a, text);
        return error_set(err, -EACCES, "the token endpoint has the address %s, which is not public (%s) and not in [credentials] open", text,
                         address_class_name(c));
}

/* ---- asking --------------------------------------------------------------------------------- */

struct answer {
        bool done;
        int status;
        struct in_addr list[ADDRESSES_MAX];
        size_t n;
};

static void on_answer(void *arg, int status, int timeouts, unsigned char *data, int len) {
        struct answer *a = arg;
        struct ares_addrttl found[ADDRESSES_MAX];
        int n = ADDRESSES_MAX;
        (void) timeouts;
        if (status == ARES_SUCCESS)
                status = ares_parse_a_reply(data, len, NULL, found, &n);
        a->done = true;
        a->status = status;
        for (int i = 0; status == ARES_SUCCESS && i < n; i++)
                a->list[a->n++] = found[i].ipaddr;
}

static void wait_for(ares_channel channel, const struct answer *a, uint64_t until_ms) {
        while (!a->done && clock_mono_ms() < until_ms) {
                ares_socket_t socks[SOCKETS_MAX];
                struct pollfd p[SOCKETS_MAX];
                int mask = ares_getsock(channel, socks, SOCKETS_MAX);
                nfds_t n = 0;
                for (int i = 0; i < SOCKETS_MAX; i++)
                        if (ARES_GETSOCK_READABLE(mask, i) || ARES_GETSOCK_WRITABLE(mask, i))
                                p[n++] = (struct pollfd){ .fd = socks[i],
                                                          .events = (short) ((ARES_GETSOCK_READABLE(mask, i) ? POLLIN : 0) |
                                                                             (ARES_GETSOCK_WRITABLE(mask, i) ? POLLOUT : 0)) };
                if (poll(p, n, 250) < 0 && errno != EINTR)
                        return;
                ares_process_fd(channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
                for (nfds_t i = 0; i < n; i++)
                        if (p[i].revents)
                                ares_process_fd(channel, p[i].fd, p[i].fd);
        }
}

static int ask(const struct options *o, const char *name, struct answer *a, struct error *err) {
        char servers[RESOLVERS_MAX * 64] = "";
        ares_channel channel;
        struct ares_options opts = { .flags = ARES_FLAG_NOSEARCH | ARES_FLAG_NOALIASES, .timeout = TRY_MS, .tries = TRIES,
                                     .lookups = (char[]){ "b" } };
        for (size_t i = 0; i < o->n_resolvers; i++) {
                size_t at = strlen(servers);
                (void) snprintf(servers + at, sizeof servers - at, "%s%s", i ? "," : "", o->resolvers[i]);
        }
        int status = ares_init_options(&channel, &opts, ARES_OPT_FLAGS | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_LOOKUPS);
        if (status != ARES_SUCCESS)
                return error_set(err, -EIO, "names cannot be resolved: %s", ares_strerror(status));
        status = ares_set_servers_ports_csv(channel, servers);
        if (status == ARES_SUCCESS) {
                ares_query(channel, name, 1 /* IN */, 1 /* A */, on_answer, a);
                wait_for(channel, a, clock_mono_ms() + o->timeout_s * 1000);
        }
        ares_destroy(channel); /* answers what is open */
        if (status == ARES_SUCCESS)
                status = a->status;
        return status == ARES_SUCCESS && a->n > 0 ? 0 : error_set(err, -EHOSTUNREACH, "the token endpoint's name cannot be resolved: %s",
                                                                   ares_strerror(status));
}

int resolve(const struct options *o, const struct address_set *set, const struct host *h, struct in_addr *ret, size_t *ret_n,
            struct error *err) {
        struct answer a = { .n = 0 };
        int r = 0;
        if (h->kind == HOST_IPV4)
                a.list[a.n++] = h->addr;
        else
                r = ask(o, h->name, &a, err);
        for (size_t i = 0; i < a.n && r == 0; i++) {
                struct address address = address_of_v4(a.list[i]);
                r = address_may(set, &address, err);
        }
        if (r < 0)
                return r;
        memcpy(ret, a.list, a.n * sizeof *ret);
        *ret_n = a.n;
        return 0;
}
