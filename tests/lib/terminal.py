# SPDX-License-Identifier: Apache-2.0
import fcntl
import os
import pty
import re
import select
import struct
import termios
import time


class Terminal:
    """A pty with cspace on its other side."""

    def __init__(self, cli, *args, cols=101, rows=37):
        self.master, self.slave = pty.openpty()
        self.resize(cols, rows)
        self.before = termios.tcgetattr(self.slave)
        self.seen = b''
        self.proc = cli.start(*args, stdin=self.slave, stdout=self.slave, stderr=self.slave, start_new_session=True,
                              preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def resize(self, cols, rows):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack('HHHH', rows, cols, 0, 0))

    def send(self, text):
        os.write(self.master, text.encode())

    def expect(self, pattern, seconds=60):
        end = time.monotonic() + seconds
        while not (m := re.search(pattern.encode(), self.seen)):
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.master], [], [], left)[0]:
                raise AssertionError(f'{pattern!r} did not come; seen: {self.seen!r}')
            self.seen += os.read(self.master, 65536)
        self.seen = self.seen[m.end():]
        return m

    def until(self, command, pattern, seconds=60):
        """Types command again and again until its output is as wanted."""
        end = time.monotonic() + seconds
        while True:
            self.send(command)
            try:
                return self.expect(pattern, 2)
            except AssertionError:
                if time.monotonic() > end:
                    raise

    def restored(self):
        return termios.tcgetattr(self.slave) == self.before

    def close(self):
        if self.proc.poll() is None:
            self.proc.kill()
        self.proc.wait()
        os.close(self.master)
        os.close(self.slave)
