# SPDX-License-Identifier: Apache-2.0
"""The builder as cspace-rootd starts it, on an archive of our own: a folder of packages with a kernel that is one in
form only, so that what is tested here is the builder and needs no network. test_debian.py uses the real archive."""
import gzip
import hashlib
import io
import json
import os
import shutil
import struct
import subprocess
import tarfile
import tempfile
import threading

import pytest
import userns

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..', '..'))
BUILD = os.environ.get('CSPACE_BUILD', os.path.join(TOP, 'build', 'test-gcc'))
BUILDER = os.path.join(BUILD, 'src', 'builder', 'cspace-builder')
UID_BASE = 2071000000
RELEASE = '6.1.0-test-cloud-amd64'
BUILT_IN = ['virtio_mmio', 'virtio_blk', 'crc32c_generic', 'ext4', 'virtio_console', 'virtio_net', 'virtio-rng', 'virtio_balloon']
DEB_DATE = 1700000000


def pytest_configure(config):
    config.addinivalue_line('markers', 'slow: takes minutes')


def bzimage():
    """A kernel image whose payload is an ELF header and some text, compressed with gzip."""
    elf = b'\x7fELF' + b'a kernel in form only\n' * 100
    payload = gzip.compress(elf, mtime=0)
    image = bytearray(0x250)
    image[0x1f1] = 1
    image[0x202:0x206] = b'HdrS'
    image[0x206:0x208] = struct.pack('<H', 0x020f)
    image[0x248:0x250] = struct.pack('<II', 0x40, len(payload))
    image += bytes(2 * 512 - len(image) + 0x40)
    return bytes(image) + payload, elf


def deb(folder, name, fields, files):
    root = os.path.join(folder, name + '.tree')
    os.makedirs(os.path.join(root, 'DEBIAN'))
    with open(os.path.join(root, 'DEBIAN', 'control'), 'w', encoding='ascii') as f:
        f.write(f'Package: {name}\nVersion: 6.1-1\nArchitecture: amd64\nMaintainer: nobody <n@example.test>\n{fields}Description: test\n')
    for path, data in files.items():
        full = os.path.join(root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, 'wb') as f:
            f.write(data)
    out = os.path.join(folder, f'{name}_6.1-1_amd64.deb')
    subprocess.run(['dpkg-deb', '--root-owner-group', '-b', root, out], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, 'SOURCE_DATE_EPOCH': str(DEB_DATE)})
    shutil.rmtree(root)
    return out


def make_repository(folder):
    os.makedirs(folder)
    image, _ = bzimage()
    modules = f'lib/modules/{RELEASE}'
    built_in = ''.join(f'kernel/x/{m}.ko\n' for m in BUILT_IN).encode()
    debs = [
        deb(folder, 'linux-image-cloud-amd64', f'Depends: linux-image-{RELEASE}\n', {}),
        deb(folder, f'linux-image-{RELEASE}', '', {
            f'boot/vmlinuz-{RELEASE}': image,
            f'{modules}/modules.builtin': built_in,
            f'{modules}/modules.builtin.modinfo': b'',
            f'{modules}/modules.order': b'',
            f'{modules}/kernel/empty': b'',
        }),
    ]
    with open(os.path.join(folder, 'Packages'), 'w', encoding='ascii') as f:
        for path in debs:
            control = subprocess.run(['dpkg-deb', '-f', path], check=True, capture_output=True, text=True).stdout
            with open(path, 'rb') as d:
                data = d.read()
            f.write(f'{control}Filename: ./{os.path.basename(path)}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n\n')


class Result:
    def __init__(self, folder, lines, code):
        self.folder, self.lines, self.code = folder, lines, code
        self.last = lines[-1] if lines else {}

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def manifest(self):
        with open(self.path('out', 'manifest.json'), encoding='utf-8') as f:
            return json.load(f)

    def debugfs(self, command):
        """Reads the image without mounting it."""
        return subprocess.run(['debugfs', '-R', command, self.path('out', 'disk.img')], check=True, capture_output=True,
                              env={**os.environ, 'DEBUGFS_PAGER': '__none__', 'PAGER': 'cat'}).stdout

    def cat(self, path):
        return self.debugfs(f'cat {path}').decode()

    def stat(self, path):
        return self.debugfs(f'stat {path}').decode()

    def ls(self, path):
        return [line.split('/')[5] for line in self.debugfs(f'ls -p {path}').decode().splitlines() if line.startswith('/')]


class Bench:
    """A folder with the repository, a cache and build folders, all owned as cspace-rootd would have them."""

    def __init__(self, folder):
        self.folder = folder
        self.cache = os.path.join(folder, 'cache')
        make_repository(os.path.join(self.cache, 'repo'))
        self.sources = os.path.join(folder, 'test.sources')
        with open(self.sources, 'w', encoding='ascii') as f:
            f.write(f'Types: deb\nURIs: copy:{self.cache}/repo\nSuites: ./\nTrusted: yes\n')
        self.agent = os.path.join(folder, 'agent')
        with open(self.agent, 'wb') as f:
            f.write(b'\x7fELF' + b'an agent in form only'.ljust(100, b'.'))
        subprocess.run(['chown', '-R', f'{UID_BASE}:{UID_BASE}', self.cache], check=True)
        self.count = 0

    def new_folder(self):
        self.count += 1
        path = os.path.join(self.folder, f'b{self.count}')
        os.mkdir(path, 0o700)
        os.chown(path, UID_BASE, UID_BASE)
        return path

    def start(self, *args, tar=None, folder=None, sources=True, disk=256 << 20, agent=None, stdout=None):
        folder = folder or self.new_folder()
        argv = [BUILDER, '--dir', folder, '--disk-bytes', str(disk), '--agent', agent or self.agent, '--cache', self.cache, *args]
        if sources:
            argv += ['--sources', self.sources]
        log = os.open(os.path.join(self.folder, 'stderr.log'), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        fd = os.open(tar, os.O_RDONLY) if tar else None
        try:
            return folder, userns.Process(argv, UID_BASE, stdout, log, fd)
        finally:
            os.close(log)
            if fd is not None:
                os.close(fd)

    def build(self, *args, on_line=None, **kwargs):
        r, w = os.pipe()
        folder, process = self.start(*args, stdout=w, **kwargs)
        os.close(w)
        lines = []
        with os.fdopen(r, encoding='utf-8') as f:
            for line in f:
                lines.append(json.loads(line))
                if on_line:
                    on_line(process, lines[-1])
        return Result(folder, lines, process.wait())

    def tar(self, *args, **kwargs):
        return self.build('--source', 'tar', *args, **kwargs)


@pytest.fixture(scope='session')
def bench():
    if os.geteuid() != 0:
        pytest.skip('needs root')
    if not os.path.exists(BUILDER):
        pytest.skip(f'{BUILDER} is not built')
    folder = tempfile.mkdtemp(prefix='cspace-builder-', dir='/var/tmp')
    os.chmod(folder, 0o711)
    yield Bench(folder)
    shutil.rmtree(folder, ignore_errors=True)


class Tar:
    """An archive made entry by entry."""

    def __init__(self, path, mode='w', **kwargs):
        self.path = path
        self.t = tarfile.open(path, mode, **kwargs)

    def add(self, name, data=None, kind=tarfile.REGTYPE, mode=0o644, mtime=1600000000, link='', uid=0, gid=0, pax=None):
        e = tarfile.TarInfo(name)
        e.type, e.mode, e.mtime, e.linkname, e.uid, e.gid = kind, mode, mtime, link, uid, gid
        if pax:
            e.pax_headers = pax
        if data is not None:
            e.size = len(data)
        self.t.addfile(e, io.BytesIO(data) if data is not None else None)
        return self

    def dir(self, name, mode=0o755, **kwargs):
        return self.add(name, kind=tarfile.DIRTYPE, mode=mode, **kwargs)

    def link(self, name, to, **kwargs):
        return self.add(name, kind=tarfile.SYMTYPE, link=to, mode=0o777, **kwargs)

    def root(self):
        """The least that is a root filesystem: a shell, which is only looked at."""
        self.dir('usr').dir('usr/bin').link('bin', 'usr/bin').dir('etc')
        return self.add('usr/bin/sh', shell(), mode=0o755)

    def close(self):
        self.t.close()
        return self.path


def shell(machine=62):
    return b'\x7fELF\x02\x01\x01' + bytes(9) + struct.pack('<HH', 3, machine) + bytes(100)


@pytest.fixture
def tar(bench, tmp_path):
    def make(name='root.tar', mode='w', **kwargs):
        return Tar(str(tmp_path / name), mode, **kwargs)
    return make
