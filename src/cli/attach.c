/* SPDX-License-Identifier: Apache-2.0 */
#include "attach.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli.h"
#include "mem.h"
#include "signals.h"
#include "sink.h"
#include "source.h"
#include "text.h"
#include "wire/attach.h"

#define OUT_HIGH (2u * 1024 * 1024) /* output held; above it the connection is not read */
#define OUT_LOW (512u * 1024)
#define IN_FRAMES (4u * 1024 * 1024) /* received and not yet taken apart */
#define IN_AHEAD (512u * 1024)       /* stdin read and not yet sent */
#define STDIN_PIECE (64u * 1024)
#define ACK_EVERY (64u * 1024)
#define RETRY_FIRST_MS 100
#define RETRY_MOST_MS 2000
#define TICK_MS 1000
#define SIGNALS_TO_KILL 4
#define SIGNALS_WINDOW_MS 5000

/*
 * A connection goes through these; those marked * own something that must be given up.
 *
 * CONNECTING  upgrade under way*             OPEN, WAITING, OVER
 * OPEN        stream*, frames flow           WAITING, OVER
 * WAITING     lost; the next try is timed    CONNECTING, OVER
 * OVER        result is set; output may still be on its way out
 */
enum link_state { LINK_CONNECTING, LINK_OPEN, LINK_WAITING, LINK_OVER };

struct attach {
        struct attach_params p;
        char *target;
        enum link_state link;
        struct upgrade *upgrade;
        struct stream *stream;
        struct attach_reader reader;
        struct sink *sink;
        struct source *source;
        uv_timer_t tick, retry;
        /* output */
        uint64_t received; /* offset of the next byte wanted */
        uint64_t acked, written;
        bool held; /* the stream is not read */
        /* input: bytes [base, base + len) of stdin are kept until the agent surely has them */
        struct buf input;
        uint64_t base, sent, window;
        bool input_ended, eof_sent;
        /* control */
        bool started; /* STARTED was seen once */
        bool greeted; /* STARTED was seen on this connection */
        uint64_t pending_signals;
        int ends; /* signals in a row that ask for an end */
        uint64_t last_end_ms;
        uint16_t cols, rows;
        uint64_t heard_ms, pinged_ms, lost_ms;
        unsigned retry_ms;
        bool abandoned; /* do not wait for the output either */
        int handles;    /* not yet closed */
        struct attach_result result;
};

static void connect_now(struct attach *a);
static void pump_input(struct attach *a);

static void drop_link(struct attach *a) {
        upgrade_cancel(STEAL(a->upgrade));
        stream_abort(STEAL(a->stream));
        buf_clear(&a->reader.in);
        a->held = a->greeted = a->eof_sent = false;
}

static void over(struct attach *a, enum attach_end end) {
        if (a->link == LINK_OVER)
                return;
        drop_link(a);
        a->link = LINK_OVER;
        a->result.end = end;
        uv_timer_stop(&a->tick);
        uv_timer_stop(&a->retry);
        source_free(STEAL(a->source));
}

static void over_error(struct attach *a, const char *code, const char *text) {
        if (a->link == LINK_OVER)
                return;
        api_error_set(&a->result.err, code, "%s", text);
        over(a, ATTACH_FAILED);
}

/* No connection, and no hope of one. */
static void give_up(struct attach *a, const struct api_error *why) {
        a->result.err = *why;
        if (a->started)
                snprintf(a->result.err.message, sizeof a->result.err.message,
                         "the connection to the command was lost and its exit status is not known: %.300s",
                         why->message);
        over(a, ATTACH_FAILED);
}

static void on_retry(uv_timer_t *t) {
        connect_now(t->data);
}

/* The connection is gone: try again, unless that has gone on for too long. */
static void lost(struct attach *a, const struct api_error *why) {
        uint64_t now = clock_mono_ms();

        if (a->link == LINK_OVER)
                return;
        drop_link(a);
        if (a->lost_ms == 0) {
                a->lost_ms = now;
                a->retry_ms = RETRY_FIRST_MS;
                if (a->started && a->p.on_link)
                        a->p.on_link(a->p.arg, false);
        }
        if (now - a->lost_ms > ATTACH_RETRY_MS) {
                give_up(a, why);
                return;
        }
        a->link = LINK_WAITING;
        uv_timer_start(&a->retry, on_retry, a->retry_ms, 0);
        a->retry_ms = a->retry_ms * 2 > RETRY_MOST_MS ? RETRY_MOST_MS : a->retry_ms * 2;
}

static void lost_text(struct attach *a, const char *text) {
        struct api_error e;

        api_error_set(&e, "connection_lost", "%s", text);
        lost(a, &e);
}

/* --- frames out ------------------------------------------------------------------------------- */

static void send_frame(struct attach *a, enum attach_type type, const void *x, size_t xn, const void *y,
                       size_t yn) {
        _cleanup_buf_ struct buf out = BUF_INIT(ATTACH_HEAD + ATTACH_PAYLOAD_MAX);

        if (a->link != LINK_OPEN)
                return;
        if (attach_write(&out, type, x, xn, y, yn) < 0 ||
            stream_write(a->stream, buf_data(&out), out.len) < 0)
                a->heard_ms = 0; /* on_error() tells the rest; if not, the next tick does */
}

static void send_ack(struct attach *a) {
        uint8_t offset[8];

        if (!a->greeted || a->written <= a->acked)
                return;
        attach_put_u64(offset, a->written);
        send_frame(a, ATTACH_ACK, offset, sizeof offset, NULL, 0);
        a->acked = a->written;
}

static void send_size(struct attach *a) {
        const uint8_t size[4] = { (uint8_t) (a->cols >> 8), (uint8_t) a->cols, (uint8_t) (a->rows >> 8),
                                  (uint8_t) a->rows };

        if (a->greeted && a->cols > 0)
                send_frame(a, ATTACH_RESIZE, size, sizeof size, NULL, 0);
}

static void send_signals(struct attach *a) {
        for (int i = 1; i < 64 && a->greeted; i++) {
                const uint8_t number = (uint8_t) i;

                if (a->pending_signals & 1ULL << i)
                        send_frame(a, ATTACH_SIGNAL, &number, 1, NULL, 0);
        }
        if (a->greeted)
                a->pending_signals = 0;
}

static void on_input(void *arg, const uint8_t *data, size_t n, int err) {
        struct attach *a = arg;

        if (err < 0)
                cli_note("stdin cannot be read (%s); the command sees its end", strerror(-err));
        if (n == 0)
                a->input_ended = true;
        if (n > 0 && a->p.filter) {
                uint8_t *copy = mem_new(n + 1);

                memcpy(copy, data, n);
                ssize_t left = a->p.filter(a->p.filter_arg, copy, n);
                if (left < 0)
                        over(a, ATTACH_DETACHED);
                else
                        (void) buf_append(&a->input, copy, (size_t) left);
                free(copy);
        } else if (n > 0 && buf_append(&a->input, data, n) < 0) {
                over_error(a, "failure", "out of memory");
        }
        if (a->link != LINK_OVER)
                pump_input(a);
}

/* Sends what the window allows, and reads on when little is left. */
static void pump_input(struct attach *a) {
        uint64_t end = a->base + a->input.len;

        while (a->greeted && a->sent < end && a->sent < a->window &&
               stream_queued(a->stream) < STREAM_HIGH_WATER) {
                uint64_t n = end - a->sent, room = a->window - a->sent;

                n = n > room ? room : n;
                n = n > STDIN_PIECE ? STDIN_PIECE : n;
                send_frame(a, ATTACH_STDIN, buf_data(&a->input) + (a->sent - a->base), (size_t) n, NULL, 0);
                a->sent += n;
        }
        if (a->greeted && a->input_ended && a->sent == end && !a->eof_sent) {
                a->eof_sent = true;
                send_frame(a, ATTACH_STDIN_EOF, NULL, 0, NULL, 0);
        }
        if (a->source && !a->input_ended && end - a->sent < IN_AHEAD)
                source_next(a->source);
}

/* --- frames in -------------------------------------------------------------------------------- */

static bool frame_size_is(struct attach *a, size_t n, size_t least) {
        if (n >= least)
                return true;
        over_error(a, "guest_protocol", "the sandbox sent a frame that is too short");
        return false;
}

static void on_started(struct attach *a, const uint8_t *data, size_t n) {
        if (!frame_size_is(a, n, 12))
                return;
        uint32_t pid =
                (uint32_t) data[0] << 24 | (uint32_t) data[1] << 16 | (uint32_t) data[2] << 8 | data[3];
        bool first = !a->started, back = a->lost_ms > 0;
        uint64_t have = n >= 20 ? attach_get_u64(data + 12) : first ? 0 : a->sent;

        if (first)
                a->base = have; /* another client may have sent so much before us */
        if (have < a->base || have > a->base + a->input.len) {
                over_error(a, "guest_protocol", "the sandbox counts another amount of input than was sent");
                return;
        }
        a->sent = have;
        a->window = have;
        a->started = a->greeted = true;
        a->lost_ms = 0;
        a->acked = 0;
        send_size(a);
        send_signals(a);
        if (first && a->p.on_started)
                a->p.on_started(a->p.arg, pid);
        if (!first && back && a->p.on_link)
                a->p.on_link(a->p.arg, true);
        pump_input(a);
}

static void on_output(struct attach *a, int fd, const uint8_t *data, size_t n) {
        if (!frame_size_is(a, n, 8))
                return;
        uint64_t offset = attach_get_u64(data), len = n - 8;

        data += 8;
        if (offset > a->received) {
                over_error(a, "guest_protocol", "output is missing and the sandbox did not say so");
                return;
        }
        uint64_t seen = a->received - offset;
        if (seen >= len)
                return;
        a->received += len - seen;
        sink_put(a->sink, fd, data + seen, (size_t) (len - seen), a->received);
}

static void on_gap(struct attach *a, const uint8_t *data, size_t n) {
        if (!frame_size_is(a, n, 16))
                return;
        uint64_t from = attach_get_u64(data), to = attach_get_u64(data + 8);

        if (to <= a->received)
                return;
        if (from < a->received)
                from = a->received;
        char text[TEXT_SIZE];
        text_size(to - from, text);
        cli_note("%s of output before this are not kept: who was attached then has seen them, or they were dropped while nobody was", text);
        a->received = to;
}

/* The command has closed its stdin: whoever writes to ours learns it the way it would from a pipe. */
static void close_input(struct attach *a) {
        if (!a->source)
                return;
        source_free(STEAL(a->source));
        a->base = a->sent = a->base + a->input.len;
        buf_done(&a->input);
        int fd = isatty(STDIN_FILENO) ? -EBADF : open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
                (void) dup2(fd, STDIN_FILENO);
                fd_close(fd);
        }
}

static void on_window(struct attach *a, const uint8_t *data, size_t n) {
        if (!frame_size_is(a, n, 8))
                return;
        uint64_t w = attach_get_u64(data);

        if (w == UINT64_MAX) {
                close_input(a);
                return;
        }
        if (w > a->window)
                a->window = w;
        uint64_t safe = w > ATTACH_STDIN_AHEAD ? w - ATTACH_STDIN_AHEAD : 0;
        if (safe > a->sent)
                safe = a->sent;
        if (safe > a->base) {
                buf_consume(&a->input, (size_t) (safe - a->base));
                a->base = safe;
        }
        pump_input(a);
}

static void on_exit_frame(struct attach *a, const uint8_t *data, size_t n) {
        _cleanup_json_ json_t *j = NULL;
        const char *sig = NULL, *reason = NULL;
        const json_t *code;

        if (json_parse(data, n, ATTACH_PAYLOAD_MAX, &j, NULL) < 0 ||
            !(code = json_object_get(j, "exitCode")) || !json_is_integer(code)) {
                over_error(a, "guest_protocol",
                           "the sandbox told the end of the command in a form that is not known");
                return;
        }
        (void) json_read_str(j, "signal", false, 64, &sig, NULL);
        (void) json_read_str(j, "reason", false, 64, &reason, NULL);
        json_int_t v = json_integer_value(code);
        a->result.exit_code = v >= 0 && v <= 255 ? (int) v : CLI_FAILURE;
        a->result.signal = sig ? signals_number(sig) : 0;
        if (a->result.signal < 0)
                a->result.signal = SIGKILL; /* a signal all the same */
        a->result.timed_out = str_eq(reason, "timeout");
        /* Output offsets are settled: all of it came before this frame. */
        over(a, ATTACH_EXITED);
}

/* Codes of ERROR frames that tell about the way to the command, not about the command: it runs on, and what it
 * prints is kept (a warden was replaced, cspaced restarts). */
static bool says_stream_lost(const char *code) {
        return str_eq(code, "stream_lost") || str_eq(code, "stopping");
}

static void on_error_frame(struct attach *a, const uint8_t *data, size_t n) {
        _cleanup_json_ json_t *j = NULL;
        const char *code = NULL, *message = NULL;

        if (json_parse(data, n, ATTACH_PAYLOAD_MAX, &j, NULL) == 0) {
                (void) json_read_str(j, "code", false, 63, &code, NULL);
                (void) json_read_str(j, "message", false, SIZE_MAX, &message, NULL);
        }
        if (says_stream_lost(code))
                lost_text(a, message ? message : "the stream to the sandbox was lost");
        else
                over_error(a, code ? code : "guest_protocol",
                           message ? message : "the command ended without an exit status");
}

static void on_frame(struct attach *a, uint8_t type, const uint8_t *data, size_t n) {
        switch ((enum attach_type) type) {
        case ATTACH_STARTED:
                on_started(a, data, n);
                break;
        case ATTACH_STDOUT:
        case ATTACH_PTY:
                on_output(a, STDOUT_FILENO, data, n);
                break;
        case ATTACH_STDERR:
                on_output(a, STDERR_FILENO, data, n);
                break;
        case ATTACH_GAP:
                on_gap(a, data, n);
                break;
        case ATTACH_STDIN_WINDOW:
                on_window(a, data, n);
                break;
        case ATTACH_EXIT:
                on_exit_frame(a, data, n);
                break;
        case ATTACH_ERROR:
                on_error_frame(a, data, n);
                break;
        case ATTACH_PONG:
                break;
        case ATTACH_STDIN:
        case ATTACH_STDIN_EOF:
        case ATTACH_RESIZE:
        case ATTACH_SIGNAL:
        case ATTACH_ACK:
        case ATTACH_PING:
        default:
                over_error(a, "guest_protocol", "the sandbox sent a frame of a kind that is not known");
        }
}

/* Takes frames while there is room for their output. */
static void take_frames(struct attach *a) {
        uint8_t type = 0;
        const uint8_t *data = NULL;
        size_t n = 0;
        int r = 0;

        while (a->link == LINK_OPEN && sink_queued(a->sink) < OUT_HIGH &&
               (r = attach_reader_peek(&a->reader, &type, &data, &n)) > 0) {
                on_frame(a, type, data, n);
                if (a->link == LINK_OPEN)
                        attach_reader_next(&a->reader);
        }
        if (a->link != LINK_OPEN)
                return;
        if (r < 0) {
                over_error(a, "guest_protocol", "the sandbox sent a frame that is too long");
                return;
        }
        bool hold = sink_queued(a->sink) >= OUT_HIGH;
        if (hold && !a->held)
                stream_read_stop(a->stream);
        else if (!hold && a->held)
                stream_read_start(a->stream);
        a->held = hold;
}

static void on_data(void *arg, const uint8_t *data, size_t n) {
        struct attach *a = arg;

        a->heard_ms = clock_mono_ms();
        if (buf_append(&a->reader.in, data, n) < 0) {
                over_error(a, "guest_protocol", "output came faster than it could be held");
                return;
        }
        take_frames(a);
}

static void on_eof(void *arg) {
        lost_text(arg, "the connection to the sandbox was closed");
}

static void on_stream_error(void *arg, int err) {
        char text[128];

        snprintf(text, sizeof text, "the connection to the sandbox was lost: %s",
                 strerror(err < 0 ? -err : err));
        lost_text(arg, text);
}

static void on_stream_drain(void *arg) {
        pump_input(arg);
}

static const struct stream_handler stream_ops = {
        .on_data = on_data,
        .on_eof = on_eof,
        .on_drain = on_stream_drain,
        .on_error = on_stream_error,
};

/* --- connection ------------------------------------------------------------------------------- */

/* Errors of the attach request that may pass. */
static bool may_pass(const struct attach *a, const struct api_error *e) {
        if (api_error_is(e, "unreachable"))
                return a->started; /* cspaced has answered before: it restarts */
        return api_error_is(e, "connection_lost") || api_error_is(e, "timeout") ||
               api_error_is(e, "guest_unreachable") || api_error_is(e, "guest_timeout") ||
               api_error_is(e, "unavailable");
}

static void on_upgraded(void *arg, const struct api_error *e, struct stream *s) {
        struct attach *a = arg;

        a->upgrade = NULL;
        if (!s) {
                if (may_pass(a, e))
                        lost(a, e);
                else
                        give_up(a, e);
                return;
        }
        a->link = LINK_OPEN;
        a->stream = s;
        a->heard_ms = a->pinged_ms = clock_mono_ms();
        stream_set_handler(s, &stream_ops, a);
        stream_read_start(s);
}

static void connect_now(struct attach *a) {
        _cleanup_free_ char *target =
                mem_printf("%s%coffset=%llu", a->target, strchr(a->target, '?') ? '&' : '?',
                           (unsigned long long) a->received);

        a->link = LINK_CONNECTING;
        a->upgrade = upgrade_start(a->p.client, target, ATTACH_UPGRADE, on_upgraded, a);
}

static void on_tick(uv_timer_t *t) {
        struct attach *a = t->data;
        uint64_t now = clock_mono_ms();

        if (a->link != LINK_OPEN)
                return;
        if (!a->held && now - a->heard_ms > ATTACH_SILENCE_MS) {
                lost_text(a, "the sandbox does not answer");
                return;
        }
        send_ack(a);
        if (now - a->heard_ms >= ATTACH_PING_MS && now - a->pinged_ms >= ATTACH_PING_MS) {
                a->pinged_ms = now;
                send_frame(a, ATTACH_PING, NULL, 0, NULL, 0);
        }
}

/* --- own descriptors -------------------------------------------------------------------------- */

static void on_written(void *arg, uint64_t offset) {
        struct attach *a = arg;

        a->written = offset;
        if (a->link != LINK_OPEN)
                return;
        if (a->written - a->acked >= ACK_EVERY)
                send_ack(a);
        if (a->held && sink_queued(a->sink) < OUT_LOW) {
                a->heard_ms = clock_mono_ms();
                take_frames(a);
        }
}

/* Nobody reads our output any more: the command learns it the way it would from a pipe. */
static void on_sink_error(void *arg, int fd, int err) {
        struct attach *a = arg;

        if (err != -EPIPE)
                cli_note("cannot write to %s: %s", fd == STDOUT_FILENO ? "stdout" : "stderr", strerror(-err));
        if (fd == STDOUT_FILENO)
                attach_signal(a, SIGPIPE);
}

static const struct sink_ops sink_ops = {
        .on_written = on_written,
        .on_error = on_sink_error,
};

/* --- interface -------------------------------------------------------------------------------- */

struct attach *attach_start(const struct attach_params *p) {
        struct attach *a = mem_new(sizeof *a);
        uv_loop_t *loop = client_loop(p->client);

        a->p = *p;
        a->target = mem_dup(p->target);
        a->received = a->written = a->acked = p->offset;
        a->reader.in = BUF_INIT(IN_FRAMES);
        a->sink = sink_new(loop, &sink_ops, a);
        uv_timer_init(loop, &a->tick);
        uv_timer_init(loop, &a->retry);
        a->tick.data = a->retry.data = a;
        uv_timer_start(&a->tick, on_tick, TICK_MS, TICK_MS);
        if (p->has_stdin)
                a->source = source_new(loop, STDIN_FILENO, on_input, a);
        connect_now(a);
        return a;
}

void attach_signal(struct attach *a, int signum) {
        uint64_t now = clock_mono_ms();

        if (a->link == LINK_OVER) {
                if (signals_ends(signum))
                        attach_abandon(a, signum); /* the output does not get out */
                return;
        }
        if (signals_ends(signum)) {
                a->ends = now - a->last_end_ms < SIGNALS_WINDOW_MS ? a->ends + 1 : 1;
                a->last_end_ms = now;
                if (!a->started || (a->link != LINK_OPEN && a->ends > 1)) {
                        attach_abandon(a, signum);
                        return;
                }
                if (a->ends == SIGNALS_TO_KILL)
                        signum = SIGKILL;
        }
        a->pending_signals |= 1ULL << signum;
        send_signals(a);
}

void attach_resize(struct attach *a, uint16_t cols, uint16_t rows) {
        a->cols = cols;
        a->rows = rows;
        send_size(a);
}

void attach_abandon(struct attach *a, int signum) {
        a->abandoned = true;
        a->result.signal = signum;
        a->result.end = ATTACH_ABANDONED;
        over(a, ATTACH_ABANDONED);
}

static void on_closed(uv_handle_t *h) {
        struct attach *a = h->data;

        if (--a->handles == 0)
                free(a);
}

void attach_finish(struct attach *a, struct attach_result *ret) {
        uv_loop_t *loop = client_loop(a->p.client);

        while (a->link != LINK_OVER || (sink_queued(a->sink) > 0 && !a->abandoned))
                uv_run(loop, UV_RUN_ONCE);
        *ret = a->result;
        if (sink_free(a->sink))
                cli()->stuck = true;
        buf_done(&a->reader.in);
        buf_done(&a->input);
        free(a->target);
        a->handles = 2;
        uv_close((uv_handle_t *) &a->tick, on_closed);
        uv_close((uv_handle_t *) &a->retry, on_closed);
}
