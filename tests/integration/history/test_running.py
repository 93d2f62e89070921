# SPDX-License-Identifier: Apache-2.0
"""Images taken from a filesystem that is in use: what was synced is seen, through the journal."""
import json
import os
import struct
import subprocess
import threading

import pytest
from conftest import Disk, brief, check_against, diff, history, make_disk, run, walk


def write(path, data):
    with open(path, 'wb') as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())


def snapshot(disk, name):
    to = Disk(os.path.join(os.path.dirname(disk.path), name))
    run('cp', '--reflink=always', disk.path, to.path)
    return to


def needs_recovery(path):
    with open(path, 'rb') as f:
        f.seek(1024 + 96)
        return struct.unpack('<I', f.read(4))[0] & 4 != 0


def check(old, new):
    """Against what the kernel makes of a copy of it when it mounts that."""
    records, end = diff(old.path, new.path)
    with old.copy(old.path + '-mounted').mounted() as m:
        a = walk(m)
    with new.copy(new.path + '-mounted').mounted() as m:
        b = walk(m)
    check_against(a, b, records)
    return records, end


@pytest.mark.parametrize('features', ['', '^metadata_csum', '^64bit', '^metadata_csum,^64bit'])
@pytest.mark.parametrize('block', ['4096', '1024'])
def test_synced_is_seen(shared, features, block):
    old = make_disk(shared, features=features, options=['-b', block])
    with old.mounted() as m:
        os.mkdir(f'{m}/d')
        write(f'{m}/d/gone', b'x' * 100)
        write(f'{m}/d/same', b'x' * 100)
    new = old.copy('new')
    with new.mounted() as m:
        write(f'{m}/d/synced', b'synced\n' * 1000)
        os.unlink(f'{m}/d/gone')
        os.rename(f'{m}/d/same', f'{m}/d/renamed')
        fd = os.open(f'{m}/d', os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        live = snapshot(new, 'live')
    assert needs_recovery(live.path)
    records, end = check(old, live)
    assert brief(records) == {('added', '/d/synced'), ('deleted', '/d/gone'), ('renamed', '/d/same', '/d/renamed')}
    assert end['new']['journal_transactions'] > 0 and 'warnings' not in end['new']
    done = history('cat', '--path', '/d/synced', old=live.path)
    assert done.stdout.partition(b'\n')[2] == b'synced\n' * 1000


def test_frozen_needs_no_replay(shared):
    old = make_disk(shared)
    new = old.copy('new')
    with new.mounted() as m:
        write(f'{m}/file', b'data')
        run('fsfreeze', '-f', m)
        try:
            frozen = snapshot(new, 'frozen')
        finally:
            run('fsfreeze', '-u', m)
    records, end = check(old, frozen)
    assert brief(records) == {('added', '/file')} and end['new']['journal_transactions'] == 0


def test_while_it_is_written(shared):
    """A writer that never stops: each image shows all that was synced before it was taken."""
    old = make_disk(shared, size='256M', options=['-J', 'size=4'])
    new = old.copy('new')
    stop, synced = threading.Event(), [0]
    with new.mounted() as m:
        def writer():
            n = 0
            while not stop.is_set():
                d = f'{m}/d{n % 7}'
                os.makedirs(d, exist_ok=True)
                write(f'{d}/f{n}', b'%d\n' % n * (n % 3000))
                fd = os.open(d, os.O_RDONLY)
                os.fsync(fd)
                os.close(fd)
                fd = os.open(m, os.O_RDONLY)
                os.fsync(fd)
                os.close(fd)
                synced[0] = n + 1
                if n % 5 == 4:
                    os.unlink(f'{m}/d{(n - 3) % 7}/f{n - 3}')  # blocks are freed and used again
                n += 1
        t = threading.Thread(target=writer)
        t.start()
        try:
            shots = []
            while len(shots) < 5:
                before = synced[0]
                target = before + 100
                while synced[0] < target:
                    assert t.is_alive()
                    threading.Event().wait(0.01)
                have = synced[0]
                shots.append((have, snapshot(new, f'shot{len(shots)}')))
        finally:
            stop.set()
            t.join()
    replayed = 0
    for have, shot in shots:
        records, end = check(old, shot)
        paths = {r['path'] for r in records}
        gone = {f'/d{(n - 3) % 7}/f{n - 3}' for n in range(4, have + 20, 5)}
        for n in range(have):
            path = f'/d{n % 7}/f{n}'
            assert path in paths or path in gone, path
        replayed += end['new']['journal_transactions']
        assert 'warnings' not in end['new']
    assert replayed > 0


def journal_image(shared, commands, features=''):
    old = make_disk(shared, features=features)
    with old.mounted() as m:
        write(f'{m}/file', b'A' * 4096)
    new = old.copy('new')
    block = int(subprocess.run(['debugfs', '-R', 'blocks /file', new.path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               check=True).stdout.split()[0])
    data = os.path.join(shared, 'block')
    with open(data, 'wb') as f:
        f.write(b'B' * 4096)
    with open(data + '-magic', 'wb') as f:
        f.write(b'\xc0\x3b\x39\x98' + b'C' * 4092)
    new.debugfs(*[c.format(block=block, data=data) for c in commands])
    return old, new


@pytest.mark.parametrize('features, open_options', [('', '-c -v 3'), ('', '-c -v 2'), ('^metadata_csum', '')])
def test_data_in_the_journal(shared, features, open_options):
    """debugfs writes transactions of its own: here, a file's block."""
    _, new = journal_image(shared, [f'jo {open_options}', 'jw -b {block} {data}', 'jc'], features)
    done = history('cat', '--path', '/file', old=new.path)
    assert done.stdout.partition(b'\n')[2] == b'B' * 4096


def test_escaped_block(shared):
    _, new = journal_image(shared, ['jo -c -v 3', 'jw -b {block} {data}-magic', 'jc'])
    done = history('cat', '--path', '/file', old=new.path)
    assert done.stdout.partition(b'\n')[2] == b'\xc0\x3b\x39\x98' + b'C' * 4092


def test_revoked_block(shared):
    _, new = journal_image(shared, ['jo -c -v 3', 'jw -b {block} {data}', 'jw -r {block}', 'jc'])
    done = history('cat', '--path', '/file', old=new.path)
    assert done.stdout.partition(b'\n')[2] == b'A' * 4096


def test_written_again_after_it_was_revoked(shared):
    _, new = journal_image(shared, ['jo -c -v 3', 'jw -r {block}', 'jw -b {block} {data}', 'jc'])
    done = history('cat', '--path', '/file', old=new.path)
    assert done.stdout.partition(b'\n')[2] == b'B' * 4096


def test_not_committed_is_not_seen(shared):
    _, new = journal_image(shared, ['jo -c -v 3', 'jw -b {block} {data} -c', 'jc'])
    done = history('cat', '--path', '/file', old=new.path)
    assert done.stdout.partition(b'\n')[2] == b'A' * 4096


def test_a_torn_block_in_the_journal_ends_the_log(shared):
    _, new = journal_image(shared, ['jo -c -v 3', 'jw -b {block} {data}', 'jc'])
    with open(new.path, 'r+b') as f:
        image = f.read()
        at = image.find(b'B' * 4096)
        assert at > 0
        f.seek(at + 2000)
        f.write(b'torn')
    done = history('cat', '--path', '/file', old=new.path)
    assert done.stdout.partition(b'\n')[2] == b'A' * 4096
    assert json.loads(done.stdout.partition(b'\n')[0])['warnings'] == ['journal_damaged']
