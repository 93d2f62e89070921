# SPDX-License-Identifier: Apache-2.0
"""A guest whose root does to its own machine what it can, in real microVMs."""


def test_signals_to_the_first_process(host):
    """None ends it, also while it starts commands: its main thread has them blocked then, and may go on later than the command."""
    h = host
    a = h.create()
    signals = ('TERM', 'INT', 'HUP', 'QUIT', 'USR1', 'ALRM', 'ABRT', 'SEGV')
    for i in range(80):
        assert h.sh(a, f'kill -{signals[i % len(signals)]} 1; echo {i}') == f'{i}\n'
    assert h.state(a) == 'running'
