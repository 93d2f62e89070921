# SPDX-License-Identifier: Apache-2.0
"""diff, cat and restore-file against a server that lies."""
import http.server
import json
import os
import pty
import socketserver
import subprocess
import threading
import urllib.parse

import pytest

EVIL = 'a\x1b]0;owned\x07\u202eb'
META = {'type': 'file', 'size': 5, 'mode': 0o644, 'uid': 0, 'gid': 0}


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@pytest.fixture
def served(tmp_path):
    """Answers GETs of a path from .answers, as (status, headers, body); notes PUTs."""
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = 'HTTP/1.1'

        def address_string(self):
            return 'client'

        def log_message(self, *args):
            pass

        def do_GET(self):
            url = urllib.parse.urlsplit(self.path)
            query = dict(urllib.parse.parse_qsl(url.query))
            server.asked.append((url.path, query))
            status, headers, body = server.answers[url.path](query)
            self.send_response(status)
            for k, v in {'Content-Length': str(len(body)), **headers}.items():
                self.send_header(k, v)
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = int(headers.get('Content-Length', len(body))) != len(body)

        def do_PUT(self):
            url, data, whole = urllib.parse.urlsplit(self.path), b'', False
            while (n := self.rfile.readline().strip()):  # chunks
                data += self.rfile.read(int(n, 16))
                server.taken()
                self.rfile.readline()
                if n == b'0':
                    whole = True
                    break
            if whole:
                server.files[dict(urllib.parse.parse_qsl(url.query))['path']] = (data, dict(urllib.parse.parse_qsl(url.query)))
            answer = json.dumps(server.put_answer).encode()
            self.send_response(200)
            self.send_header('Content-Length', str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    path = str(tmp_path / 's')
    server = Server(path, Handler)
    server.answers, server.asked, server.files, server.path = {}, [], {}, path
    server.taken = lambda: None
    server.put_answer = {'entries': 1, 'bytes': 7, 'skipped': 0, 'kept': 0, 'kept_paths': [], 'owner': True}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def run(cspace, served):
    def call(*args):
        env = {**os.environ, 'CSPACE_API_URL': 'unix:' + served.path}
        return subprocess.run([cspace, *args], env=env, capture_output=True, timeout=60, stdin=subprocess.DEVNULL, check=False)
    return call


def pages(*all_):
    def answer(query):
        n = int(query.get('cursor', '0'))
        return 200, {}, json.dumps({'changes': all_[n], 'next_cursor': str(n + 1) if n + 1 < len(all_) else None,
                                    'warnings': ['journal_damaged'], 'synced': True}).encode()
    return answer


def change(status, path, **kw):
    return {'status': status, 'path': path, 'new': META, **kw}


def test_tree(run, served):
    served.answers['/v1/sandboxes/s/diff'] = pages(
        [change('added', '/a/b/c'), change('deleted', '/a/b/d', new=None, old=META), change('changed', '/a/x', old={**META, 'size': 2048},
         what=['content', 'mode'])],
        [change('added', '/d', new={**META, 'type': 'directory'}), change('added', '/d/e'), change('unreadable', '/' + EVIL, error='corrupt'),
         change('renamed', '/z', **{'from': '/' + EVIL}), change('changed', '/zz', patch='@@ -1 +1 @@\n-\x1b[2J\n+\tb\n')])
    r = run('diff', 's', 'one', '--patch')
    assert r.returncode == 0 and b'journal_damaged' in r.stderr, r
    safe = 'a\\x1b]0;owned\\x07\\u{202e}b'
    assert r.stdout.decode().splitlines() == [
        '  a/', '    b/', '+     c  5 B', '-     d  5 B', '~   x  2 KiB -> 5 B  content  mode 0644 -> 0644', '+ d/', '+   e  5 B',
        f'! {safe}  5 B  (corrupt)', f'> z  5 B  from /{safe}', '~ zz  5 B', '@@ -1 +1 @@', '-\\x1b[2J', '+\tb']
    assert [q.get('cursor') for _, q in served.asked] == [None, '1']
    assert served.asked[0][1] == {'from': 'one', 'to': 'now', 'prefix': '/', 'patch': '1'}
    document = json.loads(run('diff', '--json', 's').stdout)
    assert len(document['changes']) == 8 and 'next_cursor' not in document


def test_sizes_that_look_the_same_are_shown_to_the_byte(run, served):
    served.answers['/v1/sandboxes/s/diff'] = pages(
        [change('changed', '/a', old={**META, 'size': 100_000}, new={**META, 'size': 100_002}, what=['content']),
         change('changed', '/b', old={**META, 'size': 100_000}, new={**META, 'size': 100_000}, what=['content'])])
    assert run('diff', 's').stdout.decode().splitlines() == ['~ a  100000 B -> 100002 B', '~ b  97.7 KiB']


def test_cat_that_breaks_off_is_a_failure(run, served):
    served.answers['/v1/sandboxes/s/history/file'] = lambda q: (200, {'Content-Length': '10'}, b'hello')
    r = run('cat', 's@x:/a')
    assert r.returncode == 125 and r.stdout == b'hello', r
    assert served.asked[-1][1] == {'at': 'x', 'path': '/a'}


def test_restore_file(run, served):
    """The archive goes to the sandbox as it is; what is asked for says where."""
    served.answers['/v1/sandboxes/s/files/stat'] = lambda q: (404, {}, b'{"error":{"code":"not_found","message":"x"}}')
    served.answers['/v1/sandboxes/s/history/tree'] = lambda q: (200, {'X-File-Type': 'file'}, b'archive')
    put = {'tar': '1', 'owner': '1'}
    assert run('restore-file', 's', 'x', '/a b').returncode == 0
    assert served.files['/'] == (b'archive', {'path': '/', 'as': 'a b', **put}) and served.asked[-1][1] == {'at': 'x', 'path': '/a b'}
    assert run('restore-file', 's', 'x', '/a b', '/d/c').returncode == 0
    assert served.files['/d'] == (b'archive', {'path': '/d', 'as': 'c', **put})
    assert run('restore-file', '-u', 'root', 's', 'x', '/a b', '/d/c').returncode == 0
    assert served.files['/d'][1] == {'path': '/d', 'as': 'c', 'user': 'root', **put}
    assert run('restore-file', '-u', 'somebody', 's', 'x', '/a b', '/e/').returncode == 0
    assert served.files['/e'][1] == {'path': '/e', 'as': 'a b', 'user': 'somebody', 'tar': '1'}
    served.answers['/v1/sandboxes/s/history/tree'] = lambda q: (200, {'X-File-Type': 'directory'}, b'archive')
    assert run('restore-file', 's', 'x', '/f/g').returncode == 0
    assert served.files['/f/g'] == (b'archive', {'path': '/f/g', **put})
    served.answers['/v1/sandboxes/s/files/stat'] = lambda q: (200, {}, json.dumps({**META, 'type': 'directory', 'path': '/h'}).encode())
    assert run('restore-file', 's', 'x', '/f/g', '/h').returncode == 0 and '/h/g' in served.files
    served.answers['/v1/sandboxes/s/history/tree'] = lambda q: (200, {'Content-Length': '10'}, b'archi')
    assert run('restore-file', 's', 'x', '/f/g', '/i').returncode == 125
    assert '/i/g' not in served.files  # what breaks off is not told as whole


def test_restore_file_shows_how_far_it_is(cspace, served):
    """On a terminal, of what takes its time; and nothing of it stays."""
    served.answers['/v1/sandboxes/s/files/stat'] = lambda q: (404, {}, b'{"error":{"code":"not_found","message":"x"}}')
    served.answers['/v1/sandboxes/s/history/tree'] = lambda q: (200, {'X-File-Type': 'directory'}, bytes(64 << 20))
    shown = threading.Event()
    served.taken = lambda: shown.wait(0.02)  # a piece at a time, until something is seen
    master, slave = pty.openpty()
    env = {**os.environ, 'CSPACE_API_URL': 'unix:' + served.path, 'TERM': 'xterm'}
    p = subprocess.Popen([cspace, 'restore-file', 's', 'x', '/f/g'], env=env, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave)
    os.close(slave)
    seen = b''
    try:
        while not seen.endswith(b'\r\x1b[K') or b'B/s' not in seen:
            seen += os.read(master, 65536)
            if b'B/s' in seen:
                shown.set()
        assert p.wait(60) == 0 and b'/f/g  ' in seen, seen
    finally:
        p.kill()
        p.wait()
        os.close(master)


def test_restore_file_tells_what_did_not_come_back(run, served):
    served.answers['/v1/sandboxes/s/history/tree'] = lambda q: (200, {'X-File-Type': 'directory'}, b'archive')
    r = run('restore-file', 's', 'x', '/f/g')
    assert (r.returncode, r.stderr) == (0, b''), r
    served.put_answer.update(skipped=1, kept=3, kept_paths=['a', 'b/' + EVIL])
    r = run('restore-file', 's', 'x', '/f/g')
    assert r.returncode == 125 and b'"/f/g/a" did not come back' in r.stderr and b'"/f/g/b/' in r.stderr and b'nor did 1 more' in r.stderr, r
    assert b'1 device was left out' in r.stderr and b'\x1b' not in r.stderr
    r = run('--json', 'restore-file', 's', 'x', '/f/g')
    assert r.returncode == 125 and json.loads(r.stdout)['kept_paths'][0] == 'a' and r.stderr == b'', r
    # An agent of before owners came back knows nothing of them.
    served.put_answer = {'entries': 1, 'bytes': 7, 'skipped': 0}
    r = run('restore-file', 's', 'x', '/f/g')
    assert r.returncode == 0 and b'agent in this sandbox is older' in r.stderr, r
    assert run('restore-file', '-u', 'somebody', 's', 'x', '/f/g').stderr == b''
