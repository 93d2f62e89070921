# SPDX-License-Identifier: Apache-2.0
"""cspaced is stopped while everything is under way: whoever is owed an answer is gone then, and so are its own parts.
What it does wrong there shows by its exit code; with a build that has sanitizers, all of it does."""
import http.client
import threading

import pytest

from conftest import until


STEPS = range(0, 80, 8)


def fire(d, threads, method, path, body=None):
    def run():
        try:
            d.request(method, path, body)
        except (OSError, http.client.HTTPException):
            pass  # it has stopped
    threads.append(threading.Thread(target=run))
    threads[-1].start()


# What others are asked for and answer late, or how many requests they have seen.
@pytest.mark.parametrize('step', ['PLACE', 'IDENTIFY', 'IMAGE_BEGIN', 'SAVE', 'IMAGE_COMMIT', 'FSFREEZE', 'REMOVE', 'IMAGE_USAGE', 'HISTORY',
                                  'PAUSE', 'PUBLISH', 'VARIANT_COMMIT', *STEPS])
def test_with_all_under_way(ready, step):
    d = ready
    boxes = [d.create()['id'] for _ in range(8)]
    assert d.post(f'/v1/sandboxes/{boxes[0]}/checkpoints?wait=60', {'kind': 'disk', 'name': 'c'}).status == 200
    assert d.post(f'/v1/sandboxes/{boxes[1]}/suspend?wait=60').status == 200
    n = len(d.steer(seen=True))
    late = isinstance(step, str)
    if late:
        d.fault(step, delay=1.0)
    threads = []
    for method, path, body in (
            ('POST', f'/v1/sandboxes/{boxes[0]}/fork?wait=60', {'checkpoint': 'c', 'n': 2}),
            ('GET', f'/v1/sandboxes/{boxes[0]}/checkpoints', None),
            ('GET', f'/v1/sandboxes/{boxes[0]}/diff', None),
            ('GET', f'/v1/sandboxes/{boxes[0]}/audit?follow=1', None),
            ('POST', f'/v1/sandboxes/{boxes[1]}/fork?wait=60', {'n': 2}),
            ('POST', f'/v1/sandboxes/{boxes[2]}/fork?wait=60', {'n': 3}),
            ('POST', f'/v1/sandboxes/{boxes[3]}/suspend?wait=60', None),
            ('POST', f'/v1/sandboxes/{boxes[4]}/checkpoints?wait=60', {'kind': 'full'}),
            ('POST', f'/v1/sandboxes/{boxes[5]}/pause?wait=60', None),
            ('POST', f'/v1/sandboxes/{boxes[6]}/publish?wait=60', {'name': 'mine', 'kind': 'full'}),
            ('POST', f'/v1/sandboxes/{boxes[7]}/checkpoints?wait=60', {'kind': 'disk'}),
            ('POST', '/v1/sandboxes?wait=60', {'template': 'base'}),
            ('POST', '/v1/sandboxes?wait=60', {'template': 'base', 'memory_mb': 300}),
            ('POST', '/v1/templates?wait=60', {'name': 'other'}),
            ('GET', '/v1/operations?limit=5', None)):
        fire(d, threads, method, path, body)
    if step == 'REMOVE':
        for box in boxes[5:] * 2:
            fire(d, threads, 'DELETE', f'/v1/sandboxes/{box}?wait=60')
    if late:
        until(lambda: step in d.steer(seen=True)[n:], what=step)
    else:
        until(lambda: len(d.steer(seen=True)) >= n + step or not any(t.is_alive() for t in threads[:-1]), what='so many requests')
    for box in boxes[:2]:  # not waited for: their pages are read, their second deletes acknowledged, while it stops
        fire(d, threads, 'GET', f'/v1/sandboxes/{box}/audit')
        fire(d, threads, 'DELETE', f'/v1/sandboxes/{box}')
        fire(d, threads, 'DELETE', f'/v1/sandboxes/{box}')
    d.stop()
    for t in threads:
        t.join()
    if late:
        d.steer(set={step: None})
    d.start()
    for op in d.get('/v1/operations?limit=100').json.get('operations', []):
        assert d.op(op['id'])['state'] != 'running'
    until(lambda: all(s['state'] in ('running', 'paused', 'suspended', 'stopped', 'failed')
                      for s in d.get('/v1/sandboxes?limit=100').json['sandboxes']), 60, 'the end of all that was under way')
