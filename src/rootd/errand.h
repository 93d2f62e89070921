/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * An errand: a process that is started for one question of cspaced's, under a uid that owns nothing, and whose answer
 * is read from a socket. It ends with rootd, with its reader, when its time is up or when it is done, and leaves nothing.
 *
 *             what ends it
 * RUNNING     it ends itself, its reader has gone, or its time is up
 * ENDING      its cgroup is being emptied and removed; then its place is free
 *
 * The reader sees the end of file when the process is gone: rootd keeps a descriptor of the writing side, to be told
 * that the reading one was closed.
 */

#include "base/limits.h"
#include "rootd/confine.h"
#include "rootd/rootd.h"
#include "rootd/watch.h"

#define ERRAND_SUBJECT_SIZE 65
#define ERRAND_PLACES_MAX 16
#define ERRAND_FDS_MAX 2

struct errand_kind {
        const char *what;   /* for the log */
        char letter;        /* of its cgroup: h3 */
        unsigned places;    /* on this host at one time, at most ERRAND_PLACES_MAX */
        struct cgroup_limits limits;
        uid_t (*uid)(const struct instance *i, unsigned place);
};

struct errand {
        struct rootd *rootd;
        const struct errand_kind *kind;
        char subject[ERRAND_SUBJECT_SIZE]; /* what it is about: one of a kind at a time */
        char leaf[CGROUP_LEAF_MAX + 1];
        unsigned place; /* from which uid and cgroup follow */
        uid_t uid;
        unsigned time_s;
        bool ending;
        struct proc proc;
        int out;    /* the process's standard output */
        int hangup; /* epoll: readable when nobody reads any more. Watching `out` would make it non-blocking */
        struct watch *watch;
        uv_timer_t *timer;
        struct errand *next;
};

/* A place, a cgroup and a socket; its reading end is the caller's. -EALREADY: there is one about it; -EAGAIN: no place. */
int errand_new(struct rootd *r, const struct errand_kind *k, const char *subject, struct errand **ret, int *ret_reader,
               struct error *err);
void errand_drop(struct errand *e); /* one that was not started */
void errand_free_all(struct rootd *r);

struct errand_start {
        uid_t uid;            /* and its group */
        gid_t gid;            /* 0: of the same number */
        uint64_t namespaces;  /* CLONE_NEW*, beside pid, ipc and uts */
        int view;             /* mount namespace to live in; -EBADF: prepare() makes one */
        int fds[ERRAND_FDS_MAX]; /* become 3 and up; -EBADF: none */
        struct confine confine;  /* uid and gid of above */
        char *const *argv, *const *env; /* the first argument is the path to execute */
        /* In the child, before it gives anything up; NULL: nothing to do. */
        int (*prepare)(const struct rootd *r, struct errand_start *s, struct error *err);
        void *arg;
        /* Tells in the child a failure as the program would on its standard output. */
        void (*fail)(int out, const char *what, int code);
};

/* In time_s it is ended. On failure the errand is dropped. */
int errand_run(struct errand *e, const struct errand_start *s, unsigned time_s, struct error *err);
