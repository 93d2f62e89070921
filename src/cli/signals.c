/* SPDX-License-Identifier: Apache-2.0 */
#include "signals.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "mem.h"

struct one {
        uv_signal_t handle;
        struct signals *set;
};

struct signals {
        struct one **list;
        size_t n;
        signals_cb cb;
        void *arg;
};

static void on_signal(uv_signal_t *h, int signum) {
        struct one *o = h->data;

        o->set->cb(o->set->arg, signum);
}

static void on_closed(uv_handle_t *h) {
        free(h->data);
}

struct signals *signals_new(uv_loop_t *loop, const int *list, signals_cb cb, void *arg) {
        struct signals *s = mem_new(sizeof *s);

        s->cb = cb;
        s->arg = arg;
        for (; *list; list++) {
                struct sigaction now;

                /* nohup(1) and the shell's "&" say so by ignoring; that stays. */
                if (sigaction(*list, NULL, &now) == 0 && now.sa_handler == SIG_IGN)
                        continue;
                struct one *o = mem_new(sizeof *o);
                o->set = s;
                uv_signal_init(loop, &o->handle);
                o->handle.data = o;
                uv_signal_start(&o->handle, on_signal, *list);
                uv_unref((uv_handle_t *) &o->handle);
                s->list = mem_grow(s->list, s->n + 1, sizeof(struct one *));
                s->list[s->n++] = o;
        }
        return s;
}

void signals_free(struct signals *s) {
        if (!s)
                return;
        for (size_t i = 0; i < s->n; i++) {
                uv_signal_stop(&s->list[i]->handle);
                uv_close((uv_handle_t *) &s->list[i]->handle, on_closed);
        }
        free(s->list);
        free(s);
}

int signals_number(const char *name) {
        if (str_has_prefix(name, "SIG"))
                name += 3;
        for (int i = 1; i < 65; i++) {
                const char *abbrev = sigabbrev_np(i);
                if (abbrev && strcmp(abbrev, name) == 0)
                        return i;
        }
        return -1;
}

bool signals_ends(int signum) {
        return signum == SIGINT || signum == SIGTERM || signum == SIGHUP || signum == SIGQUIT;
}
