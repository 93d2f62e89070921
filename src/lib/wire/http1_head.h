/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Parsing of one complete head, internal to the codec. */

#include "wire/http1.h"

/* What is wrong with a message: the status to answer and a sentence. */
struct http1_fault {
        int status;
        const char *reason;
};

/* Parses the head in text[0..n), which ends with an empty line, writing NULs into it. fields has
 * room for LIMIT_HTTP_HEADERS. False: *fault says why. */
bool http1_head_parse(char *text, size_t n, bool is_request, struct http1_field *fields,
                      struct http1_head *ret, struct http1_fault *fault);

/* Checks one field line (without CRLF) and cuts it into name and value. */
bool http1_field_parse(char *line, size_t n, struct http1_field *ret, struct http1_fault *fault);
