# SPDX-License-Identifier: Apache-2.0
"""run and exec: streams, exit codes, lost connections."""
import hashlib
import json
import os
import signal
import subprocess
import time

import pytest

from conftest import wait_for
from standin import Refused


def sh(script):
    return ['--', 'sh', '-c', script]


def test_run_prints_and_deletes(cli, server):
    r = cli('run', *sh('echo out; echo err >&2; exit 3'))
    assert (r.returncode, r.stdout, r.stderr) == (3, b'out\n', b'err\n')
    assert not server.sandboxes


@pytest.mark.parametrize('script,code', [('exit 0', 0), ('exit 255', 255), ('kill -KILL $$', 137), ('kill -TERM $$', 143)])
def test_exit_codes(cli, sandbox, script, code):
    assert cli('exec', sandbox, *sh(script)).returncode == code


def test_command_not_found(cli, server):
    r = cli('run', '--', 'no-such-command')
    assert r.returncode == 127
    assert b'no-such-command' in r.stderr
    assert not server.sandboxes


def test_not_executable(cli, sandbox):
    assert cli('exec', sandbox, '--', '/etc/hostname').returncode == 126


def test_stdin_is_passed_whole(cli, sandbox):
    data = os.urandom(8 << 20)
    r = cli('exec', sandbox, '--', 'sha256sum', input=data)
    assert r.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_output_is_passed_byte_for_byte(cli, sandbox):
    r = cli('exec', sandbox, *sh(r"printf 'a\n\n\nb\n\000\377\033[31m'"))
    assert r.stdout == b'a\n\n\nb\n\x00\xff\x1b[31m'


def test_stderr_stays_apart(cli, sandbox):
    r = cli('exec', sandbox, *sh('echo o; echo e >&2'))
    assert (r.stdout, r.stderr) == (b'o\n', b'e\n')


def test_no_stdin(cli, sandbox):
    with subprocess.Popen(['sleep', '60'], stdout=subprocess.PIPE) as feeder:
        r = cli('exec', '-n', sandbox, '--', 'cat', stdin=feeder.stdout, timeout=20)
        feeder.kill()
    assert r.returncode == 0


def test_closed_stdout_ends_the_command(cli, sandbox):
    p = cli.start('exec', sandbox, '--', 'yes', stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert p.stdout.read(4) == b'y\ny\n'
    time.sleep(0.5)  # so that as much as possible is queued
    p.stdout.close()
    assert p.wait(20) == 128 + signal.SIGPIPE


def test_command_that_closes_stdin(cli, sandbox):
    with subprocess.Popen(['yes'], stdout=subprocess.PIPE) as feeder:
        r = cli('exec', sandbox, *sh('head -c 2; exec 0<&-; sleep 0.2'), stdin=feeder.stdout, timeout=20)
        feeder.stdout.close()
        assert feeder.wait(20) == -signal.SIGPIPE
    assert (r.returncode, r.stdout) == (0, b'y\n')


def test_output_survives_lost_connections(cli, server, sandbox):
    server.break_attach = [100, 1000, 70000, 300001, 300002, 300003]
    r = cli('exec', sandbox, *sh('seq 1 300000'))
    assert r.returncode == 0
    assert r.stdout == ''.join(f'{i}\n' for i in range(1, 300001)).encode()
    assert not server.break_attach


def test_output_survives_a_lost_guest_stream(cli, server, sandbox):
    """cspaced says in proper form that the way to the guest broke (its warden was replaced): the command runs on."""
    server.lose_attach = [0, 30000, 100000]
    r = cli('exec', sandbox, *sh('for i in $(seq 40000); do echo $i; done; exit 7'), timeout=60)
    assert r.stdout == b''.join(b'%d\n' % i for i in range(1, 40001))
    assert r.returncode == 7
    assert not server.lose_attach


def test_lost_guest_stream_is_no_success(cli, server, sandbox):
    """It does not come back, since the sandbox failed meanwhile."""
    server.lose_attach = [0]
    p = cli.start('exec', sandbox, *sh('echo x; exec sleep 100'), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    server.refuse_next = Refused(409, 'sandbox_not_running', 'sandbox "s" is failed')
    out, err = p.communicate(timeout=40)
    assert (p.returncode, out) == (125, b'x\n')
    assert b'exit status is not known' in err


@pytest.mark.parametrize('state', ['suspending', 'paused', 'stopped'])
def test_a_command_of_a_sandbox_that_stands_still(cli, server, sandbox, state):
    """It is there when the sandbox goes on; who was cut off is told how to come back to it. One that was stopped has none any more."""
    server.lose_attach = [0]
    p = cli.start('exec', sandbox, *sh('echo x; exec sleep 100'), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    server.sandboxes[sandbox]['state'] = state
    server.refuse_next = Refused(409, 'sandbox_not_running', f'sandbox "s" is {state}')
    out, err = p.communicate(timeout=40)
    assert (p.returncode, out) == (125, b'x\n') and b'exit status is not known' in err
    process = next(iter(server.processes))
    back = f'after `cspace wake {sandbox}` it goes on, and `cspace exec --attach {process} {sandbox}` attaches to it again'
    assert (back in err.decode()) == (state != 'stopped') and (b'has it run again' in err) == (state == 'stopped'), err


def test_output_that_is_not_kept(cli, server, sandbox):
    """Somebody has seen it, or nobody could: whoever attaches is told how much there was, and not that it is lost."""
    process = cli('exec', '-d', sandbox, *sh('echo seen; echo new')).stdout.decode().strip()
    server.forgotten = 5
    r = cli('exec', '--attach', process, sandbox)
    assert (r.returncode, r.stdout) == (0, b'new\n') and b'5 B of output before this are not kept: who was attached then has seen them, or' in r.stderr, r


def test_input_survives_lost_connections(cli, server, sandbox):
    data = os.urandom(3 << 20)
    server.break_input = [1, 70000, 200000, 900000]
    r = cli('exec', sandbox, '--', 'sha256sum', input=data)
    assert r.returncode == 0
    assert r.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert not server.break_input


def test_lost_stream_is_never_success(cli, server, sandbox):
    p = cli.start('exec', sandbox, *sh('echo begun; sleep 60'), stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert p.stdout.readline() == b'begun\n'
    server.refuse_attach = Refused(404, 'process_not_found', 'gone')
    server.cut()
    _, err = p.communicate(timeout=60)
    assert p.returncode == 125
    assert b'gone' in err and b'exit status is not known' in err


def test_silence_is_a_lost_stream(cli, server, sandbox):
    p = cli.start('exec', sandbox, *sh('echo begun; sleep 600'), stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert p.stdout.readline() == b'begun\n'
    server.refuse_attach = Refused(404, 'process_not_found', 'gone')
    server.mute = True
    _, err = p.communicate(timeout=60)
    assert p.returncode == 125
    assert b'exit status is not known' in err


def test_nothing_to_reconnect_to(cli, server, sandbox):
    """A second signal that asks for an end gets one, connection or not."""
    p = cli.start('exec', sandbox, *sh('echo begun; sleep 600'), stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert p.stdout.readline() == b'begun\n'
    server.refuse_attach = Refused(503, 'unavailable', 'later')
    server.cut()
    assert p.stderr.readline().startswith(b'cspace: connection lost')
    p.send_signal(signal.SIGINT)
    time.sleep(0.2)
    p.send_signal(signal.SIGINT)
    assert p.wait(10) == 130


def test_signals_are_forwarded(cli, sandbox):
    script = 'trap "echo got int; exit 5" INT; trap "echo got term; exit 6" TERM; echo ready; while :; do sleep 0.05; done'
    for number, word, code in [(signal.SIGINT, b'got int\n', 5), (signal.SIGTERM, b'got term\n', 6)]:
        p = cli.start('exec', sandbox, *sh(script), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        assert p.stdout.readline() == b'ready\n'
        p.send_signal(number)
        out, _ = p.communicate(timeout=20)
        assert (p.returncode, out) == (code, word)


def test_insisting_kills(cli, sandbox):
    p = cli.start('exec', sandbox, *sh('trap "" INT; echo ready; while :; do sleep 0.05; done'), stdout=subprocess.PIPE,
                  stdin=subprocess.DEVNULL)
    assert p.stdout.readline() == b'ready\n'
    for _ in range(4):
        p.send_signal(signal.SIGINT)
        time.sleep(0.05)
    assert p.wait(20) == 137


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_run_interrupted_while_running(cli, server, number):
    p = cli.start('run', *sh('echo ready; exec sleep 60'), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert p.stdout.readline() == b'ready\n'
    p.send_signal(number)
    assert p.wait(20) == 128 + number
    assert not server.sandboxes


def test_run_interrupted_while_creating(cli, server):
    server.create_delay = 30
    p = cli.start('run', *sh('true'), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait_for(lambda: server.sandboxes)
    p.send_signal(signal.SIGINT)
    assert p.wait(20) == 130
    assert not server.sandboxes


def test_run_whose_create_fails(cli, server):
    server.create_fails = {'code': 'create_failed', 'message': 'no \033[31mmemory'}
    r = cli('run', *sh('true'))
    assert r.returncode == 125
    assert r.stderr == b'cspace: no \\x1b[31mmemory\n'
    assert not server.sandboxes


def test_run_keep(cli, server):
    r = cli('run', '--keep', *sh('exit 4'))
    assert r.returncode == 4
    assert len(server.sandboxes) == 1
    assert list(server.sandboxes)[0].encode() in r.stderr


def test_timing(cli, server, tmp_path):
    r = cli('run', '--timing', *sh('echo x'))
    assert (r.returncode, r.stdout) == (0, b'x\n')
    assert r.stderr.startswith(b'cspace: create ')
    r = cli('--json', 'run', '--timing', *sh('exit 9'))
    assert set(json.loads(r.stderr)) == {'sandbox_id', 'create_ms', 'command_ms', 'delete_ms', 'exit_code'}
    r = cli('run', '--timing-file', str(tmp_path / 't.json'), *sh('exit 9'))
    assert (r.returncode, r.stderr) == (9, b'')
    assert json.loads((tmp_path / 't.json').read_text())['exit_code'] == 9


def test_environment_and_options_reach_the_api(cli, server, sandbox):
    cli.env['FROM_HERE'] = 'here'
    r = cli('exec', '-e', 'A=1=2', '-e', 'FROM_HERE', '-u', 'user', sandbox, '--', 'env')
    assert b'A=1=2\n' in r.stdout and b'FROM_HERE=here\n' in r.stdout
    assert list(server.processes.values())[-1].spec['user'] == 'user'
    r = cli('exec', '-e', 'NOT_SET_HERE', sandbox, '--', 'env')
    assert r.returncode == 2 and b'NOT_SET_HERE' in r.stderr


def test_detached(cli, server, sandbox):
    r = cli('--json', 'exec', '-d', sandbox, '--', 'true')
    assert r.returncode == 0
    assert json.loads(r.stdout)['process_id'] in server.processes


def test_memory_stays_flat(cli, sandbox):
    p = cli.start('exec', sandbox, *sh('head -c 300000000 /dev/zero'), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    peak = 0
    time.sleep(1)  # the reader is slow: what piles up meanwhile must be bounded
    total = 0
    while data := p.stdout.read(1 << 20):
        total += len(data)
        with open(f'/proc/{p.pid}/status', encoding='ascii') as f:
            peak = max([peak] + [int(line.split()[1]) for line in f if line.startswith('VmHWM')])
    assert p.wait(20) == 0
    assert total == 300000000
    assert peak < 64 * 1024


def test_run_is_bounded_if_it_is_killed(cli, server):
    p = cli.start('run', *sh('echo ready; exec sleep 60'), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert p.stdout.readline() == b'ready\n'
    p.kill()
    p.wait()
    assert [s['spec']['ttl_s'] for s in server.sandboxes.values()] == [3600]


@pytest.mark.parametrize('options,ttl', [(['--keep'], None), (['--ttl', '5m'], 300), (['--keep', '--ttl', '0'], 0)])
def test_run_with_a_life_of_its_own(cli, server, options, ttl):
    specs = []
    server.on_create = lambda spec: specs.append(spec)
    assert cli('run', *options, *sh('true')).returncode == 0
    assert specs[0].get('ttl_s') == ttl


def test_run_where_the_host_allows_less(cli, server):
    server.ttl_max = 60
    assert cli('run', *sh('exit 3')).returncode == 3
    assert not server.sandboxes


def test_exec_survives_a_restart_of_the_daemon(cli, server, sandbox):
    p = cli.start('exec', sandbox, *sh('for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.3; done; exit 4'), stdout=subprocess.PIPE,
                  stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert p.stdout.readline() == b'1\n'
    server.down()
    time.sleep(1)
    server.up()
    out, _ = p.communicate(timeout=30)
    assert (p.returncode, out) == (4, b'2\n3\n4\n5\n6\n7\n8\n9\n')


def test_run_survives_a_restart_of_the_daemon_while_creating(cli, server):
    server.create_delay = 2
    p = cli.start('run', *sh('echo here'), stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    wait_for(lambda: server.sandboxes)
    time.sleep(0.2)
    server.down()
    time.sleep(0.5)
    server.up()
    out, err = p.communicate(timeout=30)
    assert (p.returncode, out, err) == (0, b'here\n', b'')
    assert not server.sandboxes and len(server.idempotent) == 1


def test_run_deletes_although_the_daemon_restarts(cli, server):
    p = cli.start('run', *sh('echo ready; sleep 1'), stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert p.stdout.readline() == b'ready\n'
    server.down()
    p.send_signal(signal.SIGINT)
    time.sleep(0.3)
    p.send_signal(signal.SIGINT)
    time.sleep(0.5)
    server.up()
    assert p.wait(30) == 130
    assert not server.sandboxes
