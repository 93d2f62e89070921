#!/usr/bin/python3 -I
# SPDX-License-Identifier: Apache-2.0
"""Stands where cspace-warden stands. As a warden it serves ctl.sock: each request is one packet with a
Python expression, answered by its value as JSON; "vm:" in front of it asks the VM (the same
program started with --stub) at the other end of descriptor 5. "die" ends the process. Where
qmp.sock is served (ask "hand_over()"), a probe with --adopt reaches the VM by it. As a gateway it serves
gw.sock in the same way."""
import ctypes
import json
import os
import socket
import stat
import struct
import sys

MODE = 'vm' if '--stub' in sys.argv else 'warden' if '--mode' in sys.argv else 'gateway'
libc = ctypes.CDLL(None, use_errno=True)


def fds():
    out = {}
    for name in os.listdir('/proc/self/fd'):
        try:
            st = os.stat(f'/proc/self/fd/{name}')
            link = os.readlink(f'/proc/self/fd/{name}')
        except OSError:
            continue  # the one that listed them
        kind = 'socket' if stat.S_ISSOCK(st.st_mode) else 'file' if stat.S_ISREG(st.st_mode) else 'other'
        import fcntl
        access = fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_ACCMODE
        out[int(name)] = [kind, access, link]
    return out


def status():
    with open('/proc/self/status') as f:
        return dict(line.rstrip('\n').split(':\t', 1) for line in f if ':\t' in line)


def limits():
    import resource
    return {n: resource.getrlimit(getattr(resource, n)) for n in ('RLIMIT_CORE', 'RLIMIT_NOFILE', 'RLIMIT_NPROC', 'RLIMIT_FSIZE')}


def visible_pids():
    return [int(n) for n in os.listdir('/proc') if n.isdigit()]


def attempt(expression):
    """'done', or the name of the error."""
    import errno
    try:
        eval(expression)
        return 'done'
    except OSError as e:
        return errno.errorcode[e.errno]


def writable():
    """Every directory in sight in which a file can be made."""
    found = []
    for top, dirs, _ in os.walk('/', followlinks=False):
        if top == '/':
            dirs[:] = [d for d in dirs if d not in ('proc',)]
        if top.count('/') > 3:
            dirs[:] = []
        try:
            fd = os.open(os.path.join(top, '.probe'), os.O_CREAT | os.O_WRONLY, 0o600)
            os.close(fd)
            found.append(top)
        except OSError:
            pass
    return found


def accept_one(fd=6):
    """As a gateway: waits for a redirected connection; what it was meant for, and its first bytes."""
    s = socket.socket(fileno=os.dup(fd))
    s.settimeout(10)
    c, peer_address = s.accept()
    c.settimeout(10)
    raw = c.getsockopt(socket.SOL_IP, 80, 16)  # SO_ORIGINAL_DST
    data = c.recv(100).decode()
    c.send(b'answer')
    return [socket.inet_ntoa(raw[4:8]), int.from_bytes(raw[2:4], 'big'), peer_address[0], data]


def dns_one():
    u = socket.socket(fileno=os.dup(4))
    u.settimeout(10)
    data, peer_address = u.recvfrom(100)
    u.sendto(data[::-1], peer_address)
    return data.decode()


def evaluate(text):
    try:
        return eval(text)
    except Exception as e:  # told to the test
        return {'exception': repr(e)}


def hand_over():
    """As a warden hands its listeners on to the VM: qmp.sock then lives as long as the VM."""
    import array
    peer.send(b'take-over')
    peer.sendmsg([b'take'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [12]))])
    os.close(12)
    return peer.recv(100).decode()


def take_over(sock):
    import array
    _, anc, _, _ = sock.recvmsg(100, 100)
    qmp = socket.socket(fileno=array.array('i', anc[0][2])[0])
    sock.send(b'taken')
    while True:
        c, _ = qmp.accept()
        serve(c)


def ask_qmp(text):
    s = socket.socket(socket.AF_UNIX)
    s.connect('qmp.sock')
    s.send(text.encode())
    return json.loads(s.recv(65536))


def serve(sock):
    while True:
        text = sock.recv(65536).decode()
        if not text:
            return
        if text == 'die':
            os._exit(7)
        if text == 'take-over':
            take_over(sock)
        if text.startswith('vm:'):
            peer.send(text[3:].encode())
            answer = peer.recv(1 << 17)
            sock.send(answer or b'"gone"')
        else:
            sock.send(json.dumps(evaluate(text)).encode())


peer = None if '--adopt' in sys.argv or MODE == 'gateway' else socket.socket(fileno=5)
if MODE == 'vm':
    serve(peer)
    os._exit(0)
ctl = socket.socket(fileno=3)
while True:
    client, _ = ctl.accept()
    serve(client)
