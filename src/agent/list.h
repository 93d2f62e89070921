/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* An intrusive doubly linked ring. A head and an unlinked member point to themselves. */

#include <stdbool.h>
#include <stddef.h>

#include "base/cleanup.h"

struct list {
        struct list *prev, *next;
};

static inline void list_init(struct list *l) {
        l->prev = l->next = l;
}
static inline bool list_empty(const struct list *l) {
        return l->next == l;
}
static inline void list_append(struct list *head, struct list *l) {
        l->prev = head->prev;
        l->next = head;
        head->prev->next = l;
        head->prev = l;
}
static inline void list_remove(struct list *l) {
        l->prev->next = l->next;
        l->next->prev = l->prev;
        list_init(l);
}

/* The body may remove `it` itself, but no other member. */
#define LIST_FOREACH(it, head) \
        for (struct list *it = (head)->next, *it##_next = it->next; it != (head); \
             it = it##_next, it##_next = it->next)
