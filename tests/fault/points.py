# SPDX-License-Identifier: LGPL-2.1-or-later
"""The fault points of src/common/fault-points.h, read from there: [(end, kind, name), …]; and what can happen at each."""
import re
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src"
PREFIX = {"STATE": "state-", "SEND": "send-", "RECEIVE": "receive-", "PLACE": "", "SWITCH": ""}
EVERYWHERE = "exit", "kill", "stall", "stop"
MESSAGES = *EVERYWHERE, "drop", "short"


def read_points():
    text = (SRC / "common/fault-points.h").read_text()
    points = [(end, PREFIX[kind] + name, kind) for end, kind, name in re.findall(r'\bX\((\w+), (\w+), "([-a-z]+)"\)', text)]
    for how, name in re.findall(r'RM_FAULT_(ASKED|ANSWERED|MUTUAL)\(X, "([-a-z]+)"\)', text):
        sender, receiver = {"ASKED": ("SOURCE", "DESTINATION"), "ANSWERED": ("DESTINATION", "SOURCE"),
                            "MUTUAL": ("EITHER", "EITHER")}[how]
        points += [(sender, "send-" + name, "SEND"), (receiver, "receive-" + name, "RECEIVE")]
    return [(one.lower(), name, kind) for end, name, kind in points
            for one in (("SOURCE", "DESTINATION") if end == "EITHER" else (end,))]


# Points that a migration over tcp, and its daemons, do not get to.
ELSEWHERE = {"transport": "needs a transport besides tcp", "release": "needs rdma and --max-pinned",
             "released": "needs rdma and --max-pinned", "attach-hold": "tests/unit/tracker kills there",
             "attach-hold-aimed": "tests/unit/tracker kills there"}


def elsewhere(end, name):
    """Why the matrix leaves this point out, or None."""
    if (end, name) == ("destination", "state-doubtful"):
        return "for whoever settles a session whose VMM is gone, not for the daemon"
    return ELSEWHERE.get(name.removeprefix("send-").removeprefix("receive-"))


def matrix():
    """Every (end, point, action) that the runner tries."""
    return [(end, name, action) for end, name, kind in read_points() if kind != "SWITCH" and not elsewhere(end, name)
            for action in (MESSAGES if kind in ("SEND", "RECEIVE") else EVERYWHERE)]
