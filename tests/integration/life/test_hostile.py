# SPDX-License-Identifier: Apache-2.0
"""A guest whose root does to its own machine what it can, in real microVMs."""


def test_fifos_where_the_agent_looks(host):
    """It waits for nobody to read from them or to write into them, and the sandbox's life goes on."""
    h = host
    a = h.create()
    h.sh(a, 'echo kept >/root/file; for f in hosts hostname machine-id resolv.conf group ssl; do rm -rf /etc/$f; mkfifo /etc/$f; done; sync')
    h.change(a, 'suspend')
    h.change(a, 'restore')
    assert h.sh(a, 'cat /root/file; cat </proc/sys/kernel/hostname') == f'kept\n{a}\n'
    r = h.post(f'/v1/sandboxes/{a}/fork?wait=60', {'n': 1})
    assert r.status == 201, r
    h.change(a, 'stop')
    h.change(a, 'start')
    assert h.sh(a, 'cat /root/file; cat </proc/sys/kernel/hostname') == f'kept\n{a}\n'
    for f in ('hosts', 'hostname', 'machine-id', 'passwd'):
        h.sh(a, f'rm /etc/{f}; mkfifo /etc/{f}')
    h.change(a, 'suspend')
    h.change(a, 'restore')
    assert h.state(a) == 'running'


def test_signals_to_the_first_process(host):
    """None ends it, also while it starts commands: its main thread has them blocked then, and may go on later than the command."""
    h = host
    a = h.create()
    signals = ('TERM', 'INT', 'HUP', 'QUIT', 'USR1', 'ALRM', 'ABRT', 'SEGV')
    for i in range(80):
        assert h.sh(a, f'kill -{signals[i % len(signals)]} 1; echo {i}') == f'{i}\n'
    assert h.state(a) == 'running'
