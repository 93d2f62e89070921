# SPDX-License-Identifier: Apache-2.0
"""Tokens: cspace-token as rootd starts it, which commands it may be told to run, what both are confined to, and that nothing stays."""
import errno
import glob
import json
import os
import shutil
import signal
import socket
import tempfile

import pytest

import wire
from conftest import BUILD, until

PROGRAM = os.path.join(BUILD, 'src', 'token', 'cspace-token')
FIRST_UID = 2145620000
LOOK = '''#!/usr/bin/python3 -I
import json, os, resource, sys
def status():
    return dict(l.rstrip('\\n').split(':\\t', 1) for l in open('/proc/self/status') if ':\\t' in l)
def fds():
    out = {}
    for n in os.listdir('/proc/self/fd'):
        try:
            out[n] = os.readlink('/proc/self/fd/' + n)
        except OSError:
            pass
    return out
def can(fn):
    try:
        return fn()
    except OSError as e:
        return e.errno
seen = {'argv': sys.argv[1:], 'status': status(), 'fds': fds(), 'env': dict(os.environ), 'root': sorted(os.listdir('/')),
        'net': os.readlink('/proc/self/ns/net'), 'core': resource.getrlimit(resource.RLIMIT_CORE), 'tmp': can(lambda: os.listdir('/tmp')),
        'oom': open('/proc/self/oom_score_adj').read().strip()}
'''
STAND_IN = LOOK + '''
import time
if os.path.exists('/proc/self/fd/3'):
    seen['request'] = os.pread(3, 10000, 0).decode()
    seen['trust'] = os.pread(4, 27, 0).decode()
print(json.dumps(seen), flush=True)
if 'hold' in seen.get('request', ''):
    time.sleep(600)
'''


class Tokens:
    def __init__(self, rootd):
        self.rootd = rootd
        self.top = tempfile.mkdtemp(prefix='rootd-token-', dir='/var/tmp')  # /tmp is covered for commands
        os.chmod(self.top, 0o755)
        self.commands = os.path.join(self.top, 'commands')
        os.mkdir(self.commands, 0o755)
        libexec = os.path.join(self.top, 'libexec')
        shutil.copytree(rootd.libexec, libexec)
        rootd.libexec = libexec
        self.program(PROGRAM)

    def program(self, source):
        to = os.path.join(self.rootd.libexec, 'cspace-token')
        if source == STAND_IN:
            with open(to, 'w') as f:
                f.write(source)
        else:
            shutil.copy(source, to)
        os.chmod(to, 0o755)

    def start(self, conf=''):
        self.rootd.start(conf=f'[credentials]\ncommands = {self.commands}\n{conf}')
        self.c = self.rootd.client()
        return self

    def command(self, name, script, mode=0o755):
        path = os.path.join(self.commands, name)
        with open(path, 'w') as f:
            f.write(script if script.startswith('#!') else '#!/bin/sh\n' + script)
        os.chmod(path, mode)
        return path

    def ask(self, request=b'{"hush": "secret 7f3a"}', **kw):
        args = {'credential': 'token', 'provider': 'oauth2', 'command': '', **kw}
        fds = []
        if request is not None and args['provider'] == 'oauth2':
            fds = [os.memfd_create('request')]
            os.write(fds[0], request)
        try:
            self.c.call('TOKEN', fds=fds, **args)
        finally:
            for fd in fds:
                os.close(fd)
        s = socket.socket(fileno=self.c.fds.pop())
        s.settimeout(30)
        return s

    def read(self, **kw):
        with self.ask(**kw) as s:
            return b''.join(iter(lambda: s.recv(65536), b'')).decode()

    def run(self, name, **kw):
        return self.read(provider='command', command=name, **kw)

    def processes(self, low=FIRST_UID, high=FIRST_UID + 16 * 4096):
        found = []
        for d in glob.glob('/proc/[0-9]*'):
            try:
                with open(d + '/status') as f:
                    text = f.read()
            except OSError:
                continue
            uid = int(text.split('\nUid:\t')[1].split()[0])
            if 'State:\tZ' not in text and low <= uid < high:
                found.append(int(d[6:]))
        return found

    def nothing_left(self):
        until(lambda: not self.processes(), what='end of the processes')
        until(lambda: not [g for g in self.rootd.host.cgroups() if os.path.basename(g.rstrip('/')).startswith('t')], what='end of the cgroups')

    def close(self):
        shutil.rmtree(self.top)


@pytest.fixture
def tokens(rootd):
    if not os.path.exists(PROGRAM):
        pytest.skip(f'{PROGRAM} is not built')
    t = Tokens(rootd)
    yield t
    t.close()


def code_of(fn, **kw):
    with pytest.raises(wire.RootdError) as e:
        fn(**kw)
    return e.value.code


def confined(seen, uid=None):
    st = seen['status']
    uid = int(st['Uid'].split()[0]) if uid is None else uid
    assert st['Uid'].split() == [str(uid)] * 4 and st['Groups'].split() == [] and st['NoNewPrivs'] == '1'
    for caps in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb'):
        assert int(st[caps], 16) == 0
    assert seen['core'][0] <= 1 and seen['oom'] == '600'
    return uid


def test_request_goes_through_unread(tokens):
    tokens.program(STAND_IN)
    tokens.start('open = 10.1.0.0/16 192.0.2.7\ntimeout = 7s\n')
    seen = json.loads(tokens.read())
    assert seen['argv'][:2] == ['--timeout', '7']
    assert seen['argv'][-4:] == ['--open', '10.1.0.0/16', '--open', '192.0.2.7'] and '--resolver' in seen['argv']
    assert seen['request'] == '{"hush": "secret 7f3a"}' and seen['trust'].startswith('-')
    assert FIRST_UID <= confined(seen)
    assert set(seen['env']) <= {'PATH', 'LANG', 'LC_CTYPE'}
    assert {k for k, v in seen['fds'].items() if not v.startswith('/proc/')} == {'0', '1', '2', '3', '4'}
    assert 'home' not in seen['root'] and 'run' not in seen['root']
    assert seen['net'] == os.readlink('/proc/self/ns/net')  # it has to reach the endpoint
    assert seen['status']['NSpid'].split()[-1] == '1'
    assert 'secret 7f3a' not in tokens.rootd.text()
    tokens.nothing_left()


@pytest.mark.parametrize('kw', [{'credential': ''}, {'credential': '../x'}, {'credential': '.x'}, {'provider': 'static'}, {'provider': ''},
                                {'request': None}, {'provider': 'command'}, {'provider': 'command', 'command': '../../bin/sh'},
                                {'provider': 'command', 'command': '/bin/sh'}, {'provider': 'command', 'command': '-x'}])
def test_what_cannot_be_asked(tokens, kw):
    tokens.start()
    assert code_of(tokens.ask, **kw) == errno.EINVAL
    tokens.nothing_left()


def test_command(tokens):
    tokens.start()
    tokens.command('good', '''echo '{"token":"abcdefgh","expires_in":60}' ''')
    assert tokens.run('good') == 'token 60 8\nabcdefgh\n'
    tokens.command('look', LOOK + 'import base64\nprint(json.dumps({"token": base64.b64encode(json.dumps(seen).encode()).decode()}))')
    import base64
    seen = json.loads(base64.b64decode(tokens.run('look').split('\n')[1]))
    assert FIRST_UID <= confined(seen)
    assert seen['argv'] == [] and set(seen['env']) <= {'PATH', 'LANG', 'LC_CTYPE'} and seen['tmp'] == []
    assert {k for k, v in seen['fds'].items() if not v.startswith('/proc/')} == {'0', '1', '2'} and seen['fds']['0'] == '/dev/null'
    assert seen['fds']['2'] == '/dev/null'
    tokens.nothing_left()


def test_command_sees_nothing_of_ours(tokens):
    tokens.start()
    for place in (tokens.rootd.data, tokens.rootd.run):
        tokens.command('ls', f'''n=$(ls -A {place} | wc -l); echo "{{\\"token\\":\\"entries-$n\\"}}"''')
        assert tokens.run('ls').split('\n')[1] == 'entries-0'


def test_which_commands(tokens):
    tokens.start()
    tokens.command('plain', 'true', 0o644)
    tokens.command('open', 'true', 0o757)
    os.chown(tokens.command('theirs', 'true'), 61803, 0)
    os.symlink('/bin/sh', os.path.join(tokens.commands, 'link'))
    os.mkdir(os.path.join(tokens.commands, 'folder'))
    for name in ('plain', 'open', 'theirs', 'folder'):
        assert code_of(tokens.run, name=name) == errno.EACCES, name
    assert code_of(tokens.run, name='none') == errno.ENOENT
    assert code_of(tokens.run, name='link') in (errno.ELOOP, errno.EXDEV, errno.EACCES)
    tokens.command('good', 'true')
    os.chmod(tokens.commands, 0o777)
    assert code_of(tokens.run, name='good') == errno.EACCES
    os.chmod(tokens.commands, 0o755)
    shutil.rmtree(tokens.commands)
    assert code_of(tokens.run, name='good') == errno.ENOENT
    tokens.nothing_left()


def test_user_of_commands(tokens):
    """A user of the operator's. Its other processes are none of ours."""
    import subprocess
    tokens.start('user = games\n')
    other = subprocess.Popen(['setpriv', '--reuid=games', '--regid=games', '--clear-groups', 'sleep', '600'])
    try:
        tokens.command('who', '''sleep 600 & echo "{\\"token\\":\\"$(id -un)-$(id -gn)-$(id -Gn)\\"}"''')
        assert tokens.run('who').split('\n')[1] == 'games-games-games'
        uid = int(subprocess.check_output(['id', '-u', 'games']))
        until(lambda: tokens.processes(uid, uid + 1) == [other.pid], what='end of what it left running')
    finally:
        other.kill()
        other.wait()
    tokens.nothing_left()


@pytest.mark.parametrize('user, code', [('root', errno.EPERM), ('nobody', errno.EPERM), ('no-such-user', errno.ENOENT)])
def test_users_that_are_refused(tokens, user, code):
    """"nobody" is cspaced's user here."""
    tokens.start(f'user = {user}\n')
    tokens.command('good', 'true')
    assert code_of(tokens.run, name='good') == code


def test_one_a_credential_and_few_a_host(tokens):
    tokens.program(STAND_IN)
    tokens.start()
    hold = b'{"hold": 1}'
    first = tokens.ask(hold)
    assert code_of(tokens.ask) == errno.EALREADY
    others = [tokens.ask(hold, credential=f'c{i}') for i in range(15)]
    assert code_of(tokens.ask, credential='one-more') == errno.EAGAIN
    uids = {json.loads(s.makefile().readline())['status']['Uid'].split()[0] for s in [first, *others]}
    assert len(uids) == 16 == len(tokens.processes())
    for s in [first, *others]:
        s.close()
    tokens.nothing_left()


def test_asked_again_at_once(tokens):
    """Who gave up a question may ask it again without waiting for the end of the first."""
    tokens.program(STAND_IN)
    tokens.start()
    with tokens.ask(b'{"hold": 1}') as s, s.makefile() as f:
        assert f.readline()
        tokens.rootd.proc.send_signal(signal.SIGSTOP)
        asked = tokens.c.send('TOKEN', fds=[os.memfd_create('request')], credential='token', provider='oauth2', command='')
    tokens.rootd.proc.send_signal(signal.SIGCONT)  # it sees both at once, and the question first
    tokens.c.result(asked)
    os.close(tokens.c.fds.pop())
    tokens.nothing_left()


def test_time(tokens):
    """The program keeps its time; where it does not, rootd does."""
    tokens.start('timeout = 1s\n')
    tokens.command('slow', 'sleep 600')
    assert 'in time' in tokens.run('slow')
    tokens.program(STAND_IN)
    data = tokens.read(request=b'{"hold": 1}')
    assert json.loads(data)['request'] == '{"hold": 1}'
    tokens.nothing_left()


@pytest.mark.parametrize('how', ['kill', 'stop'])
def test_ends_with_rootd(tokens, how):
    tokens.start('timeout = 300s\n')
    tokens.command('slow', 'sleep 600 & sleep 600')
    s = tokens.ask(provider='command', command='slow')
    until(lambda: len(tokens.processes()) >= 3, what='the command')
    getattr(tokens.rootd, how)()
    assert s.recv(10) == b''
    until(lambda: not tokens.processes(), what='end of the processes')
    tokens.start()
    tokens.nothing_left()


def test_killed(tokens):
    tokens.start()
    tokens.command('slow', 'sleep 600')
    s = tokens.ask(provider='command', command='slow')
    pids = until(lambda: len(tokens.processes()) >= 2 and tokens.processes(), what='the command')
    os.kill(min(pids), signal.SIGKILL)
    assert s.recv(10) == b''
    tokens.nothing_left()
    os.unlink(os.path.join(tokens.rootd.libexec, 'cspace-token'))
    assert tokens.run('slow').startswith('error cspace-token could not be started')
    tokens.nothing_left()
