/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The connection to a gateway. Its socket (gw.sock in the sandbox's folder) is made by cspace-rootd before it says that a gateway
 * is started, so that connecting succeeds also while that is on its way, and waits in the queue. What comes from
 * there is not trusted beyond its own sandbox: it is bounded, checked where it is read, and given back to nobody but
 * a gateway of the same sandbox.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app.h"
#include "audit/audit_store.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "bindings.h"
#include "credential.h"
#include "egress_internal.h"
#include "policies.h"
#include "policy/binding.h"
#include "sandbox/sandbox_flow.h"
#include "store/db.h"

static void try_connect(void *arg);
static void send_config(struct egress *e);

static void say(struct egress *e, enum egress_state state, const char *reason) {
        e->state = state;
        (void) snprintf(e->reason, sizeof e->reason, "%s", reason);
        str_make_utf8(e->reason);
}

/* ---- configuration ------------------------------------------------------------------------- */

/* Those of this host's interfaces: a gateway dials from them, and must not dial them. */
static json_t *own_addresses(void) {
        uv_interface_address_t *list = NULL;
        json_t *out = json_array();
        int n = 0;
        if (uv_interface_addresses(&list, &n) < 0)
                return out;
        for (int i = 0; i < n && json_array_size(out) < EGRESS_OWN_MAX; i++) {
                char text[INET6_ADDRSTRLEN];
                bool v4 = list[i].address.address4.sin_family == AF_INET;
                int r = v4 ? uv_ip4_name(&list[i].address.address4, text, sizeof text)
                           : uv_ip6_name(&list[i].address.address6, text, sizeof text);
                if (r == 0)
                        (void) json_array_append_new(out, json_string(text));
        }
        uv_free_interface_addresses(list, n);
        return out;
}

/* [egress] open of the configuration, which has checked it. */
static json_t *open_ranges(const struct app *app) {
        json_t *out = json_array();
        for (const char *p = app->conf.open_ranges; *p;) {
                p += strspn(p, " \t");
                size_t n = strcspn(p, " \t");
                if (n > 0)
                        (void) json_array_append_new(out, json_stringn(p, n));
                p += n;
        }
        return out;
}

/* The seed and the secrets are not put into a json_t, whose memory cannot be wiped. */
static int write_config(const struct egress *e, struct buf *out) {
        char seed[4 * ((CA_SEED_BYTES + 2) / 3) + 1];
        json_t *bindings = e->bindings ? bindings_for_gateway(e->bindings) : NULL;
        _cleanup_json_ json_t *j = json_pack("{s:o, s:o, s:o, s:O*, s:O*, s:o*}", "presets", policy_presets(e->s->tmpl), "own",
                                             own_addresses(), "open", open_ranges(e->app), "policy", e->policy, "names", e->names, "bindings", bindings);
        _cleanup_free_ char *rest = j ? json_to_str(j) : NULL;
        if (!rest)
                return -ENOMEM;
        /* Room for all of it at once: what a growing buffer leaves behind is not wiped. */
        uint8_t *room;
        int r = buf_reserve(out, strlen(rest) + 256 + json_array_size(e->bindings) * (6 * BINDING_SECRET_MAX + 256), &room);
        if (r < 0)
                return r;
        base64_encode(e->seed, sizeof e->seed, seed);
        r = buf_printf(out, "{\"ca_seed\":\"%s\",", seed);
        if (r >= 0 && e->bindings) {
                r = buf_puts(out, "\"secrets\":");
                if (r >= 0)
                        r = bindings_write_secrets(e->app, e->bindings, out);
                if (r >= 0)
                        r = buf_puts(out, ",");
        }
        if (r >= 0)
                r = buf_puts(out, rest + 1);
        explicit_bzero(seed, sizeof seed);
        return r;
}

int egress_config_fd(const struct egress *e, int *ret_fd, struct error *err) {
        struct buf text = BUF_INIT(GW_CONFIG_MAX);
        _cleanup_fd_ int fd = memfd_create("gateway", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        int r = fd < 0 ? -errno : write_config(e, &text);
        if (r >= 0)
                r = fd_write_all(fd, buf_data(&text), text.len, NULL);
        if (r >= 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
                r = -errno;
        if (text.data)
                explicit_bzero(text.data, text.cap);
        buf_done(&text);
        if (r < 0)
                return error_errno(err, r, "could not make the gateway's configuration");
        *ret_fd = fd_steal(&fd);
        return 0;
}

/* ---- ends of a connection ------------------------------------------------------------------ */

static void disconnect(struct egress *e) {
        struct ipc_conn *c = STEAL(e->conn);
        e->asked = false;
        e->serial++;
        ipc_conn_free(c); /* outstanding calls get -ECANCELED */
}

static void lost(struct egress *e, const char *why) {
        bool was_active = e->state == EGRESS_ACTIVE;
        disconnect(e);
        if (e->state == EGRESS_OFF)
                return;
        if (e->state != EGRESS_AWAY && (was_active || e->retry_ms > EGRESS_RETRY_MIN_MS))
                sandbox_log(e->app, e->s, "warn", "gateway_lost", "%s", why);
        if (was_active || e->retry_ms > EGRESS_RETRY_MIN_MS)
                say(e, EGRESS_AWAY, why);
        timer_cancel(e->retry);
        e->retry = timer_start(e->app->loop, e->retry_ms, try_connect, e);
        e->retry_ms = e->retry_ms * 2 > EGRESS_RETRY_MAX_MS ? EGRESS_RETRY_MAX_MS : e->retry_ms * 2;
}

static void on_close(void *arg, struct ipc_conn *c, int err) {
        (void) c;
        (void) err;
        lost(arg, "the connection to the gateway was lost");
}

/* ---- what it is told ----------------------------------------------------------------------- */

static void try_again(void *arg) {
        struct egress *e = arg;
        e->retry = NULL;
        if (e->conn && !e->asked)
                send_config(e);
}

static void refused(struct egress *e, const struct error *why) {
        uint64_t generation = e->sent;
        struct error err = *why;
        log_warn("sandbox %s: its gateway refused its configuration: %s", e->s->id, err.msg);
        sandbox_log(e->app, e->s, "error", "gateway_refused", "%s", err.msg);
        err.code = -EBADMSG;
        if (e->generation != generation) { /* superseded meanwhile */
                send_config(e);
        } else if (e->applied_known && (e->policy != e->applied || e->bindings != e->applied_bindings) && egress_revert(e, &err) >= 0) {
                send_config(e); /* as if nothing had been asked */
                return;
        } else {
                say(e, EGRESS_REFUSED, err.msg);
                timer_cancel(e->retry);
                e->retry = timer_start(e->app->loop, EGRESS_REFUSED_MS, try_again, e);
        }
        egress_waiters_done(e, generation, -EBADMSG, &err);
}

static void acknowledged(struct egress *e) {
        bool again = e->state == EGRESS_AWAY;
        json_decref(e->applied);
        json_decref(e->applied_bindings);
        e->applied_bindings = json_incref(e->bindings);
        e->applied = json_incref(e->policy); /* replaced, never changed: this is what was sent if sent is current */
        e->applied_known = true;
        e->retry_ms = EGRESS_RETRY_MIN_MS;
        say(e, EGRESS_ACTIVE, "");
        if (again)
                sandbox_log(e->app, e->s, "info", "gateway_back", "connected to the gateway again");
        egress_waiters_done(e, e->sent, 0, NULL);
}

static void on_configured(void *arg, int err, const struct error *why, struct ipc_packet *p) {
        struct egress *e = arg;
        struct ipc_gw_configured m;
        if (err == -ECANCELED || err == -ECONNRESET)
                return; /* ended by us, or on_close comes next */
        e->asked = false;
        if (err == -ETIMEDOUT) {
                lost(e, "the gateway does not answer");
                return;
        }
        if (err < 0) {
                refused(e, why);
                return;
        }
        if (ipc_gw_configured_decode(p->body, p->body_n, &m) < 0) {
                lost(e, "the gateway's answer cannot be read");
                return;
        }
        if (e->generation != e->sent) {
                send_config(e);
                return;
        }
        (void) sandbox_ref(e->s);
        struct sandbox *s = e->s;
        acknowledged(e);
        sandbox_unref(s);
}

static void send_config(struct egress *e) {
        struct error err = ERROR_INIT;
        struct ipc_gw_config m = { .generation = e->generation };
        uint8_t body[32];
        size_t n = 0;
        _cleanup_fd_ int fd = -EBADF;
        int r = egress_config_fd(e, &fd, &err);
        if (r >= 0)
                r = ipc_gw_config_encode(&m, body, sizeof body, &n);
        e->sent = e->generation;
        e->asked = true;
        if (r >= 0)
                r = ipc_conn_call(e->conn, IPC_GW_CONFIG, body, n, &fd, 1, EGRESS_CONFIG_MS, on_configured, e);
        if (r < 0)
                lost(e, err.msg[0] ? err.msg : "the gateway cannot be told anything");
        else
                bindings_want_tokens(e->app, e->bindings);
}

/* ---- one secret ---------------------------------------------------------------------------- */

static void on_secret(void *arg, int err, const struct error *why, struct ipc_packet *p) {
        struct egress *e = arg;
        (void) p;
        if (err == -ETIMEDOUT)
                lost(e, "the gateway does not answer");
        else if (err < 0 && err != -ECANCELED && err != -ECONNRESET && err != -ENOENT)
                log_warn("sandbox %s: its gateway refused a secret: %s", e->s->id, why->msg);
}

/* Behind a configuration that is out already, so it is never overtaken by an older one. */
void egress_give_secret(struct sandbox *s, const char *credential) {
        struct egress *e = s->egress;
        const struct credential *c = credential_find(e->app, credential);
        struct ipc_gw_secret m = { .credential = "" };
        char secret[BINDING_SECRET_MAX + 1] = "";
        uint8_t body[sizeof m + BINDING_SECRET_MAX + 64];
        size_t n;
        if (!e->conn || !c || str_copy(m.credential, sizeof m.credential, credential) < 0)
                return;
        if (credential_open(e->app, c, secret) >= 0)
                m.expires_ms = (uint64_t) credential_expires_ms(c);
        m.secret = secret;
        m.secret_n = strlen(secret);
        if (ipc_gw_secret_encode(&m, body, sizeof body, &n) >= 0)
                (void) ipc_conn_call(e->conn, IPC_GW_SECRET, body, n, NULL, 0, EGRESS_CONFIG_MS, on_secret, e);
        explicit_bzero(secret, sizeof secret);
        explicit_bzero(body, sizeof body);
}

void egress_push(struct egress *e) {
        if (e->state == EGRESS_REFUSED) {
                timer_cancel(e->retry);
                e->retry = NULL;
                say(e, EGRESS_CONNECTING, "");
        }
        if (e->conn && !e->asked)
                send_config(e);
}

/* ---- what it says -------------------------------------------------------------------------- */

/* A request of the gateway's that is answered later, if it is still there. */
struct late {
        struct egress *e;
        uint64_t serial;
        struct ipc_packet p;
        bool *busy;
};

static void answer(void *arg, int err, const struct error *why) {
        struct late *l = arg;
        struct egress *e = l->e;
        *l->busy = false;
        if (e->conn && e->serial == l->serial && err >= 0)
                (void) ipc_conn_reply(e->conn, &l->p, NULL, 0, NULL, 0);
        else if (e->conn && e->serial == l->serial)
                (void) ipc_conn_reply_error(e->conn, &l->p, why);
        sandbox_unref(e->s);
        free(l);
}

static struct late *later(struct egress *e, const struct ipc_packet *p, bool *busy) {
        struct late *l = *busy ? NULL : calloc(1, sizeof *l);
        if (!l)
                return NULL;
        *l = (struct late){ .e = e, .serial = e->serial, .p = *p, .busy = busy };
        *busy = true;
        (void) sandbox_ref(e->s);
        return l;
}

static void on_audit(struct egress *e, const struct ipc_packet *p, struct error *err) {
        struct ipc_gw_audit m;
        if (ipc_gw_audit_decode(p->body, p->body_n, &m) < 0) {
                (void) error_set(err, -EPROTO, "malformed GW_AUDIT");
                return;
        }
        struct late *l = later(e, p, &e->storing_audit);
        if (!l) {
                (void) error_set(err, -EBUSY, "another batch is being stored");
                return;
        }
        int r = audit_store_append(e->app, e->s->id, m.lines, m.lines_n, m.dropped, answer, l);
        if (r < 0) {
                struct error full = ERROR_INIT;
                (void) error_errno(&full, r, "the audit log takes no more now");
                answer(l, r, &full);
        }
}

static int read_names(const struct ipc_packet *p, json_t **ret, struct error *err) {
        struct stat st;
        int fd = p->n_fds == 1 ? p->fds[0] : -EBADF;
        if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size <= 0 || st.st_size > EGRESS_NAMES_MAX)
                return error_set(err, -EINVAL, "the names come in a memfd of at most %u bytes", EGRESS_NAMES_MAX);
        size_t n = (size_t) st.st_size;
        _cleanup_free_ char *text = malloc(n);
        if (!text)
                return error_set(err, -ENOMEM, "out of memory");
        if (pread(fd, text, n, 0) != (ssize_t) n)
                return error_set(err, -EIO, "the names cannot be read");
        json_t *j = NULL;
        int r = json_parse(text, n, EGRESS_NAMES_MAX, &j, err);
        if (r >= 0 && !json_is_object(j)) {
                json_decref(j);
                return error_set(err, -EINVAL, "the names are no object");
        }
        if (r >= 0)
                *ret = j;
        return r;
}

static void on_names(struct egress *e, const struct ipc_packet *p, struct error *err) {
        struct ipc_gw_names m;
        json_t *names = NULL;
        if (ipc_gw_names_decode(p->body, p->body_n, &m) < 0) {
                (void) error_set(err, -EPROTO, "malformed GW_NAMES");
                return;
        }
        if (read_names(p, &names, err) < 0)
                return;
        struct late *l = later(e, p, &e->storing_names);
        if (!l) {
                json_decref(names);
                (void) error_set(err, -EBUSY, "an earlier table is being stored");
                return;
        }
        json_decref(e->names);
        e->names = names;
        struct db_batch *b = db_batch_new();
        db_batch_add(b, "UPDATE egress SET names = ? WHERE sandbox_id = ?", "js", e->names, e->s->id);
        int r = db_batch_submit(e->app->db, b, answer, l);
        if (r < 0) {
                struct error busy = ERROR_INIT;
                (void) error_errno(&busy, r, "the names could not be stored");
                answer(l, r, &busy);
        }
}

static void on_packet(void *arg, struct ipc_conn *c, struct ipc_packet *p) {
        static struct log_limit limit;
        struct egress *e = arg;
        struct error err = ERROR_INIT;
        unsigned dropped;
        if (p->type == IPC_GW_AUDIT)
                on_audit(e, p, &err);
        else if (p->type == IPC_GW_NAMES)
                on_names(e, p, &err);
        else
                (void) error_set(&err, -ENOTSUP, "no such request to cspaced");
        if (err.code == 0)
                return;
        if (err.code != -EBUSY && log_limit_pass(&limit, 5, &dropped))
                log_warn("sandbox %s: its gateway sent what is not right: %s", e->s->id, err.msg);
        if (p->seq)
                (void) ipc_conn_reply_error(c, p, &err);
}

static const struct ipc_conn_handler handler = { .on_packet = on_packet, .on_close = on_close, .peer = "the gateway" };

/* ---- start and end ------------------------------------------------------------------------- */

static int connect_now(struct egress *e, struct error *err) {
        char name[64], path[CONF_STR_MAX + 64];
        int fd = -EBADF;
        (void) snprintf(name, sizeof name, "sandboxes/%s/gw.sock", e->s->id);
        int r = conf_run_path(&e->app->conf, name, path, sizeof path);
        if (r >= 0)
                r = ipc_connect_now(path, &fd, err);
        if (r >= 0)
                r = ipc_conn_new(e->app->loop, fd, &handler, e, &e->conn, err);
        if (r < 0)
                e->conn = NULL;
        return r;
}

static void connected(struct egress *e, int r, const struct error *err) {
        if (r < 0)
                lost(e, r == -ENOENT ? "its gateway is not there" : err->msg[0] ? err->msg : "its gateway cannot be reached");
        else
                send_config(e);
}

static void try_connect(void *arg) {
        struct egress *e = arg;
        struct error err = ERROR_INIT;
        e->retry = NULL;
        int r = connect_now(e, &err);
        connected(e, r, &err);
}

static void expect(struct egress *e) {
        timer_cancel(e->retry);
        e->retry = NULL;
        e->there = true;
        e->applied_known = false;
        e->retry_ms = EGRESS_RETRY_MIN_MS;
        say(e, EGRESS_CONNECTING, "");
}

/* Its socket says whether one is there. */
static bool find(struct egress *e) {
        struct error err = ERROR_INIT;
        int r = connect_now(e, &err);
        if (r == -ENOENT || r == -ECONNREFUSED)
                return false;
        expect(e);
        connected(e, r, &err);
        return true;
}

void egress_find(struct egress *e) {
        e->early = find(e);
}

/* One may be there already: a guest can be quicker than its create, and this cspaced newer than the gateway. */
void egress_start(struct app *app, struct sandbox *s) {
        struct egress *e = s->egress;
        if (!e || (e->state != EGRESS_OFF && !e->early) || app->stopping)
                return;
        bindings_want_tokens(app, e->bindings); /* a server may take its time: not only when the first request waits for it */
        if (!e->early && !find(e))
                say(e, EGRESS_IDLE, "");
        e->early = false;
}

void egress_stop(struct sandbox *s) {
        struct egress *e = s->egress;
        if (!e || e->state == EGRESS_OFF)
                return;
        say(e, EGRESS_OFF, "");
        e->there = e->early = false;
        timer_cancel(e->retry);
        e->retry = NULL;
        disconnect(e);
        (void) sandbox_ref(s);
        egress_waiters_done(e, UINT64_MAX, 0, NULL); /* stored, and there is nobody to tell */
        sandbox_unref(s);
}

void egress_gateway_started(struct app *app, const char *id) {
        struct sandbox *s = sandbox_find_all(app, id);
        struct egress *e = s ? s->egress : NULL;
        if (!e || e->state == EGRESS_OFF || e->conn || app->stopping)
                return;
        expect(e);
        try_connect(e);
}

void egress_gateway_ended(struct sandbox *s) {
        struct egress *e = s->egress;
        if (!e || !e->there)
                return;
        const char *what = e->applied_known ? "it ended; the next packet starts another"
                                            : "it ended before it had its policy; the next packet starts another";
        if (e->state != EGRESS_AWAY)
                sandbox_log(e->app, s, "warn", "gateway_lost", "%s", what);
        say(e, e->applied_known ? EGRESS_IDLE : EGRESS_AWAY, e->applied_known ? "" : what);
        e->applied_known = false; /* of another one: what it refuses is not taken back, for it was answered long ago */
        e->there = false;
        timer_cancel(e->retry);
        e->retry = NULL;
        disconnect(e);
        (void) sandbox_ref(s);
        egress_waiters_done(e, UINT64_MAX, 0, NULL); /* stored, and there is nobody to tell */
        sandbox_unref(s);
}

/* ---- state --------------------------------------------------------------------------------- */

struct query {
        egress_state_cb cb;
        void *arg;
};

static void on_state(void *arg, int err, const struct error *why, struct ipc_packet *p) {
        struct query *q = arg;
        struct ipc_gw_state m;
        (void) why;
        q->cb(q->arg, err >= 0 && ipc_gw_state_decode(p->body, p->body_n, &m) >= 0 ? &m : NULL);
        free(q);
}

int egress_query(struct sandbox *s, egress_state_cb cb, void *arg) {
        struct egress *e = s->egress;
        if (!e || !e->conn)
                return -ENOTCONN;
        struct query *q = calloc(1, sizeof *q);
        if (!q)
                return -ENOMEM;
        *q = (struct query){ .cb = cb, .arg = arg };
        int r = ipc_conn_call(e->conn, IPC_GW_QUERY, NULL, 0, NULL, 0, EGRESS_CONFIG_MS, on_state, q);
        if (r < 0)
                free(q);
        return r;
}

static void on_hurried(void *arg, const struct ipc_gw_state *m) {
        (void) arg; /* the names have come before this answer */
        (void) m;
}

void egress_hurry_names(struct sandbox *s) {
        (void) egress_query(s, on_hurried, NULL);
}
