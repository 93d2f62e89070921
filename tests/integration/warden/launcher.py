# SPDX-License-Identifier: Apache-2.0
"""Plays cspace-rootd and cspaced towards one warden: makes what rootd makes, starts the warden and the
VM stub under uids of their own, and speaks the control and the data protocol."""
import ctypes
import fcntl
import json
import os
import re
import select
import shutil
import signal
import socket
import struct
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
WARDEN_UID, VM_UID = 61701, 61702

FLAG_REPLY, FLAG_ERROR = 1, 2


def message_types():
    """Numbers of the messages, from the table of src/lib/ipc/messages.h."""
    text = open(os.path.join(TOP, 'src/lib/ipc/messages.h')).read()
    table = text[text.index('#define IPC_MESSAGES(M)'):]
    rows = re.findall(r'M\((\d+), ([A-Z_]+), [a-z_]+\)', table[:table.index('enum ipc_type')])
    return {name: int(number) for number, name in rows}


TYPES = message_types()


class IpcError(Exception):
    pass


class Fields:
    def __init__(self, body):
        self.body, self.at = body, 0

    def take(self, fmt):
        value = struct.unpack_from('<' + fmt, self.body, self.at)[0]
        self.at += struct.calcsize('<' + fmt)
        return value

    def text(self):
        n = self.take('I')
        value = self.body[self.at:self.at + n]
        self.at += n
        return value.decode()


class Ctl:
    """A connection to ctl.sock."""

    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.connect(path)
        self.seq = 0
        self.events = []

    def close(self):
        self.sock.close()

    def send(self, name, body=b''):
        self.seq += 1
        self.sock.send(struct.pack('<HHI', TYPES[name], 0, self.seq) + body)
        return self.seq

    def receive(self, seq, timeout):
        end = time.monotonic() + timeout
        while True:
            self.sock.settimeout(max(end - time.monotonic(), 0.001))
            packet = self.sock.recv(256 * 1024)
            if not packet:
                raise ConnectionError('the warden closed ctl.sock')
            kind, flags, number = struct.unpack_from('<HHI', packet)
            body = packet[8:]
            if not flags & FLAG_REPLY:
                f = Fields(body)
                self.events.append((f.text(), f.text()))
            elif number == seq:
                if flags & FLAG_ERROR:
                    f = Fields(body)
                    raise IpcError(f.take('I'), f.text())
                return body

    def call(self, name, body=b'', timeout=120):
        return self.receive(self.send(name, body), timeout)

    def query(self):
        f = Fields(self.call('QUERY'))
        return {'state': f.text(), 'reason': f.text(), 'identified': f.take('I'), 'link_up': f.take('I'),
                'bytes_in': f.take('Q'), 'bytes_out': f.take('Q')}

    def identify(self, identity=None, timeout=120):
        text = json.dumps(identity or IDENTITY).encode()
        f = Fields(self.call('IDENTIFY', struct.pack('<I', len(text)) + text, timeout))
        return {k: f.take('Q') for k in ('spawn_us', 'load_us', 'link_us', 'identify_us')}

    def stop(self, timeout_ms=5000):
        self.call('STOP', struct.pack('<I', timeout_ms))

    def pause(self):
        self.call('PAUSE')

    def resume(self):
        self.call('RESUME')

    def park(self, keep):
        self.call('PARK', struct.pack('<I', keep), timeout=120)

    def save(self, path):
        """The devices' state, into a new file, as cspace-rootd makes it."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self.seq += 1
        socket.send_fds(self.sock, [struct.pack('<HHI', TYPES['SAVE'], 0, self.seq)], [fd])
        os.close(fd)
        self.receive(self.seq, 60)

    def snapshot(self):
        self.call('SNAPSHOT', timeout=180)

    def wait_state(self, states, timeout=60):
        """Until the warden is in one of the states."""
        states = (states,) if isinstance(states, str) else states
        end = time.monotonic() + timeout
        while True:
            q = self.query()
            if q['state'] in states:
                return q
            if time.monotonic() > end:
                raise TimeoutError(f'state {q} after {timeout} s, wanted {states}')
            self.wait_event(end - time.monotonic())

    def wait_event(self, timeout):
        """One event or a short while, whichever comes first."""
        self.sock.settimeout(max(min(timeout, 0.2), 0.001))
        try:
            packet = self.sock.recv(256 * 1024)
        except (TimeoutError, socket.timeout):
            return
        if not packet:
            raise ConnectionError('the warden closed ctl.sock')
        f = Fields(packet[8:])
        self.events.append((f.text(), f.text()))


IDENTITY = {'sandboxId': 'a' * 26, 'templateId': 'b' * 64, 'hostname': 'sandbox', 'env': {'FROM_TEST': 'yes'},
            'accessToken': 'secret-of-this-sandbox', 'defaultUser': 'root', 'defaultWorkdir': '/root'}


class Data:
    """A connection to data.sock, opened to a port; reading tells proper ends from cut ones."""

    def __init__(self, path, port, timeout=60):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(timeout)
        self.sock.connect(path)
        self.sock.sendall(f'CONNECT {port}\n'.encode())
        line = b''
        while not line.endswith(b'\n'):
            c = self.sock.recv(1)
            if not c:
                break
            line += c
        self.line = line.decode().rstrip('\n')
        self.ok, self.shut = self.line == '200 OK', False

    def read_end(self):
        """All that comes, and whether the end was a proper one (a socket that has been shut down for
        sending cannot tell: True)."""
        got = b''
        while True:
            try:
                piece = self.sock.recv(65536)
            except ConnectionResetError:
                return got, False
            if not piece:
                break
            got += piece
        poll = select.poll()
        poll.register(self.sock.fileno(), 0)
        return got, self.shut or not poll.poll(0)

    def end(self):
        """No more from here."""
        self.shut = True
        self.sock.shutdown(socket.SHUT_WR)

    def close(self):
        self.sock.close()


def unix_listener(path, kind, uid, mode):
    s = socket.socket(socket.AF_UNIX, kind)
    s.bind(path)
    os.chmod(path, mode)
    os.chown(path, uid, 0)
    s.listen(64)
    return s


def start(argv, fds, uid, cwd, log):
    """Starts argv with {number: descriptor} and nothing else, as rootd does. Returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        high = {n: fcntl.fcntl(fd, fcntl.F_DUPFD, 200) for n, fd in fds.items()}
        null = os.open('/dev/null', os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.dup2(log if log is not None else null, 2)
        os.closerange(3, 200)
        for n, fd in high.items():
            os.dup2(fd, n)
        os.closerange(200, 300)
        os.chdir(cwd)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        os.execve(argv[0], argv, {'CSPACE_LOG_FORMAT': 'text'})
    finally:
        os._exit(126)


class Placement:
    """One sandbox's folder, files and processes."""

    def __init__(self, build, run, engine='qemu-tcg', memory=256, cpus=1, tap=False):
        self.build, self.run, self.engine, self.memory, self.cpus = build, run, engine, memory, cpus
        self.id = 'a' * 26
        self.warden = self.stub = None
        self.tap = tap
        self.disk_bytes = 0
        os.makedirs(run, mode=0o711)
        os.chmod(run, 0o711)
        self.ctl_path, self.data_path = run + '/ctl.sock', run + '/data.sock'
        self.log_path = run + '/warden.log'

    def argv(self, mode):
        return [self.build + '/src/warden/cspace-warden', '--id', self.id, '--mode', mode, '--engine', self.engine,
                '--memory', str(self.memory), '--cpus', str(self.cpus), '--ropen',
                self.build + '/src/warden/ropen.so', *(['--disk-bytes', str(self.disk_bytes)] if self.disk_bytes else [])]

    def listeners(self, names):
        socks = {}
        for name, number, kind, uid, mode in names:
            path = f'{self.run}/{name}'
            if os.path.exists(path):
                os.unlink(path)
            socks[number] = unix_listener(path, kind, uid, mode)
        return socks

    OUTER = (('ctl.sock', 3, socket.SOCK_SEQPACKET, 0, 0o660), ('data.sock', 4, socket.SOCK_STREAM, 0, 0o660))
    INNER = (('qmp.sock', 12, socket.SOCK_STREAM, WARDEN_UID, 0o600),
             ('port.sock', 13, socket.SOCK_STREAM, WARDEN_UID, 0o600))

    def launch(self, mode, files, stub_binary=None):
        """files: {number: open descriptor} for disk, mem, state, kernel and initrd."""
        socks = self.listeners(self.OUTER + self.INNER)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        log = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.stub = start([stub_binary or self.build + '/src/warden/cspace-warden', '--stub'],
                          {5: theirs.fileno()}, VM_UID, '/', None)
        fds = {n: s.fileno() for n, s in socks.items()}
        fds.update(files)
        fds[5] = ours.fileno()
        self.warden = start(self.argv(mode), fds, WARDEN_UID, self.run, log)
        for s in (*socks.values(), ours, theirs):
            s.close()
        for fd in (*files.values(), log):
            os.close(fd)

    def adopt(self, mode='restore'):
        socks = self.listeners(self.OUTER)
        log = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.warden = start(self.argv(mode) + ['--adopt'], {n: s.fileno() for n, s in socks.items()}, WARDEN_UID,
                            self.run, log)
        for s in socks.values():
            s.close()
        os.close(log)

    def ctl(self):
        return Ctl(self.ctl_path)

    def data(self, port, **kw):
        return Data(self.data_path, port, **kw)

    def log(self):
        return open(self.log_path).read() if os.path.exists(self.log_path) else ''

    def kill(self, what):
        pid = getattr(self, what)
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            setattr(self, what, None)

    def vm_alive(self):
        pid, _ = os.waitpid(self.stub, os.WNOHANG)
        if pid:
            self.stub = None
        return pid == 0

    def wait_vm_end(self, timeout=30):
        end = time.monotonic() + timeout
        while self.vm_alive():
            if time.monotonic() > end:
                raise TimeoutError('the VM goes on')
            time.sleep(0.01)

    def destroy(self):
        self.kill('warden')
        self.kill('stub')
        shutil.rmtree(self.run, ignore_errors=True)


def open_files(**kw):
    """disk, mem, state, kernel, initrd: (path, flags) each."""
    numbers = {'tap': 6, 'disk': 7, 'mem': 8, 'state': 9, 'kernel': 10, 'initrd': 11}
    return {numbers[k]: os.open(*v, 0o600) for k, v in kw.items()}


def make_tap():
    """A tap in a network namespace that lives as long as the descriptor, made as rootd makes it."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            if ctypes.CDLL(None, use_errno=True).unshare(0x40000000) == 0:  # CLONE_NEWNET
                fd = os.open('/dev/net/tun', os.O_RDWR | os.O_CLOEXEC)
                fcntl.ioctl(fd, 0x400454ca, struct.pack('16sH22x', b'tap0', 0x0002 | 0x1000 | 0x4000))
                socket.send_fds(theirs, [b'x'], [fd])
        finally:
            os._exit(0)
    theirs.close()
    _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    os.waitpid(pid, 0)
    ours.close()
    return fds[0] if fds else None


def boot_files(template, variant):
    os.makedirs(variant, exist_ok=True)
    clone(template + '/disk.img', variant + '/disk.img')
    rw, ro = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, os.O_RDONLY | os.O_CLOEXEC
    return open_files(disk=(variant + '/disk.img', rw), mem=(variant + '/mem', rw | os.O_TRUNC),
                      state=(variant + '/state', rw | os.O_TRUNC), kernel=(template + '/kernel', ro),
                      initrd=(template + '/initrd', ro))


def restore_files(variant, disk):
    clone(variant + '/disk.img', disk)
    rw, ro = os.O_RDWR | os.O_CLOEXEC, os.O_RDONLY | os.O_CLOEXEC
    return open_files(disk=(disk, rw), mem=(variant + '/mem', ro), state=(variant + '/state', ro))


def clone(src, dst):
    """A reflink, or a sparse copy where there are none."""
    with open(src, 'rb') as i, open(dst, 'wb') as o:
        try:
            fcntl.ioctl(o.fileno(), 0x40049409, i.fileno())
            return
        except OSError:
            pass
        size = os.fstat(i.fileno()).st_size
        os.truncate(o.fileno(), size)
        at = 0
        while at < size:
            try:
                at = os.lseek(i.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(i.fileno(), at, os.SEEK_HOLE)
            while at < end:
                n = os.copy_file_range(i.fileno(), o.fileno(), min(end - at, 1 << 26), at, at)
                if n == 0:
                    break
                at += n


def proc_memory(pid):
    """Anonymous of a process in kB."""
    with open(f'/proc/{pid}/smaps_rollup') as f:
        return next(int(line.split()[1]) for line in f if line.startswith('Anonymous:'))


def cpu_ticks(pid):
    with open(f'/proc/{pid}/stat') as f:
        fields = f.read().rsplit(')', 1)[1].split()
    return int(fields[11]) + int(fields[12])


def save_memory(pid, base, out):
    """What cspace-rootd does: base with the VM's private pages written over it. Returns their number."""
    clone(base, out)
    n = 0
    size = os.stat(base).st_size
    with open(f'/proc/{pid}/maps') as f:
        ranges = [[int(x, 16) for x in line.split()[0].split('-')] for line in f if line.rstrip().endswith(base)]
    (start, end), = [r for r in ranges if r[1] - r[0] == size]
    with open(f'/proc/{pid}/pagemap', 'rb') as f:
        f.seek(start // 4096 * 8)
        entries = struct.unpack(f'<{size // 4096}Q', f.read(size // 4096 * 8))
    with open(f'/proc/{pid}/mem', 'rb', 0) as mem, open(out, 'r+b') as f:
        for i, e in enumerate(entries):
            if (e >> 63 & 1 or e >> 62 & 1) and not e >> 61 & 1:
                mem.seek(start + i * 4096)
                f.seek(i * 4096)
                f.write(mem.read(4096))
                n += 1
    return n
