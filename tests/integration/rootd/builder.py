#!/usr/bin/python3 -I
# SPDX-License-Identifier: Apache-2.0
"""Stands where cspace-builder stands: says on its progress descriptor what it sees, then does what the
list of packages tells it ("--packages hang", "fail", "escape", "make")."""
import ctypes
import json
import os
import signal
import sys
import time

args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
libc = ctypes.CDLL(None, use_errno=True)


def say(**what):
    print(json.dumps(what), flush=True)


def writable():
    found = []
    for top, dirs, _ in os.walk('/'):
        if top in ('/proc', '/sys', '/dev') or top.count('/') > 4:
            dirs[:] = []
            continue
        try:
            with open(os.path.join(top, '.probe'), 'w'):
                pass
            os.unlink(os.path.join(top, '.probe'))
            found.append(top)
        except OSError:
            pass
    return found


def text(path):
    with open(path) as f:
        return f.read()


def mount(source, target, fs, flags):
    return 0 if libc.mount(source, target, fs, flags, None) == 0 else ctypes.get_errno()


fds = sorted(int(n) for n in os.listdir('/proc/self/fd'))
say(args=args, uid=os.getuid(), pid=os.getpid(), environ=sorted(os.environ), map=text('/proc/self/uid_map').split(),
    fds=fds, groups=os.getgroups(), oom=int(text('/proc/self/oom_score_adj')))
work = args.get('--packages', '')
if work == 'escape':
    say(writable=writable(), home=os.listdir('/home'), root=os.listdir('/root'), run=os.listdir('/run'),
        data=sorted(os.listdir(os.path.dirname(os.path.dirname(args['--dir'])))),
        # What was covered or write-protected stays so, for root of this namespace too.
        umount_home=libc.umount2(b'/home', 2), umount_run=libc.umount2(b'/run', 2),
        remount=mount(None, b'/', None, 0x20 | 0x1000), proc=mount(b'proc', b'/proc', b'proc', 0),
        tmpfs=mount(b'x', b'/tmp', b'tmpfs', 0), kill=os.kill(1, 0))
elif work == 'hang':
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.setsid()
    while True:
        time.sleep(1000)
elif work == 'fail':
    say(error='no such package', code='package_not_found')
    sys.exit(1)
elif work == 'make':
    out = os.path.join(args['--dir'], 'out')
    os.mkdir(out)
    with open(os.path.join(out, 'kernel'), 'w') as f:
        f.write('k')
    os.chown(os.path.join(out, 'kernel'), 1000, 1000)
    with open(os.path.join(args['--cache'], 'kept'), 'a') as f:
        f.write('x')
    say(kept=len(text(os.path.join(args['--cache'], 'kept'))))
if args['--source'] == 'tar':
    say(tar=os.read(3, 100).decode())
