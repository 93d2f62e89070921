/* SPDX-License-Identifier: Apache-2.0 */
#include "h2_head.h"

#include <errno.h>
#include <string.h>

int h2_head_add(struct h2_head *h, const void *name, size_t name_n, const void *value, size_t value_n) {
        if (h->text.max == 0)
                h->text.max = LIMIT_HTTP_HEAD;
        if (h->n == LIMIT_HTTP_HEADERS || memchr(name, 0, name_n) || (value_n > 0 && memchr(value, 0, value_n)))
                return -ENOBUFS;
        uint8_t *room;
        int r = buf_reserve(&h->text, name_n + value_n + 2, &room);
        if (r < 0)
                return r;
        memcpy(room, name, name_n);
        room[name_n] = 0;
        if (value_n > 0)
                memcpy(room + name_n + 1, value, value_n);
        room[name_n + 1 + value_n] = 0;
        buf_commit(&h->text, name_n + value_n + 2);
        h->n++;
        return 0;
}

void h2_head_done(struct h2_head *h) {
        if (h->text.data)
                explicit_bzero(h->text.data, h->text.cap);
        buf_done(&h->text);
        *h = (struct h2_head){ .n = 0 };
}

void h2_head_each(const struct h2_head *h, bool (*f)(void *arg, const char *name, const char *value), void *arg) {
        const char *at = (const char *) h->text.data;
        for (size_t i = 0; at && i < h->n; i++) {
                const char *value = at + strlen(at) + 1;
                if (!f(arg, at, value))
                        return;
                at = value + strlen(value) + 1;
        }
}

struct search {
        const char *name, *value;
        size_t n;
};

static bool look(void *arg, const char *name, const char *value) {
        struct search *s = arg;
        if (strcmp(name, s->name) == 0 && s->n++ == 0)
                s->value = value;
        return true;
}

const char *h2_head_get(const struct h2_head *h, const char *name) {
        struct search s = { .name = name };
        h2_head_each(h, look, &s);
        return s.value;
}

size_t h2_head_count(const struct h2_head *h, const char *name) {
        struct search s = { .name = name };
        h2_head_each(h, look, &s);
        return s.n;
}

void h2_head_fields(const struct h2_head *h, struct http1_field out[LIMIT_HTTP_HEADERS]) {
        const char *at = (const char *) h->text.data; /* nothing is taken from its front */
        for (size_t i = 0; at && i < h->n; i++) {
                out[i].name = at;
                out[i].value = at + strlen(at) + 1;
                at = out[i].value + strlen(out[i].value) + 1;
        }
}

void h2_head_nv(const struct h2_head *h, nghttp2_nv out[LIMIT_HTTP_HEADERS]) {
        struct http1_field fields[LIMIT_HTTP_HEADERS];
        h2_head_fields(h, fields);
        for (size_t i = 0; i < h->n; i++)
                out[i] = (nghttp2_nv){
                        .name = (uint8_t *) (uintptr_t) fields[i].name,
                        .namelen = strlen(fields[i].name),
                        .value = (uint8_t *) (uintptr_t) fields[i].value,
                        .valuelen = strlen(fields[i].value),
                };
}
