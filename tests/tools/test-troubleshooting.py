#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""docs/troubleshooting.md has each reason of src/common/reason.h once, in its order, and says whose the guest is."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OWNERS = ("–", "source", "destination", "not touched", "paused", "as the last line")

reasons = re.findall(r'X\(\w+, "([a-z-]+)"\)', (ROOT / "src/common/reason.h").read_text())
text = (ROOT / "docs/troubleshooting.md").read_text().split("## Reasons")[1].split("\n## ")[0]
rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| ")][2:]
assert len(reasons) > 40, "the enum was not understood"
assert [row[0].strip("| ") for row in rows] == reasons, set(reasons) ^ {row[0].strip("| ") for row in rows} or "the order differs"
for row in rows:
    assert len(row) == 4 and all(row), row
    assert row[1].startswith(OWNERS), row
print(f"{len(rows)} reasons")
sys.exit(0)
