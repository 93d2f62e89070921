/* SPDX-License-Identifier: Apache-2.0 */

/* The session with the server: opened for the first request that is allowed, used by the following ones. */

#include <errno.h>
#include <string.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "h2_internal.h"

/* ---- requests go out ----------------------------------------------------------------------- */

static ssize_t read_for_up(nghttp2_session *s, int32_t id, uint8_t *out, size_t n, uint32_t *flags, nghttp2_data_source *source,
                           void *user) {
        struct h2_pair *p = source->ptr;
        (void) user;
        return h2_read(s, id, &p->to_up, out, n, flags);
}

static void submit(struct h2_pair *p) {
        struct h2 *h = p->h;
        const nghttp2_data_provider data = { .source = { .ptr = p }, .read_callback = read_for_up };
        bool no_body = p->to_up.end && p->to_up.data.len == 0 && !p->to_up.has_trailers;
        nghttp2_nv nv[LIMIT_HTTP_HEADERS];
        h2_head_nv(&p->out, nv);
        int32_t id = nghttp2_submit_request(h->up_session, NULL, nv, p->out.n, no_body ? NULL : &data, p);
        size_t n = p->out.text.len;
        h2_head_done(&p->out);
        if (id < 0) {
                h2_refuse(p, REASON_INTERNAL, NULL, "the request cannot be passed on");
                return;
        }
        p->up_id = id;
        p->up_open = true;
        (void) h2_count(p, n, 0);
}

void h2_resume_up(struct h2_pair *p) {
        if (!p->up_open || !p->to_up.waiting)
                return;
        p->to_up.waiting = false;
        (void) nghttp2_session_resume_data(p->h->up_session, p->up_id);
}

/* ---- opening ------------------------------------------------------------------------------- */

static const struct stream_handler up_handler;

static void refuse_waiting(struct h2 *h, enum policy_reason reason, const struct policy_verdict *v, const char *detail) {
        struct h2_pair *p;
        TAILQ_FOREACH(p, &h->pairs, entry)
                if (p->x.active && p->up_id == 0 && p->out.n > 0)
                        h2_refuse(p, reason, v, detail);
}

static void on_opened(void *arg, struct upstream *u, const struct upstream_failure *f) {
        struct h2 *h = arg;
        struct h2_pair *p;
        h->opening = NULL;
        if (!u) {
                TAILQ_FOREACH(p, &h->pairs, entry)
                        if (p->up_id == 0 && p->out.n > 0) {
                                (void) str_copy(p->x.audit.address, sizeof p->x.audit.address, f->address);
                                p->x.audit.class = f->class;
                        }
                refuse_waiting(h, f->reason, &f->verdict, f->detail[0] ? f->detail : NULL);
                h2_flush(h);
                return;
        }
        h->up = u;
        if (h2_new_session(h, false, &h->up_session) < 0) {
                h2_drop_up(h, REASON_INTERNAL, "out of memory");
                h2_flush(h);
                return;
        }
        stream_set_handler(u->stream, &up_handler, h);
        TAILQ_FOREACH(p, &h->pairs, entry)
                if (p->x.active && p->up_id == 0 && p->out.n > 0)
                        submit(p);
        stream_read_start(u->stream);
        h2_flush(h);
}

static int open_up(struct h2 *h, const struct policy_verdict *v) {
        (void) str_copy(h->rule, sizeof h->rule, v->rule_name);
        h->verdict = *v;
        h->verdict.rule_name = h->rule;
        struct upstream_request req = { .allowed = h->verdict, .host = &h->peer.host, .port = h->peer.port,
                                        .protocol = POLICY_TLS, .http2 = true };
        return upstream_open(h->gw, &req, on_opened, h, &h->opening);
}

void h2_send_request(struct h2_pair *p) {
        struct h2 *h = p->h;
        struct upstream_request req = { .allowed = p->x.verdict, .host = &h->peer.host, .port = h->peer.port,
                                        .protocol = POLICY_TLS, .http2 = true };
        if (h->up && h->up_session && (!upstream_fits(h->up, &req) || !nghttp2_session_check_request_allowed(h->up_session))) {
                /* Another rule that does not allow this address, or a server that takes no more: the guest may ask
                 * again on a connection of its own. */
                h2_finish(p, true, REASON_CONNECT_FAILED, "the server takes no more requests on this connection");
                h2_reset(p, NGHTTP2_REFUSED_STREAM);
                (void) nghttp2_submit_goaway(h->session, NGHTTP2_FLAG_NONE, p->guest_id, NGHTTP2_NO_ERROR, NULL, 0);
        } else if (h->up_session)
                submit(p);
        else if (!h->opening && open_up(h, &p->x.verdict) < 0)
                h2_refuse(p, REASON_INTERNAL, NULL, "out of memory");
}

/* The session is gone: what it carried is answered or reset. */
void h2_drop_up(struct h2 *h, enum policy_reason reason, const char *detail) {
        struct h2_pair *p, *next;
        nghttp2_session_del(STEAL(h->up_session));
        for (p = TAILQ_FIRST(&h->pairs); p; p = next) {
                next = TAILQ_NEXT(p, entry);
                bool carried = p->up_open;
                p->up_open = false;
                if (carried && p->guest_open && !p->to_guest.end)
                        h2_refuse(p, reason, NULL, detail);
                else if (carried)
                        h2_release(p);
        }
        refuse_waiting(h, reason, NULL, detail);
        upstream_close(STEAL(h->up), true);
}

/* ---- responses ----------------------------------------------------------------------------- */

static void resume_guest(struct h2_pair *p) {
        if (!p->guest_open || !p->to_guest.waiting)
                return;
        p->to_guest.waiting = false;
        (void) nghttp2_session_resume_data(p->h->session, p->guest_id);
}

static int on_header(nghttp2_session *s, const nghttp2_frame *f, const uint8_t *name, size_t name_n, const uint8_t *value,
                     size_t value_n, uint8_t flags, void *user) {
        struct h2_pair *p = nghttp2_session_get_stream_user_data(s, f->hd.stream_id);
        (void) flags;
        (void) user;
        if (!p || (name_n == 7 && memcmp(name, "alt-svc", 7) == 0)) /* other ways to the host, around us */
                return 0;
        return h2_head_add(&p->up_in, name, name_n, value, value_n) < 0 ? NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE : 0;
}

static void mask_head(const struct mask *m, struct h2_head *head) {
        struct http1_field fields[LIMIT_HTTP_HEADERS];
        if (!m)
                return;
        h2_head_fields(head, fields);
        for (size_t i = 0; i < head->n; i++) /* of the same length, in text that is head's own */
                mask_text(m, (char *) (uintptr_t) fields[i].value, strlen(fields[i].value));
}

static void pass_head(struct h2_pair *p, bool end) {
        struct h2 *h = p->h;
        nghttp2_nv nv[LIMIT_HTTP_HEADERS];
        const nghttp2_data_provider data = { .source = { .ptr = p }, .read_callback = h2_read_for_guest };
        const char *status = h2_head_get(&p->up_in, ":status");
        uint64_t code = 0;
        mask_head(p->x.mask, &p->up_in);
        if (!status) { /* trailers */
                p->to_guest.trailers = p->up_in;
                p->to_guest.has_trailers = p->up_in.n > 0;
                p->up_in = (struct h2_head){ .n = 0 };
                return;
        }
        h2_head_nv(&p->up_in, nv);
        (void) str_to_u64(status, 999, &code);
        int e = 0;
        if (code < 200) {
                if (++p->interim > H2_INTERIM_MAX)
                        e = -1;
                else if (p->guest_open)
                        e = nghttp2_submit_headers(h->session, NGHTTP2_FLAG_NONE, p->guest_id, NULL, nv, p->up_in.n, NULL);
        } else {
                p->answer_began = true;
                p->x.audit.status = (uint16_t) code;
                if (p->guest_open)
                        e = nghttp2_submit_response(h->session, p->guest_id, nv, p->up_in.n, end ? NULL : &data);
        }
        (void) h2_count(p, 0, p->up_in.text.len);
        h2_head_done(&p->up_in);
        if (e != 0)
                h2_reset(p, NGHTTP2_INTERNAL_ERROR);
}

static void end_of_answer(struct h2_pair *p) {
        if (p->x.mask && mask_end(p->x.mask, &p->to_guest.data) < 0)
                h2_reset(p, NGHTTP2_INTERNAL_ERROR);
        p->to_guest.end = true;
        resume_guest(p);
}

static int on_frame(nghttp2_session *s, const nghttp2_frame *f, void *user) {
        struct h2_pair *p = nghttp2_session_get_stream_user_data(s, f->hd.stream_id);
        bool end = f->hd.flags & NGHTTP2_FLAG_END_STREAM;
        (void) user;
        if (!p || p->refused || (f->hd.type != NGHTTP2_HEADERS && f->hd.type != NGHTTP2_DATA))
                return 0;
        if (f->hd.type == NGHTTP2_HEADERS)
                pass_head(p, end);
        if (end)
                end_of_answer(p);
        return 0;
}

static int on_data(nghttp2_session *s, uint8_t flags, int32_t id, const uint8_t *data, size_t n, void *user) {
        struct h2_pair *p = nghttp2_session_get_stream_user_data(s, id);
        (void) flags;
        (void) user;
        if (!p || !p->guest_open || p->refused) {
                (void) nghttp2_session_consume(s, id, n);
                return 0;
        }
        p->to_guest.owed += n;
        if (!h2_count(p, 0, n))
                return 0;
        int r = p->x.mask ? mask_feed(p->x.mask, data, n, &p->to_guest.data) : buf_append(&p->to_guest.data, data, n);
        if (r < 0)
                return NGHTTP2_ERR_CALLBACK_FAILURE;
        resume_guest(p);
        return 0;
}

static int on_close(nghttp2_session *s, int32_t id, uint32_t code, void *user) {
        struct h2_pair *p = nghttp2_session_get_stream_user_data(s, id);
        (void) user;
        if (!p)
                return 0;
        p->up_open = false;
        if (p->guest_open && !p->refused && (code != NGHTTP2_NO_ERROR || !p->to_guest.end)) {
                h2_finish(p, true, REASON_CONNECT_FAILED, nghttp2_http2_strerror(code));
                (void) nghttp2_submit_rst_stream(p->h->session, NGHTTP2_FLAG_NONE, p->guest_id,
                                                 code == NGHTTP2_NO_ERROR ? NGHTTP2_INTERNAL_ERROR : code);
        }
        h2_release(p);
        return 0;
}

int h2_up_callbacks(nghttp2_session_callbacks *cb) {
        nghttp2_session_callbacks_set_on_header_callback(cb, on_header);
        nghttp2_session_callbacks_set_on_frame_recv_callback(cb, on_frame);
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, on_data);
        nghttp2_session_callbacks_set_on_stream_close_callback(cb, on_close);
        return 0;
}

/* ---- the server's bytes -------------------------------------------------------------------- */

static void up_data(void *arg, const uint8_t *data, size_t n) {
        struct h2 *h = arg;
        h->in_recv = true;
        ssize_t r = nghttp2_session_mem_recv(h->up_session, data, n);
        h->in_recv = false;
        if (r < 0)
                h->up_lost = true;
        h2_flush(h);
}

static void up_eof(void *arg) {
        struct h2 *h = arg;
        h->up_lost = true;
        h2_flush(h);
}

static void up_drain(void *arg) {
        h2_flush(arg);
}

static void up_error(void *arg, int err) {
        (void) err;
        up_eof(arg);
}

static const struct stream_handler up_handler = {
        .on_data = up_data, .on_eof = up_eof, .on_drain = up_drain, .on_error = up_error
};
