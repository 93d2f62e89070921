# SPDX-License-Identifier: Apache-2.0
"""Starts a program the way cspace-rootd starts the builder: root of a user namespace of 65536 host ids, with
mount, pid, ipc and uts namespaces of its own, as PID 1."""
import ctypes
import os
import signal

CLONE = {'NEWNS': 0x20000, 'NEWUTS': 0x4000000, 'NEWIPC': 0x8000000, 'NEWUSER': 0x10000000, 'NEWPID': 0x20000000}
PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None, use_errno=True)


def sanitizers():
    """So that the tests can be run with a build that has them."""
    return {k: v for k, v in os.environ.items() if k in ('ASAN_OPTIONS', 'UBSAN_OPTIONS')}


class Process:
    """pid is that of the namespace's PID 1 seen from here."""

    def __init__(self, argv, base, stdout, stderr, tar_fd=None, env=None):
        go_r, go_w = os.pipe()
        ready_r, ready_w = os.pipe()
        pid_r, pid_w = os.pipe()
        self.outer = os.fork()
        if self.outer == 0:
            try:
                self._outer(argv, stdout, stderr, tar_fd, env, go_r, ready_w, pid_w)
            finally:
                os._exit(125)
        for fd in (go_r, ready_w, pid_w):
            os.close(fd)
        os.read(ready_r, 1)
        for name in ('uid_map', 'gid_map'):
            with open(f'/proc/{self.outer}/{name}', 'w', encoding='ascii') as f:
                f.write(f'0 {base} 65536')
        os.write(go_w, b'x')
        os.close(go_w)
        os.close(ready_r)
        self.pid = int(os.read(pid_r, 32) or b'0')
        os.close(pid_r)

    @staticmethod
    def _outer(argv, stdout, stderr, tar_fd, env, go_r, ready_w, pid_w):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if libc.unshare(sum(CLONE.values())) != 0:
            raise OSError(ctypes.get_errno(), 'unshare')
        os.write(ready_w, b'x')
        os.read(go_r, 1)
        os.setresgid(0, 0, 0)
        os.setgroups([])
        os.setresuid(0, 0, 0)
        child = os.fork()
        if child == 0:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            null = os.open('/dev/null', os.O_RDWR)
            for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
                os.dup2(source, target)
            if tar_fd is not None:
                os.dup2(tar_fd, 3)
            os.closerange(4 if tar_fd is not None else 3, 256)
            os.execve(argv[0], argv, env or {'PATH': '/usr/sbin:/usr/bin:/sbin:/bin', **sanitizers()})
        os.write(pid_w, str(child).encode())
        status = os.waitpid(child, 0)[1]
        os._exit(os.waitstatus_to_exitcode(status) & 0xff)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def wait(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.outer, 0)[1])
