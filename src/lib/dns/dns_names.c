/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Entries lie in one array and are linked by index: chains of two hash tables (by name, by address) and a
 * list of those without a user, longest unused first. A free entry has no name and is chained by next_name.
 */

#include "dns/dns_names.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "policy/host.h"

#define NONE UINT32_MAX
#define BUCKETS 2048u
#define SAVE_VERSION 1

struct entry {
        char *name;
        uint32_t offset; /* of the address in the net */
        uint32_t users;
        uint32_t next_name, next_addr;
        uint32_t older, newer; /* while users == 0 */
};

struct dns_names {
        uint64_t seed, version;
        size_t max, count, cap;
        uint32_t next_offset;
        uint32_t free, oldest, newest;
        struct entry *entries;
        uint32_t by_name[BUCKETS], by_addr[BUCKETS];
};

static void reset_links(struct dns_names *n) {
        n->free = n->oldest = n->newest = NONE;
        memset(n->by_name, 0xff, sizeof n->by_name);
        memset(n->by_addr, 0xff, sizeof n->by_addr);
}

int dns_names_new(uint64_t seed, size_t max, struct dns_names **ret) {
        struct dns_names *n = calloc(1, sizeof *n);

        if (!n)
                return -ENOMEM;
        n->seed = seed;
        n->max = max < DNS_NAMES_MAX ? max : DNS_NAMES_MAX;
        n->next_offset = DNS_NET_FIRST;
        reset_links(n);
        *ret = n;
        return 0;
}

static void clear(struct dns_names *n) {
        for (size_t i = 0; i < n->cap; i++)
                free(n->entries[i].name);
        free(n->entries);
        n->entries = NULL;
        n->count = n->cap = 0;
        n->next_offset = DNS_NET_FIRST;
        reset_links(n);
}

void dns_names_free(struct dns_names *n) {
        if (!n)
                return;
        clear(n);
        free(n);
}

void dns_names_freep(struct dns_names **n) {
        dns_names_free(*n);
}

/* --- links ------------------------------------------------------------------------------- */

static uint32_t name_bucket(const struct dns_names *n, const char *s) {
        uint64_t h = n->seed ^ 0xcbf29ce484222325u;

        for (; *s; s++) {
                h = (h ^ (uint8_t) *s) * 0x100000001b3u;
                h ^= h >> 29;
        }
        return (uint32_t) (h ^ h >> 32) % BUCKETS;
}

static uint32_t find_name(const struct dns_names *n, const char *name) {
        uint32_t i = n->by_name[name_bucket(n, name)];

        while (i != NONE && strcmp(n->entries[i].name, name) != 0)
                i = n->entries[i].next_name;
        return i;
}

static uint32_t find_offset(const struct dns_names *n, uint32_t offset) {
        uint32_t i = n->by_addr[offset % BUCKETS];

        while (i != NONE && n->entries[i].offset != offset)
                i = n->entries[i].next_addr;
        return i;
}

static void idle_append(struct dns_names *n, uint32_t i) {
        struct entry *e = &n->entries[i];

        e->older = n->newest;
        e->newer = NONE;
        if (n->newest != NONE)
                n->entries[n->newest].newer = i;
        else
                n->oldest = i;
        n->newest = i;
}

static void idle_remove(struct dns_names *n, uint32_t i) {
        struct entry *e = &n->entries[i];

        if (e->older != NONE)
                n->entries[e->older].newer = e->newer;
        else
                n->oldest = e->newer;
        if (e->newer != NONE)
                n->entries[e->newer].older = e->older;
        else
                n->newest = e->older;
}

static void touch(struct dns_names *n, uint32_t i) {
        if (n->entries[i].users > 0)
                return;
        idle_remove(n, i);
        idle_append(n, i);
}

static void unchain(struct dns_names *n, uint32_t i) {
        struct entry *e = &n->entries[i];
        uint32_t *p = &n->by_name[name_bucket(n, e->name)];

        while (*p != i)
                p = &n->entries[*p].next_name;
        *p = e->next_name;
        p = &n->by_addr[e->offset % BUCKETS];
        while (*p != i)
                p = &n->entries[*p].next_addr;
        *p = e->next_addr;
}

/* --- entries ----------------------------------------------------------------------------- */

static void evict(struct dns_names *n, uint32_t i) {
        struct entry *e = &n->entries[i];

        unchain(n, i);
        idle_remove(n, i);
        free(e->name);
        e->name = NULL;
        e->next_name = n->free;
        n->free = i;
        n->count--;
}

static int grow(struct dns_names *n) {
        size_t cap = n->cap ? n->cap * 2 : 64;

        if (cap > n->max)
                cap = n->max;
        struct entry *more = reallocarray(n->entries, cap, sizeof *more);
        if (!more)
                return -ENOMEM;
        n->entries = more;
        for (size_t i = n->cap; i < cap; i++) {
                more[i] = (struct entry){ .next_name = n->free };
                n->free = (uint32_t) i;
        }
        n->cap = cap;
        return 0;
}

/* Makes sure that an entry is free. */
static int make_room(struct dns_names *n) {
        if (n->free != NONE)
                return 0;
        if (n->cap < n->max)
                return grow(n);
        if (n->oldest == NONE)
                return -ENOSPC;
        evict(n, n->oldest);
        return 0;
}

static int insert(struct dns_names *n, const char *name, uint32_t offset, uint32_t *ret) {
        char *copy = strdup(name);

        if (!copy)
                return -ENOMEM;
        uint32_t i = n->free, b = name_bucket(n, name);
        struct entry *e = &n->entries[i];
        n->free = e->next_name;
        *e = (struct entry){ .name = copy,
                             .offset = offset,
                             .next_name = n->by_name[b],
                             .next_addr = n->by_addr[offset % BUCKETS] };
        n->by_name[b] = n->by_addr[offset % BUCKETS] = i;
        idle_append(n, i);
        n->count++;
        *ret = i;
        return 0;
}

/* There are far more addresses than names, so one is free. */
static uint32_t take_offset(struct dns_names *n) {
        for (;;) {
                uint32_t o = n->next_offset++;
                if (n->next_offset == DNS_NET_SIZE)
                        n->next_offset = DNS_NET_FIRST;
                if (find_offset(n, o) == NONE)
                        return o;
        }
}

static struct in_addr addr_of(uint32_t offset) {
        return (struct in_addr){ .s_addr = htonl(DNS_NET + offset) };
}

bool dns_names_in_range(struct in_addr a) {
        return (ntohl(a.s_addr) & DNS_NET_MASK) == DNS_NET;
}

static uint32_t find_addr(const struct dns_names *n, struct in_addr a) {
        return dns_names_in_range(a) ? find_offset(n, ntohl(a.s_addr) - DNS_NET) : NONE;
}

int dns_names_get(struct dns_names *n, const char *name, struct in_addr *ret, bool *ret_new) {
        uint32_t i = find_name(n, name);
        bool is_new = i == NONE;

        if (is_new) {
                int r = make_room(n);
                if (r == 0)
                        r = insert(n, name, take_offset(n), &i);
                if (r < 0)
                        return r;
                n->version++;
        }
        touch(n, i);
        *ret = addr_of(n->entries[i].offset);
        if (ret_new)
                *ret_new = is_new;
        return 0;
}

bool dns_names_find(const struct dns_names *n, const char *name, struct in_addr *ret) {
        uint32_t i = find_name(n, name);

        if (i == NONE)
                return false;
        *ret = addr_of(n->entries[i].offset);
        return true;
}

const char *dns_names_lookup(struct dns_names *n, struct in_addr a) {
        uint32_t i = find_addr(n, a);

        if (i == NONE)
                return NULL;
        touch(n, i);
        return n->entries[i].name;
}

bool dns_names_hold(struct dns_names *n, struct in_addr a) {
        uint32_t i = find_addr(n, a);

        if (i == NONE)
                return false;
        if (n->entries[i].users == 0)
                idle_remove(n, i);
        n->entries[i].users++;
        return true;
}

void dns_names_release(struct dns_names *n, struct in_addr a) {
        uint32_t i = find_addr(n, a);

        if (i == NONE || n->entries[i].users == 0)
                return;
        if (--n->entries[i].users == 0)
                idle_append(n, i);
}

size_t dns_names_count(const struct dns_names *n) {
        return n->count;
}

uint64_t dns_names_version(const struct dns_names *n) {
        return n->version;
}

/* Those with users are the youngest. */
void dns_names_each(const struct dns_names *n, bool (*f)(void *arg, const char *name), void *arg) {
        for (uint32_t i = n->oldest; i != NONE; i = n->entries[i].newer)
                if (!f(arg, n->entries[i].name))
                        return;
        for (size_t i = 0; i < n->cap; i++)
                if (n->entries[i].name && n->entries[i].users > 0 && !f(arg, n->entries[i].name))
                        return;
}

/* --- saved ------------------------------------------------------------------------------- */

struct saving {
        const struct dns_names *names;
        json_t *list;
        bool failed;
};

static bool save_one(void *arg, const char *name) {
        struct saving *s = arg;
        char text[INET_ADDRSTRLEN];
        struct in_addr a = addr_of(s->names->entries[find_name(s->names, name)].offset);

        inet_ntop(AF_INET, &a, text, sizeof text);
        s->failed = json_array_append_new(s->list, json_pack("[s,s]", name, text)) < 0;
        return !s->failed;
}

int dns_names_save(const struct dns_names *n, json_t **ret, struct error *err) {
        _cleanup_json_ json_t *list = json_array();
        struct saving s = { .names = n, .list = list, .failed = !list };

        if (!s.failed)
                dns_names_each(n, save_one, &s);
        json_t *j = s.failed ? NULL
                             : json_pack("{s:i,s:I,s:O}", "version", SAVE_VERSION, "next", (json_int_t) n->next_offset,
                                         "names", list);
        if (!j)
                return error_set(err, -ENOMEM, "out of memory");
        *ret = j;
        return 0;
}

static int restore_one(struct dns_names *n, const json_t *pair, struct error *err) {
        const char *name = json_string_value(json_array_get(pair, 0));
        const char *addr = json_string_value(json_array_get(pair, 1));
        char canonical[HOST_SIZE];
        struct in_addr a;
        uint32_t i;

        if (!name || !addr || json_array_size(pair) != 2)
                return error_set(err, -EINVAL, "must be a name and an address");
        if (host_parse_name(name, strlen(name), canonical, NULL) < 0 || strcmp(name, canonical) != 0)
                return error_set(err, -EINVAL, "the name is not a canonical one");
        if (inet_pton(AF_INET, addr, &a) != 1 || !dns_names_in_range(a) || ntohl(a.s_addr) - DNS_NET < DNS_NET_FIRST)
                return error_set(err, -EINVAL, "the address is not a synthetic one");
        if (find_name(n, name) != NONE || find_addr(n, a) != NONE)
                return error_set(err, -EINVAL, "the name or the address is there already");
        int r = make_room(n);
        if (r == 0)
                r = insert(n, name, ntohl(a.s_addr) - DNS_NET, &i);
        return r < 0 ? error_errno(err, r, "cannot keep it") : 0;
}

static int restore_list(struct dns_names *n, const json_t *list, struct error *err) {
        json_t *pair;
        size_t i;

        json_array_foreach(list, i, pair) {
                int r = restore_one(n, pair, err);
                if (r < 0)
                        return error_wrap(err, "names[%zu]", i);
        }
        return 0;
}

int dns_names_restore(struct dns_names *n, const json_t *j, struct error *err) {
        static const char *const keys[] = { "version", "next", "names", NULL };
        struct error own = ERROR_INIT;
        uint64_t version = 0, next = 0;
        json_t *list = NULL;

        if (!err)
                err = &own;
        if (n->count > 0)
                return error_set(err, -EBUSY, "the table of names is not empty");
        int r = json_is_object(j) ? json_only_keys(j, keys, err) : error_set(err, -EINVAL, "must be an object");
        if (r == 0)
                r = json_read_u64(j, "version", true, SAVE_VERSION, SAVE_VERSION, &version, err);
        if (r == 0)
                r = json_read_u64(j, "next", true, DNS_NET_FIRST, DNS_NET_SIZE - 1, &next, err);
        if (r == 0)
                r = json_read_array(j, "names", true, n->max, &list, err);
        if (r == 0)
                r = restore_list(n, list, err);
        if (r < 0) {
                clear(n);
                return r;
        }
        n->next_offset = (uint32_t) next;
        n->version++;
        return 0;
}
