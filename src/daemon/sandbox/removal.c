/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Removal of what cspace-rootd keeps: placements, builds, templates. It never gives up: while rootd
 * cannot be reached, or says that it could not, the id stays in the table and is asked for again.
 * Nothing here asks the guest, the VM or the warden.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "manifest/variant.h"
#include "map.h"
#include "peers/rootd.h"
#include "sandbox_flow.h"
#include "timer.h"

#define REMOVE_TIMEOUT_MS 60000
#define RETRY_MIN_MS 200
#define RETRY_MAX_MS 10000

struct waiter {
        struct waiter *next;
        void (*cb)(void *arg);
        void *arg;
};

struct removal {
        struct app *app;
        enum removal_kind kind;
        char key[DIGEST_LEN + 1 + VARIANT_NAME_MAX + 8]; /* id after the kind: a build and an image may have one id */
        char id[DIGEST_LEN + 1 + VARIANT_NAME_MAX + 1];
        struct waiter *waiters;
        struct timer *retry;
        uint64_t retry_ms;
        bool asked;
};

struct removals {
        struct map *by_key;
};

static const uint16_t types[] = { IPC_REMOVE, IPC_BUILD_REMOVE, IPC_TEMPLATE_REMOVE, IPC_IMAGE_REMOVE,
                                  IPC_VARIANT_REMOVE, IPC_IMAGE_REMOVE };

static void ask(void *arg);

static void finish(struct removal *r) {
        (void) map_remove(r->app->removals->by_key, r->key);
        while (r->waiters) {
                struct waiter *w = r->waiters;
                r->waiters = w->next;
                w->cb(w->arg);
                free(w);
        }
        free(r);
}

static void again(struct removal *r) {
        r->retry = timer_start(r->app->loop, r->retry_ms, ask, r);
        if (r->retry_ms < RETRY_MAX_MS)
                r->retry_ms *= 2;
}

static void on_removed(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        (void) p;
        struct removal *r = arg;
        r->asked = false;
        if (err == 0) {
                finish(r);
                return;
        }
        if (err == -ECANCELED && r->app->stopping)
                return;
        log_warn("could not %s %s: %s, trying again", ipc_type_name(types[r->kind]), r->id, e->msg);
        again(r);
}

static int encode(const struct removal *r, uint8_t *out, size_t cap, size_t *ret_n) {
        struct ipc_remove placement = { 0 };
        struct ipc_build_remove build = { 0 };
        struct ipc_template_remove template = { 0 };
        struct ipc_image_remove image = { 0 };
        struct ipc_variant_remove variant = { 0 };
        switch (r->kind) {
        case REMOVAL_BUILD:
                (void) str_copy(build.id, sizeof build.id, r->id);
                return ipc_build_remove_encode(&build, out, cap, ret_n);
        case REMOVAL_TEMPLATE:
                (void) str_copy(template.digest, sizeof template.digest, r->id);
                return ipc_template_remove_encode(&template, out, cap, ret_n);
        case REMOVAL_PROCESS:
                (void) str_copy(image.what, sizeof image.what, "process");
                (void) str_copy(image.image, sizeof image.image, r->id);
                return ipc_image_remove_encode(&image, out, cap, ret_n);
        case REMOVAL_IMAGE:
                (void) str_copy(image.image, sizeof image.image, r->id);
                return ipc_image_remove_encode(&image, out, cap, ret_n);
        case REMOVAL_VARIANT:
                memcpy(variant.digest, r->id, DIGEST_LEN);
                (void) str_copy(variant.variant, sizeof variant.variant, r->id + DIGEST_LEN + 1);
                return ipc_variant_remove_encode(&variant, out, cap, ret_n);
        case REMOVAL_PLACEMENT:
        default:
                (void) str_copy(placement.id, sizeof placement.id, r->id);
                return ipc_remove_encode(&placement, out, cap, ret_n);
        }
}

static void ask(void *arg) {
        struct removal *r = arg;
        r->retry = NULL;
        uint8_t body[256];
        size_t n;
        if (encode(r, body, sizeof body, &n) < 0 ||
            rootd_call(r->app->rootd, types[r->kind], body, n, NULL, 0, REMOVE_TIMEOUT_MS, on_removed, r, NULL) < 0) {
                again(r);
                return;
        }
        r->asked = true;
}

static struct removal *find(struct app *app, enum removal_kind kind, const char *id) {
        char key[sizeof ((struct removal *) 0)->key];
        (void) snprintf(key, sizeof key, "%d/%s", (int) kind, id);
        return map_get(app->removals->by_key, key);
}

bool removal_active(struct app *app, enum removal_kind kind, const char *id) {
        return find(app, kind, id) != NULL;
}

int removal_start(struct app *app, enum removal_kind kind, const char *id, void (*cb)(void *arg), void *arg) {
        struct removal *r = find(app, kind, id);
        struct waiter *w = NULL;
        if (cb) {
                w = calloc(1, sizeof *w);
                if (!w)
                        return -ENOMEM;
                w->cb = cb;
                w->arg = arg;
        }
        if (!r) {
                r = calloc(1, sizeof *r);
                if (!r) {
                        free(w);
                        return -ENOMEM;
                }
                r->app = app;
                r->kind = kind;
                r->retry_ms = RETRY_MIN_MS;
                (void) str_copy(r->id, sizeof r->id, id);
                (void) snprintf(r->key, sizeof r->key, "%d/%s", (int) kind, id);
                if (map_put(app->removals->by_key, r->key, r) < 0) {
                        free(w);
                        free(r);
                        return -ENOMEM;
                }
                ask(r);
        }
        if (w) {
                w->next = r->waiters;
                r->waiters = w;
        }
        return 0;
}

int removals_new(struct app *app, struct removals **ret, struct error *err) {
        (void) app;
        struct removals *all = calloc(1, sizeof *all);
        if (all)
                all->by_key = map_new();
        if (!all || !all->by_key) {
                free(all);
                return error_set(err, -ENOMEM, "out of memory");
        }
        *ret = all;
        return 0;
}

/* After rootd_stop(): no call is outstanding. */
void removals_free(struct removals *all) {
        if (!all)
                return;
        size_t pos = 0;
        struct removal *r;
        while ((r = map_next(all->by_key, &pos))) {
                timer_cancel(r->retry);
                while (r->waiters) {
                        struct waiter *w = r->waiters;
                        r->waiters = w->next;
                        free(w);
                }
                free(r);
        }
        map_free(all->by_key);
        free(all);
}
