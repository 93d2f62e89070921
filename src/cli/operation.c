/* SPDX-License-Identifier: Apache-2.0 */
#include "operation.h"

#include <signal.h>

#include "base/str.h"
#include "cli.h"
#include "mem.h"
#include "signals.h"

#define OPERATION_WAIT_S 60        /* one request is held so long */
#define OPERATION_WATCHED_WAIT_S 1 /* when somebody looks at the steps */

static void show(struct progress *p, const json_t *op) {
        json_t *progress = NULL;
        const char *step = NULL;
        uint64_t percent = UINT64_MAX, eta = UINT64_MAX;

        if (json_read_obj(op, "progress", true, &progress, NULL) < 0)
                return;
        (void) json_read_str(progress, "step", false, 1024, &step, NULL);
        (void) json_read_u64(progress, "percent", false, 0, 100, &percent, NULL);
        (void) json_read_u64(progress, "eta_s", false, 0, INT32_MAX, &eta, NULL);
        if (step && *step)
                progress_step(p, step, percent > 100 ? -1 : (int) percent,
                              eta > INT32_MAX ? -1 : (int64_t) eta);
}

static int ended(const json_t *op, const char *state, struct api_error *e) {
        json_t *error = NULL;
        const char *code = NULL, *message = NULL;

        if (str_eq(state, "succeeded"))
                return 0;
        if (json_read_obj(op, "error", true, &error, NULL) == 0) {
                (void) json_read_str(error, "code", false, 63, &code, NULL);
                (void) json_read_str(error, "message", false, SIZE_MAX, &message, NULL);
        }
        return api_error_set(e, code ? code : "failure", "%s",
                             message ? message : "the operation failed without a reason");
}

int operation_wait(struct client *c, const char *id, struct progress *p, json_t **ret, struct api_error *e) {
        _cleanup_free_ char *safe = client_escape(id);
        int wait = p ? OPERATION_WATCHED_WAIT_S : OPERATION_WAIT_S;
        _cleanup_free_ char *target = mem_printf("/v1/operations/%s?wait=%d", safe, wait);

        for (;;) {
                _cleanup_json_ json_t *op = NULL;
                const char *state = NULL;

                if (client_call(c, "GET", target, NULL, (uint64_t) wait * 1000 + CLIENT_TIMEOUT_MS, &op, e) <
                    0)
                        return -1;
                if (json_read_str(op, "state", true, 64, &state, NULL) < 0)
                        return api_error_set(e, "protocol", "cspaced sent an operation without a state");
                if (p)
                        show(p, op);
                if (str_eq(state, "running"))
                        continue;
                int r = ended(op, state, e);
                if (r == 0 && ret)
                        *ret = STEAL(op);
                return r;
        }
}

struct watch {
        struct client *c;
        int signum;
};

static void on_signal(void *arg, int signum) {
        struct watch *w = arg;

        w->signum = signum;
        client_interrupt(w->c);
}

int operation_watch(struct client *c, const char *id, struct progress *p, const char *goes_on, json_t **ret, struct api_error *e) {
        static const int list[] = { SIGINT, SIGTERM, SIGHUP, 0 };
        struct watch w = { .c = c };

        struct signals *signals = signals_new(client_loop(c), list, on_signal, &w);
        int r = operation_wait(c, id, p, ret, e);
        signals_free(signals);
        progress_clear(p);
        if (r == 0 || !w.signum)
                return r;
        cli_note("%s", goes_on);
        return CLI_SIGNAL + w.signum;
}
