/* SPDX-License-Identifier: Apache-2.0 */
#include "escape.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"

int escape_init(struct escape *e, const char *setting, void (*print)(const char *text), struct error *err) {
        *e = (struct escape) { .character = '~', .state = ESCAPE_LINE_START, .print = print };
        if (!setting)
                return 0;
        if (str_eq(setting, "none")) {
                e->character = 0;
                return 0;
        }
        if (strlen(setting) != 1 || setting[0] <= ' ' || setting[0] > '~' || strchr(".?", setting[0]))
                return error_set(err, -EINVAL, "--escape \"%s\" is neither one character nor \"none\"",
                                 setting);
        e->character = (uint8_t) setting[0];
        return 0;
}

static void help(const struct escape *e) {
        char text[160];

        snprintf(text, sizeof text,
                 "cspace: at the start of a line: %c. detaches, %c%c sends %c, %c? shows this", e->character,
                 e->character, e->character, e->character, e->character);
        e->print(text);
}

/* The character is held back when it opens a line and given out once the next one has shown that
 * it meant itself: so the output is at most as long as the input plus one byte held before. */
ssize_t escape_filter(struct escape *e, uint8_t *data, size_t n) {
        size_t w = 0;

        if (!e->character)
                return (ssize_t) n;
        for (size_t i = 0; i < n; i++) {
                uint8_t b = data[i];

                if (e->state == ESCAPE_SEEN) {
                        e->state = ESCAPE_LINE_START;
                        if (b == '.')
                                return -1;
                        if (b == '?') {
                                help(e);
                                continue;
                        }
                        e->state = ESCAPE_ELSEWHERE;
                        if (b != e->character && w == i) {
                                /* Held over from the call before: there is no room for both. */
                                memmove(data + w + 1, data + i, n - i);
                                data[w++] = e->character;
                                i++;
                                n++;
                        } else if (b != e->character) {
                                data[w++] = e->character;
                        }
                } else if (e->state == ESCAPE_LINE_START && b == e->character) {
                        e->state = ESCAPE_SEEN;
                        continue;
                } else {
                        e->state = ESCAPE_ELSEWHERE;
                }
                if (b == '\r' || b == '\n')
                        e->state = ESCAPE_LINE_START;
                data[w++] = b;
        }
        return (ssize_t) w;
}
