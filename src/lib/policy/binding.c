/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/id.h"
#include "base/str.h"
#include "policy/binding_internal.h"
#include "policy/path.h"

#define BINDING_PORT 443

int placeholder_new(char out[PLACEHOLDER_SIZE]) {
        char id[ID_SIZE];

        int r = id_new(id);
        if (r == 0)
                snprintf(out, PLACEHOLDER_SIZE, "cspaceplaceholder%s", id);
        return r;
}

/* --- the set ----------------------------------------------------------------------------- */

int bindings_new(struct bindings **ret) {
        struct bindings *b = calloc(1, sizeof *b);

        if (!b)
                return -ENOMEM;
        *ret = b;
        return 0;
}

static void secret_done(struct secret *s) {
        if (s->data)
                explicit_bzero(s->data, s->n);
        free(s->data);
        memset(s, 0, sizeof *s);
}

static void list_free(struct binding *list, size_t n) {
        for (size_t i = 0; i < n; i++)
                binding_done(&list[i]);
        free(list);
}

void bindings_free(struct bindings *b) {
        if (!b)
                return;
        list_free(b->list, b->n);
        for (size_t i = 0; i < b->n_secrets; i++)
                secret_done(&b->secrets[i]);
        free(b);
}

void bindings_freep(struct bindings **b) {
        bindings_free(*b);
}

size_t bindings_count(const struct bindings *b) {
        return b->n;
}

static struct binding *find(struct binding *list, size_t n, const char *id) {
        for (size_t i = 0; i < n; i++)
                if (str_eq(list[i].id, id))
                        return &list[i];
        return NULL;
}

static bool credential_is_named(const struct bindings *b, const char *credential) {
        for (size_t i = 0; i < b->n; i++)
                if (str_eq(b->list[i].credential, credential))
                        return true;
        return false;
}

static void drop_unnamed(struct bindings *b) {
        for (size_t i = 0; i < b->n_secrets;) {
                if (credential_is_named(b, b->secrets[i].credential)) {
                        i++;
                        continue;
                }
                secret_done(&b->secrets[i]);
                b->secrets[i] = b->secrets[--b->n_secrets];
        }
}

static void carry_over(struct bindings *b, struct binding *list, size_t n) {
        for (size_t i = 0; i < n; i++) {
                struct binding *old = find(b->list, b->n, list[i].id);
                if (!old)
                        continue;
                list[i].bucket = old->bucket;
                if (old->used > list[i].used)
                        list[i].used = old->used;
        }
}

int bindings_load(struct bindings *b, const json_t *list, struct error *err) {
        struct error own = ERROR_INIT;
        size_t n = json_array_size(list), i;
        json_t *v;
        int r = 0;

        if (!err)
                err = &own; /* error_wrap() takes the code from it */
        if (!json_is_array(list) || n > BINDINGS_MAX)
                return error_set(err, -EINVAL, "bindings must be an array of at most %d", BINDINGS_MAX);
        struct binding *parsed = calloc(n ? n : 1, sizeof *parsed);
        if (!parsed)
                return error_set(err, -ENOMEM, "out of memory");
        json_array_foreach(list, i, v) {
                r = binding_parse(v, &parsed[i], err);
                if (r == 0 && find(parsed, i, parsed[i].id))
                        r = error_set(err, -EINVAL, "id: \"%s\" is there already", parsed[i].id);
                if (r < 0) {
                        list_free(parsed, n);
                        return error_wrap(err, "bindings[%zu]", i);
                }
        }
        carry_over(b, parsed, n);
        list_free(b->list, b->n);
        b->list = parsed;
        b->n = n;
        drop_unnamed(b);
        return 0;
}

/* --- secrets ----------------------------------------------------------------------------- */

const struct secret *bindings_secret(const struct bindings *b, const char *credential) {
        for (size_t i = 0; i < b->n_secrets; i++)
                if (str_eq(b->secrets[i].credential, credential))
                        return &b->secrets[i];
        return NULL;
}

/* A header's value must be one line of it, without white space at its ends. */
static bool fits_header(const uint8_t *s, size_t n) {
        return http1_is_value((const char *) s, n) && s[0] != ' ' && s[0] != '\t' && s[n - 1] != ' ' && s[n - 1] != '\t';
}

static int check_secret(const struct bindings *b, const char *credential, const uint8_t *s, size_t n, struct error *err) {
        bool named = false;

        for (size_t i = 0; i < b->n; i++) {
                if (!str_eq(b->list[i].credential, credential))
                        continue;
                named = true;
                if (n < BINDING_SECRET_MIN || n > BINDING_SECRET_MAX)
                        return error_set(err, -EINVAL, "the secret of credential \"%s\" must have %d to %d bytes", credential,
                                         BINDING_SECRET_MIN, BINDING_SECRET_MAX);
                if (b->list[i].place == BINDING_HEADER && !fits_header(s, n))
                        return error_set(err, -EINVAL, "the secret of credential \"%s\" has bytes that no header may have", credential);
                if (memchr(s, 0, n))
                        return error_set(err, -EINVAL, "the secret of credential \"%s\" has a NUL byte", credential);
        }
        return named ? 0 : error_set(err, -ENOENT, "no binding names the credential \"%s\"", credential);
}

int bindings_set_secret(struct bindings *b, const char *credential, const void *secret, size_t n, int64_t expires_ms,
                        struct error *err) {
        int r = check_secret(b, credential, secret, n, err);

        if (r < 0)
                return r;
        struct secret s = { .data = malloc(n), .n = n, .expires_ms = expires_ms };
        if (!s.data)
                return error_set(err, -ENOMEM, "out of memory");
        memcpy(s.data, secret, n);
        (void) str_copy(s.credential, sizeof s.credential, credential);
        /* There are at most as many as bindings. */
        bindings_drop_secret(b, credential);
        b->secrets[b->n_secrets++] = s;
        return 0;
}

void bindings_drop_secret(struct bindings *b, const char *credential) {
        for (size_t i = 0; i < b->n_secrets; i++) {
                if (!str_eq(b->secrets[i].credential, credential))
                        continue;
                secret_done(&b->secrets[i]);
                b->secrets[i] = b->secrets[--b->n_secrets];
                memset(&b->secrets[b->n_secrets], 0, sizeof b->secrets[0]);
                return;
        }
}

/* --- judged ------------------------------------------------------------------------------ */

bool binding_names_host(const struct binding *b, const struct host *h) {
        for (size_t i = 0; h->kind == HOST_NAME && i < b->n_hosts; i++)
                if (host_pattern_match(&b->hosts[i], h->name))
                        return true;
        return false;
}

static bool names_host_and_port(const struct binding *b, const struct host *h, uint16_t port) {
        for (size_t i = 0; h->kind == HOST_NAME && i < b->n_hosts; i++)
                if (host_pattern_match(&b->hosts[i], h->name) && port == (b->hosts[i].port ? b->hosts[i].port : BINDING_PORT))
                        return true;
        return false;
}

static bool method_fits(const struct binding *b, const char *method) {
        for (size_t i = 0; i < b->n_methods; i++)
                if (strcmp(b->methods[i], method) == 0)
                        return true;
        return b->n_methods == 0;
}

/* 1 fits, 0 not, -EINVAL cannot be decided, -ENOMEM. */
static int path_fits(const struct binding *b, const char *target) {
        if (b->n_paths == 0)
                return 1;
        _cleanup_(path_freep) struct path *p = path_read(target);
        if (!p)
                return -ENOMEM;
        enum path_match m = path_match(p, (const char *const *) b->paths, b->n_paths);
        return m == PATH_AMBIGUOUS ? -EINVAL : m == PATH_YES;
}

static struct binding_use deny(struct binding_use u, enum policy_reason why) {
        u.outcome = BINDING_DENY;
        u.reason = why;
        return u;
}

static struct binding_use use(struct binding_use u, struct binding *b, uint64_t now_ms, int64_t wall_ms) {
        const struct secret *s = bindings_secret(u.bindings, b->credential);

        u.id = b->id;
        u.credential = b->credential;
        u.binding = b;
        if (b->expires_ms && wall_ms >= b->expires_ms)
                return deny(u, REASON_BINDING_EXPIRED);
        /* A secret is checked when it is set, but its binding may be newer. */
        if (!s || (s->expires_ms && wall_ms >= s->expires_ms) || (b->place == BINDING_HEADER && !fits_header(s->data, s->n)))
                return deny(u, REASON_CREDENTIAL);
        if (b->uses && b->used >= b->uses)
                return deny(u, REASON_BINDING_USES);
        if (b->per_minute && !bucket_take(&b->bucket, b->per_minute, b->burst, now_ms))
                return deny(u, REASON_BINDING_RATE);
        b->used++;
        u.outcome = BINDING_ADD;
        return u;
}

/* --- placeholders where they are not replaced --------------------------------------------- */

static bool has_placeholder(const struct bindings *b, const char *s, size_t n) {
        for (size_t i = 0; i < b->n; i++)
                if (b->list[i].placeholder && memmem(s, n, b->list[i].placeholder, strlen(b->list[i].placeholder)))
                        return true;
        return false;
}

/* "Basic ..." as user and password. */
static bool basic_has_placeholder(const struct bindings *b, const char *value) {
        static const char scheme[] = "basic ";

        if (strncasecmp(value, scheme, strlen(scheme)) != 0)
                return false;
        const char *text = value + strlen(scheme) + strspn(value + strlen(scheme), " ");
        size_t n = strlen(text);
        _cleanup_free_ uint8_t *plain = malloc(3 * n / 4 + 1);
        ssize_t len = plain ? base64_decode(text, n, plain) : -ENOMEM;
        return len > 0 && has_placeholder(b, (const char *) plain, (size_t) len);
}

static bool misplaced(const struct binding_use *u, const struct binding_request *q) {
        for (size_t i = 0; i < q->n_fields; i++) {
                const struct http1_field *f = &q->fields[i];
                if (!binding_leaves_out(u, f->name) && (has_placeholder(u->bindings, f->value, strlen(f->value)) ||
                                                        has_placeholder(u->bindings, f->name, strlen(f->name)) ||
                                                        basic_has_placeholder(u->bindings, f->value)))
                        return true;
        }
        _cleanup_buf_ struct buf target = BUF_INIT(0);
        /* Without the parameters that are left out. Out of memory counts as misplaced: it fails closed. */
        const struct binding_use plain = { .touches = u->touches, .bindings = u->bindings, .host = u->host };
        return binding_write_target(&plain, q->target, &target) < 0 ||
               has_placeholder(u->bindings, (const char *) buf_data(&target), target.len);
}

struct binding_use bindings_judge(struct bindings *b, const struct binding_request *q, uint64_t now_ms, int64_t wall_ms) {
        struct binding_use u = { .bindings = b, .host = q->host };
        struct binding *found = NULL;

        for (size_t i = 0; i < b->n; i++) {
                struct binding *c = &b->list[i];
                if (!binding_names_host(c, q->host))
                        continue;
                u.touches = true;
                if (found || q->protocol != POLICY_TLS || !names_host_and_port(c, q->host, q->port) || !method_fits(c, q->method))
                        continue;
                int fits = path_fits(c, q->target);
                if (fits < 0) {
                        u.id = c->id;
                        return deny(u, fits == -EINVAL ? REASON_PATH_AMBIGUOUS : REASON_INTERNAL);
                }
                if (fits)
                        found = c;
        }
        if (b->n > 0 && misplaced(&u, q))
                return deny(u, REASON_PLACEHOLDER);
        return found ? use(u, found, now_ms, wall_ms) : u;
}

/* --- rewritten --------------------------------------------------------------------------- */

/* "X_Api_Key" is "x-api-key" to some servers. */
static bool same_field(const char *a, const char *b) {
        for (; *a && *b; a++, b++) {
                char x = *a == '_' ? '-' : *a >= 'A' && *a <= 'Z' ? (char) (*a - 'A' + 'a') : *a;
                if (x != (*b == '_' ? '-' : *b))
                        return false;
        }
        return *a == *b;
}

bool binding_leaves_out(const struct binding_use *u, const char *field_name) {
        if (u->outcome == BINDING_ADD && strcasecmp(field_name, "accept-encoding") == 0)
                return true;
        for (size_t i = 0; u->touches && i < u->bindings->n; i++) {
                const struct binding *b = &u->bindings->list[i];
                if (b->place != BINDING_QUERY && binding_names_host(b, u->host) && same_field(field_name, b->name))
                        return true;
        }
        return false;
}

static int put_percent(struct buf *out, const uint8_t *s, size_t n) {
        static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-~";
        int r = 0;

        for (size_t i = 0; i < n && r == 0; i++)
                r = s[i] && strchr(plain, s[i]) ? buf_append(out, s + i, 1) : buf_printf(out, "%%%02X", s[i]);
        return r;
}

/* Wiped before it is freed: it held a secret. */
static void buf_wipe(struct buf *b) {
        if (b->data)
                explicit_bzero(b->data, b->cap);
        buf_done(b);
}
#define _cleanup_wiped_ _cleanup_(buf_wipe)

static int put_basic(struct buf *out, const struct binding *b, const struct secret *s) {
        _cleanup_wiped_ struct buf pair = BUF_INIT(0);
        uint8_t *to;

        /* Reserved at once, so that no unwiped copy is left behind by growing. */
        int r = buf_reserve(&pair, strlen(b->before) + s->n, &to);
        if (r == 0)
                r = buf_puts(&pair, b->before);
        if (r == 0)
                r = buf_append(&pair, s->data, s->n);
        if (r < 0)
                return r;
        size_t n = base64_encoded_len(pair.len);
        r = buf_puts(out, "Basic ");
        if (r == 0)
                r = buf_reserve(out, n + 1, &to);
        if (r < 0)
                return r;
        base64_encode(buf_data(&pair), pair.len, (char *) to);
        buf_commit(out, n);
        return 0;
}

int binding_render(const struct binding *b, const struct secret *s, struct buf *out) {
        if (b->place == BINDING_BASIC)
                return put_basic(out, b, s);
        if (b->place == BINDING_QUERY)
                return put_percent(out, s->data, s->n);
        int r = buf_puts(out, b->before);
        if (r == 0)
                r = buf_append(out, s->data, s->n);
        return r == 0 ? buf_puts(out, b->after) : r;
}

int binding_field(const struct binding_use *u, size_t i, const char **name, struct buf *value) {
        if (u->outcome != BINDING_ADD || i > 1 || (i == 1 && u->binding->place == BINDING_QUERY))
                return 0;
        if (i == 0) {
                *name = "accept-encoding";
                int r = buf_puts(value, "identity");
                return r < 0 ? r : 1;
        }
        const struct secret *s = bindings_secret(u->bindings, u->binding->credential);
        if (!s)
                return -ENOENT;
        *name = u->binding->name;
        int r = binding_render(u->binding, s, value);
        return r < 0 ? r : 1;
}

int binding_write_fields(const struct binding_use *u, struct buf *out) {
        for (size_t i = 0;; i++) {
                _cleanup_wiped_ struct buf value = BUF_INIT(LIMIT_HTTP_HEAD);
                const char *name;
                uint8_t *room;
                int r = buf_reserve(&value, 2 * BINDING_SECRET_MAX, &room);
                if (r == 0)
                        r = binding_field(u, i, &name, &value);
                if (r <= 0)
                        return r;
                const char *text = buf_str(&value);
                r = text ? http1_write_field(out, name, text) : -ENOMEM;
                if (r < 0)
                        return r;
        }
}

/* Whether the parameter at s is one that a binding of this host adds; also one behind ";", which some servers
 * take for "&". */
static bool parameter_left_out(const struct binding_use *u, const char *s, size_t n) {
        while (n > 0) {
                const char *end = memchr(s, ';', n);
                size_t len = end ? (size_t) (end - s) : n;
                const char *eq = memchr(s, '=', len);
                _cleanup_buf_ struct buf name = BUF_INIT(0);
                if (http1_percent_decode(s, eq ? (size_t) (eq - s) : len, true, &name) == 0) {
                        for (size_t i = 0; i < u->bindings->n; i++) {
                                const struct binding *b = &u->bindings->list[i];
                                if (b->place == BINDING_QUERY && binding_names_host(b, u->host) &&
                                    str_case_eq_n((const char *) buf_data(&name), name.len, b->name))
                                        return true;
                        }
                }
                s += len + (end != NULL);
                n -= len + (end != NULL);
        }
        return false;
}

static int copy_query(const struct binding_use *u, const char *q, struct buf *out, bool *any) {
        for (;;) {
                size_t n = strcspn(q, "&");
                if (!parameter_left_out(u, q, n)) {
                        int r = buf_puts(out, *any ? "&" : "?");
                        if (r == 0)
                                r = buf_append(out, q, n);
                        if (r < 0)
                                return r;
                        *any = true;
                }
                if (q[n] == '\0')
                        return 0;
                q += n + 1;
        }
}

int binding_write_target(const struct binding_use *u, const char *target, struct buf *out) {
        const char *q = u->touches ? strchr(target, '?') : NULL;
        bool any = false;

        int r = buf_append(out, target, q ? (size_t) (q - target) : strlen(target));
        if (r == 0 && q)
                r = copy_query(u, q + 1, out, &any);
        if (r < 0 || u->outcome != BINDING_ADD || u->binding->place != BINDING_QUERY)
                return r;
        const struct secret *s = bindings_secret(u->bindings, u->binding->credential);
        if (!s)
                return -ENOENT;
        r = buf_printf(out, "%s%s=", any ? "&" : "?", u->binding->name);
        return r == 0 ? binding_render(u->binding, s, out) : r;
}
