/* SPDX-License-Identifier: Apache-2.0 */
#include "env.h"

#include <string.h>

#include "base/str.h"
#include "trust.h"

void env_free(char **env) {
        for (char **p = env; p && *p; p++)
                free(*p);
        free(env);
}

void env_freep(char ***env) {
        env_free(*env);
}

const char *env_get(char *const *env, const char *key) {
        size_t n = strlen(key);
        for (; *env; env++)
                if (strncmp(*env, key, n) == 0 && (*env)[n] == '=')
                        return *env + n + 1;
        return NULL;
}

static char *assignment(const char *key, const char *value) {
        size_t kn = strlen(key), vn = strlen(value);
        char *s = malloc(kn + vn + 2);
        if (!s)
                return NULL;
        memcpy(s, key, kn);
        s[kn] = '=';
        memcpy(s + kn + 1, value, vn + 1);
        return s;
}

static int set(json_t *all, const char *key, const char *value) {
        return json_object_set_new(all, key, json_string(value));
}

char **env_build(const struct identity *id, const struct user *u, json_t *extra, bool pty) {
        _cleanup_json_ json_t *all = json_object();
        if (!all || set(all, "PATH", ENV_DEFAULT_PATH) < 0 || set(all, "HOME", u->home) < 0 ||
            set(all, "USER", u->name) < 0 || set(all, "LOGNAME", u->name) < 0)
                return NULL;
        size_t n_vars = 0;
        const struct trust_var *vars = trust_env(&n_vars);
        for (size_t i = 0; id->has_ca && i < n_vars; i++)
                if (set(all, vars[i].name, vars[i].value) < 0)
                        return NULL;
        if (pty && set(all, "TERM", "xterm-256color") < 0)
                return NULL;
        if (json_object_update(all, id->env) < 0 || (extra && json_object_update(all, extra) < 0))
                return NULL;
        _cleanup_(env_freep) char **env = calloc(json_object_size(all) + 1, sizeof *env);
        if (!env)
                return NULL;
        size_t n = 0;
        const char *key;
        json_t *value;
        json_object_foreach(all, key, value) {
                if (!json_is_string(value))
                        continue;
                env[n] = assignment(key, json_string_value(value));
                if (!env[n++])
                        return NULL;
        }
        return STEAL(env);
}
