# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rows as tables: for the terminal, and in the documentation between the two marks of their suite."""
import re
import sys

import rows as rows_of

MARKS = "<!-- bench {} -->", "<!-- bench end -->"


def tables(rows):
    """One table for each case, a line for each subject and metric."""
    text = []
    for case in dict.fromkeys(row["case"] for row in rows):
        text += [f"### {case}", "", "| subject | metric | median | min | max | n |", "| --- | --- | --- | --- | --- | --- |"]
        for row in rows:
            if row["case"] == case:
                figures = [f"{row[name]:.{rows_of.METRICS[row['metric']]}f}" for name in ("median", "min", "max")]
                text.append(f"| {row['subject']} | {row['metric']} | {' | '.join(figures)} | {row['n']} |")
        text.append("")
    return "\n".join(text)


def print_tables(rows):
    print(tables(rows), file=sys.stderr)


def update(docs, files):
    """Replaces what is between the marks of each suite that these files have rows of; the rest of `docs` is as it was."""
    rows = [row for path in files for row in rows_of.read(path)]
    text = docs.read_text()
    for suite in dict.fromkeys(row["suite"] for row in rows):
        begin, end = MARKS[0].format(suite), MARKS[1]
        pattern = re.compile(rf"{re.escape(begin)}\n.*?{re.escape(end)}\n", re.S)
        if len(pattern.findall(text)) != 1:
            sys.exit(f"bench: {docs}: no place for {suite}: it needs the lines {begin} and {end}, once")
        block = f"{begin}\n\n{tables([row for row in rows if row['suite'] == suite])}\n{end}\n"
        text = pattern.sub(lambda _: block, text)
    docs.write_text(text)
    return 0
