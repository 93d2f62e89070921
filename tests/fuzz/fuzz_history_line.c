/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a cspace-history that was taken over could send to cspaced. Holds: a line that is accepted gives an object whose members
 * all have their form, and that read again gives itself.
 */

#include "fuzz.h"

#include "base/json.h"
#include "daemon/peers/history_line.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        uint8_t *copy = piece_of(data, n);
        struct error err = ERROR_INIT;
        enum history_kind kind, again;
        json_t *j = NULL, *second = NULL;

        int r = history_line_read(copy, n, &kind, &j, &err);
        free(copy);
        if (r < 0) {
                REQUIRE(j == NULL && err.code == r && err.msg[0]);
                return 0;
        }
        REQUIRE(json_is_object(j));
        if (kind == HISTORY_CHANGE || kind == HISTORY_ERROR) {
                char *text = json_to_str(j);
                REQUIRE(text != NULL && history_line_read(text, strlen(text), &again, &second, NULL) == 0);
                REQUIRE(again == kind && json_equal(j, second));
                free(text);
        } else if (kind == HISTORY_FILE) {
                REQUIRE(json_integer_value(json_object_get(j, "size")) >= 0);
        } else {
                REQUIRE(json_is_true(json_object_get(j, "more")) == json_is_string(json_object_get(j, "cursor")));
        }
        json_decref(j);
        json_decref(second);
        return 0;
}
