/* SPDX-License-Identifier: Apache-2.0 */
#include "denials.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli.h"
#include "mem.h"
#include "output.h"

#define HOSTS_MAX 3 /* named; that there are more is told */

struct denials {
        char *hosts[HOSTS_MAX];
        size_t n;
        bool more;
};

/* Ends the list once there is nothing more to learn from it. */
static int on_record(void *arg, json_t *record) {
        struct denials *d = arg;
        const char *host = member_str(record, "host");

        if (!*host)
                return 0; /* packets, or what names nobody */
        for (size_t i = 0; i < d->n; i++)
                if (str_eq(d->hosts[i], host))
                        return 0;
        d->more = d->n == HOSTS_MAX;
        if (!d->more)
                d->hosts[d->n++] = mem_dup(host);
        return d->more;
}

void denials_tell(struct client *c, const char *sandbox) {
        _cleanup_free_ char *target = mem_printf("/v1/sandboxes/%s/audit?verdict=deny", sandbox), *list = mem_dup("");
        struct denials d = { 0 };
        struct api_error e;

        (void) client_list(c, target, "records", on_record, &d, &e); /* it is no more than a hint */
        for (size_t i = 0; i < d.n; i++) {
                _cleanup_free_ char *before = list;
                list = mem_printf("%s%s%s", before, i ? ", " : "", d.hosts[i]);
        }
        if (d.n > 0)
                cli_note("the sandbox was refused %s%s: `cspace audit --verdict deny %s` shows why", list, d.more ? " and others" : "", sandbox);
        for (size_t i = 0; i < d.n; i++)
                free(d.hosts[i]);
}
