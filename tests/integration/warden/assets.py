# SPDX-License-Identifier: Apache-2.0
"""A small template to boot: Debian's cloud kernel, an initramfs with the agent of the build, and a
disk with a static busybox. Packages come from the host's own apt; what was fetched is kept."""
import glob
import os
import shutil
import subprocess

MODULES = ('virtio_mmio', 'virtio_blk', 'crc32c_generic', 'ext4', 'virtio_console', 'virtio_net')
PASSWD = 'root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n'
GROUP = 'root:x:0:\nuser:x:1000:\n'


class Unavailable(Exception):
    pass


def run(*argv, **kw):
    r = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kw)
    if r.returncode:
        raise Unavailable(f'{" ".join(argv[:3])}...: {r.stderr.decode(errors="replace").strip()[-300:]}')
    return r.stdout


def package(cache, name):
    """Unpacks a package below the cache; returns the folder."""
    out = os.path.join(cache, name)
    if not os.path.isdir(out):
        tmp = out + '.tmp'
        shutil.rmtree(tmp, ignore_errors=True)
        os.makedirs(tmp)
        if not glob.glob(os.path.join(cache, name + '_*.deb')):
            run('apt-get', 'download', '-qq', name, cwd=cache)
        run('dpkg-deb', '-x', glob.glob(os.path.join(cache, name + '_*.deb'))[0], tmp)
        os.rename(tmp, out)
    return out


def kernel_package():
    out = run('apt-cache', 'depends', 'linux-image-cloud-amd64').decode()
    names = [line.split()[-1] for line in out.splitlines() if 'Depends: linux-image-' in line]
    if not names:
        raise Unavailable('apt knows no linux-image-cloud-amd64')
    return names[0]


def unpack_kernel(bzimage):
    """The ELF inside a bzImage."""
    data = open(bzimage, 'rb').read()
    tools = ((b'\xfd7zXZ\x00', 'xz'), (b'\x28\xb5\x2f\xfd', 'zstd'), (b'\x02\x21\x4c\x18', 'lz4'),
             (b'\x1f\x8b\x08', 'gzip'))
    for magic, tool in tools:
        at = data.find(magic)
        while at >= 0 and shutil.which(tool):
            # What follows the kernel in the image makes the tool complain after the fact.
            elf = subprocess.run([tool, '-dc'], input=data[at:], capture_output=True).stdout
            if elf[:4] == b'\x7fELF':
                return elf
            at = data.find(magic, at + 1)
    raise Unavailable('no kernel found in ' + bzimage)


def module_files(root):
    found = {os.path.basename(p)[:-3].replace('-', '_'): p for p in glob.glob(root + '/**/*.ko', recursive=True)}
    order = []

    def add(name):
        name = name.replace('-', '_')
        path = found.get(name)
        if not path or path in order:
            return
        for dep in filter(None, run('modinfo', '-F', 'depends', path).decode().strip().split(',')):
            add(dep)
        order.append(path)

    for name in MODULES:
        add(name)
    return order


def cpio(entries):
    """newc archive of (name, mode, data, rdev) entries."""
    out = bytearray()
    for i, (name, mode, data, rdev) in enumerate(entries + [('TRAILER!!!', 0, b'', (0, 0))]):
        n = name.encode() + b'\0'
        fields = (i + 1, mode, 0, 0, 1, 0, len(data), 0, 0, *rdev, len(n), 0)
        out += b'070701' + b''.join(b'%08x' % f for f in fields) + n
        out += b'\0' * (-len(out) % 4)
        out += data
        out += b'\0' * (-len(out) % 4)
    return bytes(out)


def make_initrd(kernel_root, agent):
    entries = [('dev', 0o40755, b'', (0, 0)), ('dev/console', 0o20600, b'', (5, 1)), ('lib', 0o40755, b'', (0, 0)),
               ('init', 0o100755, open(agent, 'rb').read(), (0, 0))]
    names = []
    for path in module_files(kernel_root):
        names.append('/lib/' + os.path.basename(path))
        entries.append((names[-1][1:], 0o100644, open(path, 'rb').read(), (0, 0)))
    entries.append(('modules.list', 0o100644, '\n'.join(names + ['']).encode(), (0, 0)))
    return cpio(entries)


def add_program(root, path):
    """One of this machine's programs, with the libraries that it is linked with."""
    files = [path]
    for line in run('ldd', path).decode().splitlines():
        files += [w for w in line.split() if w.startswith('/')]
    for f in files:
        to = root + f
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copy(f, to)


def make_disk(cache, path, programs=(), files=(), trees=(), mb=192):
    """Of this machine, to be in it too: programs, and folders with what they are linked with; files: (path, bytes)."""
    root = os.path.join(cache, 'root')
    shutil.rmtree(root, ignore_errors=True)
    for d in ('bin', 'dev', 'etc', 'home/user', 'proc', 'root', 'run', 'sys', 'tmp', 'usr/bin', 'var/tmp'):
        os.makedirs(os.path.join(root, d))
    busybox = package(cache, 'busybox-static')
    shutil.copy(glob.glob(busybox + '/**/bin/busybox', recursive=True)[0], root + '/bin/busybox')
    for applet in run(root + '/bin/busybox', '--list').decode().split():
        if applet != 'busybox':
            os.symlink('/bin/busybox', os.path.join(root, 'bin', applet))
    open(root + '/etc/passwd', 'w').write(PASSWD)
    open(root + '/etc/group', 'w').write(GROUP)
    open(root + '/etc/os-release', 'w').write('ID=test\n')
    os.chown(root + '/home/user', 1000, 1000)
    for p in programs:
        add_program(root, p)
    for t in trees:
        shutil.copytree(t, root + t, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns('__pycache__', 'test', 'jmods', 'src.zip'))
        for so in glob.glob(t + '/**/*.so', recursive=True):
            if os.path.isfile(so) and not os.path.islink(so):
                add_program(root, so)
    for name, data in files:
        os.makedirs(os.path.dirname(root + name), exist_ok=True)
        open(root + name, 'wb').write(data)
    with open(path, 'wb') as f:
        f.truncate(mb << 20)
    run('mke2fs', '-q', '-t', 'ext4', '-O', '^has_journal', '-d', root, path)


def make_template(cache, agent):
    """Folder with kernel, initrd and disk.img; the initrd is made anew each time."""
    os.makedirs(cache, exist_ok=True)
    for tool in ('apt-get', 'dpkg-deb', 'modinfo', 'mke2fs'):
        if not shutil.which(tool):
            raise Unavailable(tool + ' is not installed')
    linux = package(cache, kernel_package())
    template = os.path.join(cache, 'template')
    os.makedirs(template, exist_ok=True)
    if not os.path.exists(template + '/kernel'):
        elf = unpack_kernel(glob.glob(linux + '/boot/vmlinuz-*')[0])
        open(template + '/kernel.tmp', 'wb').write(elf)
        os.rename(template + '/kernel.tmp', template + '/kernel')
    if not os.path.exists(template + '/disk.img'):
        make_disk(cache, template + '/disk.tmp')
        os.rename(template + '/disk.tmp', template + '/disk.img')
    open(template + '/initrd', 'wb').write(make_initrd(linux + '/lib/modules', agent))
    return template
