/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int negative(int code) {
        if (code == 0)
                return -EIO; /* a failure without a reason must not turn into success */
        return code > 0 ? -code : code;
}

int error_set(struct error *err, int code, const char *fmt, ...) {
        code = negative(code);
        if (!err)
                return code;
        err->code = code;
        va_list ap;
        va_start(ap, fmt);
        (void) vsnprintf(err->msg, sizeof err->msg, fmt, ap);
        va_end(ap);
        return code;
}

int error_errno(struct error *err, int errnum, const char *fmt, ...) {
        int code = negative(errnum);
        if (!err)
                return code;
        err->code = code;
        va_list ap;
        va_start(ap, fmt);
        int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
        va_end(ap);
        if (n < 0)
                n = 0;
        size_t used = (size_t) n;
        if (used < sizeof err->msg) {
                char text[128];
                (void) snprintf(err->msg + used, sizeof err->msg - used, ": %s",
                                strerror_r(-code, text, sizeof text));
        }
        return code;
}

int error_wrap(struct error *err, const char *fmt, ...) {
        if (!err)
                return -EIO;
        char context[ERROR_MSG_MAX], old[ERROR_MSG_MAX];
        va_list ap;
        va_start(ap, fmt);
        (void) vsnprintf(context, sizeof context, fmt, ap);
        va_end(ap);
        memcpy(old, err->msg, sizeof old);
        size_t used = strnlen(context, sizeof context - 1);
        memcpy(err->msg, context, used);
        (void) snprintf(err->msg + used, sizeof err->msg - used, ": %s", old);
        return negative(err->code);
}
