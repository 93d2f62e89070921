# SPDX-License-Identifier: Apache-2.0
"""What diff says, held against the kernel's view of both images."""
import base64
import os
import random
import socket
import stat

import pytest
from conftest import Disk, brief, check_against, diff, make_disk, path_of, shares, walk


def write(path, data, mode='wb'):
    with open(path, mode) as f:
        f.write(data)


def compare(old, new, related=True):
    records, end = diff(old.path, new.path)
    # A copy is what is mounted: mounting replays the journal into it.
    with old.copy('see-old').mounted('loop') as m:
        a = walk(m)
    with new.copy('see-new').mounted('loop') as m:
        b = walk(m)
    check_against(a, b, records)
    if shares(old.path) and related:
        assert end['stats']['shared'], end
    return records, end


def fill(top):
    for name in ('etc', 'home/user/src', 'empty', 'big'):
        os.makedirs(f'{top}/{name}')
    for i in range(300):
        write(f'{top}/big/file-with-a-long-name-{i:04d}.txt', b'text %d\n' % i)
    write(f'{top}/etc/passwd', b'root:x:0:0\n')
    write(f'{top}/etc/motd', b'hello\nworld\n')
    write(f'{top}/home/user/src/main.c', b'int main(void) { return 0; }\n' * 50)
    write(f'{top}/home/user/large', os.urandom(3_000_000))
    os.link(f'{top}/etc/motd', f'{top}/home/user/motd')
    os.symlink('../etc/passwd', f'{top}/home/fast')
    os.symlink('s' * 200, f'{top}/home/slow')
    os.mkfifo(f'{top}/home/fifo')
    os.mknod(f'{top}/home/null', stat.S_IFCHR | 0o666, os.makedev(1, 3))
    with open(f'{top}/home/sparse', 'wb') as f:
        f.truncate(50_000_000)
        f.seek(20_000_000)
        f.write(b'x' * 5000)


@pytest.fixture
def old(folder):
    disk = make_disk(folder)
    with disk.mounted() as m:
        fill(m)
    return disk


def changed_copy(old, change, name='new'):
    new = old.copy(name)
    with new.mounted() as m:
        change(m)
    return new


def test_nothing(old):
    new = old.copy('new')
    records, end = compare(old, new)
    assert records == [] and end['changes'] == 0 and not end['more']


def test_atime_and_mtime_alone_are_no_change(old):
    def change(m):
        os.utime(f'{m}/etc/passwd', (1, 2))
        os.utime(f'{m}/big', (1, 2))
    records, end = compare(old, changed_copy(old, change))
    assert records == []


def test_every_kind(old):
    def change(m):
        write(f'{m}/etc/new', b'new\n')
        write(f'{m}/etc/motd', b'more\n', 'ab')                 # two names
        os.unlink(f'{m}/big/file-with-a-long-name-0007.txt')
        os.rename(f'{m}/etc/passwd', f'{m}/home/passwd')
        os.chmod(f'{m}/home/user/src/main.c', 0o600)
        os.chown(f'{m}/empty', 1000, 2000)
        os.setxattr(f'{m}/home/user/large', 'user.note', b'v' * 500)
        os.unlink(f'{m}/home/fast')
        os.symlink('elsewhere', f'{m}/home/fast')
        os.unlink(f'{m}/home/null')
        os.mknod(f'{m}/home/null', stat.S_IFCHR | 0o666, os.makedev(1, 5))
        os.unlink(f'{m}/home/fifo')
        os.mkdir(f'{m}/home/fifo')
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(f'{m}/home/socket')
    records, _ = compare(old, changed_copy(old, change))
    by_path = {r['path']: r for r in records}
    assert {p: (r['status'], r.get('what')) for p, r in by_path.items()} == {
        '/etc/new': ('added', None), '/etc/motd': ('changed', ['content']), '/home/user/motd': ('changed', ['content']),
        '/big/file-with-a-long-name-0007.txt': ('deleted', None), '/home/passwd': ('renamed', []),
        '/home/user/src/main.c': ('changed', ['mode']), '/empty': ('changed', ['owner']),
        '/home/user/large': ('changed', ['xattr']), '/home/fast': ('changed', ['target']),
        '/home/null': ('changed', ['device']), '/home/fifo': ('changed', ['type', 'mode']),
        '/home/socket': ('added', None)}
    assert by_path['/home/passwd']['from'] == '/etc/passwd' and by_path['/home/passwd']['by'] == 'inode'
    assert by_path['/home/null']['new']['device'] == {'major': 1, 'minor': 5}
    assert by_path['/home/fast']['new']['link_target'] == 'elsewhere'
    assert [r['path'] for r in records] == sorted(r['path'] for r in records)


def test_editors_way_of_saving_is_a_change(old):
    def change(m):
        write(f'{m}/etc/.motd.tmp', b'HELLO\nworld\n')
        os.rename(f'{m}/etc/.motd.tmp', f'{m}/etc/motd')
    records, _ = compare(old, changed_copy(old, change))
    assert brief(records) == {('changed', '/etc/motd')}


def test_deleted_and_made_again_without_difference(old):
    def change(m):
        data = open(f'{m}/etc/passwd', 'rb').read()
        os.unlink(f'{m}/etc/passwd')
        write(f'{m}/etc/passwd', data)
        os.rmdir(f'{m}/empty')
        os.mkdir(f'{m}/empty')
    records, _ = compare(old, changed_copy(old, change))
    assert records == []


def test_an_inode_used_again_is_no_rename(old):
    def change(m):
        ino = os.stat(f'{m}/etc/passwd').st_ino
        os.unlink(f'{m}/etc/passwd')
        for i in range(50):
            write(f'{m}/home/again{i}', b'')
            if os.stat(f'{m}/home/again{i}').st_ino == ino:
                break
        else:
            pytest.fail('the inode was not used again')
    records, _ = compare(old, changed_copy(old, change))
    assert ('deleted', '/etc/passwd') in brief(records)
    assert not any(r['status'] == 'renamed' for r in records)


def test_a_renamed_folder_is_one_record(old):
    def change(m):
        os.rename(f'{m}/big', f'{m}/home/large-folder')
        write(f'{m}/home/large-folder/file-with-a-long-name-0003.txt', b'other')
        os.unlink(f'{m}/home/large-folder/file-with-a-long-name-0004.txt')
    records, _ = compare(old, changed_copy(old, change))
    assert brief(records) == {
        ('renamed', '/big', '/home/large-folder'), ('deleted', '/big/file-with-a-long-name-0004.txt'),
        ('changed', '/big/file-with-a-long-name-0003.txt', '/home/large-folder/file-with-a-long-name-0003.txt')}


def test_folders_that_swap_names(old):
    def change(m):
        os.rename(f'{m}/etc', f'{m}/x')
        os.rename(f'{m}/home', f'{m}/etc')
        os.rename(f'{m}/x', f'{m}/home')
    compare(old, changed_copy(old, change))


def test_moved_by_copying_is_found_by_content(old):
    def change(m):
        data = open(f'{m}/home/user/large', 'rb').read()
        write(f'{m}/elsewhere', data)
        os.unlink(f'{m}/home/user/large')
    records, _ = compare(old, changed_copy(old, change))
    assert brief(records) == {('renamed', '/home/user/large', '/elsewhere')} and records[0]['by'] == 'content'


def test_one_byte_in_the_middle_of_a_large_file(old):
    def change(m):
        for name, at in (('home/user/large', 1_500_000), ('home/sparse', 20_000_100)):
            with open(f'{m}/{name}', 'r+b') as f:
                f.seek(at)
                byte = f.read(1)
                f.seek(at)
                f.write(bytes([byte[0] ^ 1]))
    records, _ = compare(old, changed_copy(old, change))
    assert brief(records) == {('changed', '/home/user/large'), ('changed', '/home/sparse')}


def test_zeros_written_into_a_hole_are_no_change(old):
    def change(m):
        with open(f'{m}/home/sparse', 'r+b') as f:
            f.write(bytes(8192))
            os.posix_fallocate(f.fileno(), 30_000_000, 1_000_000)
    records, _ = compare(old, changed_copy(old, change))
    assert records == []


def test_written_behind_the_inodes_back(old):
    """A guest that writes to its block device changes no inode, no time and no bitmap."""
    new = old.copy('new')
    with old.copy('look').mounted() as m:
        with open(f'{m}/home/user/large', 'rb') as f:
            data = f.read(4096)
    with open(new.path, 'r+b') as f:
        image = f.read()
        at = image.find(data)
        assert at > 0 and image.find(data, at + 1) < 0
        f.seek(at + 100)
        f.write(b'forged')
    records, _ = compare(old, new)
    assert brief(records) == {('changed', '/home/user/large')} and records[0]['what'] == ['content']


def test_forged_times(old):
    def change(m):
        st = os.stat(f'{m}/etc/passwd')
        write(f'{m}/etc/passwd', b'root::0:0:\n')  # of the same size
        os.utime(f'{m}/etc/passwd', ns=(st.st_atime_ns, st.st_mtime_ns))
    new = changed_copy(old, change)
    with old.mounted('loop,ro') as m:
        ctime = int(os.stat(f'{m}/etc/passwd').st_ctime)
    new.debugfs(f'set_inode_field /etc/passwd ctime @{ctime}')
    records, _ = compare(old, new)
    assert brief(records) == {('changed', '/etc/passwd')}


def test_names_that_are_no_text(old):
    name = b'bad-\xff\xfe-\xc3\xa9\n\x1b[31m'

    def change(m):
        write(os.fsencode(m) + b'/etc/' + name, b'x')
        os.symlink(b'\xff', os.fsencode(m) + b'/etc/link')
    records, _ = compare(old, changed_copy(old, change))
    r = next(r for r in records if 'path_b64' in r)
    assert base64.b64decode(r['path_b64']) == b'/etc/' + name
    assert '\ufffd' in r['path'] and '\x1b' in r['path']


def test_pages(old):
    def change(m):
        for i in range(300):
            write(f'{m}/big/file-with-a-long-name-{i:04d}.txt', b'other')
    new = changed_copy(old, change)
    whole, end = diff(old.path, new.path)
    assert len(whole) == 300 and not end['more'] and 'cursor' not in end
    got, cursor, pages = [], [], 0
    while True:
        records, end = diff(old.path, new.path, '--limit', '70', *cursor)
        got += records
        pages += 1
        assert end['changes'] == len(records) <= 70
        if not end['more']:
            break
        cursor = ['--cursor', end['cursor']]
    assert got == whole and pages == 5
    exact, end = diff(old.path, new.path, '--limit', '300')
    assert len(exact) == 300 and not end['more']


def test_prefix(old):
    def change(m):
        write(f'{m}/etc/a', b'')
        write(f'{m}/etcetera', b'')
        os.rename(f'{m}/etc/passwd', f'{m}/home/p')
        os.rename(f'{m}/home/slow', f'{m}/empty/slow')
    new = changed_copy(old, change)
    records, _ = diff(old.path, new.path, '--prefix', '/etc/')
    assert brief(records) == {('added', '/etc/a'), ('renamed', '/etc/passwd', '/home/p')}


def test_large_folder_with_hash_tree(folder):
    old = make_disk(folder, size='256M', options=['-N', '50000'])
    with old.mounted() as m:
        os.mkdir(f'{m}/d')
        for i in range(15000):
            write(f'{m}/d/a-rather-long-name-to-fill-blocks-{i:06d}', b'')
    rng = random.Random(1)
    some = rng.sample(range(15000), 400)

    def change(m):
        for i in some[:200]:
            os.unlink(f'{m}/d/a-rather-long-name-to-fill-blocks-{i:06d}')
        for i in some[200:]:
            os.rename(f'{m}/d/a-rather-long-name-to-fill-blocks-{i:06d}', f'{m}/d/renamed-{i}')
        for i in range(3000):
            write(f'{m}/d/another-{i}', b'')
    records, _ = compare(old, changed_copy(old, change))
    assert len(records) == 3400


@pytest.mark.parametrize('features, options', [
    ('inline_data', ()), ('^extent,^64bit', ()), ('^metadata_csum', ()), ('^has_journal', ()), ('^metadata_csum,^extra_isize', ('-I', '128')),
    ('', ('-b', '1024')), ('bigalloc,^resize_inode', ('-C', '16384')), ('^dir_index', ()), ('^flex_bg,meta_bg,^resize_inode', ('-g', '8192')),
    ('ea_inode', ()), ('orphan_file,metadata_csum_seed', ()), ('large_dir,^huge_file', ())], ids=lambda o: o if isinstance(o, str) else ' '.join(o))
def test_layouts(folder, features, options):
    old = make_disk(folder, features=features, options=options)
    with old.mounted() as m:
        fill(m)
        os.makedirs(f'{m}/small')
        for i in range(3):
            write(f'{m}/small/{i}', b'tiny %d' % i)

    def change(m):
        write(f'{m}/small/0', b'tinY 0')
        os.unlink(f'{m}/small/1')
        write(f'{m}/small/new', b'x')
        os.symlink('t', f'{m}/small/link')
        os.rename(f'{m}/etc', f'{m}/small/etc')
        write(f'{m}/home/user/large', b'more', 'ab')
        os.setxattr(f'{m}/small/2', 'user.a', b'1')
        os.unlink(f'{m}/home/slow')
        os.symlink('u' * 150, f'{m}/home/slow')
    compare(old, changed_copy(old, change))


def test_much_has_changed(shared):
    """All of it: each file, and twice as many as one page holds."""
    old = make_disk(shared, size='256M', options=['-N', '50000'])
    with old.mounted() as m:
        for i in range(22_000):
            if i % 100 == 0:
                os.mkdir(f'{m}/d{i // 100}')
            write(f'{m}/d{i // 100}/f{i}', b'')

    def change(m):
        for i in range(22_000):
            os.chown(f'{m}/d{i // 100}/f{i}', 7, 7)
    new = changed_copy(old, change)
    got, cursor = [], []
    for _ in range(3):
        records, end = diff(old.path, new.path, *cursor)
        got += [r['path'] for r in records]
        cursor = ['--cursor', end.get('cursor', '')]
    assert not end['more'] and len(got) == len(set(got)) == 22_000 and got == sorted(got)


def test_a_disk_that_was_enlarged(folder):
    old = make_disk(folder, size='64M')
    with old.mounted() as m:
        fill(m)
    new = old.copy('new')
    os.truncate(new.path, 512 << 20)
    import subprocess
    subprocess.run(['e2fsck', '-fy', new.path], stdout=subprocess.DEVNULL, check=False)
    subprocess.run(['resize2fs', new.path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    with new.mounted() as m:
        write(f'{m}/etc/motd', b'x')
        for i in range(200):
            os.mkdir(f'{m}/d{i}')  # folders are spread over all groups
            write(f'{m}/d{i}/f', b'x')
    records, _ = compare(old, new)
    assert len(records) == 402


def test_disks_that_have_nothing_in_common(folder):
    old = make_disk(folder, name='old')
    with old.mounted() as m:
        fill(m)
    new = make_disk(folder, name='new', size='96M', options=['-N', '9000'])
    with new.mounted() as m:
        os.mkdir(f'{m}/etc')
        write(f'{m}/etc/passwd', b'root:x:0:0\n')
        write(f'{m}/etc/motd', b'hello\n')
    compare(old, new, related=False)


class Chaos:
    """Random changes to a mounted tree."""

    def __init__(self, seed, top):
        self.rng = random.Random(seed)
        self.top = top
        self.n = 0

    def all(self, want):
        found = []
        for base, dirs, files in os.walk(self.top):
            found += [os.path.join(base, x) for x in (dirs if want == 'dir' else files)]
        found = [f for f in found if 'lost+found' not in f and (want == 'dir') != os.path.islink(f) or want == 'any']
        return sorted(found)

    def fresh(self):
        self.n += 1
        return os.path.join(self.rng.choice(self.all('dir') + [self.top]), f'n{self.n}')

    def file(self):
        return self.rng.choice([f for f in sorted(self.all('file')) if os.path.isfile(f) and not os.path.islink(f)] or [None])

    def data(self):
        return self.rng.randbytes(self.rng.choice([0, 1, 50, 100, 4096, 9000, 200_000]))

    def step(self):
        op = self.rng.randrange(15)
        f, dirs = self.file(), self.all('dir')
        if not dirs:
            os.mkdir(self.fresh())
            return
        d = self.rng.choice(dirs)
        if op == 0:
            write(self.fresh(), self.data())
        elif op == 1 and f:
            write(f, self.data(), self.rng.choice(['wb', 'ab']))
        elif op == 2 and f:
            os.unlink(f)
        elif op == 3 and f:
            os.rename(f, self.fresh())
        elif op == 4:
            os.mkdir(self.fresh())
        elif op == 5:
            to = self.fresh()
            if not to.startswith(d + '/'):
                os.rename(d, to)
        elif op == 6 and self.rng.random() < 0.3:
            import shutil
            shutil.rmtree(d)
        elif op == 7 and f:
            os.link(f, self.fresh())
        elif op == 8:
            os.symlink('t' * self.rng.choice([1, 59, 60, 61, 300]), self.fresh())
        elif op == 9 and f:
            os.chmod(f, self.rng.randrange(0o1000))
        elif op == 10:
            os.chown(d, self.rng.randrange(70000), self.rng.randrange(70000))
        elif op == 11 and f:
            os.setxattr(f, f'user.x{self.rng.randrange(3)}', self.rng.randbytes(self.rng.choice([0, 10, 300])))
        elif op == 12 and f:
            os.truncate(f, self.rng.choice([0, 100, 10_000, 1_000_000]))
        elif op == 13 and f:
            with open(f, 'r+b') as h:
                h.seek(self.rng.randrange(100_000))
                h.write(self.rng.randbytes(10))
        elif op == 14 and f:  # over another name
            g = self.file()
            if g != f:
                os.rename(f, g)


@pytest.mark.parametrize('seed', range(8))
def test_chaos(folder, seed):
    old = make_disk(folder, features='inline_data' if seed % 2 else '')
    with old.mounted() as m:
        fill(m)
        chaos = Chaos(seed, m)
        for _ in range(60):
            chaos.step()
    new = old.copy('new')
    with new.mounted() as m:
        chaos.top = m
        for _ in range(150):
            chaos.step()
    compare(old, new)
