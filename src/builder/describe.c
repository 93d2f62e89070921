/* SPDX-License-Identifier: Apache-2.0 */
#include "describe.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "child.h"
#include "configure_internal.h"
#include "hosts.h"
#include "manifest/manifest.h"

#define STATUS_MAX (32u << 20)
#define PACKAGES_LISTED_MAX 20000

/*
 * Run once in the new VM before its snapshot: the first run of a program costs most (under emulation its code
 * is translated, everywhere its pages are read), and these are what agents start first.
 */
static const char *const warm_always[] = {
        "true", "echo hi", "ls -la / /tmp", "cat /etc/os-release | grep -c . | sed s/x/y/", "id; env; pwd; uname -a; date",
};
static const char *const warm_packages[] = {
        "bash -lc 'for i in 1 2 3; do echo $i; done'",
        "python3 -c 'import sys, os, re, json, time, random, subprocess, pathlib, urllib.request; print(6*7)'",
        "python3 -c 'print(6*7)'",
        "sudo -n true",
        "git --version; git init -q /tmp/warm && rm -rf /tmp/warm",
        "curl --version; jq -n 1; ps aux; find /etc -maxdepth 1; head -c1 /dev/urandom | wc -c; uuidgen",
        "pip --version",
};

static int list_warm(json_t *to, const char *const *list, size_t n) {
        for (size_t i = 0; i < n; i++)
                if (json_array_append_new(to, json_string(list[i])) < 0)
                        return -ENOMEM;
        return 0;
}

static json_t *config_json(const struct build *b, json_t *hosts) {
        json_t *warm = json_array();
        bool packages = b->source == SOURCE_PACKAGES;

        if (!warm || list_warm(warm, warm_always, ARRAY_SIZE(warm_always)) < 0 ||
            (packages && list_warm(warm, warm_packages, ARRAY_SIZE(warm_packages)) < 0)) {
                json_decref(warm);
                return NULL;
        }
        json_t *rules = b->checkpoint_every_s ? json_pack("{s:I,s:I}", "checkpoint_every_s", (json_int_t) b->checkpoint_every_s,
                                                          "checkpoint_keep", (json_int_t) b->checkpoint_keep)
                                              : NULL;
        return json_pack("{s:s,s:{s:s},s:o,s:{s:O},s:o*}", "user", b->user, "env", "LANG", "C.UTF-8", "warm", warm, "hosts",
                         "packages", hosts, "rules", rules);
}

static json_t *source_json(const struct build *b) {
        json_t *words = json_array();

        for (const char *p = b->packages + strspn(b->packages, " "); words && *p; p += strspn(p, " ")) {
                size_t n = strcspn(p, " ");
                (void) json_array_append_new(words, json_stringn(p, n));
                p += n;
        }
        return json_pack("{s:s,s:s,s:o}", "kind", b->source == SOURCE_PACKAGES ? "packages" : "tar", "suite", b->suite_used,
                         "requested", words);
}

/* Value of the field at the start of a line, up to the line's end. */
static bool field(const char *line, const char *name, const char **ret, size_t *ret_n) {
        size_t n = strlen(name);

        if (strncmp(line, name, n) != 0)
                return false;
        *ret = line + n;
        *ret_n = strcspn(line + n, "\n");
        return true;
}

struct stanza {
        const char *name, *version, *state;
        size_t name_n, version_n, state_n;
};

static void stanza_end(struct stanza *z, json_t *into) {
        static const char installed[] = " installed";
        size_t n = sizeof installed - 1;
        char key[256];

        bool whole = z->name && z->version && z->state_n >= n && memcmp(z->state + z->state_n - n, installed, n) == 0;
        if (whole && z->name_n < sizeof key && json_object_size(into) < PACKAGES_LISTED_MAX) {
                memcpy(key, z->name, z->name_n);
                key[z->name_n] = '\0';
                /* A name or version that is no UTF-8 is not dpkg's, and left out. */
                (void) json_object_set_new(into, key, json_stringn(z->version, z->version_n));
        }
        *z = (struct stanza){ 0 };
}

/* dpkg's status file: stanzas of "Field: value" lines, an empty line after each. */
void describe_packages(const char *status, json_t *into) {
        struct stanza z = { 0 };

        for (const char *p = status; *p;) {
                size_t n = strcspn(p, "\n");
                if (n == 0)
                        stanza_end(&z, into);
                else
                        (void) (field(p, "Package: ", &z.name, &z.name_n) || field(p, "Version: ", &z.version, &z.version_n) ||
                                field(p, "Status: ", &z.state, &z.state_n));
                p += n + (p[n] == '\n');
        }
        stanza_end(&z, into);
}

/* In the image, as its links are its own. */
static int print_status(void *arg) {
        _cleanup_free_ char *text = NULL;

        (void) arg;
        if (image_read("/var/lib/dpkg/status", STATUS_MAX, &text) < 0)
                return 0;
        return fd_write_all(STDOUT_FILENO, text, strlen(text), NULL) < 0;
}

static int packages_json(struct build *b, json_t **ret, struct error *err) {
        _cleanup_free_ char *status = NULL;
        _cleanup_json_ json_t *list = json_object();
        struct child c = CHILD_INIT;

        if (!list)
                return error_set(err, -ENOMEM, "out of memory");
        c.call = print_status;
        c.root = b->rootfs;
        c.no_network = true;
        int r = child_output(b, &c, STATUS_MAX, &status, err);
        if (r < 0)
                return r;
        describe_packages(status, list);
        *ret = STEAL(list);
        return 0;
}

int describe_write(struct build *b, struct error *err) {
        _cleanup_json_ json_t *packages = NULL, *hosts = NULL;

        int r = packages_json(b, &packages, err);
        if (r == 0)
                r = hosts_of_packages(b, &hosts, err);
        if (r < 0)
                return r;
        _cleanup_json_ json_t *doc = json_pack(
                "{s:i,s:s,s:o,s:{s:s,s:s,s:s},s:{s:s,s:s,s:s},s:I,s:{s:I,s:s},s:o,s:O,s:{s:s}}", "format", 1, "arch", b->arch, "source",
                source_json(b), "os", "id", b->os_id, "version", b->os_version, "name", b->os_name, "kernel", "package",
                b->kernel_package, "version", b->kernel_version, "release", b->kernel_release, "epoch", (json_int_t) b->epoch,
                "disk", "bytes", (json_int_t) b->disk_bytes, "fs", "ext4", "config", config_json(b, hosts), "packages", packages,
                MANIFEST_AGENT_KEY, "sha256", b->agent_digest);
        _cleanup_free_ char *text = doc ? json_dumps(doc, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
        if (!text)
                return error_set(err, -ENOMEM, "cannot write manifest.json");
        return fd_replace_file_at(b->outfd, "manifest.json", text, strlen(text), 0644, err);
}
