/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cspace-token: gets one short-lived token, writes it to standard output (reply.h) and ends.
 *
 * What answers is outside of this host, or a program of the operator's: neither is believed. So this is no part of
 * cspaced, which has every secret, nor of a gateway, which stands next to a guest and must not have what a token is
 * got with. cspace-rootd starts it for cspaced, under a uid that owns nothing; what it knows is the one secret that it was
 * given (descriptor 3), and it ends within seconds.
 */
#include <sys/prctl.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "command.h"
#include "oauth2.h"

int main(int argc, char **argv) {
        static struct token token;
        struct options o;
        struct error err = ERROR_INIT;
        struct buf out = BUF_INIT(0);
        (void) prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
        int r = options_parse(argc, argv, &o, &err);
        if (r == 0)
                r = o.command ? command_run(&o, &token, &err) : oauth2_run(&o, &token, &err);
        if (r == 0)
                r = reply_write(&token, &out);
        else
                (void) buf_printf(&out, "error %s\n", err.msg);
        return fd_write_all(STDOUT_FILENO, buf_data(&out), out.len, NULL) < 0 || r < 0;
}
