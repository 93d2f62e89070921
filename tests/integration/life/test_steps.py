# SPDX-License-Identifier: Apache-2.0
"""Everything that runs is killed at every step of every operation, with real VMs; then, with all of it started again: what was acknowledged
holds, nothing is half made, nothing is left over, and a sandbox beside it noticed nothing.

A step is a point of cspaced or cspace-rootd (src/lib/base/fault.h), or a message that a warden sends. The process that is about to take it
stands still while the other is killed."""
import contextlib
import http.client
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading

import pytest

from conftest import until
from fault import state
from operations import OPERATIONS, check, clear, settled

# Looks at one in so many of what there is to look at, beginning elsewhere for each operation; 1: at all, which takes two hours. Prime to the
# number of victims, or an operation would always see the same one.
EVERY = int(os.environ.get('CSPACE_STEPS_EVERY', '61'))
ONLY = os.environ.get('CSPACE_STEPS_ONLY', '')  # of them, those in whose description this is
VICTIMS = ('cspaced', 'rootd', 'warden', 'vm')
COPIED = ('other-warden', 'other-vm')  # of what the operation made
STOPPED = '--- stopped by SIGSTOP ---'


class Messages:
    """Each message that one of these processes sends is a step (strace(1)): `at` is the one before which it stops, 0 none."""

    def __init__(self, pids, at=0):
        self.folder = tempfile.mkdtemp(prefix='st-')
        self.traces = {}
        for pid in pids:
            inject = ['-e', f'inject=sendmsg:signal=SIGSTOP:when={at}'] if at else []
            self.traces[pid] = subprocess.Popen(['strace', '-qq', '-e', 'trace=sendmsg', *inject, '-o', self.path(pid), '-p', str(pid)])
        for pid, p in self.traces.items():
            until(lambda pid=pid, p=p: self.traced(pid) or p.poll() is not None, what='strace')

    def path(self, pid):
        return os.path.join(self.folder, str(pid))

    @staticmethod
    def traced(pid):
        with contextlib.suppress(OSError), open(f'/proc/{pid}/status') as f:
            return re.search(r'^TracerPid:\t(\d+)', f.read(), re.M)[1] != '0'

    def text(self, pid):
        with contextlib.suppress(OSError), open(self.path(pid), errors='replace') as f:
            return f.read()
        return ''

    @property
    def met(self):
        return next((pid for pid in self.traces if STOPPED in self.text(pid)), None)

    def sent(self):
        return max((self.text(pid).count('sendmsg(') for pid in self.traces), default=0)

    def close(self):
        """A process that is stopped stays so, and is returned. One that comes to that while strace ends, so that nobody tells, does not."""
        for p in self.traces.values():
            if p.poll() is None:
                p.send_signal(signal.SIGINT)
            p.wait(30)
        met = self.met
        for pid in self.traces if met is None else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)  # also where the stop is on its way
        shutil.rmtree(self.folder)
        return met


def placed(h):
    """{sandbox: (warden, vm)}; None where there is none yet."""
    found = {}
    for s in os.listdir(os.path.join(h.run, 'sandboxes')):
        with contextlib.suppress(OSError), open(os.path.join(h.run, 'sandboxes', s, 'placement')) as f:
            record = dict(line.split('=', 1) for line in f.read().splitlines())
            found[s] = tuple(int(record.get(k, 0)) or None for k in ('warden_pid', 'vm_pid'))
    return found


def wardens(h, s):
    """Those that may have to do with an operation: its sandbox's, and those to come."""
    return [*h.waiting(), *(w for i, (w, vm) in placed(h).items() if i == s and w)]


class Run:
    """An operation that has been asked for."""

    def __init__(self, h, op, program='cspaced', match='', at=0):
        self.h, self.op, self.s = h, op, op.prepare(h)
        self.answer, self.messages = [], None
        if program == 'warden':
            until(lambda: len(h.waiting()) == 2, what='the pool')
            self.messages = Messages(wardens(h, self.s), at)
        else:
            h.fault.arm(program, match, at, kind=op.kind if program == 'cspaced' else '', sig=signal.SIGSTOP)
        self.thread = threading.Thread(target=self.ask)
        self.thread.start()

    def ask(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.answer.append(self.op.ask(self.h, self.s))

    @property
    def met(self):
        return self.messages.met if self.messages else self.h.fault.met

    def over(self):
        """Short of patience: cspaced may stop at any time."""
        with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
            return bool(self.answer) and self.h.get('/v1/operations?state=running', timeout=1).json['operations'] == []

    def until_met(self, what):
        """Pid of the process that stands still; None when the operation ended without one."""
        until(lambda: self.met or self.over(), 120, what)
        if not self.messages:
            return self.h.fault.disarm()
        pid = self.messages.close()
        self.messages = None
        return pid

    def known(self):
        """Id of the operation, if it was acknowledged."""
        self.thread.join(60)
        assert not self.thread.is_alive(), 'no answer'
        return self.answer[0].json['operation']['id'] if self.answer and self.answer[0].status in (200, 201, 202) else None


def steps(h, op, others):
    """What it takes when nothing disturbs it: [(program, name, the how manieth)]."""
    found = []
    for program in ('cspaced', 'rootd', 'warden'):
        run = Run(h, op, program)
        run.known()
        settled(h, op.kind)
        if run.messages:
            found += [('warden', 'message', i + 1) for i in range(run.messages.sent())]
            run.messages.close()
        else:
            found += [(program, *p) for p in h.fault.points()]
            h.fault.disarm()
        clear(h, others)
    return found


def pid_of(h, run, victim, others):
    """None: there is none at this step."""
    if victim in VICTIMS[:2]:
        return (h.cspaced if victim == 'cspaced' else h.rootd).pid
    there = {i: pids for i, pids in placed(h).items() if i not in others}
    own = [run.s] if run.s else list(there)
    chosen = [i for i in there if (i in own) != victim.startswith('other')]
    return there[chosen[0]][victim.endswith('vm')] if chosen else None


def strike(h, run, stopped, victim, others):
    """Kills it and lets all else go on. Whether there was something to kill."""
    pid = pid_of(h, run, victim, others)
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if victim in VICTIMS[:2]:
        (h.cspaced if victim == 'cspaced' else h.rootd).wait(30)
    with contextlib.suppress(ProcessLookupError):
        os.kill(stopped, signal.SIGCONT)
    if victim == 'rootd':
        h.start_rootd()
    elif victim == 'cspaced':
        h.start_cspaced()
    return bool(pid)


def look(h, op, step, victim, others, what):
    """Whether there was something to see."""
    program, name, nth = step
    run = Run(h, op, program, '' if program == 'warden' else name, nth)
    stopped = run.until_met(what)
    struck = strike(h, run, stopped, victim, others) if stopped else False
    until(lambda: h.get('/v1/host').json['rootd'] == 'connected', what=f'{what}: the connection to rootd')
    check(h, op, run.s, run.known(), what, struck and victim.endswith('vm'), others)
    for x in others:
        assert h.sh(x, 'cat /dev/shm/here').strip() == x, what
    clear(h, others)
    assert stopped is None or state(stopped) not in 'tT' or stopped in (h.cspaced.pid, h.rootd.pid), what
    return struck


def describe(name, step, victim):
    return f'{name}: at {step[1]} ({step[2]}) of {step[0]} {victim} is killed'


@pytest.mark.parametrize('name', OPERATIONS)
def test_steps(host, name):
    if not shutil.which('strace'):
        pytest.skip('needs strace')
    h, op = host, OPERATIONS[name]
    other = h.create()
    h.sh(other, f'echo {other} >/dev/shm/here')
    found = steps(h, op, [other])
    before = h.settled_counts()
    victims = VICTIMS + (COPIED if op.kind in ('fork', 'publish') else ())
    looks = [(step, victim) for step in found for victim in victims]
    if ONLY:
        looks = [x for x in looks if ONLY in describe(name, *x)]
    seen, failures, at = 0, [], len(name) % (1 if ONLY else EVERY)
    while at < len(looks):
        step, victim = looks[at]
        what = describe(name, step, victim)
        hit = True
        try:
            hit = look(h, op, step, victim, [other], what)
            h.nothing_more_than(before, what)
        except AssertionError as e:
            failures.append(f'{what}: {e}')
            print(failures[-1], flush=True)  # a walk takes long
            clear(h, [other])  # all the same
        seen += hit
        at += 1 if ONLY or not hit else EVERY  # where there was nothing to kill, the next
    assert not failures, '\n\n'.join(failures)
    assert seen
