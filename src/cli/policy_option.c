/* SPDX-License-Identifier: Apache-2.0 */
#include "policy_option.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli.h"

static int read_stdin(struct buf *out) {
        for (;;) {
                uint8_t *to;
                int r = buf_reserve(out, 4096, &to);
                ssize_t n = r < 0 ? r : read(STDIN_FILENO, to, 4096);

                if (r < 0 || (n < 0 && errno != EINTR))
                        return r < 0 ? r : -errno;
                if (n == 0)
                        return 0;
                if (n > 0)
                        buf_commit(out, (size_t) n);
        }
}

static int read_policy(const char *path, json_t **ret, struct api_error *e) {
        _cleanup_buf_ struct buf in = BUF_INIT(POLICY_FILE_MAX);
        _cleanup_free_ char *text = NULL;
        struct error err = ERROR_INIT;
        size_t n = 0;

        if (str_eq(path, "-")) {
                int r = read_stdin(&in);
                if (r < 0)
                        return api_error_set(e, "usage", "the policy on stdin cannot be read: %s", strerror(-r));
        } else if (fd_read_file_at(AT_FDCWD, path, POLICY_FILE_MAX, &text, &n, &err) < 0) {
                return api_error_set(e, "usage", "%s", err.msg);
        }
        if (json_parse(text ? text : (const char *) buf_data(&in), text ? n : in.len, POLICY_FILE_MAX, ret, &err) < 0)
                return api_error_set(e, "usage", "\"%s\": %s", path, err.msg);
        return 0;
}

static int add_allow(json_t *body, const struct opt_list *allow, struct api_error *e) {
        json_t *list = json_array();

        for (size_t i = 0; i < allow->n; i++) {
                if (json_array_append_new(list, json_string(allow->items[i])) < 0) {
                        json_decref(list);
                        return api_error_set(e, "usage", "--allow is not UTF-8");
                }
        }
        return json_object_set_new(body, "allow", list);
}

int policy_option(json_t *body, const struct opt_list *allow, const char *policy, struct api_error *e) {
        json_t *j = NULL;

        if (policy && allow->n > 0)
                return api_error_set(e, "usage", "--allow and --policy cannot both be given");
        if (allow->n > 0)
                return add_allow(body, allow, e);
        if (!policy)
                return 0;
        if (policy[0] == '@' || str_eq(policy, "none"))
                j = json_string(policy);
        else if (read_policy(policy, &j, e) < 0)
                return -1;
        if (!j)
                return api_error_set(e, "usage", "--policy is not UTF-8");
        return json_object_set_new(body, "policy", j);
}

void policy_tell_warnings(const json_t *of) {
        const json_t *w;
        size_t i;

        json_array_foreach(json_object_get(of, "warnings"), i, w)
                cli_note("warning: %s", json_is_string(w) ? json_string_value(w) : "?");
}
