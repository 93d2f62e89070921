# SPDX-License-Identifier: Apache-2.0
"""Speaking to servers as a guest, byte by byte."""
import socket
import ssl


def tls(gw, name, port=443, sni=None, alpn=('http/1.1',)):
    ctx = ssl.create_default_context(cafile=gw.ca)
    ctx.check_hostname = False
    ctx.set_alpn_protocols(list(alpn))
    return ctx.wrap_socket(gw.dial(name, port), server_hostname=sni or name)


def read_all(s):
    out = b''
    while True:
        try:
            data = s.recv(65536)
        except ConnectionResetError:
            return out, True
        if not data:
            return out, False
        out += data


def exchange(gw, name, port, data):
    """Sends bytes, says that no more come, and reads to the end: (bytes, whether it was reset)."""
    s = gw.dial(name, port)
    s.sendall(data)
    s.shutdown(socket.SHUT_WR)
    return read_all(s)


def answer(data):
    head, _, body = data.partition(b'\r\n\r\n')
    return int(head.split(b' ')[1]), head, body


def one_answer(s):
    """The next response of a connection that goes on: (status, head, body)."""
    out = b''
    while b'\r\n\r\n' not in out:
        data = s.recv(1)
        assert data, out
        out += data
    status, head, _ = answer(out)
    n = next((int(line.split(b':')[1]) for line in head.split(b'\r\n') if line.lower().startswith(b'content-length')), 0)
    body = b''
    while len(body) < n:
        body += s.recv(n - len(body))
    return status, head, body
