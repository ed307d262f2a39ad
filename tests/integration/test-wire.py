#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""What travels: a proxy between the two daemons reads along on the control and data connections.

Between two ends of a round no page may travel twice, on whatever channel: that barrier is all that keeps an older version
of a page from landing last.
"""
import json
import socket
import struct
import sys
import threading

from lib import MIB, Case, Send, run

PAGE = 4096
HEADER, RUN = struct.Struct("<6I"), struct.Struct("<2Q")
WRITE, ROUND_END = 0x52574D52, 0x45524D52
PREAMBLE = 48


class Tap:
    """A proxy on a port of its own; `pages` maps (round, block) to the pages seen, in the order of their coming."""

    def __init__(self, case, port):
        self.target, self.lock = port, threading.Lock()
        self.pages, self.twice, self.ends, self.problems = {}, [], {}, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        case.addCleanup(self.listener.close)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(near,), daemon=True).start()

    def serve(self, near):
        far = socket.create_connection(("127.0.0.1", self.target))
        first = near.recv(1, socket.MSG_PEEK)
        back = self.rewrite if first == b"{" else self.copy
        threading.Thread(target=self.guarded, args=(back, far, near), daemon=True).start()
        self.guarded(self.copy if first == b"{" else self.frames, near, far)

    def guarded(self, function, source, sink):
        try:
            function(source, sink)
        except OSError:
            pass
        except Exception as problem:  # noqa: B902: shown by the test
            self.problems.append(repr(problem))
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def copy(self, source, sink):
        while data := source.recv(1 << 20):
            sink.sendall(data)

    def rewrite(self, source, sink):
        """Control messages from the destination; the data connections are led through here, too."""
        for line in source.makefile("rb"):
            message = json.loads(line)
            if message.get("type") == "accept":
                message["address"]["port"] = self.port
                line = json.dumps(message).encode() + b"\n"
            sink.sendall(line)

    def frames(self, source, sink):
        stream, round_now = source.makefile("rb", 1 << 20), 1
        preamble = stream.read(PREAMBLE)
        channel = struct.unpack_from("<I", preamble, 40)[0]
        sink.sendall(preamble)
        while header := stream.read(HEADER.size):
            op, block, n, total, round_ended, _ = HEADER.unpack(header)
            table = stream.read(n * RUN.size)
            if op == ROUND_END:
                assert round_ended == round_now, (round_ended, round_now)
                self.ends[channel] = round_now
                round_now += 1
            else:
                assert op == WRITE, hex(op)
                self.record(round_now, block, [RUN.unpack_from(table, i * RUN.size) for i in range(n)])
            sink.sendall(header + table)
            while total:
                data = stream.read(min(total, 1 << 20))
                total -= len(data)
                sink.sendall(data)

    def record(self, round_now, block, runs):
        with self.lock:
            seen = self.pages.setdefault((round_now, block), set())
            for offset, length in runs:
                for page in range(offset // PAGE, (offset + length) // PAGE):
                    if page in seen:
                        self.twice.append((round_now, block, page))
                    seen.add(page)


class Wire(Case):
    def test_no_page_twice_in_a_round(self):
        source, target, daemon = self.pair()
        source.rams[0].fill(128, 64)
        tap = Tap(self, daemon.port)
        # Slow, so that the guest dirties pages again and again while a round is under way.
        send = Send(self, source, f"127.0.0.1:{tap.port}", "--max-bandwidth", "60M", "--channels", "3", "--chunk-size", "4M",
                    "--max-rounds", "3", "--on-timeout", "suspend", "--suspend", "--keep-source")
        code, result = send.finish()
        self.assertEqual(code, 0, send.explain())
        self.assertEqual(tap.problems, [])
        self.assertEqual(tap.twice, [])
        self.assertEqual(set(tap.ends), {0, 1, 2})
        self.assertGreaterEqual(min(tap.ends.values()), 4)
        travelled = sum(map(len, tap.pages.values()))
        self.assertGreater(travelled * PAGE, 250 * MIB, "hardly a page was dirtied again: this proves nothing")
        self.assert_equal_memory(source, target)


if __name__ == "__main__":
    sys.exit(run())
