# SPDX-License-Identifier: Apache-2.0
"""The block through which a program is stopped or ended at a chosen step (src/lib/base/fault.h)."""
import ctypes
import mmap
import os
import signal

from host import until

NAME_MAX, LOG_MAX = 32, 256


class Block(ctypes.Structure):
    _fields_ = [('armed', ctypes.c_uint), ('signal', ctypes.c_uint32), ('at', ctypes.c_uint64), ('seen', ctypes.c_uint64),
                ('n_log', ctypes.c_uint), ('begun', ctypes.c_uint), ('met', ctypes.c_int), ('reserved', ctypes.c_uint32),
                ('program', ctypes.c_char * NAME_MAX), ('kind', ctypes.c_char * NAME_MAX), ('match', ctypes.c_char * NAME_MAX),
                ('log', ctypes.c_char * NAME_MAX * LOG_MAX)]


class Fault:
    def __init__(self, path):
        self.path = path
        with open(path, 'w+b') as f:
            f.truncate(ctypes.sizeof(Block))
            self.map = mmap.mmap(f.fileno(), ctypes.sizeof(Block))
        self.block = Block.from_buffer(self.map)
        self.env = {'CSPACE_FAULT': path}

    def arm(self, program, match='', at=1, kind='', sig=signal.SIGKILL):
        """From now on; at=0 only looks."""
        b = self.block
        b.armed = 0
        b.program, b.match, b.kind = program.encode(), match.encode(), kind.encode()
        b.at, b.signal, b.seen, b.n_log, b.begun, b.met = at, sig, 0, 0, 0, 0
        b.armed = 1
        return self

    def disarm(self):
        """Pid of the process that met the point, if it came to that, be it just now."""
        b = self.block
        b.armed = 0
        if b.at and b.seen >= b.at:
            until(lambda: self.met, what='the stop or end of who met it')
        return self.met

    @property
    def met(self):
        """Pid of the process that met the point, once it is stopped or gone."""
        pid = self.block.met
        return pid if pid and state(pid) in 'TtZX' else None

    def points(self):
        """[(name, the how manieth of that name)], as they came."""
        n, count, found = self.block.n_log, {}, []
        assert n <= LOG_MAX, f'{n} points'
        for raw in self.block.log[:n]:
            name = raw.value.decode()
            count[name] = count.get(name, 0) + 1
            found.append((name, count[name]))
        return found


def state(pid):
    """As in proc(5); X: there is none."""
    try:
        with open(f'/proc/{pid}/stat') as f:
            return f.read().rsplit(')', 1)[1].split()[0]
    except OSError:
        return 'X'
