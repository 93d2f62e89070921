/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Two sessions and the pairs of streams between them. Callbacks of a session only collect, judge and submit;
 * what leaves is produced by h2_flush(), never from inside a callback, since taking bytes out of one session credits
 * the other, which may then have something to send in turn.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "h2_internal.h"
#include "usage.h"

/* ---- end ----------------------------------------------------------------------------------- */

static void on_timer_closed(uv_handle_t *t) {
        free(t->data);
}

/* A stream that ends with its request unjudged was malformed, for the library or by being cut short. */
static void finish_ended(struct h2_pair *p, const char *detail) {
        if (p->x.target)
                h2_finish(p, true, p->x.verdict.reason, detail);
        else
                h2_finish(p, false, REASON_HTTP_MALFORMED, detail);
}

static void free_pair(struct h2_pair *p) {
        struct h2 *h = p->h;
        /* What was never taken out still fills the connections' windows. */
        if (!h->closed && p->to_up.owed > 0)
                (void) nghttp2_session_consume_connection(h->session, p->to_up.owed);
        if (!h->closed && h->up_session && p->to_guest.owed > 0)
                (void) nghttp2_session_consume_connection(h->up_session, p->to_guest.owed);
        TAILQ_REMOVE(&p->h->pairs, p, entry);
        p->h->n_pairs--;
        finish_ended(p, "the connection ended before the answer did");
        exchange_done(&p->x);
        h2_head_done(&p->in);
        h2_head_done(&p->out);
        h2_head_done(&p->up_in);
        h2_head_done(&p->to_up.trailers);
        h2_head_done(&p->to_guest.trailers);
        buf_done(&p->to_up.data);
        buf_done(&p->to_guest.data);
        free(p);
}

void h2_release(struct h2_pair *p) {
        if (!p->guest_open && !p->up_open)
                free_pair(p);
}

static void release(struct h2 *h, bool reset) {
        h->closed = true;
        upstream_open_cancel(STEAL(h->opening));
        while (!TAILQ_EMPTY(&h->pairs))
                free_pair(TAILQ_FIRST(&h->pairs));
        nghttp2_session_del(STEAL(h->up_session));
        nghttp2_session_del(STEAL(h->session));
        upstream_close(STEAL(h->up), true);
        if (reset)
                stream_abort(STEAL(h->guest));
        else
                stream_close(STEAL(h->guest));
        uv_close((uv_handle_t *) &h->timer, on_timer_closed);
}

/* From inside a session's callback it has to wait until that has returned. */
void h2_end(struct h2 *h, bool reset) {
        if (h->closed)
                return;
        if (h->in_recv) {
                h->ending = true;
                return;
        }
        release(h, reset);
        h->on_end(h->arg);
}

void h2_abort(struct h2 *h) {
        if (h && !h->closed)
                release(h, true);
}

/* ---- records ------------------------------------------------------------------------------- */

void h2_finish(struct h2_pair *p, bool allowed, enum policy_reason reason, const char *detail) {
        if (!p->x.active)
                return;
        if (!detail && p->x.mask && mask_count(p->x.mask) > 0)
                detail = "the answer had the secret in it";
        exchange_record(&p->x, p->h->gw, p->h->up ? &p->h->up->address : NULL, allowed, reason, detail);
}

bool h2_count(struct h2_pair *p, uint64_t out, uint64_t in) {
        struct h2 *h = p->h;
        h->bytes_out += out;
        h->bytes_in += in;
        p->x.audit.bytes_out += out;
        p->x.audit.bytes_in += in;
        h->deadline_ms = uv_now(h->gw->loop) + HTTP_EXCHANGE_IDLE_MS;
        if (usage_bytes(h->gw->usage, p->x.verdict.rule, out, in))
                return true;
        h2_finish(p, false, REASON_LIMIT_BYTES, NULL);
        h2_reset(p, NGHTTP2_ENHANCE_YOUR_CALM);
        return false;
}

void h2_reset(struct h2_pair *p, uint32_t code) {
        if (p->guest_open)
                (void) nghttp2_submit_rst_stream(p->h->session, NGHTTP2_FLAG_NONE, p->guest_id, code);
        if (p->up_open)
                (void) nghttp2_submit_rst_stream(p->h->up_session, NGHTTP2_FLAG_NONE, p->up_id, NGHTTP2_CANCEL);
}

/* ---- flows --------------------------------------------------------------------------------- */

ssize_t h2_read(nghttp2_session *s, int32_t id, struct h2_flow *f, uint8_t *out, size_t n, uint32_t *flags) {
        size_t take = f->data.len < n ? f->data.len : n;
        if (take > 0) {
                memcpy(out, buf_data(&f->data), take);
                buf_consume(&f->data, take);
                f->uncredited += take;
        }
        if (f->data.len == 0 && f->end) {
                *flags |= NGHTTP2_DATA_FLAG_EOF;
                if (f->has_trailers) {
                        nghttp2_nv nv[LIMIT_HTTP_HEADERS];
                        h2_head_nv(&f->trailers, nv);
                        *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
                        if (nghttp2_submit_trailer(s, id, nv, f->trailers.n) != 0)
                                return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
                }
        } else if (take == 0) {
                f->waiting = true;
                return NGHTTP2_ERR_DEFERRED;
        }
        return (ssize_t) take;
}

void h2_credit(struct h2_pair *p) {
        struct h2 *h = p->h;
        size_t from_guest = p->to_up.uncredited, from_up = p->to_guest.uncredited;
        p->to_up.uncredited = p->to_guest.uncredited = 0;
        p->to_up.owed -= from_guest < p->to_up.owed ? from_guest : p->to_up.owed; /* a refusal's body is nobody's */
        p->to_guest.owed -= from_up < p->to_guest.owed ? from_up : p->to_guest.owed;
        if (from_guest > 0)
                (void) nghttp2_session_consume(h->session, p->guest_id, from_guest);
        if (from_up > 0 && h->up_session && p->up_id > 0)
                (void) nghttp2_session_consume(h->up_session, p->up_id, from_up);
}

ssize_t h2_read_for_guest(nghttp2_session *s, int32_t id, uint8_t *out, size_t n, uint32_t *flags, nghttp2_data_source *source,
                              void *user) {
        struct h2_pair *p = source->ptr;
        (void) user;
        return h2_read(s, id, &p->to_guest, out, n, flags);
}

/* ---- refusals ------------------------------------------------------------------------------ */

static int submit_refusal(struct h2_pair *p, const struct refusal *r, int status) {
        char code[4], length[24];
        _cleanup_buf_ struct buf body = { 0 };
        struct h2_head head = { .n = 0 };
        nghttp2_nv nv[LIMIT_HTTP_HEADERS];
        const nghttp2_data_provider data = { .source = { .ptr = p }, .read_callback = h2_read_for_guest };
        int e = refusal_body(&body, r);
        (void) snprintf(code, sizeof code, "%u", (unsigned) status % 1000);
        (void) snprintf(length, sizeof length, "%zu", body.len);
        if (e == 0)
                e = h2_head_add(&head, ":status", 7, code, strlen(code));
        if (e == 0)
                e = h2_head_add(&head, "content-type", 12, "application/json", 16);
        if (e == 0)
                e = h2_head_add(&head, "content-length", 14, length, strlen(length));
        if (e == 0)
                e = buf_append(&p->to_guest.data, buf_data(&body), body.len);
        p->to_guest.end = true;
        h2_head_nv(&head, nv);
        if (e == 0 && nghttp2_submit_response(p->h->session, p->guest_id, nv, head.n, &data) != 0)
                e = -EIO;
        h2_head_done(&head);
        return e;
}

void h2_refuse(struct h2_pair *p, enum policy_reason reason, const struct policy_verdict *v, const char *detail) {
        struct refusal r = { .reason = reason, .rule = v ? v->rule_name : p->x.audit.rule, .host = p->h->peer.host.name,
                             .port = p->h->peer.port, .detail = detail,
                             .credential = reason == REASON_CREDENTIAL && p->x.credential[0] ? p->x.credential : NULL };
        int status = refusal_status(reason);
        if (p->refused || !p->guest_open)
                return;
        if (v && v->rule_name && v->rule_name != p->x.audit.rule)
                (void) str_copy(p->x.audit.rule, sizeof p->x.audit.rule, v->rule_name);
        p->refused = true;
        p->x.audit.status = p->answer_began ? p->x.audit.status : (uint16_t) status;
        h2_finish(p, exchange_was_allowed(reason), reason, detail);
        if (p->answer_began || submit_refusal(p, &r, status) < 0)
                h2_reset(p, NGHTTP2_INTERNAL_ERROR);
}

/* ---- a request ----------------------------------------------------------------------------- */

struct rewrite {
        struct h2_head *out;
        const struct binding_use *use;
        int err;
};

static bool rewrite_field(void *arg, const char *name, const char *value) {
        struct rewrite *w = arg;
        if (name[0] == ':' || strcmp(name, "host") == 0 || (w->use->touches && binding_leaves_out(w->use, name)))
                return true;
        w->err = h2_head_add(w->out, name, strlen(name), value, strlen(value));
        return w->err == 0;
}

static int add(struct h2_head *h, const char *name, const char *value) {
        return h2_head_add(h, name, strlen(name), value, strlen(value));
}

static int write_head(struct h2_pair *p, const struct http1_head *head, const struct binding_use *use) {
        char authority[HOST_SIZE + 8];
        _cleanup_buf_ struct buf target = BUF_INIT(2 * LIMIT_HTTP_HEAD);
        const struct http_peer *peer = &p->h->peer;
        if (peer->port == 443)
                (void) snprintf(authority, sizeof authority, "%s", peer->host.name);
        else
                (void) snprintf(authority, sizeof authority, "%s:%u", peer->host.name, peer->port);
        int r = exchange_write_target(head, use, &target);
        const char *path = r == 0 ? buf_str(&target) : NULL;
        if (!path)
                return -ENOMEM;
        struct rewrite w = { .out = &p->out, .use = use, .err = 0 };
        r = add(&p->out, ":method", head->method);
        if (r == 0)
                r = add(&p->out, ":scheme", "https");
        if (r == 0)
                r = add(&p->out, ":authority", authority);
        if (r == 0)
                r = add(&p->out, ":path", path);
        exchange_wipe(&target);
        if (r == 0) {
                h2_head_each(&p->in, rewrite_field, &w);
                r = w.err;
        }
        for (size_t i = 0; r == 0 && use->outcome == BINDING_ADD; i++) {
                const char *name;
                struct buf value = BUF_INIT(LIMIT_HTTP_HEAD);
                int more = binding_field(use, i, &name, &value);
                if (more > 0)
                        r = h2_head_add(&p->out, name, strlen(name), buf_data(&value), value.len);
                exchange_wipe(&value);
                if (more <= 0)
                        return more;
        }
        return r;
}

/* As the judgement wants to see it: the authority is one Host. :authority and Host may both be there if they agree. */
static const char *authority_of(const struct h2_head *in, const char **why) {
        const char *authority = h2_head_get(in, ":authority"), *host = h2_head_get(in, "host");
        if (h2_head_count(in, "host") > 1 || (authority && host && strcasecmp(authority, host) != 0))
                *why = ":authority and host differ";
        else if (!authority && !host)
                *why = "no :authority";
        else
                return authority ? authority : host;
        return NULL;
}

static void on_request(struct h2_pair *p, bool has_body) {
        struct http1_field fields[LIMIT_HTTP_HEADERS];
        struct http1_head head = { .is_request = true, .minor = 1, .fields = fields };
        struct binding_use use;
        struct refusal refusal = { .rule = p->x.audit.rule };
        const char *why = NULL, *path = h2_head_get(&p->in, ":path"), *method = h2_head_get(&p->in, ":method");
        const char *authority = authority_of(&p->in, &why), *scheme = h2_head_get(&p->in, ":scheme");
        h2_head_fields(&p->in, fields);
        for (size_t i = 0; i < p->in.n; i++) /* one "host", and no other field with a colon in front */
                if (fields[i].name[0] != ':' && strcmp(fields[i].name, "host") != 0)
                        fields[head.n_fields++] = fields[i];
        if (!method || strcmp(method, "CONNECT") == 0 || !path || (path[0] != '/' && strcmp(path, "*") != 0)) {
                h2_refuse(p, method && strcmp(method, "CONNECT") == 0 ? REASON_UPGRADE : REASON_HTTP_MALFORMED, NULL, "no method and path");
                return;
        }
        if (!authority || !scheme || strcmp(scheme, "https") != 0 || head.n_fields == LIMIT_HTTP_HEADERS) {
                h2_refuse(p, REASON_BAD_AUTHORITY, NULL, why);
                return;
        }
        fields[head.n_fields++] = (struct http1_field){ .name = "host", .value = authority };
        head.method = method;
        head.target = path;
        p->x.has_body = has_body;
        if (!exchange_judge(&p->x, p->h->gw, &p->h->peer, &head, &use, &refusal))
                h2_refuse(p, refusal.reason, NULL, refusal.detail);
        else if (write_head(p, &head, &use) < 0)
                h2_refuse(p, REASON_INTERNAL, NULL, "the request's head cannot be passed on");
        else
                h2_send_request(p);
        h2_head_done(&p->in);
}

/* ---- the guest's session ------------------------------------------------------------------- */

/*
 * Bodies are held back by windows, open streams are counted, and the library counts acknowledgements. What is left are
 * resets and the requests that were reset before they were sent: of those a guest can have any number waiting, if it
 * does not read, or if a friend of its does not who has the server.
 */
static bool too_much_waits(const struct h2 *h) {
        return nghttp2_session_get_outbound_queue_size(h->session) > H2_QUEUE_MAX ||
               (h->up_session && nghttp2_session_get_outbound_queue_size(h->up_session) > H2_QUEUE_MAX);
}

static int on_begin_headers(nghttp2_session *s, const nghttp2_frame *f, void *user) {
        struct h2 *h = user;
        if (f->hd.type != NGHTTP2_HEADERS || f->headers.cat != NGHTTP2_HCAT_REQUEST)
                return 0;
        if (too_much_waits(h)) /* within what one reading brought */
                return NGHTTP2_ERR_CALLBACK_FAILURE;
        struct h2_pair *p = calloc(1, sizeof *p);
        if (!p)
                return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
        p->h = h;
        p->guest_id = f->hd.stream_id;
        p->guest_open = true;
        exchange_begin(&p->x, h->gw, &h->peer);
        TAILQ_INSERT_TAIL(&h->pairs, p, entry);
        h->n_pairs++;
        h->deadline_ms = uv_now(h->gw->loop) + HTTP_EXCHANGE_IDLE_MS;
        return nghttp2_session_set_stream_user_data(s, f->hd.stream_id, p);
}

static int on_header(nghttp2_session *s, const nghttp2_frame *f, const uint8_t *name, size_t name_n, const uint8_t *value,
                     size_t value_n, uint8_t flags, void *user) {
        struct h2_pair *p = nghttp2_session_get_stream_user_data(s, f->hd.stream_id);
        (void) flags;
        (void) user;
        if (!p || p->refused)
                return 0;
        if (h2_head_add(&p->in, name, name_n, value, value_n) == 0)
                return 0;
        h2_refuse(p, REASON_HTTP_MALFORMED, NULL, "the header fields are too long or too many");
        return 0;
}

static void on_end_of_request(struct h2_pair *p) {
        p->to_up.end = true;
        h2_resume_up(p);
}

/* Where a credential is added, or would be, the guest has none of its own: not behind the body either. */
static int pass_trailers(struct h2_pair *p) {
        const struct binding_use use = { .touches = true, .bindings = p->h->gw->bindings, .host = &p->h->peer.host };
        struct rewrite w = { .out = &p->to_up.trailers, .use = &use };
        h2_head_each(&p->in, rewrite_field, &w);
        p->to_up.has_trailers = p->to_up.trailers.n > 0;
        h2_head_done(&p->in);
        return w.err;
}

static int on_frame(nghttp2_session *s, const nghttp2_frame *f, void *user) {
        struct h2_pair *p = nghttp2_session_get_stream_user_data(s, f->hd.stream_id);
        bool end = f->hd.flags & NGHTTP2_FLAG_END_STREAM;
        (void) user;
        if (!p || (f->hd.type != NGHTTP2_HEADERS && f->hd.type != NGHTTP2_DATA))
                return 0;
        if (f->hd.type == NGHTTP2_HEADERS && f->headers.cat == NGHTTP2_HCAT_REQUEST) {
                p->to_up.end = end; /* before it is sent: then it is sent as one without a body */
                if (!p->refused)
                        on_request(p, !end);
                return 0;
        }
        if (f->hd.type == NGHTTP2_HEADERS && pass_trailers(p) < 0)
                return NGHTTP2_ERR_CALLBACK_FAILURE;
        if (end)
                on_end_of_request(p);
        return 0;
}

static int on_data(nghttp2_session *s, uint8_t flags, int32_t id, const uint8_t *data, size_t n, void *user) {
        struct h2_pair *p = nghttp2_session_get_stream_user_data(s, id);
        (void) flags;
        (void) user;
        if (!p || p->refused || (p->up_id > 0 && !p->up_open)) { /* nobody wants it: its window is given back */
                (void) nghttp2_session_consume(s, id, n);
                return 0;
        }
        p->to_up.owed += n;
        if (!h2_count(p, n, 0))
                return 0;
        if (buf_append(&p->to_up.data, data, n) < 0)
                return NGHTTP2_ERR_CALLBACK_FAILURE;
        h2_resume_up(p);
        return 0;
}

static int on_close(nghttp2_session *s, int32_t id, uint32_t code, void *user) {
        struct h2_pair *p = nghttp2_session_get_stream_user_data(s, id);
        (void) user;
        if (!p)
                return 0;
        p->guest_open = false;
        if (p->up_open) {
                (void) nghttp2_submit_rst_stream(p->h->up_session, NGHTTP2_FLAG_NONE, p->up_id,
                                                 code == NGHTTP2_NO_ERROR ? NGHTTP2_CANCEL : code);
        }
        finish_ended(p, code == NGHTTP2_NO_ERROR ? NULL : nghttp2_http2_strerror(code));
        h2_release(p);
        return 0;
}

/* ---- what goes out ------------------------------------------------------------------------- */

static bool produce(struct h2 *h, nghttp2_session *s, struct stream *to) {
        bool any = false;
        while (stream_queued(to) <= STREAM_HIGH_WATER) {
                const uint8_t *data;
                ssize_t n = nghttp2_session_mem_send(s, &data);
                if (n == 0)
                        break;
                if (n < 0 || stream_write(to, data, (size_t) n) < 0) {
                        h->up_lost |= s == h->up_session;
                        h->ending |= s == h->session;
                        return false;
                }
                any = true;
        }
        return any;
}

void h2_flush(struct h2 *h) {
        if (h->closed || h->flushing || h->in_recv)
                return;
        h->flushing = true;
        bool any = true;
        while (any && !h->ending) {
                struct h2_pair *p;
                any = h->up_session && !h->up_lost && produce(h, h->up_session, h->up->stream);
                any |= !h->ending && produce(h, h->session, h->guest);
                TAILQ_FOREACH(p, &h->pairs, entry)
                        h2_credit(p);
        }
        h->flushing = false;
        if (h->up_lost) {
                h->up_lost = false;
                h2_drop_up(h, REASON_CONNECT_FAILED, "the server closed the connection");
                h2_flush(h);
                return;
        }
        if (h->ending || (!nghttp2_session_want_read(h->session) && !nghttp2_session_want_write(h->session)))
                h2_end(h, h->ending);
}

/* ---- the guest's bytes --------------------------------------------------------------------- */

static void guest_data(void *arg, const uint8_t *data, size_t n) {
        struct h2 *h = arg;
        h->in_recv = true;
        ssize_t r = nghttp2_session_mem_recv(h->session, data, n);
        h->in_recv = false;
        if (r < 0) {
                h2_end(h, true);
                return;
        }
        h2_flush(h);
        if (!h->closed && too_much_waits(h))
                h2_end(h, true);
}

static void guest_eof(void *arg) {
        h2_end(arg, false);
}

static void guest_drain(void *arg) {
        h2_flush(arg);
}

static void guest_error(void *arg, int err) {
        (void) err;
        h2_end(arg, true);
}

static const struct stream_handler guest_handler = {
        .on_data = guest_data, .on_eof = guest_eof, .on_drain = guest_drain, .on_error = guest_error
};

static void on_timer(uv_timer_t *t) {
        struct h2 *h = t->data;
        uint64_t now = uv_now(t->loop);
        uint64_t due = h->n_pairs > 0 ? h->deadline_ms : h->deadline_ms - HTTP_EXCHANGE_IDLE_MS + HTTP_KEEPALIVE_MS;
        if (now >= due)
                h2_end(h, h->n_pairs > 0);
        else
                (void) uv_timer_start(t, on_timer, due - now < HTTP_KEEPALIVE_MS ? due - now : HTTP_KEEPALIVE_MS, 0);
}

/* ---- start --------------------------------------------------------------------------------- */

int h2_new_session(struct h2 *h, bool server, nghttp2_session **ret) {
        static const nghttp2_settings_entry settings[] = {
                { NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, H2_STREAMS_MAX },
                { NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, H2_STREAM_WINDOW },
                { NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, LIMIT_HTTP_HEAD },
                { NGHTTP2_SETTINGS_ENABLE_PUSH, 0 }, /* only a client says this */
        };
        nghttp2_session_callbacks *cb = NULL;
        nghttp2_option *o = NULL;
        int e = nghttp2_session_callbacks_new(&cb);
        if (e == 0)
                e = nghttp2_option_new(&o);
        if (e == 0 && server) {
                nghttp2_session_callbacks_set_on_begin_headers_callback(cb, on_begin_headers);
                nghttp2_session_callbacks_set_on_header_callback(cb, on_header);
                nghttp2_session_callbacks_set_on_frame_recv_callback(cb, on_frame);
                nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, on_data);
                nghttp2_session_callbacks_set_on_stream_close_callback(cb, on_close);
        } else if (e == 0)
                e = h2_up_callbacks(cb);
        if (e == 0) {
                nghttp2_option_set_no_auto_window_update(o, 1);
                nghttp2_option_set_max_deflate_dynamic_table_size(o, 4096);
                e = server ? nghttp2_session_server_new2(ret, cb, h, o) : nghttp2_session_client_new2(ret, cb, h, o);
        }
        nghttp2_option_del(o);
        nghttp2_session_callbacks_del(cb);
        if (e == 0)
                e = nghttp2_submit_settings(*ret, NGHTTP2_FLAG_NONE, settings, ARRAY_SIZE(settings) - (server ? 1 : 0));
        if (e == 0)
                e = nghttp2_session_set_local_window_size(*ret, NGHTTP2_FLAG_NONE, 0, H2_CONNECTION_WINDOW);
        return e == 0 ? 0 : -ENOMEM;
}

int h2_new(struct gateway *gw, const struct http_peer *peer, struct stream *guest, void (*on_end)(void *arg), void *arg,
           struct h2 **ret) {
        struct h2 *h = calloc(1, sizeof *h);
        if (!h || h2_new_session(h, true, &h->session) < 0) {
                if (h)
                        nghttp2_session_del(h->session);
                free(h);
                stream_abort(guest);
                return -ENOMEM;
        }
        h->gw = gw;
        h->peer = *peer;
        h->guest = guest;
        h->on_end = on_end;
        h->arg = arg;
        TAILQ_INIT(&h->pairs);
        (void) uv_timer_init(gw->loop, &h->timer);
        h->timer.data = h;
        h->deadline_ms = uv_now(gw->loop) + HTTP_EXCHANGE_IDLE_MS;
        (void) uv_timer_start(&h->timer, on_timer, HTTP_KEEPALIVE_MS, 0);
        stream_set_handler(guest, &guest_handler, h);
        *ret = h;
        return 0;
}

void h2_start(struct h2 *h) {
        stream_read_start(h->guest);
        h2_flush(h);
}

void h2_reconsider(struct h2 *h) {
        struct h2_pair *p;
        TAILQ_FOREACH(p, &h->pairs, entry)
                if (p->x.active && p->x.target && !exchange_reconsider(&p->x, h->gw, &h->peer)) {
                        h2_finish(p, false, REASON_REVOKED, NULL);
                        h2_reset(p, NGHTTP2_REFUSED_STREAM);
                }
        if (h->opening) { /* it would judge addresses by the old policy */
                upstream_open_cancel(STEAL(h->opening));
                TAILQ_FOREACH(p, &h->pairs, entry)
                        if (p->x.active && p->up_id == 0 && !p->refused)
                                h2_send_request(p);
        }
        h2_flush(h);
}

void h2_bytes(const struct h2 *h, uint64_t *ret_out, uint64_t *ret_in) {
        *ret_out = h->bytes_out;
        *ret_in = h->bytes_in;
}
