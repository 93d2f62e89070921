/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cspace-history: what changed between two disk images, and files out of one.
 *
 * cspace-rootd opens the images and starts this program under a uid that owns nothing, in empty namespaces:
 *
 *   descriptor 3   the image (of diff: the older one), read-only
 *   descriptor 4   of diff: the newer image, read-only
 *   standard output   the answer
 *
 * Everything in an image was written by a guest and may lie. The worst that may come of it is an error about
 * that guest's own history: one line {"error":"...","code":"..."} and exit status 1. Before it reads the first
 * byte the program gives up all but a few system calls (confine.h) and sets itself limits (bounds.h).
 */
#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "confine.h"
#include "diff.h"
#include "hfs.h"
#include "options.h"
#include "output.h"
#include "show.h"

#define FD_OLD 3
#define FD_NEW 4

static const char *code_of(int code) {
        switch (-code) {
        case EINVAL:
                return "bad_argument";
        case ENOENT:
                return "not_found";
        case ENOTDIR:
                return "not_a_directory";
        case EISDIR:
                return "is_a_directory";
        case ELOOP:
                return "too_many_links";
        case ENAMETOOLONG:
                return "path_too_long";
        case EUCLEAN:
        case ERANGE:
                return "corrupt_filesystem";
        case EOPNOTSUPP:
                return "unsupported_filesystem";
        case EDQUOT:
        case EFBIG:
        case ENOMEM:
        case ENOBUFS:
                return "limit";
        default:
                return "io_error";
        }
}

static int fail(struct output *out, const struct error *err) {
        struct error ignored = ERROR_INIT;
        json_t *line = json_object();

        if (line) {
                (void) output_set_name(line, "error", err->msg, strlen(err->msg));
                (void) json_object_set_new(line, "code", json_string(code_of(err->code)));
                (void) output_line(out, line, &ignored);
        }
        (void) output_flush(out, &ignored);
        return 1;
}

static int run_one(struct image *img, const struct options *o, struct output *out, struct error *err) {
        _cleanup_(hfs_freep) struct hfs *fs = NULL;

        int r = hfs_open(img, &fs, err);
        if (r < 0)
                return r;
        return o->verb == VERB_CAT ? show_cat(fs, o, out, err) : show_extract(fs, o, out, err);
}

static int run_diff(struct image *old, struct image *new, const struct options *o, struct output *out,
                    struct error *err) {
        _cleanup_(hfs_freep) struct hfs *a = NULL, *b = NULL;

        int r = hfs_open(old, &a, err);
        if (r < 0) {
                error_wrap(err, "older image");
                return r;
        }
        r = hfs_open(new, &b, err);
        if (r < 0) {
                error_wrap(err, "newer image");
                return r;
        }
        return diff_run(a, b, o, out, err);
}

static int run(const struct options *o, struct output *out, struct error *err) {
        _cleanup_(image_done) struct image old = IMAGE_INIT, new = IMAGE_INIT;

        int r = image_open_fd(&old, FD_OLD, err);
        if (r == 0 && o->verb == VERB_DIFF)
                r = image_open_fd(&new, FD_NEW, err);
        if (r == 0)
                r = confine(err);
        if (r < 0)
                return r;
        return o->verb == VERB_DIFF ? run_diff(&old, &new, o, out, err) : run_one(&old, o, out, err);
}

int main(int argc, char **argv) {
        _cleanup_(output_done) struct output out;
        struct error err = ERROR_INIT;
        static struct options o;

        output_init(&out, STDOUT_FILENO);
        initialize_ext2_error_table();
        /* Both read a file at their first use, which later they could not. */
        tzset();
        json_object_seed(0);
        int r = options_parse(argc, argv, &o, &err);
        if (r == 0)
                r = run(&o, &out, &err);
        if (r == 0)
                r = output_flush(&out, &err);
        return r < 0 ? fail(&out, &err) : 0;
}
