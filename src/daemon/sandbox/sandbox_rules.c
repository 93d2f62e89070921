/* SPDX-License-Identifier: Apache-2.0 */
#include "sandbox_rules.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/limits.h"

#define RULES_TEXT_MAX 1024

static const char *const ends[] = { "delete", "pause", "suspend", "stop" };
static_assert(ARRAY_SIZE(ends) == SANDBOX_END_MAX_);

static int read_end(const json_t *body, const char *key, enum sandbox_end *end, struct error *err) {
        const char *text = NULL;
        int r = json_read_str(body, key, false, 16, &text, err);
        if (r < 0 || !text)
                return r;
        for (size_t i = 0; i < ARRAY_SIZE(ends); i++)
                if (strcmp(ends[i], text) == 0) {
                        *end = (enum sandbox_end) i;
                        return 0;
                }
        return error_set(err, -EINVAL, "\"%s\" is \"%s\"; it must be one of delete, pause, suspend, stop", key, text);
}

int sandbox_rules_read_checkpoints(const json_t *body, struct sandbox_rules *rules, struct error *err) {
        uint64_t every = rules->checkpoint_every_s, keep = rules->checkpoint_keep;
        int r = json_read_u64(body, "checkpoint_every_s", false, 0, LIMIT_TTL_MAX_S, &every, err);
        if (r >= 0)
                r = json_read_u64(body, "checkpoint_keep", false, 1, CHECKPOINT_KEEP_MAX, &keep, err);
        if (r < 0)
                return r;
        if (every > 0 && every < CHECKPOINT_EVERY_MIN_S)
                return error_set(err, -EINVAL, "\"checkpoint_every_s\" is %llu; it must be 0 or at least %d",
                                 (unsigned long long) every, CHECKPOINT_EVERY_MIN_S);
        rules->checkpoint_every_s = every;
        rules->checkpoint_keep = keep;
        return 0;
}

int sandbox_rules_read(const json_t *body, struct sandbox_rules *rules, struct error *err) {
        struct sandbox_rules n = *rules;
        int r = read_end(body, "on_expiry", &n.on_expiry, err);
        if (r >= 0)
                r = read_end(body, "on_idle", &n.on_idle, err);
        if (r >= 0)
                r = json_read_u64(body, "idle_s", false, 0, LIMIT_TTL_MAX_S, &n.idle_s, err);
        if (r >= 0)
                r = json_read_bool(body, "wake", false, &n.wake, err);
        if (r >= 0)
                r = sandbox_rules_read_checkpoints(body, &n, err);
        if (r < 0)
                return r;
        if (n.on_expiry == SANDBOX_END_PAUSE)
                return error_set(err, -EINVAL, "\"on_expiry\" is one of delete, suspend, stop: a paused sandbox keeps its memory");
        *rules = n;
        return 0;
}

void sandbox_rules_show(const struct sandbox_rules *r, json_t *j) {
        (void) json_object_set_new(j, "on_expiry", json_string(ends[r->on_expiry]));
        (void) json_object_set_new(j, "idle_s", json_integer((json_int_t) r->idle_s));
        (void) json_object_set_new(j, "on_idle", json_string(ends[r->on_idle]));
        (void) json_object_set_new(j, "wake", json_boolean(r->wake));
        (void) json_object_set_new(j, "checkpoint_every_s", json_integer((json_int_t) r->checkpoint_every_s));
        (void) json_object_set_new(j, "checkpoint_keep", json_integer((json_int_t) r->checkpoint_keep));
}

json_t *sandbox_rules_store(const struct sandbox_rules *r) {
        json_t *j = json_pack("{s:I}", "ttl_s", (json_int_t) r->ttl_s);
        if (j)
                sandbox_rules_show(r, j);
        return j;
}

int sandbox_rules_load(const char *text, struct sandbox_rules *ret) {
        struct sandbox_rules r = SANDBOX_RULES_DEFAULT;
        _cleanup_json_ json_t *j = NULL;
        if (text && (json_parse(text, strlen(text), RULES_TEXT_MAX, &j, NULL) < 0 ||
                     json_read_u64(j, "ttl_s", false, 0, LIMIT_TTL_MAX_S, &r.ttl_s, NULL) < 0 ||
                     sandbox_rules_read(j, &r, NULL) < 0))
                return -EBADMSG;
        *ret = r;
        return 0;
}
