# SPDX-License-Identifier: Apache-2.0
"""shell and exec --tty on a real terminal."""
import fcntl
import os
import pty
import select
import signal
import subprocess
import termios
import time

import pytest

from terminal import Terminal


@pytest.fixture
def terminal(cli):
    made = []

    def make(*args, **kwargs):
        made.append(Terminal(cli, *args, **kwargs))
        return made[-1]
    yield make
    for t in made:
        t.close()


def shell(terminal, sandbox, *more):
    t = terminal('shell', *more, sandbox, '--', 'bash', '--norc', '--noprofile', '-i')
    t.send('PS1="%s "\n' % 'rea""dy>')
    t.expect('ready>')
    return t


def test_size_and_resize(terminal, sandbox):
    t = shell(terminal, sandbox)
    t.send('stty size\r')
    t.expect('37 101')
    t.resize(60, 20)
    t.send('sleep 0.3; stty size\r')
    t.expect('20 60')
    t.send('exit 7\r')
    assert t.proc.wait(10) == 7
    assert t.restored()


def test_two_terminals_have_two_sizes(terminal, sandbox):
    a, b = shell(terminal, sandbox), shell(terminal, sandbox)
    b.resize(50, 10)
    b.send('sleep 0.3; stty size\r')
    b.expect('10 50')
    a.send('stty size\r')
    a.expect('37 101')


def test_ctrl_c_reaches_the_command(terminal, sandbox):
    t = shell(terminal, sandbox)
    t.send('sleep 600\r')
    time.sleep(0.3)
    t.send('\x03')
    t.send('echo code=$?\r')
    t.expect('code=130')
    assert t.proc.poll() is None


def test_raw_while_it_runs(terminal, sandbox):
    t = shell(terminal, sandbox)
    assert not termios.tcgetattr(t.slave)[3] & (termios.ICANON | termios.ECHO | termios.ISIG)


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGHUP, signal.SIGSEGV, signal.SIGABRT])
def test_terminal_is_restored_after_a_signal(terminal, sandbox, number):
    t = shell(terminal, sandbox)
    t.proc.send_signal(number)
    code = t.proc.wait(10)
    assert code in (128 + number, -number)
    assert t.restored()


def test_terminal_is_restored_after_a_lost_connection(terminal, server, sandbox):
    from standin import Refused
    t = shell(terminal, sandbox)
    server.refuse_attach = Refused(404, 'process_not_found', 'gone')
    server.cut()
    assert t.proc.wait(10) == 125
    assert t.restored()
    t.expect('exit status is not known')


def test_reconnects(terminal, server, sandbox):
    t = shell(terminal, sandbox)
    server.cut()
    t.expect('connected again')
    t.send('echo "still"here\r')
    t.expect('stillhere')


def test_detach_and_attach(terminal, server, sandbox):
    t = shell(terminal, sandbox)
    t.send('X=kept\r')
    t.expect('ready>')
    t.send('\r')
    t.expect('ready>')
    t.send('~.')
    m = t.expect(r'cspace shell --attach ([a-z2-7]{26}) ')
    assert t.proc.wait(10) == 0
    assert t.restored()
    t = terminal('shell', '--attach', m.group(1).decode(), sandbox)
    t.send('echo "is-$X"\r')
    t.expect('is-kept')
    t.send('exit\r')
    assert t.proc.wait(10) == 0


def test_escape_help_and_literal(terminal, sandbox):
    t = shell(terminal, sandbox)
    t.send('\r~?')
    t.expect('detaches')
    t.send('\recho a~~.b\r')
    t.expect('a~~.b\r')
    t.send('~~.\r')
    t.expect('~.: command not found')


def test_no_escape(terminal, sandbox):
    t = shell(terminal, sandbox, '--escape', 'none')
    t.send('\r~.\r')
    t.expect('~.: command not found')


def test_stop_and_continue(terminal, sandbox):
    t = shell(terminal, sandbox)
    t.proc.send_signal(signal.SIGTSTP)
    os.waitpid(t.proc.pid, os.WUNTRACED)
    assert t.restored()
    t.proc.send_signal(signal.SIGCONT)
    t.send('echo "back"again\r')
    t.expect('backagain')


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_interrupted_while_a_secret_is_typed(terminal, server, number):
    t = terminal('credential', 'add', 'token')
    t.expect('Secret: ')
    assert not t.restored()
    t.send('half')
    t.proc.send_signal(number)
    assert t.proc.wait(10) == -number and t.restored() and not server.credentials


def test_needs_a_terminal(cli, sandbox):
    r = cli('shell', sandbox)
    assert r.returncode == 2
    assert b'not a terminal' in r.stderr


def test_exec_tty(terminal, sandbox):
    t = terminal('exec', '-it', sandbox, '--', 'sh', '-c', 'test -t 0 && test -t 1 && test -t 2 && echo "$TERM"')
    t.expect(os.environ.get('TERM') or 'xterm')
    assert t.proc.wait(10) == 0


def test_exec_on_a_terminal_without_tty_forwards_ctrl_c(terminal, sandbox):
    t = terminal('exec', sandbox, '--', 'sh', '-c', 'trap "echo caught; exit 9" INT; echo begun; while :; do sleep 0.05; done')
    t.expect('begun')
    t.send('\x03')
    t.expect('caught')
    assert t.proc.wait(10) == 9


def test_progress_is_shown_and_removed(terminal, server):
    server.create_delay = 1.5
    t = terminal('run', '--', 'echo', 'done')
    t.expect('restoring')
    t.expect(r'\x1b\[K.*done')
    assert t.proc.wait(10) == 0


def test_progress_of_a_build(terminal, server):
    server.hold_builds = True
    t = terminal('template', 'build', 'mine')
    t.expect(r'\[#########\.+\]  40 %  1 min left  rootfs')
    list(server.operations.values())[-1]['state'] = 'succeeded'
    t.expect(r'\x1b\[K.*template mine:latest is built')
    t.expect('d{64}')
    assert t.proc.wait(10) == 0


def test_background_job_does_not_steal_input(terminal, cli, sandbox):
    # An interactive shell with job control starts exec in the background: it must not stop.
    env = ' '.join(f'{k}={v}' for k, v in cli.env.items() if k.startswith('CSPACE_'))
    master, slave = pty.openpty()
    p = subprocess.Popen(['bash', '--norc', '-i'], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                         env={**cli.env, 'PS1': '> '}, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
    try:
        os.write(master, f'{env} {cli.exe} exec {sandbox} -- sh -c "sleep 0.5; echo was-here" & wait; echo over-$?\n'.encode())
        seen = b''
        end = time.monotonic() + 15
        while b'over-0' not in seen.replace(b'over-$?', b'') and time.monotonic() < end:
            if select.select([master], [], [], 0.5)[0]:
                seen += os.read(master, 65536)
        assert b'was-here' in seen and b'over-0' in seen, seen
    finally:
        p.kill()
        p.wait()
        os.close(master)
        os.close(slave)
