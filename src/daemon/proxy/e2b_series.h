/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Metrics of one sandbox over time. Bounded, and still covering the sandbox's whole life: a full
 * series drops every second sample and from then on takes only every second one, so it gets
 * coarser instead of being cut off.
 */

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#define E2B_SERIES_MAX 1024
#define E2B_SAMPLE_BODY_MAX 4096

struct e2b_sample {
        int64_t unix_ms;
        double cpu_pct;
        uint32_t cpus;
        int64_t mem_used, mem_total, mem_cache, disk_used, disk_total;
};

/* The agent's answer to GET /metrics, which is the guest's own word: -EINVAL unless all of it is
 * numbers that can be; too large ones are cut to what is possible. */
int e2b_sample_parse(const char *body, size_t n, int64_t unix_ms, struct e2b_sample *ret);
json_t *e2b_sample_json(const struct e2b_sample *s);

struct e2b_series {
        struct e2b_sample *samples; /* oldest first */
        size_t n, cap;
        unsigned keep_every; /* 0 is 1 */
        unsigned skipped;
};

int e2b_series_add(struct e2b_series *s, const struct e2b_sample *sample); /* 0, -ENOMEM */
/* Array of those from start to end, both included. */
json_t *e2b_series_json(const struct e2b_series *s, int64_t start_s, int64_t end_s);
void e2b_series_done(struct e2b_series *s);
