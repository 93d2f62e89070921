/* SPDX-License-Identifier: Apache-2.0 */
#include "endpoint.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/str.h"

static int parse_unix(const char *url, const char *path, struct endpoint *ret, struct error *err) {
        struct endpoint e = { .local = true };

        if (path[0] != '/')
                return error_set(err, -EINVAL, "address \"%s\": the path of a socket starts with \"/\"", url);
        if (str_copy(e.path, sizeof e.path, path) < 0)
                return error_set(err, -EINVAL, "address \"%s\": the path of a socket has at most %d bytes",
                                 url, ENDPOINT_PATH_MAX);
        snprintf(e.authority, sizeof e.authority, "localhost");
        snprintf(e.text, sizeof e.text, "%s", path);
        *ret = e;
        return 0;
}

/* HOST, HOST:PORT, [IP6], [IP6]:PORT */
static int split_host(const char *url, const char *s, size_t n, struct endpoint *e, struct error *err) {
        const char *host = s, *port = NULL;
        size_t hn = n;
        char text[8];
        uint64_t p = ENDPOINT_PORT;

        if (n > 0 && s[0] == '[') {
                const char *close = memchr(s, ']', n);
                if (!close)
                        return error_set(err, -EINVAL, "address \"%s\": \"]\" is missing", url);
                host = s + 1;
                hn = (size_t) (close - host);
                if (close + 1 < s + n && close[1] != ':')
                        return error_set(err, -EINVAL, "address \"%s\": only a port may follow \"]\"", url);
                if (close + 1 < s + n)
                        port = close + 2;
        } else {
                const char *colon = memchr(s, ':', n);
                if (colon && memchr(colon + 1, ':', (size_t) (s + n - colon - 1)))
                        return error_set(err, -EINVAL, "address \"%s\": an IPv6 address stands in []", url);
                if (colon) {
                        hn = (size_t) (colon - s);
                        port = colon + 1;
                }
        }
        if (port) {
                size_t pn = (size_t) (s + n - port);
                if (pn >= sizeof text)
                        return error_set(err, -EINVAL, "address \"%s\": wrong port", url);
                memcpy(text, port, pn);
                text[pn] = '\0';
                if (str_to_u64(text, 65535, &p) < 0 || p == 0)
                        return error_set(err, -EINVAL, "address \"%s\": \"%s\" is no port", url, text);
        }
        if (hn == 0 || hn > ENDPOINT_HOST_MAX)
                return error_set(err, -EINVAL, "address \"%s\": the host is missing", url);
        for (size_t i = 0; i < hn; i++)
                if (host[i] <= ' ' || strchr("@/?#\\\x7f", host[i]))
                        return error_set(err, -EINVAL, "address \"%s\": \"%.*s\" is no host name", url,
                                         (int) hn, host);
        memcpy(e->host, host, hn);
        e->host[hn] = '\0';
        e->port = (uint16_t) p;
        return 0;
}

int endpoint_parse(const char *url, struct endpoint *ret, struct error *err) {
        struct endpoint e = { 0 };

        if (str_has_prefix(url, "unix:"))
                return parse_unix(url, str_has_prefix(url, "unix:///") ? url + 7 : url + 5, ret, err);
        if (str_has_prefix(url, "https://"))
                return error_set(err, -EINVAL,
                                 "address \"%s\": https is not spoken here; use http:// through a tunnel, "
                                 "or unix:PATH",
                                 url);
        if (!str_has_prefix(url, "http://"))
                return error_set(err, -EINVAL, "address \"%s\" is neither unix:PATH nor http://HOST:PORT",
                                 url);
        const char *s = url + 7;
        size_t n = strcspn(s, "/?#");
        if (s[n] && !str_eq(s + n, "/"))
                return error_set(err, -EINVAL, "address \"%s\": nothing may follow the port", url);
        int r = split_host(url, s, n, &e, err);
        if (r < 0)
                return r;
        bool six = strchr(e.host, ':') != NULL;
        snprintf(e.authority, sizeof e.authority, six ? "[%s]:%u" : "%s:%u", e.host, (unsigned) e.port);
        snprintf(e.text, sizeof e.text, "http://%s", e.authority);
        *ret = e;
        return 0;
}

int endpoint_resolve(const struct endpoint *e, char ret[ENDPOINT_ADDRESSES][INET6_ADDRSTRLEN],
                     struct error *err) {
        const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG };
        struct addrinfo *list = NULL;
        int n = 0;

        int r = getaddrinfo(e->host, NULL, &hints, &list);
        if (r != 0) /* AI_ADDRCONFIG leaves out loopback-only families */
                r = getaddrinfo(e->host, NULL, &(struct addrinfo) { .ai_socktype = SOCK_STREAM }, &list);
        if (r != 0)
                return error_set(err, -EHOSTUNREACH, "host \"%s\" is not known: %s", e->host,
                                 r == EAI_SYSTEM ? strerror(errno) : gai_strerror(r));
        for (struct addrinfo *a = list; a && n < ENDPOINT_ADDRESSES; a = a->ai_next)
                if (getnameinfo(a->ai_addr, a->ai_addrlen, ret[n], INET6_ADDRSTRLEN, NULL, 0,
                                NI_NUMERICHOST) == 0)
                        n++;
        freeaddrinfo(list);
        return n > 0 ? n : error_set(err, -EHOSTUNREACH, "host \"%s\" has no address", e->host);
}
