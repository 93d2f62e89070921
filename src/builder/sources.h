/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * apt sources in both of apt's formats (sources.list(5)), in memory: what the builder takes from the
 * host is Debian's own archive alone, and no host name is written in this program.
 */

#include <stdbool.h>

#include "base/buf.h"
#include "base/error.h"

#define SOURCES_MAX 64                /* entries taken from all files together */
#define SOURCES_TEXT_MAX (256 * 1024) /* bytes of one file */

struct source {
        char uri[256];
        char suite[64];       /* as the host has it, e.g. "bookworm-security" */
        char components[128];
        bool foreign_key;     /* signed by a key that is not Debian's archive key */
};

struct sources {
        struct source list[SOURCES_MAX];
        size_t n;
};

/* Adds the entries of one file: deb822 (*.sources) or one line each (*.list). Disabled entries and source
 * packages are left out; a line that cannot be understood is left out too, as it is the host's. */
void sources_parse_deb822(struct sources *s, const char *text);
void sources_parse_list(struct sources *s, const char *text);
/* /etc/apt/sources.list and sources.list.d below `etc_apt`. */
int sources_read_host(struct sources *s, const char *etc_apt, struct error *err);

/*
 * Writes deb822 for `suite` from the entries that are Debian's archive for `host_suite` (its code name):
 * one of the host's suite with or without a known suffix, component main, and no foreign key. The
 * suite's name is exchanged when the two differ. -ENOENT when none is.
 */
int sources_select(const struct sources *s, const char *host_suite, const char *suite, const char *keyring,
                   struct buf *out, struct error *err);

/* VERSION_CODENAME of an os-release file, "" when it has none. */
void sources_codename(const char *os_release, char *out, size_t cap);
