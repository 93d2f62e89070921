# SPDX-License-Identifier: Apache-2.0
"""diff, cat and restore-file on the disks of real microVMs."""
import json

import pytest


@pytest.fixture
def own(cli):
    """A sandbox that the test may break."""
    id_ = cli.create()
    yield id_
    cli('rm', '-f', id_)


def sh(cli, id_, script):
    return cli.out('exec', '-u', 'root', id_, '--', 'sh', '-c', script)


def changes(cli, id_, *args):
    got = json.loads(cli.out('diff', '--json', '--prefix', '/root', id_, *args))['changes']
    return {(c['status'], c['path']) for c in got} - {('changed', '/root')}


def test_diff_shows_exactly_what_was_done(cli, own):
    assert changes(cli, own) == set()
    sh(cli, own, 'mkdir /root/d && echo one >/root/d/a && echo two >/root/b && sync')
    assert changes(cli, own) == {('added', '/root/d'), ('added', '/root/d/a'), ('added', '/root/b')}
    point = cli.out('checkpoint', '--name', 'point', own).strip()
    assert changes(cli, own, 'point') == changes(cli, own, point, 'now') == set()
    sh(cli, own, 'echo three >/root/b; rm /root/d/a; echo four >/root/c')
    assert changes(cli, own, 'point') == {('changed', '/root/b'), ('deleted', '/root/d/a'), ('added', '/root/c')}
    text = cli.out('diff', '--patch', '--prefix', '/root', own, 'point')
    assert '~   b  4 B -> 6 B\n' in text and '-two\n+three\n' in text and '-     a  4 B\n' in text, text
    # Files as they were, and back.
    assert cli.out('cat', f'{own}@point:/root/d/a', f'{own}:/root/b') == 'one\nthree\n'
    cli.out('restore-file', own, 'point', '/root/d/a')
    cli.out('restore-file', own, 'point', '/root/b', '/root/d')
    assert sh(cli, own, 'cat /root/d/a /root/d/b /root/b') == 'one\ntwo\nthree\n'
    cli.out('suspend', own)
    assert cli.out('cat', f'{own}@point:/root/b') == 'two\n'
    assert ('added', '/root/c') in changes(cli, own)


def test_a_mount_of_the_guest_hides_nothing(cli, own):
    sh(cli, own, 'mkdir /root/h && echo x >/root/h/hidden && sync && mount -t tmpfs none /root/h')
    assert sh(cli, own, 'ls /root/h') == ''
    assert ('added', '/root/h/hidden') in changes(cli, own)
    assert cli.out('cat', f'{own}:/root/h/hidden') == 'x\n'


def test_errors(cli, sandbox):
    for args, code in ((('cat', f'{sandbox}:/none'), 'not_found'), (('cat', f'{sandbox}:/root'), 'invalid_argument'),
                       (('diff', sandbox, 'none'), 'checkpoint_not_found'), (('diff', 'none'), 'sandbox_not_found')):
        r = cli('--json', *args)
        assert r.returncode == 125 and json.loads(r.stderr)['error']['code'] == code, r
    for args in (('cat', sandbox), ('cat', f'{sandbox}:root'), ('cat', '@x:/root'), ('diff', '--prefix', 'root', sandbox),
                 ('restore-file', sandbox, 'point', 'root')):
        assert cli(*args).returncode == 2, args


def test_a_filesystem_that_is_overwritten_is_an_error_about_it_alone(cli, own, sandbox):
    cli('exec', '-u', 'root', own, '--', 'sh', '-c',
        'sync; (sleep 1; dd if=/dev/zero of=/dev/vda bs=1M count=16 conv=fsync) >/dev/null 2>&1 &')
    for _ in range(60):
        r = cli('--json', 'diff', own)
        if r.returncode:
            break
    assert json.loads(r.stderr)['error']['code'] == 'filesystem_unreadable', r
    assert cli('diff', sandbox).returncode == 0


def test_fork(cli, own):
    sh(cli, own, 'echo one >/root/file; sleep 3600 >/dev/null 2>&1 & echo $! >/root/pid')
    copies = cli.out('fork', '-n', '2', '--name', 'twin', '-e', 'TWIN=yes', own).split()
    try:
        assert len(set(copies)) == 2
        pid = sh(cli, own, 'cat /root/pid').strip()
        for i, c in enumerate(copies):
            assert sh(cli, c, f'cat /root/file; cut -c1-5 /proc/{pid}/cmdline; hostname; echo $TWIN').split() == \
                ['one', 'sleep', f'twin-{i + 1}', 'yes']
            info = json.loads(cli.out('--json', 'info', c))
            assert info['forked_from'] == json.loads(cli.out('--json', 'info', own))['id']
        r = cli('--json', 'fork', '--name', 'twin-1', own)
        assert r.returncode == 125 and json.loads(r.stderr)['error']['code'] == 'name_taken'
        for args in (('fork',), ('fork', '-n', '0', own), ('fork', '-n', '65', own), ('fork', '--ttl', 'x', own)):
            assert cli(*args).returncode == 2, args
        r = cli('--json', 'fork', '--from', 'none', own)
        assert json.loads(r.stderr)['error']['code'] == 'checkpoint_not_found'
    finally:
        cli('rm', '-f', *copies)
