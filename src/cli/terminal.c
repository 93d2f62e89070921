/* SPDX-License-Identifier: Apache-2.0 */
#include "terminal.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/cleanup.h"

static struct termios saved, raw;
static volatile sig_atomic_t is_raw, is_saved;

bool terminal_is_raw(void) {
        return is_raw != 0;
}

void terminal_restore(void) {
        int keep = errno;

        if (is_raw) {
                is_raw = 0;
                (void) tcsetattr(STDIN_FILENO, TCSADRAIN, &saved);
        }
        errno = keep;
}

static void on_fatal(int signum) {
        terminal_restore();
        signal(signum, SIG_DFL);
        raise(signum);
}

/* kill -TSTP from outside: the shell must get a sane terminal. */
static void on_stop(int signum) {
        (void) signum;
        terminal_restore();
        raise(SIGSTOP);
}

static void on_continue(int signum) {
        (void) signum;
        /* In the background tcsetattr() would stop the program again. */
        if (is_saved && !is_raw && tcgetpgrp(STDIN_FILENO) == getpgrp() &&
            tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) == 0)
                is_raw = 1;
}

static void handle(int signum, void (*fn)(int)) {
        const struct sigaction act = { .sa_handler = fn, .sa_flags = SA_RESTART };

        (void) sigaction(signum, &act, NULL);
}

/* Into `raw`, which is made of `saved`. */
static int change(int how, const char *what, struct error *err) {
        static const int fatal[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM, SIGXCPU, SIGSYS };

        atexit(terminal_restore);
        for (size_t i = 0; i < ARRAY_SIZE(fatal); i++)
                handle(fatal[i], on_fatal);
        handle(SIGTSTP, on_stop);
        handle(SIGCONT, on_continue);
        if (tcsetattr(STDIN_FILENO, how, &raw) < 0)
                return error_errno(err, errno, "cannot set the terminal %s", what);
        is_saved = is_raw = 1;
        return 0;
}

static int read_settings(struct error *err) {
        if (tcgetattr(STDIN_FILENO, &saved) < 0)
                return error_errno(err, errno, "cannot read the terminal's settings");
        raw = saved;
        return 0;
}

int terminal_raw(struct error *err) {
        if (!isatty(STDIN_FILENO))
                return 0;
        int r = read_settings(err);
        if (r < 0)
                return r;
        cfmakeraw(&raw);
        return change(TCSADRAIN, "to raw mode", err);
}

int terminal_hide(struct error *err) {
        static const int ends[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };

        if (!isatty(STDIN_FILENO))
                return 0;
        int r = read_settings(err);
        if (r < 0)
                return r;
        raw.c_lflag &= ~(tcflag_t) ECHO;
        for (size_t i = 0; i < ARRAY_SIZE(ends); i++)
                handle(ends[i], on_fatal);
        return change(TCSAFLUSH, "not to show what is typed", err); /* nor what was typed before */
}

void terminal_size(uint16_t *ret_cols, uint16_t *ret_rows) {
        struct winsize w;

        for (int fd = 0; fd <= 2; fd++) {
                if (ioctl(fd, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 && w.ws_row > 0) {
                        *ret_cols = w.ws_col;
                        *ret_rows = w.ws_row;
                        return;
                }
        }
        *ret_cols = 80;
        *ret_rows = 24;
}
