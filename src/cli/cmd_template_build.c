/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/str.h"
#include "cli.h"
#include "client.h"
#include "command.h"
#include "mem.h"
#include "operation.h"
#include "output.h"
#include "template.h"
#include "text.h"

#define MIB (1024u * 1024)
#define BUILD_READ (256u * 1024)
#define BUILD_LOG_LINES 20 /* of the tools' output, shown after a failure */

static struct opt_list packages;
static const char *tar, *suite;
static uint64_t disk, memory, cpus, timeout_s, checkpoint_every_s, checkpoint_keep;
static bool quiet;

/* Fields of the request, and what was given for them; 0: nothing was. */
static const struct {
        const char *field;
        const uint64_t *given;
        uint64_t unit;
} numbers[] = { { "disk_mb", &disk, MIB },
                { "memory_mb", &memory, MIB },
                { "cpus", &cpus, 1 },
                { "timeout_s", &timeout_s, 1 },
                { "checkpoint_every_s", &checkpoint_every_s, 1 },
                { "checkpoint_keep", &checkpoint_keep, 1 } };

struct build {
        struct client *c;
        char *name;
        const char *tag; /* NULL: default */
        char *ref;       /* NAME:TAG */
        char *before;    /* the digest that it had until now; NULL: none */
        struct progress *progress;
        uint64_t begin_ms;
};

/* --- from packages ---------------------------------------------------------------------------------- */

/* Names stand between blanks or commas; the option may come again and again. */
static json_t *package_list(void) {
        json_t *list = json_array();

        for (size_t i = 0; i < packages.n; i++) {
                for (const char *p = packages.items[i]; *p;) {
                        size_t n = strcspn(p, " ,\t\n");
                        if (n > 0 && json_array_append_new(list, json_stringn(p, n)) < 0) {
                                json_decref(list);
                                return NULL;
                        }
                        p += n + (p[n] != '\0');
                }
        }
        return list;
}

static int start_packages(struct build *b, json_t **ret, struct api_error *e) {
        _cleanup_json_ json_t *body = json_object();
        json_t *list = package_list();

        if (!list)
                return api_error_set(e, "usage", "--packages is not UTF-8");
        json_object_set_new(body, "packages", list);
        if (json_object_set_new(body, "name", json_string(b->name)) < 0)
                return api_error_set(e, "usage", "the name is not UTF-8");
        if (b->tag && json_object_set_new(body, "tag", json_string(b->tag)) < 0)
                return api_error_set(e, "usage", "the tag is not UTF-8");
        if (suite && json_object_set_new(body, "suite", json_string(suite)) < 0)
                return api_error_set(e, "usage", "--suite is not UTF-8");
        for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
                if (*numbers[i].given)
                        json_object_set_new(body, numbers[i].field, json_integer((json_int_t) (*numbers[i].given / numbers[i].unit)));
        return client_call(b->c, "POST", "/v1/templates", body, 0, ret, e);
}

/* --- from an archive ---------------------------------------------------------------------------------- */

static char *import_target(const struct build *b) {
        _cleanup_free_ char *name = client_escape(b->name), *tag = b->tag ? client_escape(b->tag) : NULL;
        char *t = mem_printf("/v1/templates/import?name=%s%s%s", name, tag ? "&tag=" : "", tag ? tag : "");
        for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
                if (*numbers[i].given == 0)
                        continue;
                _cleanup_free_ char *old = t;
                t = mem_printf("%s&%s=%llu", old, numbers[i].field, (unsigned long long) (*numbers[i].given / numbers[i].unit));
        }
        return t;
}

static int send_file(struct build *b, struct xfer *x, int fd, uint64_t size, struct api_error *e) {
        _cleanup_free_ uint8_t *piece = mem_new(BUILD_READ);
        uint64_t done = 0;

        for (;;) {
                ssize_t n = read(fd, piece, BUILD_READ);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return api_error_set(e, "failure", "cannot read \"%s\": %s", tar, strerror(errno));
                if (n == 0)
                        break;
                if (xfer_write(x, piece, (size_t) n, e) < 0)
                        return -1;
                done += (uint64_t) n;
                progress_bytes(b->progress, "sending the archive", done, size);
        }
        if (size > 0 && done != size)
                return api_error_set(e, "failure", "\"%s\" changed its size while it was read", tar);
        return 0;
}

static int start_tar(struct build *b, json_t **ret, struct api_error *e) {
        _cleanup_fd_ int opened = -EBADF;
        _cleanup_free_ char *target = import_target(b);
        struct xfer *x = NULL;
        struct stat st;
        int fd = STDIN_FILENO;

        if (!str_eq(tar, "-")) {
                opened = fd = open(tar, O_RDONLY | O_CLOEXEC);
                if (fd < 0)
                        return api_error_set(e, "failure", "cannot open \"%s\": %s", tar, strerror(errno));
        }
        if (fstat(fd, &st) < 0)
                return api_error_set(e, "failure", "cannot read \"%s\": %s", tar, strerror(errno));
        if (S_ISDIR(st.st_mode))
                return api_error_set(e, "failure",
                                     "\"%s\" is a folder; make an archive of it: tar -C %s -cf rootfs.tar .",
                                     tar, tar);
        bool sized = S_ISREG(st.st_mode) && fd != STDIN_FILENO;
        if (sized && st.st_size == 0)
                return api_error_set(e, "failure", "\"%s\" is empty", tar);
        if (xfer_open(b->c, "POST", target, "application/x-tar", sized ? (int64_t) st.st_size : -1, &x, e) <
            0)
                return -1;
        xfer_set_timeout(x, (uint64_t) 10 * CLIENT_TIMEOUT_MS);
        int r = send_file(b, x, fd, sized ? (uint64_t) st.st_size : 0, e);
        if (r == 0)
                r = xfer_finish(x, e);
        if (r == 0)
                r = xfer_read_json(x, ret, e);
        xfer_free(x);
        return r;
}

/* --- following ---------------------------------------------------------------------------------------- */

static void show_log(struct client *c, const char *op) {
        _cleanup_free_ char *id = client_escape(op), *target = mem_printf("/v1/operations/%s/log", id);
        _cleanup_json_ json_t *log = NULL;
        struct api_error e;

        if (cli()->json || client_call(c, "GET", target, NULL, 0, &log, &e) < 0)
                return;
        const char *text = member_str(log, "text"), *p = text + strlen(text);
        for (int lines = 0; p > text && lines <= BUILD_LOG_LINES; p--)
                if (p[-1] == '\n')
                        lines++;
        if (*p == '\n')
                p++;
        while (*p) {
                size_t n = strcspn(p, "\n");
                _cleanup_free_ char *line = text_safe_n(p, n);
                fprintf(stderr, "  | %s\n", line);
                p += n + (p[n] == '\n');
        }
}

static int follow(struct build *b, const char *op) {
        _cleanup_json_ json_t *result = NULL;
        char took[TEXT_SIZE];
        struct api_error e;

        int r = operation_watch(b->c, op, b->progress, "the build goes on without being watched; `cspace template ls` shows when it is done",
                                &result, &e);
        if (r > 0)
                return r;
        if (r < 0) {
                show_log(b->c, op);
                return api_error_print(&e);
        }
        const char *digest = member_str(json_object_get(result, "result"), "digest");
        if (cli()->json) {
                output_json(result);
        } else {
                text_duration(clock_mono_ms() - b->begin_ms, took);
                if (!quiet) {
                        cli_note("template %s is built, in %s", b->ref, took);
                        template_tell_moved(b->ref, b->before, digest);
                }
                text_put(stdout, digest);
                putchar('\n');
        }
        return CLI_OK;
}

static int build(struct build *b) {
        _cleanup_json_ json_t *answer = NULL;
        struct api_error e;

        int r = tar ? start_tar(b, &answer, &e) : start_packages(b, &answer, &e);
        progress_clear(b->progress);
        if (r < 0)
                return api_error_print(&e);
        const char *op = member_str(json_object_get(answer, "operation"), "id");
        if (!*op)
                return cli_fail_code("protocol", "cspaced answered a build without an operation");
        return follow(b, op);
}

static int check_sizes(void) {
        if (disk % MIB)
                return cli_usage("--disk: %llu bytes are no whole number of MiB", (unsigned long long) disk);
        if (memory % MIB)
                return cli_usage("--memory: %llu bytes are no whole number of MiB",
                                 (unsigned long long) memory);
        if (tar && packages.n > 0)
                return cli_usage("--tar and --packages exclude each other: an archive is taken as it is");
        if (tar && suite)
                return cli_usage("--tar and --suite exclude each other: an archive is taken as it is");
        return CLI_OK;
}

static int run(int argc, char **argv) {
        struct error err = ERROR_INIT;
        const char *colon = strchr(argv[0], ':');
        size_t n = colon ? (size_t) (colon - argv[0]) : strlen(argv[0]);
        struct build b = { .tag = colon ? colon + 1 : NULL, .begin_ms = clock_mono_ms() };

        (void) argc;
        if (!template_name_valid(argv[0], n) || (b.tag && !template_name_valid(b.tag, strlen(b.tag))))
                return cli_usage(
                        "\"%s\" is no template name: NAME[:TAG], each of a-z, 0-9, \".\", \"_\" and \"-\", "
                        "at most %d, "
                        "beginning with a letter or digit",
                        argv[0], TEMPLATE_NAME_MAX);
        int rc = check_sizes();
        if (rc != CLI_OK)
                return rc;
        if (client_new(&b.c, &err) < 0)
                return cli_fail_err(&err);
        b.name = mem_ndup(argv[0], n);
        b.ref = mem_printf("%s:%s", b.name, b.tag ? b.tag : "latest");
        b.before = template_digest(b.c, b.ref);
        b.progress = progress_new(!quiet);
        rc = build(&b);
        progress_free(b.progress);
        free(b.name);
        free(b.ref);
        free(b.before);
        client_free(b.c);
        return rc;
}

static const struct opt opts[] = {
        { "packages", 'p', OPT_LIST, &packages, "LIST",
          "Debian packages beyond the base set, with blanks or commas.", COMPLETE_NONE, 0, 0 },
        { "tar", 0, OPT_STRING, &tar, "FILE", "Take the root filesystem from an archive (\"-\": stdin).",
          COMPLETE_FILE, 0, 0 },
        { "suite", 0, OPT_STRING, &suite, "NAME", "Debian suite; by default that of the host.", COMPLETE_NONE,
          0, 0 },
        { "disk", 0, OPT_SIZE, &disk, "SIZE", "Size of the disk.", COMPLETE_NONE,
          (uint64_t) LIMIT_TEMPLATE_DISK_MIN_MB << 20, (uint64_t) LIMIT_DISK_MAX_MB << 20 },
        { "memory", 'm', OPT_SIZE, &memory, "SIZE", "Memory of the size that is prepared at once.",
          COMPLETE_NONE, (uint64_t) LIMIT_MEMORY_MIN_MB << 20, (uint64_t) LIMIT_MEMORY_MAX_MB << 20 },
        { "cpus", 'c', OPT_UINT, &cpus, "N", "CPUs of the size that is prepared at once.", COMPLETE_NONE, 1,
          LIMIT_CPUS_MAX },
        { "timeout", 0, OPT_SECONDS, &timeout_s, "TIME", "Give up after so long.", COMPLETE_NONE, 1, 0 },
        { "checkpoint-every", 0, OPT_SECONDS, &checkpoint_every_s, "TIME",
          "Its sandboxes get a checkpoint so often, unless they say otherwise.", COMPLETE_NONE, 2, 0 },
        { "checkpoint-keep", 0, OPT_UINT, &checkpoint_keep, "N", "And keep the newest N of those (6).", COMPLETE_NONE, 1, 100 },
        { "quiet", 'q', OPT_FLAG, &quiet, NULL, "Print the digest alone.", COMPLETE_NONE, 0, 0 },
        OPT_END,
};

const struct command command_template_build = {
        .name = "template build",
        .synopsis = "[OPTION...] NAME[:TAG]",
        .summary = "Build a template.",
        .details = "From Debian packages, or from the archive of a root filesystem (tar; gzip, xz or zstd "
                   "too). Prints the "
                   "digest. The build goes on if this program is stopped.\n\n"
                   "  cspace template build data --packages \"python3-numpy python3-pandas\"\n"
                   "  cspace template build mine:v2 --tar rootfs.tar.zst --disk 16G",
        .opts = opts,
        .min_args = 1,
        .max_args = 1,
        .command_at = -1,
        .run = run,
};
