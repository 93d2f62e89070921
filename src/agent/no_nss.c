/* SPDX-License-Identifier: Apache-2.0 */

/*
 * In a static program glibc's name services would load shared objects of whatever libc the guest
 * has. The agent asks for no names, but libuv refers to these functions. Defined here they keep
 * the resolver and NSS out of the binary altogether.
 */
#include <errno.h>
#include <netdb.h>
#include <pwd.h>
#include <stddef.h>

#pragma GCC visibility push(default)

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **res) {
        (void) node;
        (void) service;
        (void) hints;
        (void) res;
        return EAI_FAIL;
}

void freeaddrinfo(struct addrinfo *res) {
        (void) res;
}

int getnameinfo(const struct sockaddr *sa, socklen_t len, char *host, socklen_t hostlen, char *serv,
                socklen_t servlen, int flags) {
        (void) sa;
        (void) len;
        (void) host;
        (void) hostlen;
        (void) serv;
        (void) servlen;
        (void) flags;
        return EAI_FAIL;
}

int getpwuid_r(uid_t uid, struct passwd *pwd, char *buf, size_t buflen, struct passwd **result) {
        (void) uid;
        (void) pwd;
        (void) buf;
        (void) buflen;
        *result = NULL;
        return ENOSYS;
}

#pragma GCC visibility pop
