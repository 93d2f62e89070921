/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"

#define PROC_FILE_MAX (256 * 1024)

static uint64_t meminfo(const char *text, const char *key) {
        const char *p = strstr(text, key);
        unsigned long long kib;
        return p && sscanf(p + strlen(key), ": %llu kB", &kib) == 1 ? kib * 1024 : 0;
}

/* Ticks of all CPUs together: busy and total. */
static void cpu_ticks(uint64_t *busy, uint64_t *total) {
        _cleanup_free_ char *text = NULL;
        unsigned long long v[8] = { 0 };
        *busy = *total = 0;
        if (fd_read_file_at(AT_FDCWD, "/proc/stat", PROC_FILE_MAX, &text, NULL, NULL) < 0 ||
            sscanf(text, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6],
                   &v[7]) != 8)
                return;
        for (size_t i = 0; i < 8; i++)
                *total += v[i];
        *busy = *total - v[3] - v[4]; /* idle, iowait */
}

static double cpu_used_pct(void) {
        static uint64_t last_busy, last_total;
        uint64_t busy, total;
        cpu_ticks(&busy, &total);
        uint64_t db = busy - last_busy, dt = total - last_total;
        last_busy = busy;
        last_total = total;
        if (dt == 0 || db > dt)
                return 0;
        return (double) (db * 10000 / dt) / 100;
}

json_t *metrics_read(void) {
        _cleanup_free_ char *text = NULL;
        uint64_t mem_total = 0, mem_used = 0, mem_cache = 0;
        if (fd_read_file_at(AT_FDCWD, "/proc/meminfo", PROC_FILE_MAX, &text, NULL, NULL) == 0) {
                mem_total = meminfo(text, "MemTotal");
                mem_cache = meminfo(text, "\nCached") + meminfo(text, "\nBuffers") + meminfo(text, "SReclaimable");
                uint64_t available = meminfo(text, "MemAvailable");
                mem_used = mem_total > available ? mem_total - available : 0;
        }
        struct statvfs fs;
        uint64_t disk_total = 0, disk_used = 0;
        if (statvfs("/", &fs) == 0) {
                disk_total = (uint64_t) fs.f_blocks * fs.f_frsize;
                disk_used = (uint64_t) (fs.f_blocks - fs.f_bfree) * fs.f_frsize;
        }
        return json_pack("{s:I,s:i,s:f,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "ts", (json_int_t) (clock_real_ms() / 1000),
                         "cpu_count", (int) sysconf(_SC_NPROCESSORS_ONLN), "cpu_used_pct", cpu_used_pct(), "mem_total",
                         (json_int_t) mem_total, "mem_used", (json_int_t) mem_used, "mem_cache",
                         (json_int_t) mem_cache, "mem_total_mib", (json_int_t) (mem_total >> 20), "mem_used_mib",
                         (json_int_t) (mem_used >> 20), "disk_used", (json_int_t) disk_used, "disk_total",
                         (json_int_t) disk_total);
}
