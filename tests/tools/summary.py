#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sums up a run of `meson test`: counts test cases, not programs, where a program speaks TAP.

    summary.py STATUS-OF-MESON TESTLOG.JSON...

With several logs each program's name begins with that of its build folder. Prints the output of each case that failed, then what failed, what was skipped and why, and at last "N passed, N failed,
N skipped". Exits 0 only if something passed, nothing failed, and meson says the same."""
import json
import pathlib
import re
import sys

RESULT = re.compile(r"^(not ok|ok)\b *(\d*)[ -]*(.*?)(?: *# *(SKIP|TODO)\b[ :]*(.*))?$", re.IGNORECASE)
GOOD = ("OK", "EXPECTEDFAIL")
SHOWN = 100  # lines of output for each failure: what is printed here may be all that is kept of a run


def cases(test):
    """The (verdict, name, reason, output) of each case of one program; empty if it does not speak TAP. Its output is what
    the program said since the case before."""
    output = test.get("stdout") or ""
    if not re.search(r"^(TAP version|1\.\.\d)", output, re.MULTILINE):
        return []
    if plan := re.search(r"^1\.\.0 *# *SKIP\b *(.*)$", output, re.MULTILINE | re.IGNORECASE):
        return [("skipped", test["name"], plan.group(1), [])]
    found, said = [], []
    for line in output.splitlines():
        said.append(line)
        if match := RESULT.match(line):
            verdict, number, name, directive, reason = match.groups()
            skipped = (directive or "").upper() == "SKIP"
            found.append(("skipped" if skipped else "passed" if verdict == "ok" else "failed",
                          f"{test['name']}: {name or number}", reason or "", said))
            said = []
    return found


def show(title, lines):
    if lines:
        print(f"---- {title}{f', the last {SHOWN} of {len(lines)} lines' if len(lines) > SHOWN else ''}")
        print("\n".join(lines[-SHOWN:]))


def show_failures(test, found):
    """The output of a program's failed cases, or all of it where it belongs to none; and its standard error."""
    failed = [(name, output) for verdict, name, _, output in found if verdict == "failed"]
    for name, output in failed:
        show(name, output or (test.get("stdout") or "").splitlines())
    if failed:
        show(f"{test['name']}: standard error", (test.get("stderr") or "").splitlines())


def tests(paths):
    """All programs of all logs; a log that is not there counts as a failure, since somebody expected it."""
    for path in paths:
        folder = pathlib.Path(path).absolute().parent.parent.name
        try:
            lines = open(path).read().splitlines()
        except OSError as error:
            lines = [json.dumps({"name": "no test ran", "result": "ERROR", "stdout": str(error)})]
        for test in map(json.loads, lines):
            yield {**test, "name": f"{folder}: {test['name']}"} if len(paths) > 1 else test


def main(meson_status, *paths):
    summary = []
    totals = {"passed": 0, "failed": 0, "skipped": 0}
    for test in tests(paths):
        found = cases(test)
        if not found:
            verdict = "passed" if test["result"] in GOOD else "skipped" if test["result"] == "SKIP" else "failed"
            reason = "" if verdict == "passed" else ((test.get("stdout") or "").strip().splitlines() or [""])[-1]
            found = [(verdict, test["name"], reason, [])]
        elif test["result"] not in (*GOOD, "SKIP") and not any(case[0] == "failed" for case in found):
            # Every case that reported was good, but the program was not: it crashed, hung, or left cases out.
            found.append(("failed", test["name"], f"{test['result']}, exit status {test.get('returncode')}", []))
        show_failures(test, found)
        for verdict, name, reason, _ in found:
            totals[verdict] += 1
            if verdict != "passed":
                summary.append(f"{verdict}: {name}{': ' if reason else ''}{reason}")
    print("".join(f"{line}\n" for line in summary), end="")
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**totals))
    return int(totals["failed"] > 0 or totals["passed"] == 0 or meson_status != "0")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
