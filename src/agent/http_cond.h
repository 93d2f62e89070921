/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Conditional and range requests (RFC 9110, 13 and 14), and the choice of a content coding (12.5.3). */

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "wire/http1.h"

#define HTTP_DATE_SIZE 32
void http_date(time_t t, char out[HTTP_DATE_SIZE]); /* "Sun, 06 Nov 1994 08:49:37 GMT" */
int http_parse_date(const char *s, time_t *ret);    /* this form only */

/* 0: go on; 304 or 412. */
int http_check_conditions(const struct http1_head *h, const char *etag, time_t mtime);

enum http_range { HTTP_RANGE_NONE, HTTP_RANGE_PART, HTTP_RANGE_BAD };
/* One range of a representation of `size` bytes; several are answered as if none was asked for. */
enum http_range http_read_range(const struct http1_head *h, const char *etag, time_t mtime, uint64_t size,
                                uint64_t *ret_first, uint64_t *ret_last);

enum http_coding { HTTP_IDENTITY, HTTP_GZIP, HTTP_NONE };
/*
 * gzip costs a CPU that the sandbox is short of, and clients list it out of habit; so it is used
 * only where the client takes nothing else or lists gzip alone.
 */
enum http_coding http_choose_coding(const char *accept_encoding);
