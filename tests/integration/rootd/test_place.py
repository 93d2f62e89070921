# SPDX-License-Identifier: Apache-2.0
"""What a placed sandbox has, and what its programs can and cannot do."""
import errno
import os
import stat
import subprocess

import pytest

import wire
from conftest import MB, new_id, until


def test_hello_tells_the_host(rootd):
    info = rootd.start().client().info
    assert info['version'] == 1
    assert info['engine'] in ('qemu-tcg', 'qemu-kvm')
    assert info['engine_reason']
    assert info['data_fs'] == 'btrfs' and info['reflink'] == 1
    assert info['cgroup'] in ('v1', 'v2', 'none')


def test_place_and_remove_leave_nothing(placer):
    ident, placed = placer.place()
    assert placed['warden_uid'] + 1 == placed['vm_uid']
    run, data = (os.path.join(d, 'sandboxes', ident) for d in (placer.rootd.run, placer.rootd.data))
    assert stat.S_IMODE(os.stat(run).st_mode) == 0o711
    for name, uid, mode in (('ctl.sock', 0, 0o660), ('data.sock', 0, 0o660), ('qmp.sock', placed['warden_uid'], 0o600),
                            ('port.sock', placed['warden_uid'], 0o600)):
        st = os.stat(os.path.join(run, name))
        assert stat.S_ISSOCK(st.st_mode) and st.st_uid == uid and stat.S_IMODE(st.st_mode) == mode, name
    disk = os.stat(os.path.join(data, 'disk.img'))
    assert disk.st_uid == placed['vm_uid'] and stat.S_IMODE(disk.st_mode) == 0o600
    assert placer.c.call('LIST', 'PLACEMENT_LIST')['ids'] == ident + '\n'
    placer.c.call('REMOVE', id=ident)
    assert not os.path.exists(run) and not os.path.exists(data)
    assert placer.c.call('LIST', 'PLACEMENT_LIST')['ids'] == ''
    placer.c.call('REMOVE', id=ident)  # twice is fine
    placer.rootd.stop()
    placer.rootd.host.assert_nothing()


def test_programs_are_confined(placer):
    ident, placed = placer.place()
    w = placer.rootd.warden(ident)
    for ask, uid in ((w, placed['warden_uid']), (w.vm, placed['vm_uid'])):
        st = ask('status()')
        assert st['Uid'].split() == [str(uid)] * 4 and st['Gid'].split() == [str(uid)] * 4
        assert st['Groups'].split() == []
        for caps in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb'):
            assert int(st[caps], 16) == 0, caps
        assert st['NoNewPrivs'] == '1'
        assert st['NSpid'].split()[-1] == '1'  # PID 1 of a namespace of its own
        assert ask('limits()')['RLIMIT_CORE'] == [1, 1]
        assert ask('limits()')['RLIMIT_NOFILE'][1] <= 1024
        assert ask('open("/proc/self/environ").read()') == ('CSPACE_LOG_FORMAT=text\0' if ask is w else '')
        assert int(ask('open("/proc/self/oom_score_adj").read()')) == (200 if ask is w else 400)
        assert ask('os.nice(0)') == 0
        assert ask('writable()') == []
        for path in ('/etc/passwd', '/root', '/home', '/var/lib', '/run', '/sys', '/dev/kvm', '/dev/net', '/proc/sys',
                     placer.rootd.run, placer.rootd.data):
            assert ask(f'os.path.exists({path!r})') is False, path
        pids = ask('visible_pids()')
        assert pids == [placed['warden_pid']] if ask is w else len(pids) == 1
        for attempt in ('os.setuid(0)', 'os.chroot("/usr")', 'os.setgid(0)'):
            assert ask(f'attempt({attempt!r})') == 'EPERM'
        assert ask('libc.mount(b"x", b"/sandbox", b"tmpfs", 0, None)') == -1
        assert ask('libc.unshare(0x00020000)') == -1
    assert w.vm('limits()')['RLIMIT_FSIZE'] == [8 * MB, 8 * MB]
    # Nothing leads out of the sandbox's folder.
    assert w('os.getcwd()') == '/sandbox'
    assert w('attempt("os.listdir(\'.\')")') == 'EACCES'
    assert w('[os.path.exists(n) for n in ("qmp.sock", "port.sock", "placement", "other")]') == [True, True, True, False]
    assert w('socket.socket(socket.AF_UNIX).connect("qmp.sock")') is None
    assert 'usr' in w('os.listdir("..")') and 'var' not in w('os.listdir("../../..")')
    assert w('attempt("open(\'placement\').read()")') == 'EACCES'
    assert w.vm('os.getcwd()') == '/'
    # One cannot touch the other.
    assert w(f'attempt("os.kill({placed["warden_pid"]}, 0)")') in ('ESRCH', 'EPERM')


def test_descriptors_have_their_numbers(placer):
    ident, _ = placer.place()
    w = placer.rootd.warden(ident)
    fds = {int(k): v for k, v in w('fds()').items()}
    assert fds.pop(10)[0] == 'socket'  # the accepted connection, at the first free number
    got = {n: (v[0], v[1]) for n, v in fds.items() if n != 2}
    assert got == {0: ('other', 2), 1: ('other', 2), 3: ('socket', 2), 4: ('socket', 2), 5: ('socket', 2),
                   6: ('other', 2), 7: ('file', 2), 8: ('file', 0), 9: ('file', 0), 12: ('socket', 2), 13: ('socket', 2)}
    assert fds[6][2].endswith('/dev/net/tun')
    assert w('sys.argv[1:]') == ['--id', ident, '--mode', 'restore', '--engine', 'fake', '--memory', '128', '--cpus', '1',
                                 '--ropen', placer.rootd.libexec + '/ropen.so']
    vm = {int(k): v[0] for k, v in w.vm('fds()').items()}
    assert vm == {0: 'other', 1: 'other', 2: 'other', 5: 'socket'}
    # What is shared with other sandboxes cannot be written, whatever way it is opened again.
    assert w('attempt("os.write(8, b\'x\')")') == 'EBADF'
    assert w('attempt("os.open(\'/proc/self/fd/8\', os.O_RDWR)")') == 'EACCES'
    assert w('attempt("os.pwrite(7, b\'x\', 0)")') == 'done'


def test_network_goes_nowhere(placer):
    a, pa = placer.place()
    b, pb = placer.place()
    ns = [os.stat(f'/proc/{p["warden_pid"]}/ns/net').st_ino for p in (pa, pb)]
    assert len({*ns, os.stat('/proc/self/ns/net').st_ino}) == 3
    w = placer.rootd.warden(a)
    def inside(*argv):
        return subprocess.run(['nsenter', '-t', str(pa['warden_pid']), '-n', *argv], capture_output=True, text=True)
    links = inside('ip', '-o', 'link').stdout
    assert 'tap0' in links and '02:63:73:00:00:01' in links and 'UP' in links.split('tap0')[1]
    addresses = inside('ip', '-o', 'addr').stdout
    assert addresses.count('inet') == 1 and 'inet 10.200.0.1/30' in addresses
    assert inside('ip', 'route').stdout.split()[:3] == ['10.200.0.0/30', 'dev', 'tap0'] and 'default' not in inside('ip', 'route').stdout
    rules = inside('nft', 'list', 'ruleset').stdout
    assert rules.count('policy drop') == 4
    assert inside('cat', '/proc/sys/net/ipv4/ip_forward').stdout.strip() == '0'
    assert inside('cat', '/proc/sys/net/ipv6/conf/tap0/disable_ipv6').stdout.strip() == '1'
    assert w('attempt("__import__(\'socket\').create_connection((\'127.0.0.1\', 1), 1)")') in ('ENETUNREACH', 'ETIMEDOUT')


def test_every_slot_has_its_own_world(placer):
    placed = [placer.place()[1] for _ in range(6)]
    uids = [u for p in placed for u in (p['warden_uid'], p['vm_uid'])]
    assert len(set(uids)) == 12


def test_limits_are_set(placer):
    info = placer.c.info
    if info['cgroup'] == 'none':
        pytest.skip('this host has no cgroups')
    ident, placed = placer.place(memory_mb=128)
    with open(f'/proc/{placed["warden_pid"]}/cgroup') as f:
        paths = dict((p[1], p[2]) for p in (line.rstrip('\n').split(':', 2) for line in f))
    leaf = [p for p in placer.rootd.host.cgroups() if p.rstrip('/').endswith(os.path.basename(next(
        v for k, v in paths.items() if '/cspace' in v)))]
    text = {}
    for d in leaf:
        for name in ('memory.limit_in_bytes', 'memory.max', 'pids.max'):
            if os.path.exists(d + name):
                with open(d + name) as f:
                    text[name] = f.read().strip()
    memory = int(text.get('memory.limit_in_bytes') or text.get('memory.max'))
    assert 128 * MB < memory <= 640 * MB
    assert text['pids.max'] == '512'
    assert len(placer.rootd.host.processes()) >= 2


def test_disk_is_a_private_copy_and_can_be_larger(placer):
    ident, _ = placer.place(disk_bytes=16 * MB)
    path = os.path.join(placer.rootd.data, 'sandboxes', ident, 'disk.img')
    assert os.path.getsize(path) == 16 * MB
    with open(path, 'rb') as f:
        assert f.read(15) == b'root filesystem'
    other, _ = placer.place()
    w = placer.rootd.warden(ident)
    # Its guest does not know the size yet; that of the other one does.
    assert w('sys.argv[-2:]') == ['--disk-bytes', str(16 * MB)]
    assert '--disk-bytes' not in placer.rootd.warden(other)('sys.argv')
    assert w('os.pwrite(7, b"scribble", 0)') == 8
    with open(os.path.join(placer.rootd.data, 'sandboxes', other, 'disk.img'), 'rb') as f:
        assert f.read(8) == b'root fil'
    with pytest.raises(wire.RootdError) as e:
        placer.place(disk_bytes=4 * MB)
    assert e.value.code == errno.EINVAL and 'smaller' in e.value.message
    usage = placer.c.call('USAGE', 'USAGE_INFO', id=ident)
    assert usage['processes'] == 2  # and no gateway yet
    assert usage['memory_bytes'] > 2 * MB
    assert usage['cpu_us'] > 1000
    os.sync()
    usage = placer.c.call('USAGE', 'USAGE_INFO', id=ident)
    assert 0 < usage['disk_bytes'] < MB  # one block changed; the rest is shared


def test_boot_gets_files_to_write_and_becomes_a_variant(placer):
    ident = new_id()
    placer.c.call('PLACE', 'PLACED', **placer.args(ident, mode='boot', memory_mb=160))
    w = placer.rootd.warden(ident)
    fds = {int(k): (v[0], v[1]) for k, v in w('fds()').items() if int(k) <= 13}
    assert fds[8] == ('file', 2) and fds[9] == ('file', 2) and fds[10] == ('file', 0) and fds[11] == ('file', 0)
    assert w('os.pwrite(8, b"memory", 4096)') == 6 and w('os.write(9, b"state")') == 5 and w('os.pwrite(7, b"disk", 0)') == 4
    assert w('open("/proc/self/fd/10").read()') == 'kernel'
    with pytest.raises(wire.RootdError) as e:
        placer.c.call('VARIANT_COMMIT', id=ident, digest=placer.digest, variant='../x')
    assert e.value.code == errno.EINVAL
    placer.c.call('VARIANT_COMMIT', id=ident, digest=placer.digest, variant='fake-160m-1c')
    placer.c.call('VARIANT_COMMIT', id=ident, digest=placer.digest, variant='fake-160m-1c')  # idempotent
    d = os.path.join(placer.rootd.data, 'templates', placer.digest, 'variants', 'fake-160m-1c')
    assert sorted(os.listdir(d)) == ['disk.img', 'mem', 'state', 'variant.json']
    for name in ('disk.img', 'mem', 'state'):
        st = os.stat(os.path.join(d, name))
        assert st.st_uid == 0 and stat.S_IMODE(st.st_mode) == 0o400
    # Nobody who could write it is alive any more.
    assert until(lambda: placer.c.call('USAGE', 'USAGE_INFO', id=ident)['processes'] == 0)
    placer.c.call('REMOVE', id=ident)
    other, _ = placer.place(memory_mb=160)
    w = placer.rootd.warden(other)
    assert w('os.pread(8, 6, 4096).decode()') == 'memory' and w('os.read(9, 9).decode()') == 'state'
    assert w('os.pread(7, 4, 0).decode()') == 'disk'


def test_only_a_live_boot_makes_a_variant(placer):
    ident, _ = placer.place()
    for args, code in (({'id': ident, 'variant': 'fake-128m-1c'}, errno.EINVAL), ({'id': new_id(), 'variant': 'x'}, errno.ENOENT)):
        with pytest.raises(wire.RootdError) as e:
            placer.c.call('VARIANT_COMMIT', digest=placer.digest, **args)
        assert e.value.code == code


def test_exits_are_told(placer):
    ident, placed = placer.place()
    w = placer.rootd.warden(ident)
    w.sock.send(b'vm:os._exit(3)')
    assert placer.c.event() == ('EXITED', {'id': ident, 'what': 'vm'})
    w.close()
    w = placer.rootd.warden(ident)
    w.sock.send(b'die')
    assert placer.c.event() == ('EXITED', {'id': ident, 'what': 'warden'})
    # Told again to one who was not there.
    late = placer.rootd.client()
    assert {late.event()[1]['what'], late.event()[1]['what']} == {'vm', 'warden'}
    placer.c.call('REMOVE', id=ident)
    placer.rootd.stop()
    placer.rootd.host.assert_nothing()


def record(rootd, ident):
    with open(os.path.join(rootd.run, 'sandboxes', ident, 'placement')) as f:
        return dict(line.rstrip('\n').split('=', 1) for line in f)


def test_a_warden_that_ends_has_a_successor(placer):
    ident, placed = placer.place()
    r, c = placer.rootd, placer.c
    w = r.warden(ident)
    ns = os.stat(f'/proc/{placed["warden_pid"]}/ns/net').st_ino
    assert w('hand_over()') == 'taken'

    def successor(before):
        until(lambda: record(r, ident)['warden_pid'] != before, what='a new warden')

        def answers():
            try:
                x = r.warden(ident)
                x('1')
                return x
            except (OSError, ValueError):
                return None
        return until(answers, what='an answer of the new warden')
    pids = {str(placed['warden_pid'])}
    for _ in range(2):
        before = record(r, ident)['warden_pid']
        w.sock.send(b'die')
        assert c.event() == ('EXITED', {'id': ident, 'what': 'warden'})
        w = successor(before)
        assert w('sys.argv[-1]') == '--adopt' and w('sys.argv[2]') == ident
        st = w('status()')
        assert st['Uid'].split()[0] == str(placed['warden_uid']) and int(st['CapBnd'], 16) == 0
        pids.add(record(r, ident)['warden_pid'])
        assert os.stat(f'/proc/{record(r, ident)["warden_pid"]}/ns/net').st_ino == ns
        assert w('ask_qmp("os.getuid()")') == placed['vm_uid']  # the VM went on, and is in reach
        assert {k: v[0] for k, v in w('fds()').items() if k not in ('0', '1', '2', '5')} == {'3': 'socket', '4': 'socket'}
    assert len(pids) == 3
    # And with rootd away: found at its next start.
    r.kill()
    before = record(r, ident)['warden_pid']
    w.sock.send(b'die')
    until(lambda: not os.path.exists(f'/proc/{before}'))
    r.start()
    w = successor(before)
    assert w('ask_qmp("os.getuid()")') == placed['vm_uid']
    c = r.client()
    c.call('REMOVE', id=ident)
    r.stop()
    r.host.assert_nothing()


def test_a_warden_that_keeps_ending_is_given_up(placer):
    ident, placed = placer.place()
    r = placer.rootd
    w = r.warden(ident)
    assert w('hand_over()') == 'taken'
    for _ in range(4):
        pid = record(r, ident)['warden_pid']
        os.kill(int(pid), 9)
        assert placer.c.event()[1]['what'] == 'warden'
        until(lambda: record(r, ident)['warden_pid'] != pid or 'given up' in r.text())
    assert 'given up' in r.text()
    placer.c.call('REMOVE', id=ident)
    r.stop()
    r.host.assert_nothing()


def test_remove_does_not_ask_anybody(placer):
    """Stopped processes, many processes, a folder somebody filled."""
    ident, placed = placer.place()
    w = placer.rootd.warden(ident)
    assert w('[os.fork() or os.execv("/usr/bin/sleep", ["sleep", "1000"]) for _ in range(5)] and 1') == 1
    os.kill(placed['warden_pid'], 19)
    junk = os.path.join(placer.rootd.data, 'sandboxes', ident, 'a', 'b')
    os.makedirs(junk)
    placer.c.call('REMOVE', id=ident)
    placer.rootd.stop()
    placer.rootd.host.assert_nothing()


@pytest.mark.parametrize('change,code,word', [
    ({'id': 'short'}, errno.EINVAL, 'id'), ({'id': '../../../../etc/passwd/abc'}, errno.EINVAL, 'id'),
    ({'id': 'A' * 26}, errno.EINVAL, 'id'), ({'digest': '0' * 64}, errno.ENOENT, 'template'),
    ({'digest': '../' + 'a' * 61}, errno.EINVAL, 'digest'), ({'mode': 'fork'}, errno.EINVAL, 'boot'),
    ({'engine': '../../x'}, errno.EINVAL, 'engine'), ({'memory_mb': 64}, errno.EINVAL, 'limit'),
    ({'cpus': 0}, errno.EINVAL, 'CPU'), ({'cpus': 2}, errno.ENOENT, 'variant'), ({'memory_mb': 256}, errno.ENOENT, 'variant'),
])
def test_bad_places_are_refused(placer, change, code, word):
    with pytest.raises(wire.RootdError) as e:
        placer.c.call('PLACE', 'PLACED', **placer.args(**change) if 'id' not in change else {**placer.args(), **change})
    assert e.value.code == code and word in e.value.message
    assert placer.c.call('LIST', 'PLACEMENT_LIST')['ids'] == ''


def test_two_places_of_one_id(placer):
    ident = new_id()
    seqs = [placer.c.send('PLACE', **placer.args(ident)) for _ in range(2)]
    results = []
    for seq in seqs:
        try:
            results.append(placer.c.result(seq, 'PLACED') and 0)
        except wire.RootdError as e:
            results.append(e.code)
    assert sorted(results) == [0, errno.EEXIST]
    placer.c.call('REMOVE', id=ident)
    placer.rootd.stop()
    placer.rootd.host.assert_nothing()


def test_remove_in_the_middle_of_place(rootd):
    rootd.start(pool=0)  # every place waits for its slot
    c = rootd.client()
    digest = rootd.make_template(c)
    rootd.make_variant(c, digest)
    for _ in range(5):
        ident = new_id()
        place = c.send('PLACE', id=ident, mode='restore', digest=digest, engine='fake', memory_mb=128, cpus=1)
        remove = [c.send('REMOVE', id=ident) for _ in range(3)]
        with pytest.raises(wire.RootdError) as e:
            c.result(place, 'PLACED')
        assert e.value.code == errno.ECANCELED
        for seq in remove:
            c.result(seq)
    assert c.call('LIST', 'PLACEMENT_LIST')['ids'] == ''
    rootd.stop()
    rootd.host.assert_nothing()


def test_limit_of_sandboxes(rootd):
    rootd.start(conf='[sandbox]\nmax = 2\n')
    c = rootd.client()
    digest = rootd.make_template(c)
    rootd.make_variant(c, digest)
    args = {'mode': 'restore', 'digest': digest, 'engine': 'fake', 'memory_mb': 128, 'cpus': 1}
    for _ in range(2):
        c.call('PLACE', 'PLACED', id=new_id(), **args)
    with pytest.raises(wire.RootdError) as e:
        c.call('PLACE', 'PLACED', id=new_id(), **args)
    assert e.value.code == errno.EDQUOT and '2' in e.value.message


def test_a_program_that_cannot_start(rootd, tmp_path):
    empty = tmp_path / 'libexec'
    empty.mkdir(mode=0o755)
    rootd.libexec = str(empty)
    rootd.start()
    c = rootd.client()
    digest = rootd.make_template(c)
    with pytest.raises(wire.RootdError) as e:
        c.call('PLACE', 'PLACED', id=new_id(), mode='boot', digest=digest, engine='fake', memory_mb=128, cpus=1)
    assert e.value.code == errno.ENOENT and 'cspace-warden' in e.value.message
    assert c.call('LIST', 'PLACEMENT_LIST')['ids'] == ''
    rootd.stop()
    rootd.host.assert_nothing()


def test_logs_of_programs_are_marked_and_bounded(placer):
    """What a warden writes is its own, whoever it says that it is, and however much it is."""
    ident, _ = placer.place()
    r = placer.rootd
    w = r.warden(ident)
    mark = f'cspace-warden of sandbox {ident}: '
    w(r"""os.write(2, b'2026-01-01T00:00:00.000Z error cspace-warden: told\n2026-01-01T00:00:00.000Z error cspace-rootd: forged\n'
                   b'{"level":"error","program":"cspace-rootd"}\n\x1b[31m' + b'x' * 3000 + b'\n')""".replace('\n    ', ' '))
    until(lambda: 'x' * 500 in r.text(), what='the lines')
    lines = [line for line in r.text().splitlines() if 'told' in line or 'forged' in line or '"program' in line or 'xxx' in line]
    assert len(lines) == 4 and all(mark in line and 'cspace-rootd: ' + mark in line for line in lines), lines
    assert 'error cspace-rootd' in lines[0] and 'warn cspace-rootd' in lines[2]
    assert '\x1b' not in lines[3] and len(lines[3]) < 1500
    # Its description is its own: what it does to it is nobody else's business, and a full pipe does not hold it up.
    assert w('os.get_blocking(2)') is False
    w('os.set_blocking(2, True)')
    r.kill()
    r.start()
    w('os.write(2, b"after\\n")')
    until(lambda: mark + 'after' in r.text(), what='a line after the restart of rootd')
    w('os.set_blocking(2, False)')
    before = len(r.text())
    w('[os.write(2, b"flood %d\\n" % i) for i in range(300)] and None')
    until(lambda: 'flood 40' in r.text(), what='the first of many lines')
    assert len(r.text()) - before < 20000
    placer.c = r.client()
    placer.c.call('REMOVE', id=ident)


def test_images_that_were_begun(placer):
    """Whoever asked for them may be gone: they are listed, can be removed, and leave nothing behind."""
    c, data = placer.c, os.path.join(placer.rootd.data, 'checkpoints')
    ident, _ = placer.place()
    image = new_id()
    c.call('IMAGE_BEGIN', id=ident, image=image)
    assert os.listdir(data) == ['.new-' + image]
    assert c.call('IMAGES', 'PLACEMENT_LIST')['ids'].split() == [image]
    c.call('IMAGE_REMOVE', image=image)
    assert os.listdir(data) == [] and c.call('IMAGES', 'PLACEMENT_LIST')['ids'] == ''
    # Begun anew although it had been made.
    c.call('IMAGE_COMMIT', 'IMAGE_INFO', id=ident, image=image, kind='disk')
    c.call('IMAGE_BEGIN', id=ident, image=image)
    assert c.call('IMAGES', 'PLACEMENT_LIST')['ids'].split() == [image]
    c.call('IMAGE_COMMIT', 'IMAGE_INFO', id=ident, image=image, kind='disk')
    assert os.listdir(data) == [image]
    # The image of its process alone.
    with open(os.path.join(data, image, 'process'), 'wb'):
        pass
    with pytest.raises(Exception, match='not an image'):
        c.call('IMAGE_REMOVE', image=image, what='disk.img')
    for _ in range(2):
        c.call('IMAGE_REMOVE', image=image, what='process')
        assert os.listdir(data) == [image] and 'disk.img' in os.listdir(os.path.join(data, image))
        assert 'process' not in os.listdir(os.path.join(data, image))
    c.call('IMAGE_REMOVE', image=image)
    c.call('IMAGE_REMOVE', image=image, what='process')
    build = new_id()
    os.makedirs(os.path.join(placer.rootd.data, 'builds', build, 'out'))
    assert c.call('IMAGES', 'PLACEMENT_LIST', what='builds')['ids'].split() == [build]
    c.call('BUILD_REMOVE', id=build)
    assert c.call('IMAGES', 'PLACEMENT_LIST', what='builds')['ids'] == ''
    c.call('REMOVE', id=ident)
