# SPDX-License-Identifier: LGPL-2.1-or-later
"""A session as it went over the wire: one JSON object a line, xz-compressed, in the order in which a proxy between the two
ends passed them on.

  {"about": …}                      the first line: protocol, the builds, the guest, sha256 of its RAM in the end
  {"from": "S" or "D", "message"}   a control message of the source, of the destination (without keep-alives)
  {"channel": N, "data": base64}    what the source sent on data channel N, the preamble not counted
"""
import base64
import hashlib
import json
import lzma
import socket
import struct
import sys
import threading
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent / "integration"))

from peers import OP_ROUND_END, OP_WRITE, PAGE, Proxy  # noqa: E402

PREAMBLE, HEADER = 48, struct.Struct("<6I")
# The guest of all transcripts. Its machine has a version, and it has no device with a ROM, so that a later QEMU has it, too.
GUEST = {"rams": (16,), "machine": "pc-i440fx-7.2", "guest": {"first": 4 << 20, "last": (4 << 20) + 64 * PAGE}}


def digest(ram):
    return hashlib.sha256(Path(ram.path).read_bytes()).hexdigest()


def write(path, about, events):
    with lzma.open(path, "wt") as file:
        for event in [{"about": about}, *events]:
            print(json.dumps(event, separators=(",", ":")), file=file)


def read(path):
    with lzma.open(path, "rt") as file:
        events = [json.loads(line) for line in file]
    for event in events:
        if "data" in event:
            event["data"] = base64.b64decode(event["data"])
    return events[0]["about"], events[1:]


class Recorder(Proxy):
    """Notes all that passes, before it is passed on: what one end can only say after it has heard the other stands later."""

    def __init__(self, case, daemon):
        self.events, self.lock = [], threading.Lock()
        super().__init__(case, daemon, self._note)

    def _note(self, direction, message):
        with self.lock:
            self.events.append({"from": direction, "message": message})
        if message["type"] == "accept":  # so that data comes through here, too
            message = {**message, "address": {"port": int(self.address.rpartition(":")[2])}}
        return message

    def _copy(self, source, target):
        head = b""
        while len(head) < PREAMBLE and (data := source.recv(PREAMBLE - len(head))):
            head += data
            target.sendall(data)
            if not head.startswith(b"RMDATA1"[:len(head)]):
                return super()._copy(source, target)  # from the destination: the one byte that takes the channel in
        channel, = struct.unpack_from("<I", head, PREAMBLE - 8)
        while data := source.recv(1 << 18):
            with self.lock:
                self.events.append({"channel": channel, "data": base64.b64encode(data).decode()})
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


class Frames:
    """What a destination of version 1 does with the bytes of a data channel: lands the runs, and counts the rounds."""

    def __init__(self, land):
        self.land, self.buffer, self.round = land, b"", 0

    def feed(self, data):
        self.buffer += data
        while len(self.buffer) >= HEADER.size:
            op, block, n, total, number, _ = HEADER.unpack_from(self.buffer)
            length = HEADER.size + 16 * n + total
            if len(self.buffer) < length:
                return
            assert op in (OP_WRITE, OP_ROUND_END), hex(op)
            at = HEADER.size + 16 * n
            for k in range(n):
                offset, size = struct.unpack_from("<QQ", self.buffer, HEADER.size + 16 * k)
                self.land(block, offset, self.buffer[at:at + size])
                at += size
            self.round = number if op == OP_ROUND_END else self.round
            self.buffer = self.buffer[length:]
