# SPDX-License-Identifier: Apache-2.0
"""Native command sessions: the frames of attach.h, and coming back."""
import hashlib
import os
import random
import signal
import time

import pytest

from attach import (ACK, EXIT, PING, PONG, RESIZE, SIGNAL, STDIN, STDIN_EOF, STDOUT, Attach, create, run)
from conftest import eventually, needs_root


def test_run(agent):
    a = run(agent, 'sh', '-c', "printf 'o\\n\\n'; echo e >&2; exit 5")
    assert (a.out, a.err) == (b'o\n\n', b'e\n')
    assert a.exit == {'exitCode': 5, 'reason': 'exited'}
    assert a.started[0] > 0 and a.started[1:] == (0, 0)


def test_attach_starts_the_process(agent):
    pid = create(agent, 'echo', 'x')
    assert agent.native('GET', f'/processes/{pid}').json['state'] == 'prepared'
    a = Attach(agent, pid).finish()
    assert a.out == b'x\n'
    d = agent.native('GET', f'/processes/{pid}').json
    assert d['state'] == 'exited' and d['exit'] == {'exitCode': 0, 'reason': 'exited'} and d['cmd'] == 'echo' and d['args'] == ['x']
    a.close()


def test_start_without_attaching(agent):
    pid = create(agent, 'sh', '-c', 'echo early; exit 2', start=True)
    assert eventually(lambda: agent.native('GET', f'/processes/{pid}').json['state'] == 'exited')
    a = Attach(agent, pid).finish()
    assert a.out == b'early\n' and a.exit['exitCode'] == 2
    a.close()


@pytest.mark.parametrize('cmd,args,more,code', [
    ('no-such-command', [], {}, 'command_not_found'),
    ('/nonexistent/x', [], {}, 'command_not_found'),
    ('/etc/passwd', [], {}, 'not_executable'),
    ('/tmp', [], {}, 'not_executable'),
    ('true', [], {'cwd': '/nope'}, 'cwd_not_found'),
    ('true', [], {'user': 'nobody-here'}, 'user_not_found'),
    ('true', ['a' * 100000] * 105, {}, 'argument_list_too_long'),
])
def test_start_errors(agent, cmd, args, more, code):
    a = run(agent, cmd, *args, **more)
    assert a.error['code'] == code and a.error['message']
    assert a.exit is None and a.started is None
    r = agent.native('POST', '/processes', {'cmd': cmd, 'args': args, 'start': True, **more})
    assert r.status == 400 and r.json['error']['code'] == code


def test_bad_requests(agent):
    for body in ({}, {'cmd': ''}, {'cmd': 'x', 'args': [1]}, {'cmd': 'x', 'pty': {'cols': 0}}, {'cmd': 'x', 'unknown': 1},
                 {'cmd': 'x', 'timeoutMs': -1}, {'cmd': 'x', 'env': {'A=B': '1'}}):
        a = agent.native('POST', '/processes', body)
        assert a.status == 400 and a.json['error']['code'] == 'invalid_argument', body
    assert agent.native('GET', '/processes/' + 'a' * 26).status == 404
    assert agent.native('GET', '/processes/short').status == 404
    pid = create(agent, 'true')
    assert agent.native('GET', f'/processes/{pid}/attach').status == 426
    assert Attach(agent, pid, 1).status == 416
    assert agent.native('POST', f'/processes/{pid}/signal', {'signal': 'SIGTERM'}).status == 409
    assert agent.native('POST', f'/processes/{pid}/signal', {'signal': 'SIGNOPE'}).json['error']['code'] == 'invalid_signal'
    assert agent.native('DELETE', f'/processes/{pid}').status == 204
    assert agent.native('DELETE', f'/processes/{pid}').status == 404


def test_signals(agent):
    a = run(agent, 'sh', '-c', 'kill -SEGV $$')
    assert a.exit == {'exitCode': 128 + signal.SIGSEGV, 'signal': 'SIGSEGV', 'reason': 'signaled'}
    a = Attach(agent, create(agent, 'sh', '-c', 'trap "echo got; exit 9" INT; echo ready; while :; do sleep 0.05; done'))
    a.until(lambda x: x.out == b'ready\n')
    a.send(SIGNAL, bytes([signal.SIGINT]))
    a.finish()
    assert a.out == b'ready\ngot\n' and a.exit['exitCode'] == 9
    a = Attach(agent, create(agent, 'sleep', '50.5'))
    a.until(lambda x: x.started)
    pid = a.started[0]
    a.send(SIGNAL, bytes([signal.SIGKILL]))
    a.finish()
    assert a.exit == {'exitCode': 137, 'signal': 'SIGKILL', 'reason': 'killed'}
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_timeout(agent):
    a = run(agent, 'sh', '-c', 'echo part; sleep 51.5', timeoutMs=500)
    assert a.out == b'part\n' and a.exit == {'exitCode': 137, 'signal': 'SIGKILL', 'reason': 'timeout'}


def test_delete_kills_the_tree(agent):
    pid = create(agent, 'sh', '-c', 'sleep 52.5 & echo; wait')
    a = Attach(agent, pid)
    a.until(lambda x: x.out)
    assert agent.native('DELETE', f'/processes/{pid}').status == 204
    a.finish()
    assert a.exit is None and a.error['code'] == 'deleted'
    assert eventually(lambda: os.system('pgrep -fx "sleep 52.5" >/dev/null') != 0)


def test_stdin_large_and_exact(agent):
    data = random.Random(3).randbytes(20 << 20)
    a = Attach(agent, create(agent, 'sha256sum', stdin=True))
    a.until(lambda x: x.window > 0)
    assert a.window <= 1 << 20
    assert a.write(data) == len(data)
    a.send(STDIN_EOF)
    a.finish()
    assert a.out.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_stdin_slow_reader_is_held_back(agent):
    a = Attach(agent, create(agent, 'sleep', '53.5', stdin=True))
    a.until(lambda x: x.window > 0)
    assert a.window <= 1 << 20
    a.send(STDIN, b'x' * min(a.window, 200000))
    a.send(PING)
    assert a.frame()[0] == PONG  # no new window: nothing was read beyond the pipe
    a.send(SIGNAL, bytes([9]))
    a.finish()


def test_stdin_over_the_window(agent):
    a = Attach(agent, create(agent, 'sleep', '54.5', stdin=True))
    a.until(lambda x: x.window > 0)
    for _ in range(a.window // 65536 + 2):
        a.send(STDIN, b'x' * 65536)
    a.until(lambda x: x.error)
    assert a.error['code'] == 'stdin_window_exceeded'


def test_stdin_closed_by_the_command(agent):
    a = Attach(agent, create(agent, 'sh', '-c', 'head -c1 >/dev/null; exec <&-; sleep 0.3; echo end', stdin=True))
    a.until(lambda x: x.window > 0)
    a.write(b'x' * (8 << 20))
    assert a.window == 2**64 - 1 or a.exit
    a.finish()
    assert a.out == b'end\n'


def test_no_stdin(agent):
    a = run(agent, 'cat')
    assert a.exit['exitCode'] == 0


def test_pty(agent):
    a = Attach(agent, create(agent, 'sh', '-c', 'stty size; read x; stty size; read y; echo "$y" | od -c | head -1', pty={'cols': 70, 'rows': 21}))
    a.until(lambda x: b'21 70' in x.out)
    a.send(RESIZE, b'\0\x5a\0\x14')
    a.send(STDIN, b'\n')
    a.until(lambda x: b'20 90' in x.out)
    a.send(STDIN_EOF)  # ^D
    a.finish()
    assert a.exit['exitCode'] == 0


def test_reattach_without_loss_or_doubling(agent):
    n = 3_000_000
    pid = create(agent, 'sh', '-c', f'i=0; head -c {n} /dev/zero | tr "\\0" a; sleep 0.2; head -c {n} /dev/zero | tr "\\0" b; exit 6')
    got = b''
    rng = random.Random(4)
    done = None
    while not done:
        a = Attach(agent, pid, len(got))
        assert a.status == 101
        want = len(got) + rng.randrange(1, 900000)
        a.until(lambda x: len(got) + len(x.out) >= want or x.exit, ack=rng.random() < 0.7)
        got += a.out
        done = a.exit
        a.close()  # what is in flight is lost, and must come again
    assert got == b'a' * n + b'b' * n
    assert done == {'exitCode': 6, 'reason': 'exited'}


def test_reattach_says_how_much_stdin_came(agent):
    pid = create(agent, 'cat', stdin=True)
    a = Attach(agent, pid)
    a.until(lambda x: x.window)
    a.send(STDIN, b'one')
    a.until(lambda x: x.out == b'one')
    a.close()
    b = Attach(agent, pid, 3)
    b.until(lambda x: x.window)
    assert b.started[1:] == (3, 3)
    b.send(STDIN, b'two')
    b.send(STDIN_EOF)
    b.finish()
    assert b.out == b'two'


def test_taken_over(agent):
    pid = create(agent, 'cat', stdin=True)
    a = Attach(agent, pid)
    a.until(lambda x: x.window)
    b = Attach(agent, pid)
    b.until(lambda x: x.window)
    a.until(lambda x: x.error)
    assert a.error['code'] == 'taken_over'
    assert a.frame() is None
    b.send(STDIN, b'mine')
    b.send(STDIN_EOF)
    b.finish()
    assert b.out == b'mine'


def test_disconnect_does_not_kill(agent):
    pid = create(agent, 'sh', '-c', 'sleep 1; echo survived')
    a = Attach(agent, pid)
    a.until(lambda x: x.started)
    a.close()
    b = Attach(agent, pid).finish()
    assert b.out == b'survived\n'


def test_unacknowledged_output_holds_the_command(agent):
    a = Attach(agent, create(agent, 'sh', '-c', 'head -c 30000000 /dev/zero; echo done >&2'))
    a.until(lambda x: x.offset >= 8 << 20)
    assert a.offset < 10 << 20
    a.s.settimeout(0.7)
    with pytest.raises(TimeoutError):
        while True:
            a.frame()
    a.s.settimeout(30)
    held = a.offset
    assert held < 10 << 20
    a.ack()
    a.finish()
    assert len(a.out) == 30000000 and a.err == b'done\n'


def test_ack_frees_what_was_kept(agent):
    pid = create(agent, 'sh', '-c', 'echo 1234567890; sleep 55.5')
    a = Attach(agent, pid)
    a.until(lambda x: x.out)
    a.send(ACK, (5).to_bytes(8, 'big'))
    a.send(PING)
    a.until_frame(PONG)
    a.close()
    b = Attach(agent, pid, 0)
    b.until(lambda x: x.out)
    assert b.gaps == [(0, 5)] and b.out == b'67890\n'
    agent.native('DELETE', f'/processes/{pid}')


def test_bad_frames(agent):
    a = Attach(agent, create(agent, 'sleep', '56.5'))
    a.until(lambda x: x.started)
    a.send(0x7f, b'unknown is ignored')
    a.send(SIGNAL, b'')
    a.send(SIGNAL, bytes([200]))
    a.send(RESIZE, b'x')
    a.send(ACK, b'short')
    a.send(PING)
    a.until_frame(PONG)
    a.s.sendall(b'\x01\xff\xff\xff\xff')
    a.until(lambda x: x.error)
    assert a.error['code'] == 'protocol_error'


def test_e2b_process_can_be_attached(agent):
    s = agent.start({'process': {'cmd': 'sh', 'args': ['-c', 'read x; echo "$x"; sleep 0.2; echo more']}, 'stdin': True})
    pid = next(s)['event']['start']['pid']
    mine = next(p for p in agent.native('GET', '/processes').json['processes'] if p.get('pid') == pid)
    a = Attach(agent, mine['processId'])
    a.until(lambda x: x.window)
    a.send(STDIN, b'hello\n')
    a.finish()
    assert a.out == b'hello\nmore\n'
    s.close()


@needs_root()
def test_user(agent):
    a = run(agent, 'sh', '-c', 'id -un; echo $HOME $USER', user='nobody')
    assert a.out == b'nobody\n/nonexistent nobody\n'


def test_limit_on_processes(own_agent):
    a = own_agent()
    codes = []
    for _ in range(2060):
        r = a.native('POST', '/processes', {'cmd': 'true'})
        codes.append(r.status)
        if r.status != 201:
            break
    assert codes[-1] == 429 and r.json['error']['code'] == 'too_many_processes' and len(codes) == 2049


def test_forgotten_command_goes_on_and_the_gap_is_told(agent):
    n = 20_000_000
    pid = create(agent, 'sh', '-c', f'head -c {n} /dev/zero; printf end', start=True)

    def state():
        return agent.native('GET', f'/processes/{pid}').json['state']
    began = time.monotonic()
    assert eventually(lambda: state() == 'exited', 90)
    assert time.monotonic() - began > 25  # it was held first, in case somebody came
    a = Attach(agent, pid, 0).finish()
    [(start, end)] = a.gaps
    assert start == 0 and end + len(a.out) == n + 3 and len(a.out) <= 9 << 20
    assert a.out.endswith(b'\0end') and a.exit == {'exitCode': 0, 'reason': 'exited'}
    a.close()
