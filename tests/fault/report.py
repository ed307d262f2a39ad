#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Puts the counts of a run of test-matrix.py into README.md, in place of the old ones: report.py RESULTS, where RESULTS is the
file that RDMAMIG_FAULT_RESULTS named. Of a case that ran several times on one QEMU, the last counts."""
import json
import sys
from collections import Counter
from pathlib import Path

from points import MESSAGES, matrix, read_points

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- counts -->\n", "<!-- counts end -->\n"
KINDS = {"STATE": "states", "SEND": "messages sent", "RECEIVE": "messages received", "PLACE": "places in between"}


def table(head, rows):
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (head, ["---"] * len(head), *rows)) + "\n"


def points():
    """How many points there are, and cases of each action."""
    kinds = {(end, name): kind for end, name, kind in read_points()}
    rows = []
    for end in ("source", "destination"):
        for kind, words in KINDS.items():
            cases = [action for case_end, name, action in matrix() if case_end == end and kinds[end, name] == kind]
            counts = Counter(cases)
            rows.append([end, words, counts["kill"], *(counts[action] or "–" for action in MESSAGES), len(cases)])
    total = Counter(action for _, _, action in matrix())
    rows.append(["both", "all", total["kill"], *(total[action] for action in MESSAGES), len(matrix())])
    return table(["end", "points", "how many", *MESSAGES, "cases"], rows)


def outcomes(results):
    versions = sorted({version for *_, version in results}, key=float)
    names = sorted({outcome for outcome in results.values()}, key=lambda name: (name == "FAILED", name))
    tried = [[version, sum(key[3] == version for key in results)] for version in versions]
    counts = Counter((key[3], outcome) for key, outcome in results.items())
    rows = [[name, *(counts[version, name] for version in versions)] for name in names]
    return table(["outcome", *(f"QEMU {version}" for version in versions)],
                 [*rows, ["cases tried", *(count for _, count in tried)]])


def main():
    results = {}
    for line in Path(sys.argv[1]).read_text().splitlines():
        end, point, action, outcome, version = json.loads(line)
        results[end, point, action, version] = outcome
    before, rest = README.read_text().split(BEGIN)
    after = rest.split(END)[1]
    text = "\n".join([points(), outcomes(results)])
    README.write_text(before + BEGIN + "\n" + text + "\n" + END + after)
    missing = set(matrix()) - {key[:3] for key in results}
    print(f"{len(results)} results; {len(missing)} cases on no QEMU: {sorted(' '.join(case) for case in missing)}")


if __name__ == "__main__":
    main()
