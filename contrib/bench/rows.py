# SPDX-License-Identifier: LGPL-2.1-or-later
"""From single measurements to rows: the one form in which every suite's figures are kept."""
import json
import statistics
import sys

# Every metric that there is, with the digits that are worth printing. The order is that of the tables.
METRICS = {"total_ms": 0, "downtime_ms": 1, "bulk_mib_s": 1, "last_round_mib_s": 1, "cpu_s": 2, "sent_mib": 1, "rounds": 0,
           "registrations": 0, "registration_ms": 1}
FIELDS = ("suite", "case", "subject", "metric", "median", "min", "max", "n")


class Rows:
    """Collects one suite's measurements. Nothing is lost if a run is broken off: all() has what there is."""

    def __init__(self, suite):
        self.suite, self.values = suite, {}

    def add(self, case, subject, figures):
        unknown = set(figures) - set(METRICS)
        if unknown:
            raise ValueError(f"unknown metrics: {', '.join(sorted(unknown))}")
        for metric in METRICS:
            if figures.get(metric) is not None:
                self.values.setdefault((case, subject), {}).setdefault(metric, []).append(figures[metric])

    def all(self):
        rows = []
        for (case, subject), metrics in self.values.items():
            for metric, digits in METRICS.items():
                if values := metrics.get(metric):
                    figures = [round(f(values), digits) for f in (statistics.median, min, max)]
                    figures = [int(figure) if digits == 0 else figure for figure in figures]
                    rows.append(dict(zip(FIELDS, (self.suite, case, subject, metric, *figures, len(values)), strict=True)))
        return rows

    def write(self, path):
        text = "".join(json.dumps(row) + "\n" for row in self.all())
        if path == "-":
            sys.stdout.write(text)
        else:
            with open(path, "w") as file:
                file.write(text)


def read(path):
    """The rows of a file; refuses what isn't one."""
    rows = []
    with open(path) as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
                if tuple(row) != FIELDS or row["metric"] not in METRICS:
                    raise ValueError
            except ValueError:
                sys.exit(f"bench: {path}, line {number}: not a row (a JSON object of {', '.join(FIELDS)})") 
            rows.append(row)
    return rows
