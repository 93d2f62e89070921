/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/token_url.h"

#include <errno.h>
#include <string.h>

#include "base/str.h"

int token_url_parse(const char *url, struct host *ret_host, uint16_t *ret_port, struct error *err) {
        static const char scheme[] = "https://";
        const char *why = NULL;
        size_t n = strlen(url);

        if (n > TOKEN_URL_MAX)
                return error_set(err, -EINVAL, "the URL is longer than %d bytes", TOKEN_URL_MAX);
        if (!str_has_prefix(url, scheme))
                return error_set(err, -EINVAL, "the URL does not begin with https://");
        for (const char *p = url; *p; p++)
                if (*p <= 0x20 || *p > 0x7e || *p == '#' || *p == '\\')
                        return error_set(err, -EINVAL, "the URL has a fragment, or bytes that must be encoded");
        const char *authority = url + sizeof scheme - 1;
        int r = host_parse_authority(authority, strcspn(authority, "/?"), 443, ret_host, ret_port, &why);
        return r < 0 ? error_set(err, -EINVAL, "the URL's host cannot be used: %s", why ? why : "not a name or an IPv4 address") : 0;
}
