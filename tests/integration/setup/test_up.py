# SPDX-License-Identifier: Apache-2.0
import json
import os
import re
import signal
import socket
import stat
import subprocess
import time

import conftest
import pytest


def wait_for(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, 'timed out'
        time.sleep(0.02)


def test_up_and_down(host):
    out = host.up()
    assert host.healthy()
    assert 'data.btrfs' in out and f'http://127.0.0.1:{host.port}' in out
    assert host.mounts() == [host.path('data')] and len(host.loops()) == 1
    with open('/proc/self/mountinfo', encoding='utf-8') as f:
        options = next(line for line in f if host.path('data') in line).split()[5].split(',')
    assert 'nosuid' in options and 'nodev' in options

    host.down()
    assert not host.healthy()
    assert host.processes() == [] and host.mounts() == [] and host.no_loops()


def test_second_up_changes_nothing(host):
    host.up()
    pids = host.pid('cspaced'), host.pid('cspace-rootd')
    began = time.monotonic()
    out = host.up()
    assert time.monotonic() - began < 1
    assert len(out.splitlines()) == 1
    assert pids == (host.pid('cspaced'), host.pid('cspace-rootd'))


def test_second_down_is_fine(host):
    host.up()
    host.down()
    host.down()


def test_down_before_any_up(host):
    host.down()


def test_data_survives(host):
    host.up()
    assert host.api('key', 'create', 'mine').returncode == 0
    before = json.loads(host.api('--json', 'key', 'ls').out)
    host.down()
    host.up()
    assert before and json.loads(host.api('--json', 'key', 'ls').out) == before


def test_services_have_their_users(host):
    host.up()

    def status(service):
        with open(f'/proc/{host.pid(service)}/status', encoding='utf-8') as f:
            return dict(line.rstrip('\n').split(':\t', 1) for line in f if ':\t' in line)

    daemon = status('cspaced')
    assert '0' not in daemon['Uid'].split() and '0' not in daemon['Gid'].split()
    assert daemon['NoNewPrivs'] == '1' and int(daemon['CapEff'], 16) == 0 and int(daemon['CapPrm'], 16) == 0
    assert status('cspace-rootd')['Uid'].split()[0] == '0'


def test_nothing_of_the_caller_stays_open(host):
    """A lock that was held while services were started must not be held by them from then on."""
    fd = os.open(host.path('lock'), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        p = host.cspace('up', pass_fds=[fd])
        assert p.returncode == 0, p.err
    finally:
        os.close(fd)
    started = host.processes()
    assert len(started) >= 4 and any(b'__log' in line for _, line in started)
    for pid, line in started:
        for n in os.listdir(f'/proc/{pid}/fd'):
            try:
                assert os.readlink(f'/proc/{pid}/fd/{n}') != host.path('lock'), line
            except FileNotFoundError:
                pass  # closed meanwhile


def test_modes(host):
    host.up()
    modes = {p: (os.stat(host.path(p)).st_uid, stat.S_IMODE(os.stat(host.path(p)).st_mode)) for p in ('run', 'data', 'log', 'run/services')}
    assert modes == {'run': (0, 0o1775), 'data': (0, 0o1775), 'log': (0, 0o750), 'run/services': (0, 0o700)}
    assert stat.S_IMODE(os.stat(host.path('data.btrfs')).st_mode) == 0o600


@pytest.mark.parametrize('victims', [['cspaced'], ['cspace-rootd'], ['cspaced', 'cspace-rootd']])
def test_up_after_a_crash(host, victims):
    host.up()
    for v in victims:
        os.kill(host.pid(v), signal.SIGKILL)
    out = host.up()
    wait_for(host.healthy)
    # "restarted": a process takes a moment to die.
    assert all(re.search(f'^{v} (re)?started', out, re.M) for v in victims)
    assert len(host.loops()) == 1


def test_up_killed_at_any_time(host):
    """Whatever was done so far, the next run completes it."""
    for ms in (5, 20, 50, 100, 150, 200, 300):
        p = host.start('up')
        time.sleep(ms / 1000)
        p.kill()
        p.communicate()
        out = host.up()
        assert host.healthy(), out
        assert len(host.loops()) == 1 and len(host.mounts()) == 1
        host.down()
        wait_for(lambda: not host.processes())
        assert host.no_loops()
        subprocess.run(['rm', '-f', host.path('data.btrfs')], check=True)


def test_two_at_once(host):
    running = [host.start('up') for _ in range(4)]
    for p in running:
        p.communicate(timeout=60)
    assert [p.returncode for p in running] == [0, 0, 0, 0]
    assert host.healthy() and len(host.loops()) == 1 and len(host.mounts()) == 1
    daemons = [line for _, line in host.processes() if line.startswith(host.path('libexec', 'cspaced').encode())]
    assert len(daemons) == 1


def test_after_a_reboot(host):
    """The mount and all processes are gone, the files are not."""
    host.up()
    for service in ('cspaced', 'cspace-rootd'):
        os.kill(host.pid(service), signal.SIGKILL)
    wait_for(lambda: not [line for _, line in host.processes() if b'__log' not in line])
    subprocess.run(['umount', host.path('data')], check=True)
    out = host.up()
    assert 'mounted' in out and 'made' not in out and host.healthy()


def test_replaced_program_is_restarted(host):
    host.up()
    before = host.pid('cspaced'), host.pid('cspace-rootd')
    host.install('cspaced')
    out = host.up()
    assert 'cspaced restarted' in out and 'cspace-rootd' not in out
    assert host.pid('cspaced') != before[0] and host.pid('cspace-rootd') == before[1]
    assert host.healthy()


def test_edited_configuration_restarts(host):
    host.up()
    before = host.pid('cspaced'), host.pid('cspace-rootd')
    host.port = conftest.free_port()
    host.configure(extra='[sandbox]\nmax = 7\n')
    out = host.up()
    for service in ('cspaced', 'cspace-rootd'):
        assert f'{service} restarted with the changed configuration ([api] listen, [sandbox] max)' in out
    with socket.create_connection(('127.0.0.1', host.port)):
        pass
    after = host.pid('cspaced'), host.pid('cspace-rootd')
    assert not set(before) & set(after)
    host.configure(extra='# a comment changes nothing\n[sandbox]\nmax = 7\n')
    assert len(host.up().splitlines()) == 1
    assert after == (host.pid('cspaced'), host.pid('cspace-rootd'))


def test_edit_before_a_start_that_nobody_noted(host):
    """Without a note the file's time tells whether the process can have read it."""
    host.up()
    for name in ('cspaced.conf', 'cspace-rootd.conf'):
        os.unlink(host.path('run', 'services', name))
    os.utime(host.path('c.conf'), (1, 1))
    assert len(host.up().splitlines()) == 1
    os.utime(host.path('c.conf'), (time.time() + 60, time.time() + 60))
    assert 'cspaced restarted with the changed configuration\n' in host.up()
    assert len(host.up().splitlines()) == 1


def test_data_folder_moved_under_sandboxes(host):
    host.up()
    vm = subprocess.Popen(['sleep', '600'], user=1234567, group=1234567, extra_groups=[])
    try:
        folder = host.path('run', 'sandboxes', 'a' * 26)
        os.makedirs(folder)
        with open(os.path.join(folder, 'placement'), 'w', encoding='ascii') as f:
            f.write('vm_uid=1234567\n')
        host.configure(data=host.path('other'))
        p = host.cspace('up')
        assert p.returncode == 125 and '[paths] data was changed' in p.err and not os.path.exists(host.path('other'))
    finally:
        vm.kill()
        vm.wait()


@pytest.mark.parametrize('wrong', ['[sandbox]\nmemroy_mb = 1\n', '[api\n', '[sandbox]\ncpus = many\n'])
def test_down_with_a_wrong_configuration(host, wrong):
    host.up()
    host.configure(extra=wrong)
    p = host.cspace('down')
    assert p.returncode == 0, p.err
    assert re.search(r'c\.conf:\d+: .*; going on with the configuration that the services were started with', p.err)
    assert host.processes() == [] and host.mounts() == [] and host.loops() == []


def test_down_without_its_configuration(host):
    """The file is gone or empty: --run is enough to find what runs, and where."""
    host.up()
    os.unlink(host.path('c.conf'))
    p = host.cspace('down')
    assert p.returncode == 125 and '--run' in p.err and host.healthy()  # not the services of another configuration
    p = host.cspace('down', '--run', host.path('run'))
    assert p.returncode == 0 and 'c.conf' in p.err
    assert host.processes() == [] and host.mounts() == [] and host.loops() == []


def test_pid_of_another_process(host):
    """A pid file from before a reboot may name anybody."""
    host.up()
    other = subprocess.Popen(['sleep', '600'])
    try:
        os.kill(host.pid('cspaced'), signal.SIGKILL)
        with open(host.path('run', 'services', 'cspaced.pid'), 'w', encoding='ascii') as f:
            f.write(f'{other.pid} 1\n')
        host.down()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_service_that_nobody_noted(host):
    """Started by hand, or its pid file was lost: found by its socket, used, and ended by down."""
    host.up()
    pid = host.pid('cspace-rootd')
    os.unlink(host.path('run', 'services', 'cspace-rootd.pid'))
    assert len(host.up().splitlines()) == 1
    assert host.healthy() and os.path.exists(f'/proc/{pid}')
    host.down()
    assert host.processes() == [] and host.no_loops()


def test_planted_services_folder(host):
    """The group of cspaced may write in the run folder: what it puts there is not believed."""
    os.makedirs(host.path('run', 'services'))
    os.chown(host.path('run', 'services'), 12345, 12345)
    p = host.cspace('up')
    assert p.returncode == 125 and 'services' in p.err


def test_port_in_use(host):
    with socket.socket() as s:
        s.bind(('127.0.0.1', host.port))
        s.listen()
        p = host.cspace('up')
    assert p.returncode == 125
    assert f'listens on 127.0.0.1:{host.port}; set [api] listen in {host.path("c.conf")} and run again' in p.err
    host.port = conftest.free_port()
    host.configure()
    host.up()


def test_missing_program(host):
    os.unlink(host.path('libexec', 'cspace-rootd'))
    p = host.cspace('up')
    assert p.returncode == 125 and 'cspace-rootd' in p.err and 'No such file' in p.err


def test_wrong_configuration(host):
    host.configure(extra='[sandbox]\nmemroy_mb = 1\n')
    p = host.cspace('up')
    assert p.returncode == 125
    assert re.search(r'c\.conf:\d+: unknown key "memroy_mb"', p.err)
    assert not os.path.exists(host.path('run'))


def test_not_root(host):
    for command in ('up', 'down'):
        p = host.cspace(command, user=65534, group=65534)
        assert p.returncode == 125 and 'root' in p.err


# ---- data folder ------------------------------------------------------------------------------

def test_folder_that_is_not_empty(host):
    os.mkdir(host.path('data'))
    with open(host.path('data', 'thesis'), 'w', encoding='ascii') as f:
        f.write('x')
    p = host.cspace('up')
    assert p.returncode == 125 and 'thesis' in p.err and 'reflinks' in p.err
    assert not os.path.exists(host.path('data.btrfs'))


def test_no_room_for_the_image(host):
    host.configure(storage='image_size = 60T')
    p = host.cspace('up')
    assert p.returncode == 125 and 'free' in p.err
    assert not os.path.exists(host.path('data.btrfs')) and not os.path.exists(host.path('data.btrfs.new'))


def test_half_made_image(host):
    with open(host.path('data.btrfs.new'), 'w', encoding='ascii') as f:
        f.write('left by a crash')
    host.up()
    assert host.healthy() and not os.path.exists(host.path('data.btrfs.new'))


def test_image_elsewhere(host):
    host.configure(storage=f'image_size = 4G\nimage = {host.path("elsewhere.img")}')
    host.up()
    assert os.path.exists(host.path('elsewhere.img')) and not os.path.exists(host.path('data.btrfs'))
    host.down()
    assert host.no_loops()


def test_filesystem_with_reflinks_needs_no_image(host):
    with open(host.path('disk'), 'wb') as f:
        f.truncate(1 << 30)
    os.mkdir(host.path('fs'))
    subprocess.run(['mkfs.btrfs', '-q', host.path('disk')], check=True, capture_output=True)
    subprocess.run(['mount', '-o', 'loop', host.path('disk'), host.path('fs')], check=True)
    host.configure(data=host.path('fs', 'data'))
    host.up()
    assert host.healthy() and not os.path.exists(host.path('fs', 'data.btrfs'))
    host.down()
    assert host.mounts() == [host.path('fs')]


# ---- doctor -----------------------------------------------------------------------------------

def test_doctor_before_and_after(host):
    code, checks = host.doctor()
    assert code == 1 and checks['api']['status'] == 'fail' and 'cspace up' in checks['api']['hint']
    host.up()
    code, checks = host.doctor()
    assert {n: c for n, c in checks.items() if c['status'] == 'fail'} == {} and code == 0
    assert checks['engine']['message'].startswith('qemu-tcg')
    assert 'btrfs' in checks['data']['message']
    assert checks['template']['status'] == 'warn'


def test_doctor_sees_what_is_wrong(host):
    host.up()
    os.unlink(host.path('libexec', 'cspace-builder'))
    os.chmod(host.path('libexec'), 0o777)
    host.install('cspaced')
    code, checks = host.doctor()
    assert code == 1
    assert checks['programs']['status'] == 'fail' and 'cspace-builder' in checks['programs']['message']
    assert checks['owner']['status'] == 'fail'
    assert checks['cspaced']['status'] == 'warn' and 'replaced' in checks['cspaced']['message']


def test_doctor_for_any_user(host):
    host.up()
    p = host.cspace('doctor', user=65534, group=65534, extra_groups=[])
    assert 'ok' in p.out and 'cpu' in p.out
    # That it may not ask says nothing about the services.
    assert re.search('warn +api +.*open to root and the group cspace', p.out), p.out
    assert 'cspace up' not in p.out and 'does not answer' not in p.out
    p = host.cspace('ls', user=65534, group=65534, extra_groups=[])
    assert p.returncode == 125 and f'--api http://127.0.0.1:{host.port} with a key' in p.err


@pytest.fixture
def managers(host, tmp_path):
    """Package managers that say what a test says: managers(apt-get='...', npm='...'); those that are not named fail."""
    def say(**text):
        for name in ('apt-get', 'pip3', 'npm'):
            said = text.get(name.replace('-', '_'))
            path = tmp_path / name
            path.write_text('#!/bin/sh\n' + (f"cat <<'END'\n{said}\nEND\n" if said is not None else 'echo https://not-this.example >&2; exit 1\n'))
            path.chmod(0o755)
        p = host.cspace('--json', 'doctor', env={**os.environ, 'PATH': f'{tmp_path}:{os.environ["PATH"]}'})
        return {c['name']: c for c in json.loads(p.out)['checks']}.get('mirrors')
    return say


def test_doctor_and_mirrors(host, managers):
    """Mirrors that gateways would refuse, with the line that lets them through."""
    apt = 'http://user:hush@10.1.2.3:8080/debian\nhttp://10.1.2.3/debian\nhttp://93.184.216.34/debian'
    m = managers(apt_get=apt)
    assert m['status'] == 'warn' and '10.1.2.3 (private)' in m['message'] and '93.184' not in m['message'] and 'hush' not in str(m)
    assert m['hint'].endswith(f"in {host.path('c.conf')}, below [egress]: open = 10.1.2.3")
    m = managers(apt_get='http://10.1.2.3/a', npm='http://u@10.1.2.3/b')
    assert m['hint'].endswith('open = 10.1.2.3')  # once
    m = managers(pip3="global.index-url='https://192.168.7.4/simple'\nglobal.timeout='3'", npm='http://10.9.9.9:4873/')
    assert '192.168.7.4 (private)' in m['message'] and m['hint'].endswith('open = 192.168.7.4 10.9.9.9')
    host.configure('[egress]\nopen = 10.1.0.0/16\n')
    assert managers(apt_get=apt)['status'] == 'ok'
    m = managers(apt_get=apt, npm='http://10.9.9.9/')
    assert m['status'] == 'warn' and '10.1.2.3' not in m['message'] and m['hint'].endswith('open = 10.1.0.0/16 10.9.9.9')
    m = managers(apt_get='http://localhost/debian\nhttp://169.254.1.1/x')
    assert m['status'] == 'warn' and '127.0.0.1 (loopback)' in m['message'] and 'open =' not in m['hint']
    m = managers(apt_get='\n'.join(f'http://10.0.0.{i}/' for i in range(40)))
    assert m['message'].count('(private)') == 4 and 'and more' in m['message']
    assert managers(apt_get='file:/srv/debian\nhttp://\ngarbage\nhttp://x\x1b[31m/') is None
    assert managers() is None


# ---- logs -------------------------------------------------------------------------------------

def test_log_is_bounded(host):
    p = subprocess.run([os.path.join(conftest.BUILD, 'src', 'cli', 'cspace'), '__log', host.path('x.log')],
                       input=b'0123456789' * 3_000_000, check=True)
    assert p.returncode == 0
    sizes = [os.path.getsize(host.path(f)) for f in os.listdir(host.folder) if f.startswith('x.log')]
    assert len(sizes) == 2 and all(s <= (8 << 20) + 65536 for s in sizes)


def test_service_does_not_wait_for_its_log(host):
    """No reader, no trouble: the service goes on when its log process is gone."""
    host.up()
    for pid, line in host.processes():
        if b'__log' in line:
            os.kill(pid, signal.SIGKILL)
    assert host.healthy()
    assert host.api('ls').returncode == 0
    assert host.healthy()
