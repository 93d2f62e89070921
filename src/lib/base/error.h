/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The error convention of the whole tree.
 *
 * A function that can fail returns 0 (or a non-negative result) on success and a negative errno
 * on failure, and takes as its last parameter a `struct error *err`, which may be NULL. On
 * failure it fills err with a sentence a user can act on: what was wrong, with which value. A
 * caller that knows more puts its own context in front with error_wrap(). Output parameters stand
 * just before err and are untouched on failure.
 *
 * The message lives in the struct (no allocation, so reporting ENOMEM cannot fail) and is cut at
 * ERROR_MSG_MAX - 1 bytes. Library code never logs an error it returns; the program logs once.
 */
#define ERROR_MSG_MAX 512

struct error {
        int code; /* negative errno, 0 while no error is recorded */
        char msg[ERROR_MSG_MAX];
};

#define ERROR_INIT ((struct error){ .code = 0, .msg = "" })

/* Records code (a negative errno) and a formatted message. Returns code. */
int error_set(struct error *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* As error_set() with ": " and the text of errnum appended; errnum may be positive or negative.
 * Returns the negative errno. */
int error_errno(struct error *err, int errnum, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Puts "context: " in front of the recorded message. Returns the recorded code. */
int error_wrap(struct error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
