/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Frames of the Connect protocol and (-DATTACH) of attach. Holds: the frames do not depend on the
 * cuts; written again they are the bytes that were read; an announced length over the limit ends
 * the reading before the bytes are collected.
 */

#include "fuzz.h"

#include "wire/attach.h"
#include "wire/connect.h"

#ifdef ATTACH
#define READER attach_reader
#define LIMIT ATTACH_PAYLOAD_MAX
#define PEEK attach_reader_peek
#define NEXT attach_reader_next
#else
#define READER connect_reader
#define LIMIT 300
#define PEEK connect_reader_peek
#define NEXT connect_reader_next
#endif

static int write_again(struct buf *out, uint8_t type, const uint8_t *d, size_t n) {
#ifdef ATTACH
        size_t half = n / 2;
        return attach_write(out, (enum attach_type) type, d, half, d + half, n - half);
#else
        return connect_write_frame(out, type, d, n);
#endif
}

/* Returns the bytes of all whole frames, written again, and 'X' when a frame was over the limit. */
static struct buf parse(const uint8_t *data, size_t n, struct cuts cuts) {
        struct buf out = BUF_INIT(0);
        struct READER r = { 0 };
#ifndef ATTACH
        r.max = LIMIT;
#endif
        const uint8_t *start = data;
        int got = 0;
        while (n > 0 && got >= 0) {
                size_t take = cuts_next(&cuts, n);
                uint8_t *piece = piece_of(data, take);
                REQUIRE(buf_append(&r.in, piece, take) == 0);
                free(piece);
                data += take;
                n -= take;
                uint8_t type = 0;
                const uint8_t *d = NULL;
                size_t len = 0;
                while ((got = PEEK(&r, &type, &d, &len)) > 0) {
                        REQUIRE(len <= LIMIT);
                        REQUIRE(write_again(&out, type, d, len) == 0);
                        NEXT(&r);
                }
        }
        /* What was read is a prefix of the input. */
        REQUIRE(out.len <= (size_t) (data - start) && memcmp(buf_data(&out), start, out.len) == 0);
        if (got < 0)
                REQUIRE(buf_puts(&out, "X") == 0);
        buf_done(&r.in);
        return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        struct buf whole = parse(data, n, cuts_of(data, n, 0));
        static const size_t sizes[] = { 1, 4, 50 };
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
                struct buf cut = parse(data, n, cuts_of(data, n, sizes[i]));
                require_same(&whole, &cut);
                buf_done(&cut);
        }
        buf_done(&whole);
        return 0;
}
