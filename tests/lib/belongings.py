# SPDX-License-Identifier: Apache-2.0
"""What is on this host and belongs to one cspace-rootd."""
import glob
import os
import re


class Belongings:
    def __init__(self, rootd):
        self.rootd = rootd  # with `run` and `data`, its folders

    def uids(self):
        with open(os.path.join(self.rootd.run, 'rootd', 'instance')) as f:
            base = 2000000000 + int(f.read()) * 4 * 4096
        return base, base + 4 * 4096

    def processes(self):
        """Processes of our uids, and launchers (still root, named as rootd, in one of our cgroups): the uid by the pid."""
        low, high = self.uids()
        found = {}
        for d in glob.glob('/proc/[0-9]*'):
            try:
                with open(d + '/status') as f:
                    text = f.read()
                with open(d + '/stat') as f:
                    if f.read().rsplit(')', 1)[1].split()[0] == 'Z':
                        continue
                with open(d + '/cgroup') as f:
                    cgroup = f.read()
            except OSError:
                continue
            uid = int(re.search(r'^Uid:\t(\d+)', text, re.M)[1])
            if low <= uid < high or any('/' + name + '/' in cgroup for name in self.cgroup_names()):
                found[int(d[6:])] = uid
        return found

    def cgroup_names(self):
        try:
            with open(os.path.join(self.rootd.run, 'rootd', 'cgroups')) as f:
                return {os.path.basename(line.split(' ', 1)[1].strip()) for line in f}
        except OSError:
            return set()

    def cgroups(self):
        found = []
        try:
            with open(os.path.join(self.rootd.run, 'rootd', 'cgroups')) as f:
                for line in f:
                    base = line.split(' ', 1)[1].strip()
                    found += [p for p in glob.glob(base + '/*/') if os.path.isdir(p)]
        except OSError:
            pass
        return sorted(found)

    def namespaces(self):
        """Network namespaces with our tap, by the processes in them."""
        own = os.stat('/proc/self/ns/net').st_ino
        found = set()
        for pid in self.processes():
            try:
                ino = os.stat(f'/proc/{pid}/ns/net').st_ino
            except OSError:
                continue
            if ino != own:
                found.add(ino)
        return found

    def mounts(self):
        with open('/proc/self/mountinfo') as f:
            return [line.split()[4] for line in f if self.rootd.run in line.split()[4]]

    def files(self):
        out = []
        for top in (os.path.join(self.rootd.run, 'sandboxes'), os.path.join(self.rootd.run, 'rootd', 'pool'),
                    os.path.join(self.rootd.data, 'sandboxes'), os.path.join(self.rootd.data, 'builds')):
            out += glob.glob(top + '/*')
        out += glob.glob(os.path.join(self.rootd.data, 'templates', '.*'))
        out += glob.glob(os.path.join(self.rootd.data, 'templates', '*', 'variants', '.*'))
        return out

    def counts(self):
        """How many there are of each."""
        return {'processes': len(self.processes()), 'namespaces': len(self.namespaces()), 'cgroups': len(self.cgroups()),
                'mounts': len(self.mounts()), 'files': len(self.files())}
