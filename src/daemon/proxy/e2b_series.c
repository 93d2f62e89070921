/* SPDX-License-Identifier: Apache-2.0 */
#include "e2b_series.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/limits.h"

#define BYTES_MAX ((double) (1ULL << 60))

/* --- samples ----------------------------------------------------------------------------------- */

static int read_number(const json_t *obj, const char *key, double max, double *ret) {
        const json_t *v = json_object_get(obj, key);
        double d = json_is_number(v) ? json_number_value(v) : -1;

        if (!(d >= 0))
                return -EINVAL;
        *ret = d < max ? d : max;
        return 0;
}

static int read_bytes(const json_t *obj, const char *key, int64_t *ret) {
        double d;

        if (read_number(obj, key, BYTES_MAX, &d) < 0)
                return -EINVAL;
        *ret = (int64_t) d;
        return 0;
}

int e2b_sample_parse(const char *body, size_t n, int64_t unix_ms, struct e2b_sample *ret) {
        _cleanup_json_ json_t *j = NULL;
        struct e2b_sample s = { .unix_ms = unix_ms };
        double cpus;

        if (json_parse(body, n, E2B_SAMPLE_BODY_MAX, &j, NULL) < 0 || !json_is_object(j) ||
            read_number(j, "cpu_count", LIMIT_CPUS_MAX, &cpus) < 0)
                return -EINVAL;
        s.cpus = (uint32_t) cpus;
        if (read_number(j, "cpu_used_pct", 100 * cpus, &s.cpu_pct) < 0 ||
            read_bytes(j, "mem_used", &s.mem_used) < 0 || read_bytes(j, "mem_total", &s.mem_total) < 0 ||
            read_bytes(j, "disk_used", &s.disk_used) < 0 || read_bytes(j, "disk_total", &s.disk_total) < 0)
                return -EINVAL;
        (void) read_bytes(j, "mem_cache", &s.mem_cache);
        *ret = s;
        return 0;
}

json_t *e2b_sample_json(const struct e2b_sample *s) {
        char time[RFC3339_SIZE];

        clock_rfc3339(s->unix_ms, time);
        return json_pack("{s:s, s:I, s:i, s:f, s:I, s:I, s:I, s:I, s:I}", "timestamp", time, "timestampUnix",
                         (json_int_t) (s->unix_ms / 1000), "cpuCount", (int) s->cpus, "cpuUsedPct", s->cpu_pct, "memUsed",
                         (json_int_t) s->mem_used, "memTotal", (json_int_t) s->mem_total, "memCache",
                         (json_int_t) s->mem_cache, "diskUsed", (json_int_t) s->disk_used, "diskTotal",
                         (json_int_t) s->disk_total);
}

/* --- series ------------------------------------------------------------------------------------ */

static void thin_out(struct e2b_series *s) {
        size_t kept = 0;

        for (size_t i = 0; i < s->n; i += 2)
                s->samples[kept++] = s->samples[i];
        s->n = kept;
        s->keep_every *= 2;
}

int e2b_series_add(struct e2b_series *s, const struct e2b_sample *sample) {
        if (s->keep_every == 0)
                s->keep_every = 1;
        if (++s->skipped < s->keep_every && s->n > 0)
                return 0;
        s->skipped = 0;
        if (s->n == E2B_SERIES_MAX)
                thin_out(s);
        if (s->n == s->cap) {
                size_t cap = s->cap ? 2 * s->cap : 16;
                struct e2b_sample *more = reallocarray(s->samples, cap, sizeof(*more));
                if (!more)
                        return -ENOMEM;
                s->samples = more;
                s->cap = cap;
        }
        s->samples[s->n++] = *sample;
        return 0;
}

json_t *e2b_series_json(const struct e2b_series *s, int64_t start_s, int64_t end_s) {
        json_t *list = json_array();

        for (size_t i = 0; i < s->n; i++) {
                int64_t at = s->samples[i].unix_ms / 1000;
                if (at >= start_s && at <= end_s)
                        (void) json_array_append_new(list, e2b_sample_json(&s->samples[i]));
        }
        return list;
}

void e2b_series_done(struct e2b_series *s) {
        free(s->samples);
        *s = (struct e2b_series){ 0 };
}
