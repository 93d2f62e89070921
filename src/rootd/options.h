/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Command line of cspace-rootd, over the values of cspace.conf. */

#include <stdbool.h>
#include <sys/types.h>

#include "base/error.h"
#include "conf/conf.h"

#define OPTIONS_USER_MAX 32

struct options {
        struct conf conf;
        char user[OPTIONS_USER_MAX + 1]; /* who may ask: cspaced's user */
        uid_t uid;
        gid_t gid;
        bool token_user_known;           /* [credentials] user exists */
        uid_t token_uid;
        gid_t token_gid;
        char cgroup[CONF_STR_MAX + 1]; /* name of the cgroup that holds the sandboxes'; "": default */
};

/* 1: help or version was printed, 0: go on, negative errno. */
int options_parse(struct options *o, int argc, char **argv, struct error *err);
