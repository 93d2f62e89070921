# SPDX-License-Identifier: Apache-2.0
"""cspace-rootd ends on the spot, at every step of what it does and at random times: nothing that ran is
harmed, and after the next start the host holds what the books say and nothing else."""
import os
import random
import signal
import time

import pytest

import wire
from conftest import Placer, new_id, until
from test_template import make_image, publish


def alive(pid):
    try:
        with open(f'/proc/{pid}/stat') as f:
            return f.read().rsplit(')', 1)[1].split()[0] != 'Z'
    except OSError:
        return False


class World:
    """A bystander lives through everything the test does."""

    def __init__(self, rootd):
        self.rootd = rootd
        self.placer = Placer(rootd)
        self.digest = self.placer.digest
        self.bystander, self.placed = self.placer.place()
        rootd.kill()
        assert alive(self.placed['warden_pid'])

    def ended(self):
        return until(lambda: self.rootd.proc.poll() is not None, what='the end of rootd')

    def check(self):
        """A clean start; the bystander was adopted and works; all can be removed."""
        r = self.rootd
        assert alive(self.placed['warden_pid'])
        r.start()
        c = r.client()
        left = c.call('LIST', 'PLACEMENT_LIST')['ids'].split()
        assert self.bystander in left
        w = r.warden(self.bystander)
        assert w('1 + 1') == 2 and w.vm('2 + 2') == 4
        assert c.call('USAGE', 'USAGE_INFO', id=self.bystander)['processes'] == 2  # warden and VM
        w.sock.send(b'vm:os._exit(3)')  # its end is seen, though it is not our child
        until(lambda: c.event() == ('EXITED', {'id': self.bystander, 'what': 'vm'}), what='the VM is told to be gone')
        for ident in left:
            c.call('REMOVE', id=ident)
        r.stop()
        r.host.assert_nothing()
        return left


@pytest.fixture
def world(rootd):
    return World(rootd)


@pytest.mark.parametrize('mode', ['restore', 'boot'])
@pytest.mark.parametrize('step', range(1, 12))
def test_place_ends_at_step(world, step, mode):
    world.rootd.fault.arm('rootd', f'place:{step}')
    world.rootd.start(wait=False)
    until(world.rootd.accepts, what='rootd.sock')
    ident = new_id()
    c = world.rootd.client()
    try:
        c.call('PLACE', 'PLACED', id=ident, mode=mode, digest=world.digest, engine='fake', memory_mb=128, cpus=1)
        answered = True
    except (ConnectionResetError, BrokenPipeError):
        answered = False
    world.ended()
    assert answered == (step == 11)
    left = world.check()
    # Before the record says "live" nobody was told of it, so it is undone; after that it is there.
    assert left.count(ident) == (1 if step >= 10 else 0)


@pytest.mark.parametrize('step', range(1, 7))
def test_remove_ends_at_step(world, step):
    world.rootd.fault.arm('rootd', f'remove:{step}')
    world.rootd.start()
    c = world.rootd.client()
    ident, _ = Placer.place(type('P', (), {'c': c, 'args': world.placer.args})())
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        c.call('REMOVE', id=ident)
    world.ended()
    assert world.check() == [world.bystander]


@pytest.mark.parametrize('step', range(1, 5))
def test_pool_ends_at_step(world, step):
    world.rootd.fault.arm('rootd', f'pool:{step}')
    world.rootd.start(wait=False)
    world.ended()
    assert world.check() == [world.bystander]


@pytest.mark.parametrize('step', range(1, 3))
def test_reconcile_ends_at_step(world, step):
    world.rootd.fault.arm('rootd', f'reconcile:{step}')
    world.rootd.start(wait=False)
    world.ended()
    assert world.check() == [world.bystander]


@pytest.mark.parametrize('step', range(1, 4))
def test_template_commit_ends_at_step(world, step):
    r = world.rootd
    ident, digest = r.make_build()
    r.fault.arm('rootd', f'template:{step}')
    r.start()
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        r.client().call('TEMPLATE_COMMIT', id=ident, digest=digest)
    world.ended()
    assert not os.path.exists(os.path.join(r.data, 'templates', digest))
    r.start()
    c = r.client()
    if step < 3:  # its files are where they were: it can be done again
        c.call('TEMPLATE_COMMIT', id=ident, digest=digest)
        assert os.path.exists(os.path.join(r.data, 'templates', digest, 'kernel'))
    c.call('BUILD_REMOVE', id=ident)
    r.kill()
    world.check()


@pytest.mark.parametrize('full', [False, True])
@pytest.mark.parametrize('step', range(1, 6))
def test_publish_ends_at_step(world, step, full):
    r = world.rootd
    image, ident = make_image(r, full), new_id()
    r.fault.arm('rootd', f'publish:{step}')
    r.start()
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        publish(r, r.client(), world.digest, image, full, ident)
    world.ended()
    r.start()
    c = r.client()
    assert os.listdir(os.path.join(r.data, 'templates')) == [world.digest]
    assert set(os.listdir(os.path.join(r.data, 'builds'))) <= {ident}
    c.call('BUILD_REMOVE', id=ident)
    assert os.listdir(os.path.join(r.data, 'builds')) == []
    publish(r, c, world.digest, image, full, ident)  # and anew
    c.call('BUILD_REMOVE', id=ident)
    r.kill()
    world.check()


@pytest.mark.parametrize('step', range(1, 4))
def test_commit_of_a_published_memory_ends_at_step(world, step):
    r = world.rootd
    image, ident = make_image(r, True), new_id()
    r.start()
    digest = publish(r, r.client(), world.digest, image, True, ident)['digest']
    r.kill()
    r.fault.arm('rootd', f'template:{step}')
    r.start()
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        r.client().call('TEMPLATE_COMMIT', id=ident, digest=digest, engine='fake', memory_mb=4, cpus=1)
    world.ended()
    r.start()
    assert os.listdir(os.path.join(r.data, 'templates')) == [world.digest]
    r.client().call('BUILD_REMOVE', id=ident)
    r.kill()
    world.check()


@pytest.mark.parametrize('step', range(1, 3))
def test_variant_commit_ends_at_step(world, step):
    r = world.rootd
    r.fault.arm('rootd', f'variant:{step}')
    r.start()
    c = r.client()
    ident = new_id()
    c.call('PLACE', 'PLACED', id=ident, mode='boot', digest=world.digest, engine='fake', memory_mb=192, cpus=1)
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        c.call('VARIANT_COMMIT', id=ident, digest=world.digest, variant='fake-192m-1c')
    world.ended()
    assert not os.path.exists(os.path.join(r.data, 'templates', world.digest, 'variants', 'fake-192m-1c'))
    assert sorted(world.check()) == sorted([world.bystander, ident])


def test_killed_at_random(world):
    """Fifty times, under creates and removes; in between the books must agree with the host."""
    r = world.rootd
    rng = random.Random(7)
    mine = set()
    for _ in range(50):
        r.start()
        c = r.client()
        listed = set(c.call('LIST', 'PLACEMENT_LIST')['ids'].split())
        assert world.bystander in listed
        # What was answered is there; what was not may be.
        confirmed, pending = mine, set()
        assert confirmed <= listed
        mine = listed - {world.bystander}
        stop = time.monotonic() + rng.uniform(0.0, 0.12)
        pid = r.proc.pid
        if os.fork() == 0:  # so that the kill is not in step with our requests
            time.sleep(max(0, stop - time.monotonic()))
            os.kill(pid, signal.SIGKILL)
            os._exit(0)
        try:
            while True:
                if mine and rng.random() < 0.5:
                    ident = rng.choice(sorted(mine))
                    mine.discard(ident)
                    c.call('REMOVE', id=ident)
                else:
                    ident = new_id()
                    pending.add(ident)
                    c.call('PLACE', 'PLACED', **world.placer.args(ident))
                    mine.add(ident)
        except (ConnectionResetError, BrokenPipeError):
            pass
        os.wait()
        r.proc.wait()
    world.check()


# A host without any cgroup: nothing but uids says whose a process is.
NO_CGROUPS = ('unshare', '-m', '--propagation', 'private', 'sh', '-c',
              'umount -R /sys/fs/cgroup && exec "$@"', 'sh')


@pytest.mark.parametrize('step', [4, 8, 9])
def test_without_cgroups(rootd, step):
    rootd.start(prefix=NO_CGROUPS)
    c = rootd.client()
    assert c.info['cgroup'] == 'none'
    digest = rootd.make_template(c)
    rootd.make_variant(c, digest)
    args = {'mode': 'restore', 'digest': digest, 'engine': 'fake', 'memory_mb': 128, 'cpus': 1}
    ident = new_id()
    c.call('PLACE', 'PLACED', id=ident, **args)
    w = rootd.warden(ident)
    # Children of the warden that run away from it, and go on running away.
    assert w('[os.fork() or (os.setsid(), exec("while True:\\n  if os.fork(): os._exit(0)\\n  time.sleep(0.001)", '
             '{"os": os, "time": __import__("time")})) for _ in range(3)] and 1') == 1
    assert c.call('USAGE', 'USAGE_INFO', id=ident)['processes'] == 2
    until(lambda: c.call('USAGE', 'USAGE_INFO', id=ident)['cpu_us'] > 0, what='CPU time of them')  # counted by the tick
    c.call('REMOVE', id=ident)
    rootd.stop()
    rootd.host.assert_nothing()
    rootd.fault.arm('rootd', f'place:{step}')
    rootd.start(prefix=NO_CGROUPS)
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        rootd.client().call('PLACE', 'PLACED', id=new_id(), **args)
    rootd.proc.wait()
    rootd.start(prefix=NO_CGROUPS)
    assert rootd.client().call('LIST', 'PLACEMENT_LIST')['ids'] == ''
    rootd.stop()
    rootd.host.assert_nothing()


def test_remove_finishes_a_sandbox_without_processes(world):
    """All its processes were killed from outside while rootd was away (as by the OOM killer)."""
    for pid in world.rootd.host.processes():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not world.rootd.host.processes())
    world.rootd.start()
    c = world.rootd.client()
    assert {c.event()[1]['what'], c.event()[1]['what']} == {'vm', 'warden'}
    c.call('REMOVE', id=world.bystander)
    world.rootd.stop()
    world.rootd.host.assert_nothing()


def test_a_pid_that_is_another_process_now(world):
    """A recorded pid that belongs to somebody else is left alone."""
    r = world.rootd
    for pid in r.host.processes():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not r.host.processes())
    path = os.path.join(r.run, 'sandboxes', world.bystander, 'placement')
    with open(path) as f:
        text = f.read()
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        text = ''.join(f'warden_pid={child}\n' if line.startswith('warden_pid=') else line for line in text.splitlines(True))
        with open(path, 'w') as f:
            f.write(text)
        r.start()
        c = r.client()
        c.call('REMOVE', id=world.bystander)
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    r.stop()
    r.host.assert_nothing()


def test_a_record_that_cannot_be_read(world):
    """Neither guessed at nor a reason not to start."""
    r = world.rootd
    path = os.path.join(r.run, 'sandboxes', world.bystander, 'placement')
    with open(path) as f:
        good = f.read()
    with open(path, 'w') as f:
        f.write('state=live\nnonsense\n')
    r.start()
    assert r.client().call('LIST', 'PLACEMENT_LIST')['ids'] == world.bystander + '\n'  # by its disk
    assert 'nonsense' in r.text()
    r.kill()
    with open(path, 'w') as f:
        f.write(good)
    r.start()
    c = r.client()
    c.call('REMOVE', id=world.bystander)
    r.stop()
    r.host.assert_nothing()


def test_only_one_works_in_a_folder(rootd):
    rootd.start()
    first = rootd.proc
    rootd.start(wait=False)
    assert rootd.proc.wait(10) == 1
    assert 'another cspace-rootd works' in rootd.text()
    rootd.proc = first
    assert rootd.client().info['version'] == 1
