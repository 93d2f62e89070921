/* SPDX-License-Identifier: Apache-2.0 */

/* What is common to all streams; the implementations are in stream_uv.c, stream_prefix.c and the
 * link layer. */

#include "io/stream.h"

#include <errno.h>

int stream_writev(struct stream *s, const struct iovec *v, int n) {
        if (s->ops->writev)
                return s->ops->writev(s, v, n);

        size_t total = 0;
        for (int i = 0; i < n; i++)
                total += v[i].iov_len;
        if (total > STREAM_QUEUE_MAX || stream_queued(s) > STREAM_QUEUE_MAX - total)
                return -ENOBUFS;
        for (int i = 0; i < n; i++) {
                if (v[i].iov_len == 0)
                        continue;
                int r = stream_write(s, v[i].iov_base, v[i].iov_len);
                if (r < 0)
                        return r;
        }
        return 0;
}
