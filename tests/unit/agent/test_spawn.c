/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spawn.h"

static char *env[] = { NULL };

/* Runs argv with its output in out; the wait status, or spawn_process()'s error. */
static int run(const char *file, const char *const *argv, const char *cwd, const char *path, enum spawn_stage *stage, char *out,
               size_t cap) {
        int p[2], null = open("/dev/null", O_RDWR | O_CLOEXEC);
        assert_int_equal(pipe2(p, O_CLOEXEC), 0);
        struct spawn s = { .file = file, .search_path = path, 
                           .argv = (char *const *) (uintptr_t) argv, .envp = env, .cwd = cwd,
                           .fds = { null, p[1], null }, .cgroup_fd = -EBADF };
        pid_t pid = 0;
        int r = spawn_process(&s, &pid, stage);
        close(p[1]);
        close(null);
        size_t n = 0;
        for (ssize_t m; r == 0 && n < cap - 1 && (m = read(p[0], out + n, cap - 1 - n)) > 0;)
                n += (size_t) m;
        out[n] = '\0';
        close(p[0]);
        int status = r;
        if (r == 0)
                assert_int_equal(waitpid(pid, &status, 0), pid);
        else
                while (waitpid(-1, NULL, WNOHANG) > 0)
                        ;
        return status;
}

static void runs(void **state) {
        (void) state;
        enum spawn_stage stage;
        char out[4096];
        const char *echo[] = { "echo", "a b", "", "c", NULL };
        assert_int_equal(run("echo", echo, "/", "/bin:/usr/bin", &stage, out, sizeof out), 0);
        assert_string_equal(out, "a b  c\n");
        const char *pwd[] = { "sh", "-c", "pwd; ps -o sid= -p $$ | tr -d ' '; echo $$; exit 7", NULL };
        int status = run("/bin/sh", pwd, "/usr", NULL, &stage, out, sizeof out);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
        int sid, pid;
        assert_int_equal(sscanf(out, "/usr %d %d", &sid, &pid), 2);
        assert_int_equal(sid, pid);
}

static void failures(void **state) {
        (void) state;
        enum spawn_stage stage;
        char out[64];
        const char *argv[] = { "x", NULL };
        assert_int_equal(run("cspace-no-such-command", argv, "/", "/bin:/nonexistent", &stage, out, sizeof out), -ENOENT);
        assert_int_equal(stage, SPAWN_STAGE_EXEC);
        assert_int_equal(run("/etc/passwd", argv, "/", NULL, &stage, out, sizeof out), -EACCES);
        assert_int_equal(stage, SPAWN_STAGE_EXEC);
        assert_int_equal(run("/bin", argv, "/", NULL, &stage, out, sizeof out), -EACCES);
        assert_int_equal(run("/bin/true", argv, "/nonexistent", NULL, &stage, out, sizeof out), -ENOENT);
        assert_int_equal(stage, SPAWN_STAGE_CWD);
        char *huge = malloc(256 * 1024);
        memset(huge, 'a', 256 * 1024);
        huge[256 * 1024 - 1] = '\0';
        const char *big[] = { "true", huge, NULL };
        assert_int_equal(run("/bin/true", big, "/", NULL, &stage, out, sizeof out), -E2BIG);
        free(huge);
}

/* The first PATH entry that cannot be used does not end the search, and a script needs no "#!". */
static void search(void **state) {
        (void) state;
        char dir[] = "/tmp/cspace-spawn-XXXXXX", file[64], path[128], out[64];
        enum spawn_stage stage;
        assert_non_null(mkdtemp(dir));
        (void) snprintf(file, sizeof file, "%s/thing", dir);
        (void) snprintf(path, sizeof path, "/etc/passwd:/nonexistent:%s", dir);
        FILE *f = fopen(file, "w");
        (void) fputs("echo script $1\n", f);
        (void) fclose(f);
        const char *argv[] = { "thing", "arg", NULL };
        assert_int_equal(run("thing", argv, "/", path, &stage, out, sizeof out), -EACCES);
        assert_int_equal(chmod(file, 0755), 0);
        assert_int_equal(run("thing", argv, "/", path, &stage, out, sizeof out), 0);
        assert_string_equal(out, "script arg\n");
        assert_int_equal(unlink(file), 0);
        assert_int_equal(rmdir(dir), 0);
}

/* Nothing of the agent's leaks into a command: descriptors, ignored signals, the signal mask. */
static void clean(void **state) {
        (void) state;
        enum spawn_stage stage;
        char out[4096];
        int leak = open("/dev/zero", O_RDONLY); /* not close-on-exec, as a library's might be */
        void (*old)(int) = signal(SIGPIPE, SIG_IGN);
        sigset_t block, before;
        sigfillset(&block);
        (void) sigprocmask(SIG_SETMASK, &block, &before);
        const char *ls[] = { "ls", "/proc/self/fd", NULL };
        const char *grep[] = { "grep", "-E", "Sig(Blk|Ign)", "/proc/self/status", NULL };
        assert_int_equal(run("ls", ls, "/", NULL, &stage, out, sizeof out), 0);
        assert_string_equal(out, "0\n1\n2\n3\n"); /* 3: the folder that ls reads */
        assert_int_equal(run("grep", grep, "/", NULL, &stage, out, sizeof out), 0);
        assert_string_equal(out, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
        (void) sigprocmask(SIG_SETMASK, &before, NULL);
        (void) signal(SIGPIPE, old);
        close(leak);
}

int main(void) {
        /* A background job of a shell starts with these ignored; an agent never does. */
        (void) signal(SIGINT, SIG_DFL);
        (void) signal(SIGQUIT, SIG_DFL);
        const struct CMUnitTest tests[] = { cmocka_unit_test(runs), cmocka_unit_test(failures), cmocka_unit_test(search),
                                            cmocka_unit_test(clean) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
