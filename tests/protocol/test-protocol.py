#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""This build against the recorded ends of earlier ones (transcript.py, README.md): an old source moves its guest into a real
QEMU through this rdmamigd; this rdmamig moves a real guest to an old destination. A transcript for each version of the
protocol, and for what was added within one, is in this folder; all are played."""
import socket
import struct
import threading
import unittest
from pathlib import Path

import transcript

from lib import DONE, PATIENCE, Case, Daemon, Qemu, Send, run
from peers import Line, Source, learn_hello

TRANSCRIPTS = sorted(path.name.removesuffix(".jsonl.xz") for path in transcript.FOLDER.glob("*.jsonl.xz"))
# What a reply may have beyond what was recorded is ignored; of these, the value is part of what was promised.
PROMISED = ("type", "protocol", "chunk_size", "channels", "transport", "differ", "regions", "running", "window")


class OldSource(Case):
    """The source's part of a transcript, message by message and byte by byte. It differs in the session's UUID and in the
    token, which are new each time, and in what the source's QEMU tells of the host's own."""

    def play(self, name):
        about, events = transcript.read(transcript.FOLDER / f"{name}.jsonl.xz")
        model = Qemu(self, "model", **about["guest"])
        traits = learn_hello(self, model)["guest"]
        model.kill()
        target = Qemu(self, "target", incoming=True, **about["guest"])
        daemon = Daemon(self, "--qmp", target.path)
        messages = [event for event in events if "message" in event]
        hello = {key: value for key, value in messages[0]["message"].items() if key not in ("id", "session")}
        hello["guest"] = {**hello["guest"], "vmm": traits["vmm"],
                          "traits": {key: traits["traits"].get(key, value) for key, value in hello["guest"]["traits"].items()}}
        with Source(daemon, hello) as source:
            self.compare(messages[1]["message"], source.greet(), name)
            source.open_data()
            self.go_on(source, [event for event in events if event not in messages[:2]], name)
            self.assertIsNone(source.line.receive())
        self.assertEqual(transcript.digest(target.rams[0]), about["ram"], "the RAM that was sent")
        target.qmp("cont")
        target.wait_letters()
        self.assertNotIn("!", target.serial())

    def go_on(self, source, events, name):
        asked, answers = {}, {}
        for event in events:
            message = event.get("message")
            if message is None:
                source.data[event["channel"]].sendall(event["data"])
            elif event["from"] == "S" and "id" in message:
                members = {key: value for key, value in message.items() if key not in ("type", "id")}
                asked[message["id"]] = source.line.ask(message["type"], **members)
            elif event["from"] == "S":
                source.line.send(message)
            else:
                number = asked[message["reply"]]
                while number not in answers:
                    answer = source.line.receive()
                    self.assertIsNotNone(answer, f"{name}: the connection ended before the answer to {message}")
                    answers[answer.get("reply")] = answer
                self.compare(message, answers[number], name)

    def compare(self, recorded, answer, name):
        self.assertIsNotNone(answer, f"{name}: {recorded['type']} was expected")
        self.assertEqual(set(recorded) - set(answer), set(), f"{name}: members that are gone from {recorded['type']}: {answer}")
        for key in PROMISED:
            if key in recorded:
                self.assertEqual(answer[key], recorded[key], f"{name}: {key} of {recorded['type']}: {answer}")


class OldDestination(Case):
    """The destination's part: answers each request as the recorded one of its type was answered."""

    def play(self, name):
        about, events = transcript.read(transcript.FOLDER / f"{name}.jsonl.xz")
        source = Qemu(self, "source", **about["guest"])
        source.wait_letters()
        destination = Destination(self, events)
        send = Send(self, source, destination.address, "--transport", "tcp", "--chunk-size", "1M", "--keep-source", "--verify")
        status, result = send.finish()
        self.assertEqual(status, DONE, f"{destination.problem}\n{send.explain()}")
        self.assertEqual(result["owner"], "destination")
        destination.ended.wait(PATIENCE)
        self.assertIsNone(destination.problem)
        self.assertEqual(destination.seen[-1], "bye")
        self.assertEqual(source.qmp("query-status")["running"], False)
        self.assertEqual(bytes(destination.blocks[0]), Path(source.rams[0].path).read_bytes(), "what has landed")
        self.assertGreater(len(destination.blocks[1]), 0)


class Destination:
    def __init__(self, case, events):
        self.case, self.blocks, self.channels, self.seen = case, [], {}, []
        self.problem, self.ended, self.landed = None, threading.Event(), threading.Condition()
        self.answers, requests = {}, {}
        for event in events:
            if "message" in event and event["from"] == "S":
                requests[event["message"].get("id")] = event["message"]["type"]
            elif "message" in event:
                self.answers.setdefault(requests[event["message"]["reply"]], event["message"])
        self.server = socket.create_server(("127.0.0.1", 0))
        case.addCleanup(self.server.close)
        self.port = self.server.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        try:
            while True:
                connection = self.server.accept()[0]
                connection.settimeout(PATIENCE)
                first = connection.recv(1, socket.MSG_PEEK)
                threading.Thread(target=self.guarded, args=(self.control if first == b"{" else self.data, connection),
                                 daemon=True).start()
        except OSError:
            pass

    def guarded(self, function, connection):
        try:
            function(connection)
        except Exception as problem:  # pylint: disable=broad-except
            self.problem = self.problem or repr(problem)
            connection.close()

    def data(self, connection):
        head = connection.recv(transcript.PREAMBLE, socket.MSG_WAITALL)
        assert head[:8] == b"RMDATA1\n" and head[8:40].hex() == self.answers["hello"]["token"], head
        frames = transcript.Frames(self.land)
        with self.landed:
            self.channels[struct.unpack_from("<I", head, 40)[0]] = frames
        connection.sendall(b"\x06")
        while data := connection.recv(1 << 18):
            frames.feed(data)
            with self.landed:
                self.landed.notify_all()

    def land(self, block, offset, data):
        assert offset + len(data) <= len(self.blocks[block]), (block, offset)
        self.blocks[block][offset:offset + len(data)] = data

    def control(self, connection):
        line = Line(connection)
        while (message := line.receive()) is not None:
            self.seen.append(message["type"])
            if "id" in message:
                line.send({**self.answer(message), "reply": message["id"]})
        self.ended.set()

    def answer(self, message):
        answer = dict(self.answers[message["type"]])  # a type that was never asked for then: KeyError, the test's failure
        if message["type"] == "hello":
            self.blocks = [bytearray(block["size"]) for block in message["blocks"]]
            answer["address"] = {"port": self.port}
        elif message["type"] == "round-end":
            with self.landed:
                done = self.landed.wait_for(lambda: len(self.channels) == self.answers["hello"]["channels"] and
                                            all(frames.round >= message["round"] for frames in self.channels.values()), PATIENCE)
            assert done, f"round {message['round']} did not end on each channel"
            for block, page, count in zip(*[iter(message["zero"])] * 3):
                self.land(block, page * transcript.PAGE, bytes(count * transcript.PAGE))
        elif message["type"] == "state":
            self.blocks.append(bytearray(-(-message["length"] // transcript.PAGE) * transcript.PAGE))
        elif message["type"] == "commit":
            answer["running"] = message["run"]
        return answer


for _name in TRANSCRIPTS:
    for _kind in ("OldSource", "OldDestination"):
        setattr(globals()[_kind], f"test_{_name.replace('-', '_')}", lambda self, name=_name: self.play(name))


class Folder(unittest.TestCase):
    def test_there_are_transcripts(self):
        self.assertGreaterEqual(len(TRANSCRIPTS), 2)


if __name__ == "__main__":
    raise SystemExit(run())
