/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The IPv4 nameservers of resolv.conf(5), at most three as in the C library; without any, the default that it has. Each is
 * given to fn; what that returns beside 0 ends it and is returned. */
int resolvers_each(const char *path, int (*fn)(void *arg, const char *address), void *arg);
