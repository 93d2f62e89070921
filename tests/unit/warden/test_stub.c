/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "stub.h"

/* Starts a stub on one end of a socket pair; *ret is the warden's end. */
static pid_t start(int *ret) {
        int p[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, p), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                dup2(p[1], STUB_FD);
                close_range(STUB_FD + 1, 200, 0);
                _exit(stub_main(STUB_FD));
        }
        close(p[1]);
        *ret = p[0];
        return pid;
}

static int end_of(pid_t pid) {
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        return WEXITSTATUS(status);
}

static void becomes_the_program(void **state) {
        (void) state;
        /* The descriptors land where they were asked for, in whatever order they came, and argv and
         * environment are as sent. */
        static const char strings[] = "/bin/sh\0-c\0echo \"$VAR $0 $#\" >&7; read -r line <&8; echo \"$line\" >&7; echo err >&2;"
                                      "for f in /proc/self/fd/*; do echo ${f##*/} >&7; done; (echo forked >&7)\0"
                                      "name\0VAR=value with space\0";
        int sock, out[2], err[2], in[2];
        pid_t pid = start(&sock);
        assert_int_equal(pipe2(out, O_CLOEXEC), 0);
        assert_int_equal(pipe2(err, O_CLOEXEC), 0);
        assert_int_equal(pipe2(in, O_CLOEXEC), 0);
        const struct stub_fd fds[] = { { in[0], 8 }, { out[1], 7 }, { err[1], 2 } };
        assert_int_equal(stub_send(sock, strings, sizeof(strings) - 1, 4, 1, fds, 3, NULL), 0);
        close(out[1]);
        close(err[1]);
        close(in[0]);
        assert_int_equal(write(in[1], "fed\n", 4), 4);
        close(in[1]);
        char buf[500] = "", text[100] = "";
        size_t n = 0;
        for (ssize_t r; (r = read(out[0], buf + n, sizeof(buf) - 1 - n)) > 0;)
                n += (size_t) r;
        assert_non_null(strstr(buf, "value with space name 0\nfed\n"));
        assert_non_null(strstr(buf, "\n7\n"));
        assert_null(strstr(buf, "\n5\n")); /* the socket is not passed on */
        assert_null(strstr(buf, "forked")); /* confine_vm(): no new process */
        assert_true(read(err[0], text, sizeof(text) - 1) > 0);
        assert_ptr_equal(strstr(text, "err\n"), text);
        assert_int_equal(recv(sock, text, sizeof(text), 0), 0); /* closed by the exec */
        assert_int_equal(end_of(pid), 2); /* of a shell that cannot fork */
        close(sock);
        close(out[0]);
        close(err[0]);
}

static void says_why_not(void **state) {
        (void) state;
        int sock;
        pid_t pid = start(&sock);
        const struct stub_fd fds[] = { { 1, 10 } };
        assert_int_equal(stub_send(sock, "/nonexistent/qemu\0", 18, 1, 0, fds, 1, NULL), 0);
        char text[300] = "";
        assert_true(recv(sock, text, sizeof(text) - 1, 0) > 0);
        assert_string_equal(text, "/nonexistent/qemu: No such file or directory");
        assert_int_equal(end_of(pid), 127);
        close(sock);
}

static void malformed_messages(void **state) {
        (void) state;
        static const char *const bad[] = { "", "x", ("0123456789012345678901234567890123456789012345678901234567890123456789012345"
                                                    "6789012345678901234567890123456789") };
        for (size_t i = 0; i < 3; i++) {
                int sock;
                pid_t pid = start(&sock);
                if (i > 0)
                        assert_true(send(sock, bad[i], strlen(bad[i]), 0) > 0);
                else
                        shutdown(sock, SHUT_WR);
                char text[300] = "";
                ssize_t n = recv(sock, text, sizeof(text) - 1, 0);
                assert_true(i == 0 ? n == 0 : n > 0);
                assert_int_equal(end_of(pid), i == 0 ? 0 : 127);
                close(sock);
        }
        /* Strings that do not end, or are more than said. */
        for (int k = 0; k < 2; k++) {
                int sock;
                pid_t pid = start(&sock);
                const struct stub_fd fds[] = { { 1, 10 } };
                assert_int_equal(stub_send(sock, "/bin/true\0x\0y", 12, k == 0 ? 1 : 3, 0, fds, 1, NULL), 0);
                char text[300] = "";
                assert_true(recv(sock, text, sizeof(text) - 1, 0) > 0);
                assert_non_null(strstr(text, "bad message"));
                assert_int_equal(end_of(pid), 127);
                close(sock);
        }
}

static void limits(void **state) {
        (void) state;
        static char big[STUB_MESSAGE_MAX];
        struct stub_fd fds[STUB_FDS_MAX + 1] = { { 1, 10 } };
        struct error e = ERROR_INIT;
        assert_int_equal(stub_send(-1, big, sizeof(big), 1, 0, fds, 1, &e), -E2BIG);
        assert_int_equal(stub_send(-1, big, 10, STUB_STRINGS_MAX, 1, fds, 1, &e), -E2BIG);
        assert_int_equal(stub_send(-1, big, 10, 1, 0, fds, STUB_FDS_MAX + 1, &e), -E2BIG);
        assert_int_equal(stub_send(-1, big, 10, 1, 0, fds, 1, &e), -EBADF);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(becomes_the_program),
                cmocka_unit_test(says_why_not),
                cmocka_unit_test(malformed_messages),
                cmocka_unit_test(limits),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
