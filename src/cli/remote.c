/* SPDX-License-Identifier: Apache-2.0 */
#include "remote.h"

#include "base/str.h"
#include "mem.h"
#include "output.h"

#define REMOTE_TIMEOUT_MS (5 * 60 * 1000) /* a slow disk under a full page cache */

static char *target_of(const struct remote *r, const char *route, const char *path, const char *query) {
        _cleanup_free_ char *id = client_escape(r->sandbox), *p = client_escape(path);
        _cleanup_free_ char *user = r->user ? client_escape(r->user) : NULL;

        return mem_printf("/v1/sandboxes/%s/files%s?path=%s%s%s%s%s", id, route, p, user ? "&user=" : "",
                          user ? user : "", query ? "&" : "", query ? query : "");
}

int remote_stat(const struct remote *r, const char *path, struct remote_stat *ret, struct api_error *e) {
        _cleanup_free_ char *target = target_of(r, "/stat", path, NULL);
        _cleanup_json_ json_t *j = NULL;

        if (client_call(r->client, "GET", target, NULL, 0, &j, e) < 0) {
                if (!api_error_is(e, "not_found") && !api_error_is(e, "not_a_directory"))
                        return -1;
                *ret = (struct remote_stat) { .type = REMOTE_MISSING };
                return 0;
        }
        const char *type = member_str(j, "type");
        int64_t size = member_int(j, "size", 0);
        *ret = (struct remote_stat) {
                .type = str_eq(type, "file")        ? REMOTE_FILE
                        : str_eq(type, "directory") ? REMOTE_DIR
                                                    : REMOTE_OTHER,
                .mode = (mode_t) member_int(j, "mode", 0644) & 0777,
                .size = size > 0 ? (uint64_t) size : 0,
        };
        return 0;
}

int remote_put(const struct remote *r, const char *path, const char *query, int64_t length, struct xfer **ret,
               struct api_error *e) {
        _cleanup_free_ char *target = target_of(r, "", path, query);

        if (xfer_open(r->client, "PUT", target, "application/octet-stream", length, ret, e) < 0)
                return -1;
        xfer_set_timeout(*ret, REMOTE_TIMEOUT_MS);
        return 0;
}

int remote_get(const struct remote *r, const char *path, const char *query, struct xfer **ret,
               struct api_error *e) {
        _cleanup_free_ char *target = target_of(r, "", path, query);
        struct xfer *x = NULL;

        if (xfer_open(r->client, "GET", target, NULL, 0, &x, e) < 0)
                return -1;
        xfer_set_timeout(x, REMOTE_TIMEOUT_MS);
        if (xfer_finish(x, e) < 0) {
                xfer_free(x);
                return -1;
        }
        *ret = x;
        return 0;
}
