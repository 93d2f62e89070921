# SPDX-License-Identifier: Apache-2.0
"""diff --patch: what it writes turns the older text into the newer one, as patch(1) reads it."""
import os
import random
import shutil
import subprocess

import pytest
from conftest import diff, make_disk


def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'wb') as f:
        f.write(data)


def images(folder, before, after):
    """Two disks with these {name: bytes}."""
    disks = []
    for name, files in (('old', before), ('new', after)):
        disk = disks[0].copy('new') if disks else make_disk(folder)
        with disk.mounted() as m:
            for path in before if disks else ():
                if path not in after:
                    os.unlink(f'{m}/{path}')
            for path, data in files.items():
                write(f'{m}/{path}', data)
        disks.append(disk)
    return disks[0].path, disks[1].path


def text(rng):
    n = rng.choice([0, 1, 2, 30, 500])
    lines = [b'line %d\n' % rng.randrange(n // 2 + 1) for _ in range(n)]
    data = b''.join(lines)
    return data[:-1] if rng.random() < 0.3 else data


def changed(rng, data):
    lines = data.splitlines(keepends=True)
    for _ in range(rng.choice([1, 3, 40])):
        at = rng.randrange(len(lines) + 1)
        lines[at:at + rng.randrange(3)] = [b'new %d\n' % rng.randrange(9) for _ in range(rng.randrange(3))]
    return b''.join(lines)


def test_patches_apply(tmp_path):
    if not shutil.which('patch'):
        pytest.skip('patch is not installed')
    rng = random.Random(7)
    before = {f'd/{i}': text(rng) for i in range(60)}
    after = {n: changed(rng, d) for n, d in before.items()}
    for i in range(5):
        del after[f'd/{i}']
        after[f'd/new{i}'] = text(rng) + b'x'
    old, new = images(str(tmp_path), before, after)
    records, _ = diff(old, new, '--patch')
    work = tmp_path / 'work'
    for name, data in before.items():
        write(str(work / name), data)
    for r in records:
        if r['path'] == '/d' or r['status'] == 'renamed':
            continue
        name = r['path'][1:]
        assert 'patch' in r or (before.get(name) or b'') == (after.get(name) or b''), r
        if 'patch' in r:
            subprocess.run(['patch', '-s', '-p1', '-d', str(work)], input=r['patch'].encode(), check=True)
    for name, data in after.items():
        if (work / name).exists() or data:
            assert (work / name).read_bytes() == data, name
    assert not any((work / name).exists() and (work / name).read_bytes() for name in before if name not in after)


def test_what_gets_none(tmp_path):
    before = {'etc/text': b'a\n', 'etc/binary': b'a\0b', 'etc/large': b'x\n' * 300_000, 'etc/latin': 'ü\n'.encode('latin-1'),
              'etc/long': b'x\n' * 20_000, 'etc/last': b'x\n' * 19_999,
              'etc/mode': b'm\n'}
    after = {n: d + b'more\n' for n, d in before.items()}
    after['etc/mode'] = before['etc/mode']
    old, new = images(str(tmp_path), before, after)
    from conftest import Disk
    with Disk(new).mounted() as m:
        os.chmod(f'{m}/etc/mode', 0o600)
        os.symlink('x', f'{m}/etc/link')
    records = {r['path']: r for r in diff(old, new, '--patch')[0]}
    assert records['/etc/text']['patch'] == '--- a/etc/text\n+++ b/etc/text\n@@ -1 +1,2 @@\n a\n+more\n'
    assert records['/etc/binary']['patch_omitted'] == 'binary' and records['/etc/latin']['patch_omitted'] == 'binary'
    # More lines than are compared: a text all the same.
    assert records['/etc/large']['patch_omitted'] == 'too_large' and records['/etc/long']['patch_omitted'] == 'too_large'
    assert records['/etc/last']['patch'].endswith('+more\n')
    for path in ('/etc/mode', '/etc/link'):
        assert 'patch' not in records[path] and 'patch_omitted' not in records[path]
    assert not any('patch' in r for r in diff(old, new)[0])


def test_all_patches_together_have_a_limit(tmp_path):
    before = {f'd/{i}': b'%d\n' % i * 60_000 for i in range(40)}
    after = {n: d.replace(b'\n', b'!\n') for n, d in before.items()}
    before = {n: d[:400_000] for n, d in before.items()}
    after = {n: d[:400_000] for n, d in after.items()}
    # So many lines each that a patch of one is small enough, and all are not.
    before = {n: b''.join(d.splitlines(keepends=True)[:15_000]).replace(b'\n', b' ' + b'p' * 20 + b'\n') for n, d in before.items()}
    after = {n: b''.join(d.splitlines(keepends=True)[:15_000]).replace(b'\n', b' ' + b'p' * 20 + b'\n') for n, d in after.items()}
    old, new = images(str(tmp_path), before, after)
    records, _ = diff(old, new, '--patch')
    kinds = [r.get('patch_omitted', 'shown') for r in records]
    assert kinds[0] == 'shown' and kinds[-1] == 'limit'
    assert sum(len(r.get('patch', '')) for r in records) <= 16 << 20
