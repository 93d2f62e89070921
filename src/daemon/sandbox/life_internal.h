/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A change of a sandbox that is under way: what sandbox_change.c, where it begins, and sandbox_life.c, where it takes its steps, share. */

#include "checkpoint.h"
#include "ipc/messages.h"
#include "peers/patience.h"
#include "sandbox_flow.h"

struct life_verb {
        const char *name;
        enum op_kind kind;
        unsigned from;
        enum sandbox_state via, to;
};
extern const struct life_verb life_verbs[SANDBOX_VERB_MAX_];
#define SALVAGE SANDBOX_VERB_MAX_ /* no verb, no operation */

enum step {
        STEP_ROWS,
        STEP_WARDEN,
        STEP_QUERY,
        STEP_FSFREEZE,
        STEP_FSTHAW,
        STEP_PAUSE,
        STEP_BEGIN,
        STEP_SAVE,
        STEP_COMMIT,
        STEP_AWAKE,
        STEP_SEAL,
        STEP_ROW,
        STEP_REMOVE,
        STEP_UNDO,
        STEP_FALL_BACK,
};

struct life {
        struct app *app;
        struct sandbox *s; /* a reference */
        enum sandbox_verb verb;
        enum sandbox_state from;
        char op_id[ID_SIZE]; /* "" none */
        char image[ID_SIZE];
        enum step step;
        struct warden *warden;
        struct timer *timer;
        struct patience rootd, wardens;
        uint64_t busy_ms;     /* monotonic: until when one that is busy is asked again; 0 none is */
        bool asked;           /* cspace-rootd or the database owes an answer */
        bool lost;            /* the VM has ended */
        enum api_code code;   /* UNDO, FALL_BACK: why */
        char why[ERROR_MSG_MAX];
        bool canceled;
        void (*on_canceled)(void *arg);
        void *cancel_arg;
        struct ipc_image_info info;
        struct ipc_held held;          /* PAUSE, RESUME, SUSPEND */
        struct checkpoint *checkpoint; /* being made; of FORK no more than what is to be kept */
        life_image_cb imaged;          /* a CHECKPOINT that is no checkpoint, without an operation */
        void *imaged_arg;
        struct fork *fork;             /* FORK; not ours any more once its copies are entered */
};

/* The sandbox keeps its state; a copy is made beside it. */
static inline bool life_copies(const struct life *l) {
        return l->verb == SANDBOX_CHECKPOINT || l->verb == SANDBOX_FORK;
}

/* ---- sandbox_change.c ---------------------------------------------------------------------- */

/* Whether v may be done now: -EBUSY, -EAGAIN, -ENOTCONN with the reason. name: as what it is told. */
int life_check(struct app *app, const struct sandbox *s, const struct life_verb *v, const char *name, struct error *err);

/* ---- sandbox_life.c ------------------------------------------------------------------------ */

struct life *life_new(struct app *app, struct sandbox *s, enum sandbox_verb verb, const char *op_id); /* as s->life; NULL: out of memory */
void life_free(struct life *l);
void life_first_step(struct life *l);
void life_end_canceled(struct life *l);
void life_end_lost(struct life *l, const char *reason); /* the VM is gone before anything of it was saved */
