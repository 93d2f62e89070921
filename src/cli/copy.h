/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Copies between here and a sandbox, with the rules of cp(1):
 *
 *                destination is a folder   is a file            does not exist
 *   file         a file in it              its new contents     the file (its folder must exist)
 *   folder       a folder in it            error                the folder
 *   folder/.     its contents in it        error                the folder
 *
 * Links that are named are followed, links inside a folder are kept.
 */

#include "progress.h"
#include "remote.h"

struct copy {
        struct remote remote;
        struct progress *progress;
        bool tar;         /* "-" is a tar archive of a folder's contents, in either direction */
        uint64_t skipped; /* entries of kinds that are not copied */
};

/* Prints what is wrong; return exit codes. `several`: one of more sources, so dst must be a folder. */
int copy_upload(struct copy *c, const char *src, const char *dst, bool several);
int copy_download(struct copy *c, const char *src, const char *dst, bool several);

/* "a/b/" -> "b"; "" for ".", "..", "/" and what ends in "/." : the contents are meant. malloc'd. */
char *copy_basename(const char *path) __attribute__((malloc, returns_nonnull));
/* Joins with one "/"; "" stays out. malloc'd. */
char *copy_join(const char *dir, const char *name) __attribute__((malloc, returns_nonnull));
/* The folder part: "a/b" -> "a", "b" -> ".", "/b" -> "/". malloc'd. */
char *copy_dirname(const char *path) __attribute__((malloc, returns_nonnull));
