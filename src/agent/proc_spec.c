/* SPDX-License-Identifier: Apache-2.0 */
#include "proc_spec.h"

#include <errno.h>
#include <string.h>

#include "base/limits.h"
#include "base/str.h"

void proc_spec_done(struct proc_spec *s) {
        for (char **p = s->argv; p && *p; p++)
                free(*p);
        free(s->argv);
        json_decref(s->envs);
        free(s->cwd);
        free(s->user);
        free(s->tag);
        *s = (struct proc_spec){ 0 };
}

static int read_args(struct proc_spec *s, const char *cmd, const json_t *args, struct error *err) {
        size_t n = json_array_size(args);
        s->argv = calloc(n + 2, sizeof(char *));
        if (!s->argv || !(s->argv[0] = strdup(cmd)))
                return error_set(err, -ENOMEM, "out of memory");
        for (size_t i = 0; i < n; i++) {
                const json_t *a = json_array_get(args, i);
                if (!json_is_string(a))
                        return error_set(err, -EINVAL, "args[%zu] must be a string", i);
                s->argv[i + 1] = strdup(json_string_value(a));
                if (!s->argv[i + 1])
                        return error_set(err, -ENOMEM, "out of memory");
        }
        return 0;
}

static int check_envs(json_t *envs, struct error *err) {
        const char *key;
        json_t *value;
        json_object_foreach(envs, key, value) {
                if (!*key || strchr(key, '='))
                        return error_set(err, -EINVAL, "environment variable name '%s' is not valid", key);
        }
        return 0;
}

int proc_spec_command(struct proc_spec *s, const json_t *obj, const char *env_key, struct error *err) {
        const char *cmd = NULL, *cwd = NULL;
        json_t *args = NULL, *envs = NULL;
        int r = json_read_str(obj, "cmd", true, LIMIT_JSON_BODY, &cmd, err);
        if (r == 0)
                r = json_read_str(obj, "cwd", false, LIMIT_PATH - 1, &cwd, err);
        if (r == 0)
                r = json_read_array(obj, "args", false, PROC_ARGS_MAX, &args, err);
        if (r == 0)
                r = json_read_str_map(obj, env_key, LIMIT_ENV_ITEMS, 4096, LIMIT_ENV_VALUE, &envs, err);
        if (r == 0 && !*cmd)
                r = error_set(err, -EINVAL, "cmd must not be empty");
        if (r == 0 && envs)
                r = check_envs(envs, err);
        if (r == 0)
                r = read_args(s, cmd, args, err);
        if (r == 0 && cwd && *cwd && !(s->cwd = strdup(cwd)))
                r = error_set(err, -ENOMEM, "out of memory");
        if (r == 0 && envs)
                s->envs = json_incref(envs);
        return r;
}

int proc_spec_size(const json_t *size, uint16_t *ret_cols, uint16_t *ret_rows, struct error *err) {
        uint64_t cols = 80, rows = 24;
        int r = json_read_u64(size, "cols", false, 1, UINT16_MAX, &cols, err);
        if (r == 0)
                r = json_read_u64(size, "rows", false, 1, UINT16_MAX, &rows, err);
        if (r < 0)
                return r;
        *ret_cols = (uint16_t) cols;
        *ret_rows = (uint16_t) rows;
        return 0;
}
