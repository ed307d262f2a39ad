#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs one command on a QEMU's QMP socket and prints what it returns.

    qmp.py SOCKET COMMAND [ARGUMENTS-AS-JSON]

Waits up to ten seconds for the socket to appear and to greet."""
import json
import socket
import sys
import time


def main(path, command, arguments="{}"):
    deadline = time.monotonic() + 10
    while True:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(10)
        try:
            connection.connect(path)
            break
        except OSError as error:
            connection.close()
            if time.monotonic() > deadline:
                sys.exit(f"qmp: {path}: {error}")
            time.sleep(0.05)
    stream = connection.makefile("rw")
    stream.readline()
    for request in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": json.loads(arguments)}):
        stream.write(json.dumps(request) + "\n")
        stream.flush()
        while "event" in (reply := json.loads(stream.readline() or '{"error": {"desc": "QEMU closed the connection"}}')):
            pass
        if "error" in reply:
            sys.exit(f"qmp: {request['execute']}: {reply['error']['desc']}")
    print(json.dumps(reply["return"]))


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: qmp.py SOCKET COMMAND [ARGUMENTS-AS-JSON]")
    main(*sys.argv[1:])
