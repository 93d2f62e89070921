/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What template.c (table, names) and template_build.c share. */

#include <sys/stat.h>

#include "base/id.h"
#include "store/db.h"
#include "template.h"

struct build;

struct tag_entry {
        struct tag tag; /* first */
        struct tag_entry *next;
};

struct installed_agent {
        uint64_t looked_ms; /* 0: never */
        struct stat st;
        char digest[DIGEST_LEN + 1];
};

struct templates {
        struct map *by_digest;
        struct tag_entry *tags; /* sorted */
        struct build *builds;
        struct installed_agent agent;
};

/* The template with this digest, made if it is not there (its row in b). NULL: no memory. */
struct tmpl *template_add(struct app *app, const char *digest, uint64_t disk_bytes, struct db_batch *b);
/* Points ref at t, in memory and in b. What ref named before may go then: call template_unused()
 * for *ret_old (NULL if none) after b was submitted. */
int template_set_tag(struct app *app, const char *ref, struct tmpl *t, struct db_batch *b, struct tmpl **ret_old);
/* Whether a build under way has made t and is not done with it. */
bool template_building(const struct app *app, const struct tmpl *t);
/* Whether such a build is under way. */
bool template_build_known(const struct app *app, const char *id);
void template_builds_free(struct templates *all);
/* At start: builds that a crash interrupted. */
void template_builds_interrupted(struct app *app);
