# SPDX-License-Identifier: Apache-2.0
"""The control service, waiting for the identity, and the guest stream."""
import base64
import json
import os
import socket
import subprocess
import threading
import time

import pytest

from attach import STDIN, STDIN_EOF, Attach
from conftest import LINKHOST, TOKEN, Agent, eventually


def identity(**kw):
    return {'sandboxId': 'sbx1', 'templateId': 'tpl1', 'env': {'A': '1'}, 'accessToken': TOKEN, 'timeNs': str(time.time_ns()),
            'entropy': base64.b64encode(os.urandom(64)).decode(), 'defaultUser': 'root', **kw}


def test_init(own_agent):
    a = own_agent('--wait-init', token=False)
    results = []
    threads = [threading.Thread(target=lambda: results.append(a.sh('echo $A $E2B_SANDBOX $E2B_SANDBOX_ID $E2B_TEMPLATE_ID').stdout))
               for _ in range(5)]
    for t in threads:
        t.start()
    time.sleep(0.3)
    assert not results and a.http('GET', '/health').status == 204
    assert a.control_call('GET', '/control/stats').json['identified'] is False
    r = a.control_call('POST', '/control/init', identity())
    assert r.status == 200 and len(r.json['bootId']) == 36 and r.json['agentVersion']
    for t in threads:
        t.join(20)
    assert results == [b'1 true sbx1 tpl1\n'] * 5
    assert a.http('GET', '/envs').json['A'] == '1'
    assert a.http('GET', '/envs', token=None).status == 401
    # again: what is not there any more is gone, the boot is the same
    again = a.control_call('POST', '/control/init', identity(env={'B': '2'}))
    assert again.json['bootId'] == r.json['bootId']
    assert a.sh('echo "$A" $B').stdout == b' 2\n' or a.sh('echo "$A$B"').stdout == b'2\n'
    # another sandbox of the same memory
    fork = a.control_call('POST', '/control/init', identity(sandboxId='sbx2'))
    assert fork.json['bootId'] != r.json['bootId']
    a.control_call('POST', '/control/init', identity(accessToken='other'))
    assert a.http('GET', '/envs').status == 401
    assert a.http('GET', '/envs', token='other').status == 200


def test_init_refuses_nonsense(own_agent):
    a = own_agent('--wait-init')
    for bad in ({'timeNs': 5}, {'timeNs': '-1'}, {'timeNs': 'x'}, {'entropy': 'AAAA'}, {'entropy': '!'}, {'env': {'A': 1}}, {'env': []},
                {'hostname': 'x' * 65}, {'sandboxId': 'x' * 200}):
        r = a.control_call('POST', '/control/init', identity(**bad))
        assert r.status == 400 and r.json['error']['message'], bad
    assert a.control_call('GET', '/control/stats').json['identified'] is False
    assert a.control_call('GET', '/control/nothing').status == 404
    assert a.control_call('GET', '/control/init').status == 404


def test_quiesce(own_agent):
    a = own_agent('--wait-init')
    a.control_call('POST', '/control/init', identity())
    s = a.start({'process': {'cmd': 'sh', 'args': ['-c', 'sleep 60.5 & sleep 60.5']}})
    next(s)
    a.native('POST', '/processes', {'cmd': 'sleep', 'args': ['60.5'], 'start': True})
    assert a.control_call('POST', '/control/quiesce').status == 200
    assert os.system('pgrep -fx "sleep 60.5" >/dev/null') != 0
    ends = [m for m in s if 'end' in m['event']]
    assert ends and ends[0]['event']['end'].get('exitCode') == -1
    assert a.control_call('GET', '/control/stats').json['identified'] is False
    a.control_call('POST', '/control/init', identity(sandboxId='next'))
    assert a.native('GET', '/processes').json['processes'] == []
    assert a.sh('echo $E2B_SANDBOX_ID').stdout == b'next\n'


def test_stop_gives_processes_time(own_agent, tmp_path):
    a = own_agent()
    s = a.start({'process': {'cmd': 'sh', 'args': ['-c', f'trap "echo bye > {tmp_path}/bye; exit" TERM; echo ready; while :; do sleep 0.05; done']}})
    next(s), next(s)
    stubborn = a.start({'process': {'cmd': 'sh', 'args': ['-c', 'trap "" TERM; echo ready; while :; do sleep 0.05; done']}})
    next(stubborn), next(stubborn)
    began = time.monotonic()
    assert a.control_call('POST', '/control/stop', {'timeoutMs': 700}).status == 200
    assert 0.6 < time.monotonic() - began < 5
    assert (tmp_path / 'bye').read_text() == 'bye\n'
    assert a.proc.wait(10) == 0


@pytest.fixture
def linked(own_agent, tmp_path):
    transport, local = str(tmp_path / 'port'), str(tmp_path / 'local')
    host = subprocess.Popen([LINKHOST, 'listen', transport, local], stdout=subprocess.PIPE, text=True)
    assert eventually(lambda: os.path.exists(transport))
    a = own_agent('--port', transport, '--wait-init', trust=False)
    assert host.stdout.readline() == 'ready\n'

    class Link:
        agent, proc = a, host

        @staticmethod
        def open(authority):
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(30)
            s.connect(local)
            s.sendall(f'CONNECT {authority}\n'.encode())
            line = b''
            while not line.endswith(b'\n'):
                d = s.recv(1)
                if not d:
                    raise EOFError
                line += d
            return s if line == b'200\n' else None

        def http(self, authority, method, path, body=None, headers=()):
            import http.client
            c = http.client.HTTPConnection('x')
            c.sock = self.open(authority)
            c.request(method, path, json.dumps(body) if body is not None else None, dict(headers))
            r = c.getresponse()
            return r.status, r.read()

        def restart(self):
            host2 = subprocess.Popen([LINKHOST, 'listen', transport, local], stdout=subprocess.PIPE, text=True)
            assert host2.stdout.readline() == 'ready\n'
            self.proc = host2
    link = Link()
    yield link
    link.proc.kill()
    link.proc.wait()


def test_guest_stream(linked):
    assert linked.http('control', 'POST', '/control/init', identity())[0] == 200
    token = {'X-Access-Token': TOKEN}
    assert linked.http('127.0.0.1:49983', 'GET', '/health')[0] == 204
    status, body = linked.http('127.0.0.1:49983', 'POST', '/cspace/v1/processes', {'cmd': 'cat', 'stdin': True}, token)
    assert status == 201
    pid = json.loads(body)['processId']
    a = Attach(None, pid, sock=linked.open('127.0.0.1:49983'))
    a.until(lambda x: x.window)
    a.send(STDIN, b'over the link')
    a.until(lambda x: x.out == b'over the link')
    # sessions are reached by the guest stream alone, the E2B API on loopback too
    assert linked.agent.native('GET', '/processes').status == 404
    assert linked.agent.http('GET', '/metrics').status == 200
    # the host goes away and comes back: the process is still there, the rest of the output too
    linked.proc.kill()
    linked.proc.wait()
    linked.restart()
    b = Attach(None, pid, 4, sock=linked.open('127.0.0.1:49983'))
    b.until(lambda x: x.out == b' the link'[-len(x.out):] and len(x.out) == 9)
    b.send(STDIN_EOF)
    b.finish()
    assert b.out == b' the link' and b.exit['exitCode'] == 0


def test_the_host_parts(linked):
    """All that was open is cut, the agent says so and has the next session; a command with its output outlives it."""
    assert linked.http('control', 'POST', '/control/init', identity())[0] == 200
    token = {'X-Access-Token': TOKEN}
    _, body = linked.http('127.0.0.1:49983', 'POST', '/cspace/v1/processes', {'cmd': 'cat', 'stdin': True}, token)
    pid = json.loads(body)['processId']
    a = Attach(None, pid, sock=linked.open('127.0.0.1:49983'))
    a.until(lambda x: x.window)
    a.send(STDIN, b'before')
    a.until(lambda x: x.out == b'before')
    for n in range(3):
        assert linked.http('control', 'GET', '/control/stats')[0] == 200  # the agent's SETTINGS, which say that it can, have come
        with pytest.raises(EOFError):
            linked.open('part')
        assert linked.proc.stdout.readline() == 'closed 0 parted\n'
        assert linked.proc.stdout.readline() == 'ready\n'
    with pytest.raises((EOFError, ConnectionError)):
        a.until(lambda x: False)
    b = Attach(None, pid, 6, sock=linked.open('127.0.0.1:49983'))
    b.until(lambda x: x.window)
    b.send(STDIN, b'after')
    b.until(lambda x: x.out == b'after')
    b.send(STDIN_EOF)
    b.finish()
    assert b.exit['exitCode'] == 0


def test_ports_of_the_guest(linked):
    linked.http('control', 'POST', '/control/init', identity())
    for family, address in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET, '0.0.0.0'), (socket.AF_INET6, '::1'), (socket.AF_INET6, '::')):
        srv = socket.socket(family)
        if family == socket.AF_INET6:
            srv.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        srv.bind((address, 0))
        srv.listen()
        port = srv.getsockname()[1]
        data = os.urandom(3 << 20)

        def serve():
            c, _ = srv.accept()
            got = b''
            while True:
                d = c.recv(1 << 16)
                if not d:
                    break
                got += d
            c.sendall(got[::-1])
            c.close()
        t = threading.Thread(target=serve)
        t.start()
        s = linked.open(f'127.0.0.1:{port}')
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        got = b''
        while True:
            d = s.recv(1 << 16)
            if not d:
                break
            got += d
        t.join()
        srv.close()
        assert got == data[::-1]
        assert linked.open(f'127.0.0.1:{port}') is None  # closed now
    for authority in '127.0.0.1:0', '127.0.0.1:65536', '127.0.0.1:x', '10.0.0.1:80', 'elsewhere', '127.0.0.1:':
        assert linked.open(authority) is None


def test_idle_agent_uses_no_cpu(own_agent):
    a = own_agent()
    assert a.sh('true').code == 0

    def ticks():
        with open(f'/proc/{a.proc.pid}/stat', encoding='utf-8') as f:
            return sum(int(x) for x in f.read().rsplit(')', 1)[1].split()[11:13])

    def switches():
        with open(f'/proc/{a.proc.pid}/status', encoding='utf-8') as f:
            return int(next(line for line in f if line.startswith('voluntary')).split()[1])
    before, woken = ticks(), switches()
    time.sleep(3)
    assert ticks() == before and switches() - woken <= 2
