# SPDX-License-Identifier: Apache-2.0
"""The E2B process service."""
import base64
import http.client
import os
import random
import socket
import struct
import json
import threading
import time

from conftest import TOKEN, Result, Stream, eventually, needs_root


def b64(data):
    return base64.b64encode(data).decode()


def alive(pattern):
    """Pids of processes whose command line contains pattern."""
    found = []
    for pid in os.listdir('/proc'):
        if pid.isdigit():
            try:
                with open(f'/proc/{pid}/cmdline', 'rb') as f:
                    if pattern in f.read().replace(b'\0', b' '):
                        found.append(int(pid))
            except OSError:
                pass
    return found


def test_output_is_exact(agent):
    r = agent.sh(r"printf 'a\n\n\nb\n'; printf 'e\0\377' >&2")
    assert r.stdout == b'a\n\n\nb\n'
    assert r.stderr == b'e\0\xff'
    assert r.end == {'exited': True, 'status': 'exit status 0'}
    assert r.error is None


def test_exit_codes(agent):
    r = agent.sh('exit 3')
    assert r.end == {'exitCode': 3, 'exited': True, 'status': 'exit status 3', 'error': 'exit status 3'}
    r = agent.sh('kill -9 $$')
    assert r.end == {'exitCode': -1, 'status': 'signal: killed', 'error': 'signal: killed'}
    r = agent.sh('kill -TERM $$')
    assert r.end['error'] == 'signal: terminated'


def test_much_output(agent):
    r = agent.sh('head -c 5000000 /dev/zero; head -c 1000 /dev/zero >&2')
    assert len(r.stdout) == 5000000
    assert len(r.stderr) == 1000


def test_environment(agent):
    r = Result(agent.start({'process': {'cmd': 'env', 'envs': {'A': 'x=y "z"', 'EMPTY': ''}}}))
    env = dict(line.split('=', 1) for line in r.stdout.decode().splitlines())
    assert env['A'] == 'x=y "z"' and env['EMPTY'] == ''
    assert env['HOME'] == '/root' and env['USER'] == env['LOGNAME'] == 'root'
    assert '/usr/bin' in env['PATH']


def test_cwd(agent, tmp_path):
    def pwd(**kw):
        return Result(agent.start({'process': {'cmd': 'pwd', **kw}})).stdout.decode().strip()
    assert pwd() == '/root'
    assert pwd(cwd=str(tmp_path)) == str(tmp_path)
    assert pwd(cwd='~') == '/root'
    assert pwd(cwd='/usr/../usr/./bin/') == '/usr/bin'
    r = Result(agent.start({'process': {'cmd': 'pwd', 'cwd': '/nope'}}))
    assert r.error == {'code': 'invalid_argument', 'message': "cwd '/nope' does not exist"}
    assert r.pid is None
    assert Result(agent.start({'process': {'cmd': 'pwd', 'cwd': '/etc/passwd'}})).error['code'] == 'invalid_argument'


def test_start_errors(agent):
    def error(cmd, *args, headers=()):
        r = Result(agent.start({'process': {'cmd': cmd, 'args': list(args)}}, headers))
        assert r.pid is None and r.end is None
        return r.error
    assert error('no-such-command')['code'] == 'invalid_argument'
    assert 'not found' in error('no-such-command')['message']
    assert 'cannot execute' in error('/etc/passwd')['message']
    assert 'argument list' in error('true', 'a' * 200000)['message']
    assert 'argument list' in error('true', *(['a' * 100000] * 105))['message']  # 10 MiB
    user = {'Authorization': 'Basic ' + b64(b'nobody-here:')}
    assert error('true', headers=user) == {'code': 'unauthenticated', 'message': "invalid username: 'nobody-here'"}
    r = Result(Stream(agent, '/process.Process/Start', {}))
    assert r.error['code'] == 'invalid_argument'


@needs_root()
def test_user(own_agent):
    a = own_agent('--user', 'nobody')
    r = a.sh('id -un; id -G; echo $HOME; cat /proc/self/status | grep CapEff; touch /dev/null; echo x > /dev/stdout')
    lines = r.stdout.decode().split('\n')
    assert lines[0] == 'nobody'
    assert lines[2] == '/nonexistent'
    assert lines[3].split()[1] == '0' * 16
    assert lines[4] == 'x', r.stderr
    r = a.sh('id -u', {'Authorization': 'Basic ' + b64(b'root:')})
    assert r.stdout == b'0\n'


def test_background_child_does_not_hold_the_end(agent):
    began = time.monotonic()
    r = agent.sh('sleep 31.5 & echo up')
    assert r.stdout == b'up\n' and r.code == 0
    assert time.monotonic() - began < 2
    pids = alive(b'sleep 31.5')
    assert pids
    for p in pids:
        os.kill(p, 9)


def test_background_server_keeps_serving(agent, tmp_path):
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    r = agent.sh(f'cd {tmp_path}; python3 -m http.server {port} --bind 127.0.0.1 & echo $!')
    pid = int(r.stdout)

    def get():
        try:
            with socket.create_connection(('127.0.0.1', port), timeout=5) as c:
                c.sendall(b'GET / HTTP/1.0\r\n\r\n')  # the server logs to the pipe that nobody reads
                return c.recv(100).startswith(b'HTTP/1.0 200')
        except OSError:
            return False
    assert eventually(get)
    for _ in range(50):
        assert get()
    os.kill(pid, 9)


def test_disconnect_does_not_kill_and_connect_comes_back(agent):
    s = agent.start({'process': {'cmd': 'sh', 'args': ['-c', 'read x; echo "got $x"; exit 4']}, 'stdin': True, 'tag': 'tagged'})
    pid = next(s)['event']['start']['pid']
    s.close()
    by_tag = Stream(agent, '/process.Process/Connect', {'process': {'tag': 'tagged'}})
    by_pid = Stream(agent, '/process.Process/Connect', {'process': {'pid': pid}})
    listed = agent.process('List', {}).json['processes']
    assert [p for p in listed if p['pid'] == pid] == [
        {'pid': pid, 'tag': 'tagged', 'config': {'cmd': 'sh', 'args': ['-c', 'read x; echo "got $x"; exit 4']}}]
    assert agent.process('SendInput', {'process': {'pid': pid}, 'input': {'stdin': b64(b'me\n')}}).json == {}
    for stream in by_tag, by_pid:
        r = Result(stream)
        assert (r.pid, r.stdout, r.code) == (pid, b'got me\n', 4)
    late = Result(Stream(agent, '/process.Process/Connect', {'process': {'pid': pid}}))
    assert (late.pid, late.stdout, late.code) == (pid, b'', 4)
    assert Result(Stream(agent, '/process.Process/Connect', {'process': {'pid': 1 << 30}})).error['code'] == 'not_found'


def test_start_deadline_kills(agent):
    began = time.monotonic()
    r = agent.sh('echo part; sleep 32.5', {'Connect-Timeout-Ms': '700'})
    assert 0.6 < time.monotonic() - began < 3
    assert r.stdout == b'part\n'
    assert r.end is None and r.error['code'] == 'deadline_exceeded'
    assert not alive(b'sleep 32.5')


def test_deadline_of_a_client_that_left_early_does_not_kill(agent):
    s = agent.start({'process': {'cmd': 'sleep', 'args': ['33.5']}}, {'Connect-Timeout-Ms': '6500'})
    pid = next(s)['event']['start']['pid']
    s.close()  # 6.5 s before its deadline: it means to come back
    time.sleep(7)
    assert alive(b'sleep 33.5')
    agent.process('SendSignal', {'process': {'pid': pid}, 'signal': 'SIGNAL_SIGKILL'})


def test_deadline_of_a_client_that_left_at_it_kills(agent):
    s = agent.start({'process': {'cmd': 'sleep', 'args': ['34.5']}}, {'Connect-Timeout-Ms': '1000'})
    next(s)
    s.close()
    assert eventually(lambda: not alive(b'sleep 34.5'), 4)


def test_connect_deadline_ends_the_stream_only(agent):
    s = agent.start({'process': {'cmd': 'sleep', 'args': ['35.5']}})
    pid = next(s)['event']['start']['pid']
    r = Result(Stream(agent, '/process.Process/Connect', {'process': {'pid': pid}}, {'Connect-Timeout-Ms': '300'}))
    assert r.error['code'] == 'deadline_exceeded'
    assert alive(b'sleep 35.5')
    assert agent.process('SendSignal', {'process': {'pid': pid}, 'signal': 'SIGNAL_SIGTERM'}).status == 200
    assert Result(s).end['error'] == 'signal: terminated'
    assert agent.process('SendSignal', {'process': {'pid': pid}, 'signal': 'SIGNAL_SIGTERM'}).json['code'] == 'not_found'


def test_kill_takes_the_whole_tree(agent):
    s = agent.start({'process': {'cmd': 'sh', 'args': ['-c', 'sleep 36.5 & (setsid sleep 36.5 &) ; sh -c "sleep 36.5 & wait" & echo; wait']}})
    pid = next(s)['event']['start']['pid']
    assert eventually(lambda: len([p for p in alive(b'sleep 36.5') if p != pid]) >= 4)
    assert agent.process('SendSignal', {'process': {'pid': pid}, 'signal': 'SIGNAL_SIGKILL'}).status == 200
    assert Result(s).end['exitCode'] == -1
    assert eventually(lambda: not alive(b'sleep 36.5'))


def test_keepalive(agent):
    r = agent.sh('sleep 2.3', {'Keepalive-Ping-Interval': '1'})
    assert r.keepalives == 2 and r.code == 0


def send(agent, pid, data, key='stdin'):
    return agent.process('SendInput', {'process': {'pid': pid}, 'input': {key: b64(data)}})


def test_stdin_of_any_size(agent):
    s = agent.start({'process': {'cmd': 'sha256sum'}, 'stdin': True})
    pid = next(s)['event']['start']['pid']
    import hashlib
    h = hashlib.sha256()
    for i in range(16):
        piece = random.Random(i).randbytes(4 << 20)
        h.update(piece)
        assert send(agent, pid, piece).status == 200
    assert agent.process('CloseStdin', {'process': {'pid': pid}}).status == 200
    assert Result(s).stdout.decode().split()[0] == h.hexdigest()


def test_stdin_broken_pipe(agent):
    s = agent.start({'process': {'cmd': 'sh', 'args': ['-c', 'head -c1 >/dev/null; exec <&-; echo closed; sleep 37.5']}, 'stdin': True})
    pid = next(s)['event']['start']['pid']
    a = send(agent, pid, b'x' * (4 << 20))
    assert a.status == 400 and a.json['code'] == 'failed_precondition' and 'broken pipe' in a.json['message']
    assert send(agent, pid, b'x').json['code'] == 'failed_precondition'
    agent.process('SendSignal', {'process': {'pid': pid}, 'signal': 'SIGNAL_SIGKILL'})
    Result(s)


def test_stdin_that_nobody_reads_is_bounded(agent):
    s = agent.start({'process': {'cmd': 'sleep', 'args': ['38.5']}, 'stdin': True})
    pid = next(s)['event']['start']['pid']
    codes = []

    def one():
        try:
            codes.append(send(agent, pid, b'x' * (6 << 20)).json.get('code'))
        except OSError:
            pass
    threads = [threading.Thread(target=one) for _ in range(6)]
    for t in threads:
        t.start()
    assert eventually(lambda: len(codes) >= 4)
    assert set(codes) == {'resource_exhausted'}
    # all answers to those that still wait come when the process ends
    agent.process('SendSignal', {'process': {'pid': pid}, 'signal': 'SIGNAL_SIGKILL'})
    for t in threads:
        t.join(10)
    assert len(codes) == 6 and codes.count('failed_precondition') == 2
    Result(s)
    assert eventually(lambda: agent.rss_kb() < 50 * 1024), agent.rss_kb()


def test_stdin_off(agent):
    r = Result(agent.start({'process': {'cmd': 'cat'}, 'stdin': False}))
    assert r.code == 0
    s = agent.start({'process': {'cmd': 'sleep', 'args': ['39.5']}, 'stdin': False})
    pid = next(s)['event']['start']['pid']
    assert send(agent, pid, b'x').json['code'] == 'failed_precondition'
    agent.process('SendSignal', {'process': {'pid': pid}, 'signal': 9})
    Result(s)


def test_output_without_a_reader_is_dropped(agent):
    s = agent.start({'process': {'cmd': 'sh', 'args': ['-c', 'head -c 100000000 /dev/zero; exec sleep 40.5']}})
    next(s)
    s.close()
    assert eventually(lambda: alive(b'sleep 40.5 ') or any(b'sleep\0' in open(f'/proc/{p}/cmdline', 'rb').read() for p in alive(b'40.5')), 30)
    assert agent.rss_kb() < 50 * 1024
    for p in alive(b'40.5'):
        os.kill(p, 9)


def test_slow_reader_holds_the_command_back(agent):
    s = agent.start({'process': {'cmd': 'sh', 'args': ['-c', 'head -c 40000000 /dev/zero']}})
    next(s)
    time.sleep(1)
    assert agent.rss_kb() < 50 * 1024
    r = Result(s)
    assert len(r.stdout) == 40000000 and r.code == 0


def test_pty(agent):
    s = agent.start({'process': {'cmd': '/bin/sh', 'args': ['-i'], 'envs': {'PS1': '> ', 'TERM': 'xterm'}},
                     'pty': {'size': {'cols': 101, 'rows': 31}}})
    pid = next(s)['event']['start']['pid']
    assert send(agent, pid, b'stty size; tty; echo $TERM\n', 'pty').status == 200
    seen = b''
    while b'xterm\r\n' not in seen:
        seen += base64.b64decode(next(s)['event']['data']['pty'])
    assert b'31 101' in seen and b'/dev/pts/' in seen
    assert agent.process('Update', {'process': {'pid': pid}, 'pty': {'size': {'cols': 90, 'rows': 20}}}).status == 200
    assert send(agent, pid, b'stty size; exit 7\n', 'pty').status == 200
    r = Result(s)
    assert b'20 90' in r.pty and r.code == 7
    assert send(agent, pid, b'x', 'pty').json['code'] == 'not_found'


def test_two_ptys_do_not_mix(agent):
    streams = [agent.start({'process': {'cmd': '/bin/sh', 'args': ['-i'], 'envs': {'PS1': ''}}, 'pty': {'size': {'cols': 80, 'rows': 24}}})
               for _ in range(2)]
    pids = [next(s)['event']['start']['pid'] for s in streams]
    agent.process('Update', {'process': {'pid': pids[0]}, 'pty': {'size': {'cols': 50, 'rows': 10}}})
    for p in pids:
        send(agent, p, b'stty size; exit\n', 'pty')
    out = [Result(s).pty for s in streams]
    assert b'10 50' in out[0] and b'24 80' in out[1]
    assert agent.process('Update', {'process': {'pid': pids[0]}, 'pty': {}}).json['code'] == 'not_found'


def test_input_of_the_wrong_kind(agent):
    s = agent.start({'process': {'cmd': 'cat'}, 'stdin': True})
    pid = next(s)['event']['start']['pid']
    assert send(agent, pid, b'x', 'pty').json['code'] == 'failed_precondition'
    assert agent.process('SendInput', {'process': {'pid': pid}, 'input': {'stdin': '***'}}).json['code'] == 'invalid_argument'
    assert agent.process('SendInput', {'process': {'pid': pid}}).json['code'] == 'invalid_argument'
    assert agent.process('SendInput', {'process': {}}).json['code'] == 'invalid_argument'
    assert agent.process('Update', {'process': {'pid': pid}, 'pty': {'size': {'cols': 1, 'rows': 1}}}).json['code'] == 'failed_precondition'
    assert agent.process('SendSignal', {'process': {'pid': pid}, 'signal': 'SIGNAL_SIGHUP'}).json['code'] == 'invalid_argument'
    agent.process('CloseStdin', {'process': {'pid': pid}})
    assert Result(s).code == 0


def test_starts_cancelled_at_once(agent):
    rng = random.Random(1)
    body = json.dumps({'process': {'cmd': 'sleep', 'args': ['0.05']}}).encode()
    request = (f'POST /process.Process/Start HTTP/1.1\r\nHost: x\r\nContent-Type: application/connect+json\r\n'
               f'X-Access-Token: {TOKEN}\r\nContent-Length: {len(body) + 5}\r\n\r\n').encode() + b'\0' + struct.pack('>I', len(body)) + body
    for _ in range(300):
        c = socket.create_connection(('127.0.0.1', agent.port))
        c.sendall(request[:rng.choice([len(request), len(request) // 2])])
        time.sleep(rng.random() * 0.005)
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        c.close()
    assert agent.sh('echo fine').stdout == b'fine\n'
    assert eventually(lambda: not agent.process('List', {}).json.get('processes'))


def test_failure_is_never_success_when_the_agent_dies(own_agent):
    a = own_agent()
    s = a.start({'process': {'cmd': 'sleep', 'args': ['41.5']}})
    next(s)
    a.proc.kill()
    a.proc.wait()
    try:
        Result(s)
        raise AssertionError('the stream ended well')
    except (EOFError, ConnectionError, http.client.HTTPException):
        pass
    for p in alive(b'sleep 41.5'):
        os.kill(p, 9)
    a.proc.wait = lambda timeout=None: 0  # it was meant to die


def test_many_at_once(agent):
    streams = [agent.start({'process': {'cmd': 'sh', 'args': ['-c', f'sleep 0.2; echo {i}; exit {i % 7}']}}) for i in range(100)]
    for i, s in enumerate(streams):
        r = Result(s)
        assert r.stdout == f'{i}\n'.encode() and r.code == i % 7


def test_long_command_does_not_hold_up_the_rest(agent):
    s = agent.start({'process': {'cmd': 'sleep', 'args': ['42.5']}})
    pid = next(s)['event']['start']['pid']
    began = time.monotonic()
    assert agent.fs('ListDir', path='/').status == 200
    assert time.monotonic() - began < 0.5
    agent.process('SendSignal', {'process': {'pid': pid}, 'signal': 'SIGNAL_SIGKILL'})
    Result(s)


def test_protocol_errors(agent):
    assert agent.http('GET', '/process.Process/List').status == 405
    assert agent.http('POST', '/process.Process/List', '{}', {'Content-Type': 'application/proto'}).status == 415
    assert agent.http('POST', '/process.Process/Nope', '{}', {'Content-Type': 'application/json'}).status == 404
    for body in '{', '[]', '"x"', '{"a":1}{"b":2}':
        assert agent.http('POST', '/process.Process/List', body, {'Content-Type': 'application/json'}).status == 400
    assert agent.http('POST', '/process.Process/List', '', {'Content-Type': 'application/json'}).status == 200
    a = agent.http('POST', '/process.Process/SendInput', b'{"x":"' + b'y' * (17 << 20) + b'"}', {'Content-Type': 'application/json'})
    assert a.status == 413
    a = agent.http('POST', '/process.Process/Start', b'\0\0\0\0\xff{}', {'Content-Type': 'application/connect+json'})
    assert a.status == 200 and b'invalid_argument' in a.body
    s = Stream(agent, '/process.Process/StreamInput', {})
    assert list(s) == [] and s.error['code'] == 'unimplemented'


def test_token(agent):
    for token in None, '', 'wrong', TOKEN + 'x', TOKEN[:-1]:
        assert agent.http('POST', '/process.Process/List', '{}', {'Content-Type': 'application/json'}, token=token).status == 401
        assert agent.http('GET', '/metrics', token=token).status == 401
        assert agent.http('GET', '/cspace/v1/processes', token=token).status == 401
        assert agent.http('GET', '/health', token=token).status == 204
        assert agent.http('GET', '/health/', token=token).status == 204
    a = agent.http('OPTIONS', '/files', None, {'Access-Control-Request-Headers': 'x-a, x-b'}, token=None)
    assert a.status == 204 and a.headers['Access-Control-Allow-Origin'] == '*'
    assert a.headers['Access-Control-Allow-Headers'] == 'x-a, x-b'
    assert agent.http('GET', '/nothing').status == 404
    m = agent.http('GET', '/metrics').json
    assert m['mem_total'] > m['mem_used'] > 0 and m['cpu_count'] >= 1 and m['disk_total'] > 0
