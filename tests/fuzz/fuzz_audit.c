/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a gateway that was taken over could send to cspaced: audit records and tables of names. Holds: a record that is
 * accepted is written as one line and reads the same again, its line for people is printable; a table that is accepted is
 * written and restored as it was, one that is not leaves nothing.
 */

#include "fuzz.h"

#include "dns/dns_names.h"
#include "policy/audit_filter.h"

static void try_record(const uint8_t *data, size_t n) {
        struct buf line = BUF_INIT(0), text = BUF_INIT(0);
        struct error err = ERROR_INIT;
        struct audit a, b;

        int r = audit_parse((const char *) data, n, &a, &err);
        if (r < 0) {
                REQUIRE(err.code == r && err.msg[0]);
                return;
        }
        REQUIRE(audit_json(&a, &line) == 0 && audit_text(&a, &text) == 0);
        REQUIRE(memchr(buf_data(&line), '\n', line.len) == buf_data(&line) + line.len - 1);
        REQUIRE(line.len <= AUDIT_LINE_MAX);
        REQUIRE(audit_parse((const char *) buf_data(&line), line.len, &b, &err) == 0);
        REQUIRE(audit_same(&a, &b) && a.bytes_in == b.bytes_in && a.duration_us == b.duration_us && a.repeated == b.repeated);
        for (size_t i = 0; i + 1 < text.len; i++)
                REQUIRE(buf_data(&text)[i] >= 0x20 && buf_data(&text)[i] < 0x7f);
        buf_done(&line);
        buf_done(&text);
}

static void try_names(const uint8_t *data, size_t n) {
        struct dns_names *names = NULL, *again = NULL;
        json_t *j = NULL, *saved = NULL, *second = NULL;

        if (json_parse(data, n, 65536, &j, NULL) < 0)
                return;
        REQUIRE(dns_names_new(1, 50, &names) == 0 && dns_names_new(2, 50, &again) == 0);
        if (dns_names_restore(names, j, NULL) < 0) {
                REQUIRE(dns_names_count(names) == 0);
        } else {
                struct in_addr a;
                REQUIRE(dns_names_save(names, &saved, NULL) == 0);
                REQUIRE(dns_names_restore(again, saved, NULL) == 0 && dns_names_save(again, &second, NULL) == 0);
                REQUIRE(json_equal(saved, second));
                REQUIRE(dns_names_get(names, "new.test", &a, NULL) == 0 && dns_names_in_range(a));
        }
        json_decref(j);
        json_decref(saved);
        json_decref(second);
        dns_names_free(names);
        dns_names_free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        uint8_t *copy = piece_of(data, n);

        try_record(copy, n);
        try_names(copy, n);
        free(copy);
        return 0;
}
