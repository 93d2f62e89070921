# SPDX-License-Identifier: Apache-2.0
"""run, exec and shell."""
import hashlib
import json
import os
import random
import signal
import subprocess
import threading
import time

import pytest

from conftest import TEMPLATE


def sh(script):
    return ['--', 'sh', '-c', script]


def test_run(cli):
    before = cli.ids()
    r = cli('run', '-T', TEMPLATE, '--', 'python3', '-c', 'print(6*7)')
    assert (r.returncode, r.stdout, r.stderr) == (0, b'42\n', b'')
    assert cli.ids() <= before


@pytest.mark.parametrize('script,code', [('exit 0', 0), ('exit 7', 7), ('exit 255', 255), ('kill -9 $$', 137), ('kill -TERM $$', 143)])
def test_exit_codes(cli, sandbox, script, code):
    assert cli('exec', sandbox, *sh(script)).returncode == code


def test_command_that_does_not_exist(cli, sandbox):
    r = cli('exec', sandbox, '--', 'no-such-command')
    assert r.returncode == 127 and b'no-such-command' in r.stderr


def test_command_that_cannot_be_executed(cli, sandbox):
    r = cli('exec', sandbox, '--', '/etc/passwd')
    assert r.returncode == 126 and b'/etc/passwd' in r.stderr


def test_run_of_nonsense_leaves_nothing(cli):
    before = cli.ids()
    assert cli('run', '-T', TEMPLATE, '--', 'no-such-command').returncode == 127
    assert cli('run', '-T', TEMPLATE, '-w', '/no/such', '--', 'true').returncode == 125
    assert cli('run', '-T', TEMPLATE, '-u', 'nobody-of-this-name', '--', 'true').returncode == 125
    assert cli('run', '-T', 'no-such-template', '--', 'true').returncode == 125
    assert cli.ids() <= before


def test_streams(cli, sandbox):
    r = cli('exec', sandbox, *sh(r"printf 'a\n\n\nb\n\000\377\033[31m'; echo e >&2"))
    assert (r.returncode, r.stdout, r.stderr) == (0, b'a\n\n\nb\n\x00\xff\x1b[31m', b'e\n')


def test_stdin_of_any_size(cli, sandbox):
    for size in [0, 1, 65536, 65537, 64 << 20]:
        data = os.urandom(1 << 20) * (size >> 20) if size >= 1 << 20 else os.urandom(size)
        r = cli('exec', sandbox, '--', 'sha256sum', input=data)
        assert r.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest(), size


def test_stdin_that_is_not_read(cli, sandbox):
    began = time.monotonic()
    r = cli('exec', sandbox, '--', 'head', '-c', '1', input=b'x' * (64 << 20))
    assert (r.returncode, r.stdout) == (0, b'x')
    assert time.monotonic() - began < 60


def test_much_output_in_little_memory(cli, sandbox):
    total = int(os.environ.get('CSPACE_E2E_OUTPUT', 300 << 20))
    p = cli.start('exec', sandbox, '--', 'head', '-c', str(total), '/dev/zero', stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    got = peak = 0
    time.sleep(1)
    while data := p.stdout.read(1 << 20):
        got += len(data)
        with open(f'/proc/{p.pid}/status', encoding='ascii') as f:
            peak = max([peak] + [int(line.split()[1]) for line in f if line.startswith('VmHWM')])
    assert p.wait(60) == 0
    assert got == total and peak < 64 * 1024


def test_environment_user_and_folder(cli, sandbox):
    r = cli('exec', '-e', 'A=x y=z', '-e', 'U=\u00e9', '-u', 'user', '-w', '/tmp', sandbox, *sh('echo "$A|$U|$(id -un)|$PWD|$HOME"'))
    assert r.stdout.decode() == 'x y=z|\u00e9|user|/tmp|/home/user\n'
    assert cli.out('exec', sandbox, *sh('id -un; echo "$HOME"')) == 'root\n/root\n'


def test_time_limit(cli, sandbox):
    began = time.monotonic()
    r = cli('exec', '--timeout', '1', sandbox, *sh('echo begun; sleep 60'))
    assert (r.returncode, r.stdout) == (124, b'begun\n') and b'time limit' in r.stderr
    assert time.monotonic() - began < 20


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_are_forwarded(cli, sandbox, number):
    name = number.name[3:]
    p = cli.start('exec', sandbox, *sh(f'trap "echo got {name}; exit 5" {name}; echo ready; while :; do sleep 0.1; done'),
                  stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert p.stdout.readline() == b'ready\n'
    p.send_signal(number)
    out, _ = p.communicate(timeout=60)
    assert (p.returncode, out) == (5, f'got {name}\n'.encode())


def test_closed_stdout(cli, sandbox):
    p = cli.start('exec', sandbox, '--', 'yes', stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert p.stdout.read(4) == b'y\ny\n'
    p.stdout.close()
    assert p.wait(60) == 128 + signal.SIGPIPE


def test_background_children_do_not_delay_the_end(cli, sandbox):
    began = time.monotonic()
    assert cli.out('exec', sandbox, *sh('sleep 300 & echo up')) == 'up\n'
    assert time.monotonic() - began < 30


def test_detached_command_goes_on(cli, sandbox):
    process = cli.out('exec', '-d', sandbox, *sh('sleep 1; echo done > /tmp/detached')).strip()
    assert process in cli.out('info', sandbox)
    for _ in range(100):
        if cli('exec', sandbox, '--', 'cat', '/tmp/detached').stdout == b'done\n':
            return
        time.sleep(0.2)
    raise AssertionError('it did not finish')


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_run_leaves_nothing(cli, number):
    before = cli.ids()
    p = cli.start('run', '-T', TEMPLATE, *sh('echo ready; exec sleep 600'), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert p.stdout.readline() == b'ready\n'
    p.send_signal(number)
    assert p.wait(60) == 128 + number
    assert cli.ids() <= before


def test_run_interrupted_at_any_moment_leaves_nothing(cli):
    before = cli.ids()
    for _ in range(8):
        p = cli.start('run', '-T', TEMPLATE, *sh('sleep 1'), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(random.uniform(0, 2))
        p.send_signal(signal.SIGINT)
        assert p.wait(60) in (0, 130)
    assert cli.ids() <= before


def test_killed_run_ends_by_its_time_to_live(cli):
    before = cli.ids()
    p = cli.start('run', '-T', TEMPLATE, *sh('echo ready; exec sleep 600'), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert p.stdout.readline() == b'ready\n'
    p.kill()
    p.wait()
    left = cli.ids() - before
    assert len(left) == 1
    try:
        assert json.loads(cli.out('info', '--json', *left))['expires_at']
    finally:
        cli('rm', *left)


def test_timing(cli, tmp_path):
    r = cli('run', '-T', TEMPLATE, '--timing-file', str(tmp_path / 't'), '--', 'true')
    assert r.returncode == 0
    t = json.loads((tmp_path / 't').read_text())
    assert t['create_ms'] > 0 and t['command_ms'] > 0 and t['delete_ms'] > 0 and t['exit_code'] == 0


# --- lost connections ---------------------------------------------------------------------------------

def cut_often(relay, stop, gap):
    while not stop.wait(gap):
        relay.cut()


def test_output_survives_lost_connections(relayed, relay, sandbox):
    stop = threading.Event()
    cutter = threading.Thread(target=cut_often, args=(relay, stop, 0.4))
    p = relayed.start('exec', sandbox, *sh('i=0; while [ $i -lt 60 ]; do seq $((i * 1000)) $((i * 1000 + 999)); i=$((i + 1)); sleep 0.1; done'),
                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    cutter.start()
    out, err = p.communicate(timeout=300)
    stop.set()
    cutter.join()
    assert p.returncode == 0, err
    assert out.decode().split() == [str(i) for i in range(60000)]
    assert b'connected again' in err


def test_input_survives_lost_connections(relayed, relay, sandbox):
    data = os.urandom(8 << 20)
    p = relayed.start('exec', sandbox, '--', 'sha256sum', stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE)
    stop = threading.Event()
    cutter = threading.Thread(target=cut_often, args=(relay, stop, 0.3))
    cutter.start()
    for i in range(0, len(data), 256 << 10):  # slowly, so that there is something to cut
        p.stdin.write(data[i:i + (256 << 10)])
        p.stdin.flush()
        time.sleep(0.05)
    p.stdin.close()
    stop.set()
    cutter.join()
    out = p.stdout.read()
    assert p.wait(120) == 0, p.stderr.read()
    assert out.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_lost_sandbox_is_no_success(cli, sandbox):
    other = cli.create()
    p = cli.start('exec', other, *sh('echo ready; exec sleep 600'), stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert p.stdout.readline() == b'ready\n'
    cli('rm', other)
    _, err = p.communicate(timeout=90)
    assert p.returncode == 125 and err


# --- terminals ------------------------------------------------------------------------------------------

def test_shell(terminal, sandbox):
    t = terminal('shell', sandbox)
    t.until('stty size\r', '37 101')
    t.resize(60, 20)
    t.until('stty size\r', '20 60')
    t.send('sleep 600\r')
    time.sleep(1)
    t.send('\x03')
    t.until('echo code=$?\r', 'code=130')
    t.send('exit 7\r')
    assert t.proc.wait(60) == 7
    assert t.restored()


def test_two_shells_have_two_sizes(terminal, sandbox):
    a, b = terminal('shell', sandbox), terminal('shell', sandbox)
    a.until('stty size\r', '37 101')
    b.resize(50, 10)
    b.until('stty size\r', '10 50')
    a.until('stty size\r', '37 101')


def test_shell_reconnects(terminal, relayed, relay, sandbox):
    t = terminal('shell', sandbox, using=relayed)
    t.until('echo r"ea"dy\r', 'ready')
    assert relay.cut() > 0
    t.expect('connected again')
    t.until('echo "still"here\r', 'stillhere')


def test_detach_and_attach(terminal, sandbox):
    t = terminal('shell', sandbox)
    t.until('X=kept; echo r"ea"dy\r', 'ready')
    t.send('\r')
    time.sleep(0.5)
    t.send('~.')
    process = t.expect(r'--attach ([a-z2-7]{26})').group(1).decode()
    assert t.proc.wait(60) == 0 and t.restored()
    t = terminal('shell', '--attach', process, sandbox)
    t.until('echo "is-$X"\r', 'is-kept')
    t.send('exit\r')
    assert t.proc.wait(60) == 0


def test_terminal_is_restored_when_the_sandbox_goes(cli, terminal):
    other = cli.create()
    t = terminal('shell', other)
    t.until('echo r"ea"dy\r', 'ready')
    cli('rm', other)
    assert t.proc.wait(90) == 125
    assert t.restored()
