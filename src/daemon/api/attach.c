/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Attaching to a command:
 *
 *   dial the agent -> GET .../attach with Upgrade: cspace-attach -> 101 -> answer the client's upgrade
 *   -> frames both ways, each side held back while the other's queue is long
 *
 * Frames are parsed in both directions and passed on whole, so that a stream that breaks off never
 * leaves half a frame, and so that the end is known: a command has ended when the agent's EXIT frame
 * has passed. When the guest's stream ends without it, the client gets an ERROR frame of our own.
 *
 * A client that leaves does not end the process.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "attach.h"
#include "attach_client.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/id.h"
#include "base/log.h"
#include "base/str.h"
#include "peers/agent_attach.h"
#include "peers/agent_call.h"
#include "proxy/proxy.h"
#include "sandbox/sandbox.h"
#include "timer.h"
#include "wire/attach.h"

#define UPGRADE_TIMEOUT_MS AGENT_TIMEOUT_MS

struct attach {
        struct app *app;
        struct api_req *r; /* until the client's upgrade is answered */
        char sandbox_id[ID_SIZE];
        enum attach_protocol protocol;
        /* getting there */
        struct agent_attach *way;
        struct timer *timer;
        /* frames */
        struct stream *agent;
        struct attach_client *client;
        struct attach_reader from_agent;
        bool agent_held, client_held, ended;
        struct attach *prev, *next; /* of app->attaches */
};

bool attach_busy(struct app *app, const char *sandbox_id) {
        for (const struct attach *a = app->attaches; a; a = a->next)
                if (strcmp(a->sandbox_id, sandbox_id) == 0)
                        return true;
        return false;
}

static void attach_free(struct attach *a) {
        struct sandbox *s = a->app->stopping ? NULL : sandbox_find(a->app, a->sandbox_id);
        if (s)
                sandbox_touch(s);
        *(a->prev ? &a->prev->next : &a->app->attaches) = a->next;
        if (a->next)
                a->next->prev = a->prev;
        struct stream *agent = STEAL(a->agent);
        struct attach_client *client = STEAL(a->client);
        timer_cancel(a->timer);
        agent_attach_cancel(a->way);
        if (a->app->stopping)
                stream_abort(agent);
        else
                stream_close(agent);
        attach_client_free(client);
        buf_done(&a->from_agent.in);
        if (a->r)
                api_req_unref(a->r);
        free(a);
}

/* Before the upgrade: an HTTP answer. */
static void refuse(struct attach *a, enum api_code code, const char *why) {
        a->r->on_gone = NULL;
        api_error(a->r, code, "%s", why);
        attach_free(a);
}

/* After the upgrade: no exit status is known. */
static void break_off(struct attach *a, const char *code, const char *why) {
        char text[256];
        if (!a->ended) {
                int n = snprintf(text, sizeof text, "{\"code\":\"%s\",\"message\":\"%s\"}", code, why);
                (void) attach_client_send(a->client, ATTACH_ERROR, (const uint8_t *) text, n > 0 ? (size_t) n : 0);
        }
        attach_client_end(STEAL(a->client), a->ended ? ATTACH_END_NORMAL : ATTACH_END_LOST);
        attach_free(a);
}

/* ---- frames -------------------------------------------------------------------------------- */

static bool agent_type_known(uint8_t type) {
        return type >= ATTACH_STARTED && type <= ATTACH_PONG;
}

/* Passes on what is whole. False: the attach has ended. */
static bool pass_to_client(struct attach *a) {
        uint8_t type;
        const uint8_t *data;
        size_t n;
        int r;
        while ((r = attach_reader_peek(&a->from_agent, &type, &data, &n)) > 0) {
                if (!agent_type_known(type)) {
                        break_off(a, "guest_protocol", "the agent sent an unknown frame");
                        return false;
                }
                if (type == ATTACH_EXIT || type == ATTACH_ERROR)
                        a->ended = true;
                if (attach_client_send(a->client, type, data, n) < 0) {
                        attach_free(a);
                        return false;
                }
                attach_reader_next(&a->from_agent);
        }
        if (r < 0) {
                break_off(a, "guest_protocol", "the agent sent a frame that is too long");
                return false;
        }
        return true;
}

static void on_agent_data(void *arg, const uint8_t *data, size_t n) {
        struct attach *a = arg;
        if (buf_append(&a->from_agent.in, data, n) < 0) {
                break_off(a, "internal", "out of memory");
                return;
        }
        if (!pass_to_client(a))
                return;
        if (!a->agent_held && attach_client_queued(a->client) > STREAM_HIGH_WATER) {
                a->agent_held = true;
                stream_read_stop(a->agent);
        }
}

static void on_agent_eof(void *arg) {
        break_off(arg, "stream_lost", "the stream to the sandbox ended before the command did");
}

static void on_agent_error(void *arg, int err) {
        (void) err;
        break_off(arg, "stream_lost", "the stream to the sandbox was lost; no exit status is known");
}

static void on_agent_drain(void *arg) {
        struct attach *a = arg;
        if (a->client_held) {
                a->client_held = false;
                attach_client_resume(a->client);
        }
}

static const struct stream_handler agent_handler = {
        .on_data = on_agent_data, .on_eof = on_agent_eof, .on_drain = on_agent_drain, .on_error = on_agent_error };

static void on_client_frame(void *arg, uint8_t type, const uint8_t *data, size_t n) {
        struct attach *a = arg;
        _cleanup_buf_ struct buf b = BUF_INIT(ATTACH_PAYLOAD_MAX + ATTACH_HEAD);
        if (type < ATTACH_STDIN || type > ATTACH_PING) {
                static const char mine[] = "{\"code\":\"protocol_error\",\"message\":\"that is not a frame that a client may "
                                           "send, or it is too long\"}";
                (void) attach_client_send(a->client, ATTACH_ERROR, (const uint8_t *) mine, sizeof mine - 1);
                a->ended = true; /* the client's own mistake is told, and nothing about the command */
                attach_client_end(STEAL(a->client), ATTACH_END_PROTOCOL);
                attach_free(a);
                return;
        }
        if (attach_write(&b, (enum attach_type) type, data, n, NULL, 0) < 0 ||
            stream_write(a->agent, buf_data(&b), b.len) < 0) {
                break_off(a, "stream_lost", "the stream to the sandbox does not take any more");
                return;
        }
        if (!a->client_held && stream_queued(a->agent) > STREAM_HIGH_WATER) {
                a->client_held = true;
                attach_client_pause(a->client);
        }
}

static void on_client_drain(void *arg) {
        struct attach *a = arg;
        if (a->agent_held) {
                a->agent_held = false;
                stream_read_start(a->agent);
        }
}

static void on_client_end(void *arg) {
        attach_free(arg);
}

static const struct attach_client_handler client_handler = {
        .on_frame = on_client_frame, .on_drain = on_client_drain, .on_end = on_client_end };

/* ---- getting there ------------------------------------------------------------------------- */

static void join(struct attach *a) {
        struct error e = ERROR_INIT;
        struct api_req *r = a->r;
        timer_cancel(a->timer);
        a->timer = NULL;
        r->on_gone = NULL;
        int rc = attach_client_accept(r, a->protocol, &client_handler, a, &a->client, &e);
        if (rc < 0) {
                api_error_err(r, API_BAD_REQUEST, &e);
                attach_free(a);
                return;
        }
        a->r = NULL;
        api_req_unref(r);
        stream_set_handler(a->agent, &agent_handler, a);
        attach_client_resume(a->client);
        stream_read_start(a->agent);
}

static void on_upgraded(void *arg, struct stream *s) {
        struct attach *a = arg;
        a->way = NULL;
        a->agent = s;
        sandbox_heard(a->app, sandbox_find(a->app, a->sandbox_id), true);
        join(a);
}

static void on_refused(void *arg, int status, const char *body, size_t n) {
        struct attach *a = arg;
        a->way = NULL;
        a->r->on_gone = NULL;
        sandbox_heard(a->app, sandbox_find(a->app, a->sandbox_id), true);
        if (status >= 400)
                agent_refused(a->r, status, body, n);
        else
                api_error(a->r, API_GUEST_PROTOCOL, "the agent did not upgrade");
        attach_free(a);
}

static void on_lost(void *arg, int err, const char *why) {
        struct attach *a = arg;
        a->way = NULL;
        refuse(a, err == -ETIMEDOUT ? API_GUEST_TIMEOUT : err == -ENOMEM ? API_INTERNAL : API_GUEST_UNREACHABLE, why);
}

static const struct agent_attach_ops attach_ops = { .upgraded = on_upgraded, .refused = on_refused, .lost = on_lost };

static void on_timeout(void *arg) {
        struct attach *a = arg;
        a->timer = NULL;
        char why[128];
        (void) snprintf(why, sizeof why, AGENT_SILENT_TEXT, UPGRADE_TIMEOUT_MS / 1000);
        sandbox_heard(a->app, sandbox_find(a->app, a->sandbox_id), false);
        refuse(a, API_GUEST_TIMEOUT, why);
}

static void on_gone(void *arg) {
        attach_free(arg);
}

/* The right one, or answered. */
static bool allowed(struct api_req *r, const struct sandbox *s) {
        _cleanup_free_ char *token = NULL;
        if (r->authed)
                return true;
        int found = api_query_str(r, "token", SESSION_TOKEN_SIZE, &token);
        if (found == 1 && s && session_token_valid(s, r->params[1], token))
                return true;
        if (found >= 0)
                api_error(r, API_UNAUTHENTICATED, "an API key or the command session's token is needed");
        return false;
}

void attach_handler(struct api_req *r) {
        struct error e = ERROR_INIT;
        uint64_t offset = 0;
        struct sandbox *s = sandbox_find_any(r->app, r->params[0]);
        if (!allowed(r, s) || !(s = agent_sandbox(r)))
                return;
        if (!id_valid(r->params[1])) {
                api_error(r, API_PROCESS_NOT_FOUND, "process \"%.80s\" does not exist", r->params[1]);
                return;
        }
        if (api_query_u64(r, "offset", 0, INT64_MAX, &offset) < 0)
                return;
        enum attach_protocol protocol = attach_client_protocol(http_x_head(r->x));
        if (protocol == ATTACH_NONE) {
                api_error(r, API_UPGRADE_REQUIRED, "attaching needs \"Upgrade: websocket\" or \"Upgrade: %s\"", ATTACH_UPGRADE);
                return;
        }
        struct attach *a = calloc(1, sizeof *a);
        if (!a) {
                api_error(r, API_INTERNAL, "out of memory");
                return;
        }
        a->app = r->app;
        a->next = a->app->attaches;
        if (a->next)
                a->next->prev = a;
        a->app->attaches = a;
        a->r = api_req_ref(r);
        a->protocol = protocol;
        (void) str_copy(a->sandbox_id, sizeof a->sandbox_id, s->id);
        r->on_gone = on_gone;
        r->gone_arg = a;
        a->timer = timer_start(a->app->loop, UPGRADE_TIMEOUT_MS, on_timeout, a);
        if (agent_attach_start(a->app, s->id, r->params[1], offset, s->token, &attach_ops, a, &a->way, &e) < 0)
                refuse(a, API_GUEST_UNREACHABLE, e.msg);
}

void attach_drop_all(struct app *app) {
        while (app->attaches) {
                struct attach *a = app->attaches;
                if (a->client)
                        break_off(a, "stopping", "cspaced is stopping; attach again");
                else
                        refuse(a, API_UNAVAILABLE, "cspaced is stopping");
        }
}
