#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""A release build has no fault points: it is made here, and neither program has the variable or a point's name in it."""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from points import SRC, read_points

PROGRAMS = "src/source/rdmamig", "src/destination/rdmamigd"


def strings_found(folder):
    wanted = [b"RDMAMIG_FAULT", b"fault point", *sorted({name.encode() for _, name, _ in read_points()})]
    data = b"".join((Path(folder) / program).read_bytes() for program in PROGRAMS)
    return [word.decode() for word in wanted if word in data]


class Release(unittest.TestCase):
    def test_no_names(self):
        with tempfile.TemporaryDirectory(prefix="rdmamig-release-") as folder:
            for command in (["meson", "setup", folder, str(SRC.parent), "--buildtype=release", "-Dman=disabled"],
                            ["ninja", "-C", folder, *PROGRAMS]):
                done = subprocess.run(command, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
            self.assertEqual(strings_found(folder), [])

    def test_they_would_be_found(self):
        build = os.environ.get("RDMAMIG_BUILD", "build")
        if "#define RM_FAULTS 1" not in (Path(build) / "config.h").read_text():
            self.skipTest("this build has no fault points (meson setup -Dfault_points=true)")
        found = strings_found(build)
        self.assertIn("RDMAMIG_FAULT", found)
        self.assertEqual({name for _, name, _ in read_points()} - set(found), set())


if __name__ == "__main__":
    unittest.main(verbosity=2)
