/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The client's end of an attached command: attach frames over the upgraded connection, one after the
 * other ("Upgrade: cspace-attach"), or one per binary message ("Upgrade: websocket").
 */

#include "api.h"
#include "wire/attach.h"

struct attach_client;

enum attach_protocol { ATTACH_NONE, ATTACH_RAW, ATTACH_WEBSOCKET };
enum attach_end {
        ATTACH_END_NORMAL,   /* EXIT or ERROR of the agent has been sent; WebSocket 1000 */
        ATTACH_END_LOST,     /* no exit status is known; 1011 */
        ATTACH_END_PROTOCOL, /* the client's frame was not legal; 1002 */
};

struct attach_client_handler {
        void (*on_frame)(void *arg, uint8_t type, const uint8_t *data, size_t n); /* may free the client */
        void (*on_drain)(void *arg);
        void (*on_end)(void *arg); /* the client has left; owner frees */
};

enum attach_protocol attach_client_protocol(const struct http1_head *h);
/* Upgrades r's exchange (r is answered then); reading is paused. On an error r may be unanswered. */
int attach_client_accept(struct api_req *r, enum attach_protocol p, const struct attach_client_handler *h, void *arg,
                         struct attach_client **ret, struct error *err);
int attach_client_send(struct attach_client *c, uint8_t type, const uint8_t *data, size_t n);
size_t attach_client_queued(const struct attach_client *c);
void attach_client_pause(struct attach_client *c);
void attach_client_resume(struct attach_client *c); /* frames may come from inside */
/* Flushes what is queued, says why, closes; takes c. NULL is fine. */
void attach_client_end(struct attach_client *c, enum attach_end why);
void attach_client_free(struct attach_client *c); /* the same for who leaves without a word */
