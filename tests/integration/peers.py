# SPDX-License-Identifier: LGPL-2.1-or-later
"""Peers that speak docs/protocol.md by hand, and may do so badly: a source, and a destination that proxies to a real one."""
import contextlib
import json
import os
import socket
import struct
import subprocess
import threading
import time
import uuid

from lib import PATIENCE, RDMAMIG

PAGE = 4096
OP_WRITE, OP_ROUND_END = 0x52574D52, 0x45524D52


class Line:
    """One control connection: JSON lines; answers keep-alives by sending its own from a thread, until told to be silent."""

    def __init__(self, connection, keep_alive=True):
        self.socket = connection
        self.socket.settimeout(PATIENCE)
        self.lock = threading.Lock()
        self.buffer = b""
        self.next_id = 1
        self.closed = threading.Event()
        if keep_alive:
            threading.Thread(target=self._keep, daemon=True).start()

    def _keep(self):
        while not self.closed.wait(2):
            with contextlib.suppress(OSError):
                self.send({"type": "keep-alive"})

    def raw(self, data):
        with self.lock:
            self.socket.sendall(data)

    def send(self, message):
        self.raw(json.dumps(message).encode() + b"\n")

    def ask(self, type, **members):
        """Sends a request without waiting. Returns its id."""
        self.next_id += 1
        self.send({"type": type, "id": self.next_id, **members})
        return self.next_id

    def receive(self):
        """The next message that is no keep-alive; None at the end of the connection."""
        while True:
            while b"\n" not in self.buffer:
                try:
                    data = self.socket.recv(65536)
                except ConnectionError:
                    data = b""
                if not data:
                    return None
                self.buffer += data
            line, self.buffer = self.buffer.split(b"\n", 1)
            message = json.loads(line)
            if message["type"] != "keep-alive":
                return message

    def request(self, type, **members):
        """Asks, and returns the reply; None if the connection ends first. What isn't the reply is dropped."""
        try:
            number = self.ask(type, **members)
            while (message := self.receive()) is not None:
                if message.get("reply") == number:
                    return message
        except ConnectionError:
            pass
        return None

    def close(self):
        self.closed.set()
        self.socket.close()


def learn_hello(case, source):
    """The hello that rdmamig sends for this guest."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = subprocess.Popen([str(RDMAMIG), "send", "--qmp", str(source.path), "--to",
                                    f"127.0.0.1:{server.getsockname()[1]}", "--json"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=case.env)
        server.settimeout(PATIENCE)
        line = Line(server.accept()[0])
        hello = line.receive()
        line.close()
        process.wait(PATIENCE)
    for key in ("id", "session"):
        del hello[key]
    return hello


class Source:
    """A source without a guest: sends what it's told. Blocks are counted as if they came from elsewhere. `tls`, an
    ssl.SSLContext, is what it connects with."""

    def __init__(self, daemon, hello, session=None, keep_alive=True, tls=None):
        self.host, self.port, self.tls = daemon.host, daemon.port, tls
        self.session = session or str(uuid.uuid4())
        self.line = Line(self.dial(tls), keep_alive)
        self.hello = {**hello, "session": self.session}
        self.data = []
        self.accept = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for channel in self.data:
            channel.close()
        self.line.close()

    def greet(self, **changes):
        type_ = {**self.hello, **changes}.pop("type")
        members = {key: value for key, value in {**self.hello, **changes}.items() if key != "type"}
        reply = self.line.request(type_, **members)
        self.accept = self.accept or reply
        return reply

    def dial(self, tls):
        connection = socket.create_connection((self.host, self.port), PATIENCE)
        return connection if tls is None else tls.wrap_socket(connection)

    def connect(self, channel, token=None, **tls):
        """A data connection, of the same kind as the control connection or with `tls`; returns the socket and what came
        back: the ACK, or nothing."""
        connection = self.dial(tls.get("tls", self.tls))
        connection.sendall(b"RMDATA1\n"
                           + bytes.fromhex(token or self.accept["token"]) + struct.pack("<II", channel, 0))
        try:
            answer = connection.recv(1)
        except ConnectionError:
            answer = b""
        return connection, answer

    def open_data(self):
        for channel in range(self.accept["channels"]):
            connection, answer = self.connect(channel)
            assert answer == b"\x06", answer
            self.data.append(connection)

    def channel_of(self, block, offset):
        """docs: a chunk belongs to one channel."""
        return (block + offset // self.accept["chunk_size"]) % len(self.data)

    def write(self, block, offset, data, channel=None, op=OP_WRITE, runs=None, total=None, reserved=0):
        runs = runs if runs is not None else [(offset, len(data))]
        header = struct.pack("<6I", op, block, len(runs), len(data) if total is None else total, 0, reserved)
        body = b"".join(struct.pack("<QQ", *run) for run in runs)
        self.data[self.channel_of(block, offset) if channel is None else channel].sendall(header + body + data)

    def end_round(self, number, channels=None):
        for channel in self.data if channels is None else channels:
            channel.sendall(struct.pack("<6I", OP_ROUND_END, 0, 0, 0, number, 0))


class Proxy:
    """Between a real source and a real daemon. `script(direction, message)` sees every control message ("S" from the
    source, "D" from the daemon) and returns what is passed on instead: a message, a list, or None. Data connections
    pass untouched. self.cut() closes the control connections; self.queries(script) answers later connections."""

    def __init__(self, case, daemon, script=None, query=None):
        self.daemon, self.script, self.query = daemon, script or (lambda direction, message: message), query
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        self.open, self.seen, self.controls = [], [], 0
        case.addCleanup(self.close)
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        self.server.close()
        for item in self.open:
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
            item.close()

    def _serve(self):
        while True:
            try:
                client = self.server.accept()[0]
            except OSError:
                return
            self.open.append(client)
            threading.Thread(target=self._take, args=(client,), daemon=True).start()

    def _take(self, client):
        try:
            first = client.recv(1, socket.MSG_PEEK)
            if first == b"{":
                self.controls += 1
                if self.controls > 1 and self.query is not None:
                    self.query(Line(client))
                    return
            far = socket.create_connection((self.daemon.host, self.daemon.port))
        except OSError:
            client.close()
            return
        self.open.append(far)
        if first == b"{":
            self.near, self.far = Line(client, False), Line(far, False)
            threading.Thread(target=self._pump, args=("S", self.near, self.far), daemon=True).start()
            self._pump("D", self.far, self.near)
        else:
            threading.Thread(target=self._copy, args=(client, far), daemon=True).start()
            self._copy(far, client)

    def _pump(self, direction, source, target):
        def next_line():
            while b"\n" not in source.buffer:
                data = source.socket.recv(65536)
                if not data:
                    return None
                source.buffer += data
            line, source.buffer = source.buffer.split(b"\n", 1)
            return json.loads(line)
        with contextlib.suppress(OSError):
            source.socket.settimeout(None)
            while (message := next_line()) is not None:
                if message["type"] != "keep-alive":
                    self.seen.append((direction, message))
                    message = self.script(direction, message)
                for item in message if isinstance(message, list) else [message] if message is not None else []:
                    target.raw(item if isinstance(item, bytes) else json.dumps(item).encode() + b"\n")
        with contextlib.suppress(OSError):
            target.socket.shutdown(socket.SHUT_WR)

    def _copy(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 18):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def cut(self):
        """Breaks the control connection on both sides."""
        for line in (self.near, self.far):
            with contextlib.suppress(OSError):
                line.socket.shutdown(socket.SHUT_RDWR)
