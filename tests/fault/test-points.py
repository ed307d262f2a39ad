#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of fault points is complete: every state of either end and every message has one, and the source uses no name
that is not in it."""
import re
import sys
import unittest

from points import SRC, read_points


def states():
    """What each end can be in, by the rows of the handover table: {(end, state), …}."""
    names = dict(re.findall(r'X\(([A-Z]+), "([a-z]+)"\)', (SRC / "handover/states.h").read_text()))
    found = set()
    for end, state in re.findall(r"^    FACTS?\((SOURCE|DESTINATION), (\w+)", (SRC / "handover/table.c").read_text(), re.M):
        found.add((end.lower(), names[state]))
    return found, set(names.values())


class Points(unittest.TestCase):
    def setUp(self):
        self.points = {(end, name) for end, name, _ in read_points()}

    def test_states(self):
        sides, names = states()
        self.assertGreater(len(sides), len(names))
        missing = {(end, state) for end, state in sides if (end, f"state-{state}") not in self.points}
        missing |= {state for state in names if not any(name == f"state-{state}" for _, name in self.points)}
        self.assertFalse(missing, "states without a fault point in src/common/fault-points.h")

    def test_messages(self):
        messages = re.findall(r'#define RM_MSG_\w+ "([-a-z]+)"', (SRC / "control/message.h").read_text())
        self.assertGreater(len(messages), 20)
        for message in messages:
            for way in ("send", "receive"):
                self.assertTrue([end for end, name in self.points if name == f"{way}-{message}"],
                                f"{way}-{message} is not in src/common/fault-points.h")

    def test_names_used(self):
        known = {name for _, name in self.points}
        used = {name for path in SRC.rglob("*.c")
                for name in re.findall(r'\brm_fault(?:_value|_number|_pause)?\("([-a-z]+)"', path.read_text())}
        self.assertGreater(len(used), 10)
        self.assertFalse(used - known, "not in src/common/fault-points.h")


if __name__ == "__main__":
    unittest.main(verbosity=2)
