/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One POST over TLS. The endpoint's addresses are resolved and judged here and handed to libcurl, which looks at no file, follows
 * nothing, takes no proxy from anywhere, and gets every socket through on_socket(), where the address is judged
 * once more. After everything is read that needs a file, none can be opened any more.
 */
#include "oauth2.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/str.h"
#include "confine.h"
#include "policy/token_url.h"
#include "resolve.h"

#define REQUEST_MAX (64 * 1024)
#define TRUST_MAX (4 * 1024 * 1024)
#define HEADERS_MAX (64 * 1024)
#define FIELD_MAX 8192

struct request {
        json_t *json;
        const char *url, *client_id, *secret, *scope, *audience, *auth;
        struct host host;
        uint16_t port;
};

struct exchange {
        struct address_set *set;
        struct buf body;
        size_t headers;
        bool too_long;
        struct error refused;
};

/* ---- what is asked -------------------------------------------------------------------------- */

static int read_fd(int fd, size_t max, char **ret, size_t *ret_n, struct error *err) {
        struct stat st;
        if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size <= 0 || (size_t) st.st_size > max)
                return error_set(err, -EINVAL, "descriptor %d has no file of at most %zu bytes", fd, max);
        size_t n = (size_t) st.st_size, at = 0;
        char *text = malloc(n);
        while (text && at < n) {
                ssize_t r = pread(fd, text + at, n - at, (off_t) at);
                if (r <= 0)
                        break;
                at += (size_t) r;
        }
        if (!text || at < n) {
                free(text);
                return error_set(err, -EIO, "descriptor %d cannot be read", fd);
        }
        *ret = text;
        *ret_n = n;
        return 0;
}

static int read_request(struct request *q, struct error *err) {
        _cleanup_free_ char *text = NULL;
        size_t n = 0;
        int r = read_fd(FD_REQUEST, REQUEST_MAX, &text, &n, err);
        if (r == 0)
                r = json_parse(text, n, REQUEST_MAX, &q->json, err);
        if (r == 0)
                r = json_read_str(q->json, "token_url", true, TOKEN_URL_MAX, &q->url, err);
        if (r == 0)
                r = json_read_str(q->json, "client_id", true, FIELD_MAX, &q->client_id, err);
        if (r == 0)
                r = json_read_str(q->json, "secret", true, FIELD_MAX, &q->secret, err);
        if (r == 0)
                r = json_read_str(q->json, "scope", false, FIELD_MAX, &q->scope, err);
        if (r == 0)
                r = json_read_str(q->json, "audience", false, FIELD_MAX, &q->audience, err);
        if (r == 0)
                r = json_read_str(q->json, "auth", false, 16, &q->auth, err);
        return r < 0 ? r : token_url_parse(q->url, &q->host, &q->port, err);
}

static int put(CURL *c, struct buf *out, const char *name, const char *value) {
        if (!value)
                return 0;
        char *text = curl_easy_escape(c, value, 0);
        int r = text ? buf_printf(out, "%s%s=%s", out->len ? "&" : "", name, text) : -ENOMEM;
        curl_free(text);
        return r;
}

static int make_form(CURL *c, const struct request *q, struct buf *out) {
        bool in_body = str_eq(q->auth, "body");
        int r = put(c, out, "grant_type", "client_credentials");
        if (r == 0)
                r = put(c, out, "scope", q->scope);
        if (r == 0)
                r = put(c, out, "audience", q->audience);
        if (r == 0 && in_body)
                r = put(c, out, "client_id", q->client_id);
        if (r == 0 && in_body)
                r = put(c, out, "client_secret", q->secret);
        return r;
}

/* RFC 6749, 2.3.1: both are form-encoded before they become user and password. */
static int set_basic(CURL *c, const struct request *q) {
        char *id = curl_easy_escape(c, q->client_id, 0), *secret = curl_easy_escape(c, q->secret, 0);
        bool ok = id && secret && curl_easy_setopt(c, CURLOPT_HTTPAUTH, CURLAUTH_BASIC) == CURLE_OK &&
                  curl_easy_setopt(c, CURLOPT_USERNAME, id) == CURLE_OK && curl_easy_setopt(c, CURLOPT_PASSWORD, secret) == CURLE_OK;
        curl_free(id);
        curl_free(secret);
        return ok ? 0 : -ENOMEM;
}

/* ---- what libcurl calls --------------------------------------------------------------------- */

static size_t on_body(char *data, size_t size, size_t n, void *arg) {
        struct exchange *x = arg;
        if (buf_append(&x->body, data, size * n) == 0)
                return size * n;
        x->too_long = true;
        return 0;
}

static size_t on_header(char *data, size_t size, size_t n, void *arg) {
        struct exchange *x = arg;
        (void) data;
        x->headers += size * n;
        x->too_long = x->too_long || x->headers > HEADERS_MAX;
        return x->too_long ? 0 : size * n;
}

static curl_socket_t on_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *to) {
        struct exchange *x = arg;
        struct address a;
        if (purpose != CURLSOCKTYPE_IPCXN || address_of_sockaddr(&to->addr, to->addrlen, &a) < 0 ||
            address_may(x->set, &a, &x->refused) < 0)
                return CURL_SOCKET_BAD;
        return socket(to->family, to->socktype | SOCK_CLOEXEC, to->protocol);
}

/* ---- asking --------------------------------------------------------------------------------- */

static int set_options(CURL *c, struct exchange *x, const struct options *o, const struct request *q, struct curl_slist *headers,
                     struct curl_slist *resolved, const char *form, struct curl_blob *trust) {
        const struct {
                CURLoption option;
                long value;
        } numbers[] = {
                { CURLOPT_NOSIGNAL, 1 },       { CURLOPT_FOLLOWLOCATION, 0 },
                { CURLOPT_SSL_VERIFYPEER, 1 }, { CURLOPT_SSL_VERIFYHOST, 2 },
                { CURLOPT_SSLVERSION, CURL_SSLVERSION_TLSv1_2 },
                { CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1 },
                { CURLOPT_TIMEOUT_MS, (long) o->timeout_s * 1000 },
                { CURLOPT_CONNECTTIMEOUT_MS, (long) o->timeout_s * 1000 },
        };
        const struct {
                CURLoption option;
                const void *value;
        } pointers[] = {
                { CURLOPT_URL, q->url },         { CURLOPT_PROTOCOLS_STR, "https" },
                { CURLOPT_PROXY, "" },           { CURLOPT_CAINFO, NULL },
                { CURLOPT_CAPATH, NULL },        { CURLOPT_CAINFO_BLOB, trust },
                { CURLOPT_RESOLVE, resolved },   { CURLOPT_HTTPHEADER, headers },
                { CURLOPT_POSTFIELDS, form },    { CURLOPT_WRITEDATA, x },
                { CURLOPT_HEADERDATA, x },       { CURLOPT_OPENSOCKETDATA, x },
        };
        for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
                if (curl_easy_setopt(c, numbers[i].option, numbers[i].value) != CURLE_OK)
                        return -EINVAL;
        for (size_t i = 0; i < ARRAY_SIZE(pointers); i++)
                if (curl_easy_setopt(c, pointers[i].option, pointers[i].value) != CURLE_OK)
                        return -EINVAL;
        if (curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body) != CURLE_OK ||
            curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header) != CURLE_OK ||
            curl_easy_setopt(c, CURLOPT_OPENSOCKETFUNCTION, on_socket) != CURLE_OK)
                return -EINVAL;
        return str_eq(q->auth, "body") ? 0 : set_basic(c, q);
}

static int judge(CURL *c, const struct exchange *x, CURLcode code, struct token *ret, struct error *err) {
        long status = 0;
        const char *said;
        if (x->too_long)
                return error_set(err, -EPROTO, "the token endpoint's answer is longer than %d bytes", REPLY_MAX);
        if (x->refused.code < 0)
                return error_set(err, x->refused.code, "%s", x->refused.msg);
        if (code != CURLE_OK)
                return error_set(err, -EIO, "the token endpoint could not be asked: %s", curl_easy_strerror(code));
        (void) curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
        if (status != 200) {
                said = reply_error_code(buf_data(&x->body), x->body.len);
                return error_set(err, -EIO, "the token endpoint answered %ld%s%s", status, said ? ": " : "", said ? said : "");
        }
        int r = reply_read_oauth2(buf_data(&x->body), x->body.len, ret, err);
        return r < 0 ? error_wrap(err, "the token endpoint's answer cannot be used") : 0;
}

static struct curl_slist *resolved_list(const struct request *q, const struct in_addr *list, size_t n) {
        _cleanup_buf_ struct buf b = BUF_INIT(0);
        char text[INET_ADDRSTRLEN];
        int r = buf_printf(&b, "%s:%u:", q->host.name, q->port);
        for (size_t i = 0; i < n && r == 0; i++)
                r = buf_printf(&b, "%s%s", i ? "," : "", inet_ntop(AF_INET, &list[i], text, sizeof text));
        const char *line = r == 0 ? buf_str(&b) : NULL;
        return line ? curl_slist_append(NULL, line) : NULL;
}

static int post(const struct options *o, const struct request *q, const struct in_addr *list, size_t n, struct exchange *x,
                struct curl_blob *trust, struct token *ret, struct error *err) {
        _cleanup_buf_ struct buf form = BUF_INIT(0);
        struct curl_slist *headers = curl_slist_append(NULL, "Accept: application/json"), *resolved = resolved_list(q, list, n);
        CURL *c = curl_easy_init();
        int r = c && headers && resolved ? make_form(c, q, &form) : -ENOMEM;
        const char *text = r == 0 ? buf_str(&form) : NULL;
        if (r == 0)
                r = text ? set_options(c, x, o, q, headers, resolved, text, trust) : -ENOMEM;
        if (r == 0)
                r = confine(err);
        else
                (void) error_errno(err, r, "the request cannot be made");
        if (r == 0)
                r = judge(c, x, curl_easy_perform(c), ret, err);
        curl_easy_cleanup(c);
        curl_slist_free_all(headers);
        curl_slist_free_all(resolved);
        return r;
}

int oauth2_run(const struct options *o, struct token *ret, struct error *err) {
        _cleanup_free_ char *certificates = NULL;
        struct request q = { .auth = "basic" };
        struct exchange x = { .body = BUF_INIT(REPLY_MAX), .refused = ERROR_INIT };
        struct in_addr list[ADDRESSES_MAX];
        struct curl_blob trust = { .flags = CURL_BLOB_NOCOPY };
        size_t n = 0;
        int r = read_request(&q, err);
        if (r == 0)
                r = read_fd(FD_TRUST, TRUST_MAX, &certificates, &trust.len, err);
        trust.data = certificates;
        if (r == 0)
                r = address_set_make(o, &x.set, err);
        if (r == 0 && curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
                r = error_set(err, -EIO, "libcurl cannot be used");
        if (r == 0)
                r = resolve(o, x.set, &q.host, list, &n, err);
        if (r == 0)
                r = post(o, &q, list, n, &x, &trust, ret, err);
        buf_done(&x.body);
        address_set_free(x.set);
        json_decref(q.json);
        return r;
}
