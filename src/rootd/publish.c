/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/publish.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/fd.h"
#include "base/str.h"
#include "manifest/manifest.h"
#include "rootd/build.h"
#include "rootd/disk.h"
#include "rootd/job.h"
#include "rootd/server.h"

/* What the child tells besides errors: in memory that both have. */
struct result {
        char digest[DIGEST_LEN + 1];
        uint64_t disk_bytes;
};

struct publish {
        struct rootd *rootd;
        struct ticket ticket;
        char id[ID_SIZE], image[ID_SIZE];
        char digest[DIGEST_LEN + 1]; /* of the template that the sandbox was made from */
        bool full;
        int manifest; /* manifest.json, open */
        struct result *result;
        struct publish *next; /* of rootd->publishes */
};

bool publish_running(const struct rootd *r, const char *id) {
        for (const struct publish *p = r->publishes; p; p = p->next)
                if (str_eq(p->id, id))
                        return true;
        return false;
}

/* ---- in the child --------------------------------------------------------------------------- */

static int make_out(const struct rootd *r, const char *id, int *ret, struct error *err) {
        int res = fd_remove_tree_at(r->dirs.builds, id, err);
        if (res < 0)
                return res;
        if (mkdirat(r->dirs.builds, id, 0700) < 0)
                return error_errno(err, errno, "cannot make a folder");
        _cleanup_fd_ int dir = fd_open_beneath(r->dirs.builds, id, O_RDONLY | O_DIRECTORY, 0, err);
        if (dir < 0)
                return dir;
        if (mkdirat(dir, "out", 0700) < 0)
                return error_errno(err, errno, "cannot make a folder");
        int out = fd_open_beneath(dir, "out", O_RDONLY | O_DIRECTORY, 0, err);
        if (out < 0)
                return out;
        *ret = out;
        return 0;
}

static int take_copy(int from, const char *folder, const char *name, int out, uint64_t *ret_bytes, struct error *err) {
        char path[DIGEST_LEN + 16];
        uint64_t bytes;
        _cleanup_fd_ int copy = -EBADF;
        (void) snprintf(path, sizeof path, "%s/%s", folder, name);
        _cleanup_fd_ int file = fd_open_beneath(from, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, err);
        int r = file < 0 ? file : disk_clone(file, out, name, 0, 0, &copy, &bytes, err);
        if (r == 0 && ret_bytes)
                *ret_bytes = bytes;
        return r;
}

/* Looked at by nobody here: it is cspaced's own text. */
static int write_manifest(int manifest, int out, struct error *err) {
        _cleanup_free_ char *text = malloc(PUBLISH_MANIFEST_MAX + 1);
        if (!text)
                return error_set(err, -ENOMEM, "out of memory");
        ssize_t n = pread(manifest, text, PUBLISH_MANIFEST_MAX + 1, 0);
        if (n <= 0 || n > PUBLISH_MANIFEST_MAX)
                return error_set(err, -EBADMSG, "the manifest is empty or longer than %d bytes", PUBLISH_MANIFEST_MAX);
        return fd_replace_file_at(out, "manifest.json", text, (size_t) n, 0644, err);
}

static int work(struct rootd *r, void *arg, struct error *err) {
        const struct publish *p = arg;
        _cleanup_fd_ int out = -EBADF;
        int res = make_out(r, p->id, &out, err);
        fault_point("publish:1");
        if (res == 0)
                res = take_copy(r->dirs.checkpoints, p->image, "disk.img", out, &p->result->disk_bytes, err);
        fault_point("publish:2");
        if (res == 0)
                res = take_copy(r->dirs.templates, p->digest, "kernel", out, NULL, err);
        if (res == 0)
                res = take_copy(r->dirs.templates, p->digest, "initrd", out, NULL, err);
        fault_point("publish:3");
        if (res == 0 && p->full)
                res = take_copy(r->dirs.checkpoints, p->image, "mem", out, NULL, err);
        /* Not the image of its process: in QEMU's buffers is what passed through them, the identity of the sandbox too. */
        if (res == 0 && p->full)
                res = take_copy(r->dirs.checkpoints, p->image, "state", out, NULL, err);
        fault_point("publish:4");
        if (res == 0)
                res = write_manifest(p->manifest, out, err);
        if (res == 0)
                res = manifest_write(out, p->result->digest, err);
        fault_point("publish:5");
        if (res < 0)
                (void) fd_remove_tree_at(r->dirs.builds, p->id, NULL);
        return res;
}

/* ---- in rootd ------------------------------------------------------------------------------- */

static void publish_free(struct publish *p) {
        for (struct publish **at = &p->rootd->publishes; *at; at = &(*at)->next)
                if (*at == p) {
                        *at = p->next;
                        break;
                }
        job_shared_free(p->result, sizeof *p->result);
        (void) fd_close(p->manifest);
        free(p);
}

static void on_done(void *arg, const struct error *e) {
        struct publish *p = arg;
        struct ipc_published info = { .disk_bytes = p->result->disk_bytes };
        uint8_t body[128];
        size_t n;
        (void) str_copy(info.digest, sizeof info.digest, p->result->digest);
        if (e)
                ticket_error(p->rootd, &p->ticket, e);
        else if (ipc_published_encode(&info, body, sizeof body, &n) == 0)
                ticket_send(p->rootd, &p->ticket, body, n);
        publish_free(p);
}

static int check(const struct rootd *r, const struct ipc_publish *m, int manifest, struct error *err) {
        if (!id_valid(m->id) || !id_valid(m->image) || !digest_valid(m->digest))
                return error_set(err, -EINVAL, "\"%s\", \"%s\" or \"%s\" is not an id, an image and a digest", m->id, m->image,
                                 m->digest);
        if (!str_eq(m->kind, "full") && !str_eq(m->kind, "disk"))
                return error_set(err, -EINVAL, "\"%s\" is neither \"disk\" nor \"full\"", m->kind);
        if (manifest < 0)
                return error_set(err, -EBADMSG, "the manifest is missing");
        if (build_running(r, m->id) || publish_running(r, m->id))
                return error_set(err, -EBUSY, "%s is being built already", m->id);
        return 0;
}

void publish_handle(struct rootd *r, const struct ticket *t, const struct ipc_publish *m, int fds[2]) {
        struct error e = ERROR_INIT;
        _cleanup_fd_ int manifest = fd_steal(&fds[0]);
        fds[1] = fd_close(fds[1]);
        if (check(r, m, manifest, &e) < 0) {
                ticket_error(r, t, &e);
                return;
        }
        struct publish *p = calloc(1, sizeof *p);
        struct result *shared = p ? job_shared_new(sizeof *p->result) : NULL;
        if (!shared) {
                free(p);
                (void) error_set(&e, -ENOMEM, "out of memory");
                ticket_error(r, t, &e);
                return;
        }
        *p = (struct publish){ .rootd = r, .ticket = *t, .full = str_eq(m->kind, "full"), .manifest = fd_steal(&manifest),
                               .result = shared };
        (void) str_copy(p->id, sizeof p->id, m->id);
        (void) str_copy(p->image, sizeof p->image, m->image);
        (void) str_copy(p->digest, sizeof p->digest, m->digest);
        p->next = r->publishes;
        r->publishes = p;
        if (job_start(r, work, on_done, p, &e) < 0)
                on_done(p, &e);
}
