#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""contrib/bench.sh with a guest too small to tell anything: that it measures, and what it makes of that."""
import json
import subprocess
import sys

import lib

BENCH = lib.ROOT / "contrib/bench.sh"
FIELDS = ["suite", "case", "subject", "metric", "median", "min", "max", "n"]


class Bench(lib.Case):
    def bench(self, *words, expect=0):
        done = subprocess.run(list(map(str, [BENCH, *words])), capture_output=True, text=True, timeout=2 * lib.PATIENCE,
                              env={**self.env, "RDMAMIG_BUILD": str(lib.BUILD)})
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def check_row(self, row):
        self.assertEqual(list(row), FIELDS)
        self.assertLessEqual(row["min"], row["median"])
        self.assertLessEqual(row["median"], row["max"])
        self.assertEqual((row["suite"], row["n"]), ("peers-tcp", 1))

    def test_peers_tcp(self):
        lib.qemu_command("10.0")
        path, docs = self.folder / "rows.json", self.folder / "benchmarks.md"
        self.bench("peers-tcp", "--json", path, "--repeat", 1, "--memory", 64, "--dirtied", 2, "--downtime-limit", 2000)
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            self.check_row(row)
        metrics = {}
        for row in rows:
            metrics.setdefault((row["case"], row["subject"]), {})[row["metric"]] = row["median"]
        self.assertEqual(set(metrics), {(case, subject) for case in ("stopped", "dirtying")
                                        for subject in ("ours", "ours tls", "qemu-10.0 tcp", "qemu-10.0 multifd")})
        for (case, subject), figures in metrics.items():
            # Alike for all, but for the times that a stopped guest has not.
            wanted = {"total_ms", "bulk_mib_s", "cpu_s", "sent_mib", "rounds"}
            wanted |= {"downtime_ms", "last_round_mib_s"} if case == "dirtying" else set()
            wanted |= {"registrations", "registration_ms"} if subject == "ours" else set()
            self.assertLessEqual(wanted, set(figures), f"{case} {subject}")
            self.assertLess(61, figures["sent_mib"], f"{case} {subject}")
            self.assertLess(0, figures["bulk_mib_s"], f"{case} {subject}")
            if case == "dirtying":
                self.assertLess(0, figures["downtime_ms"], subject)
                self.assertLess(figures["downtime_ms"], figures["total_ms"], subject)
                self.assertLess(0, figures["last_round_mib_s"], subject)
            else:
                self.assertNotIn("downtime_ms", figures)
        self.report(path, docs, rows)

    def report(self, path, docs, rows):
        """The tables are put between the marks, once however often, and nothing else is touched."""
        around = ["before\n<!-- bench peers-tcp -->\n", "<!-- bench end -->\nafter <!-- bench other -->\n"]
        docs.write_text("old\n".join(around))
        self.bench("report", "--docs", docs, path)
        once = docs.read_text()
        self.bench("report", "--docs", docs, path)
        self.assertEqual(docs.read_text(), once)
        self.assertTrue(once.startswith(around[0]) and once.endswith(around[1]), once)
        self.assertNotIn("old", once)
        self.assertEqual(once.count("\n| ours ") + once.count("\n| qemu-"), len(rows))

    def test_report_refuses(self):
        """What isn't rows, and pages without a place for them."""
        path, docs = self.folder / "rows.json", self.folder / "benchmarks.md"
        docs.write_text("no place\n")
        row = dict(zip(FIELDS, ("peers-tcp", "stopped", "ours", "total_ms", 1, 1, 1, 1)))
        path.write_text(json.dumps(row) + "\n")
        self.assertIn("no place for peers-tcp", self.bench("report", "--docs", docs, path, expect=1))
        path.write_text(json.dumps(row) + "\n" + json.dumps({**row, "metric": "beauty"}) + "\n")
        self.assertIn("line 2: not a row", self.bench("report", "--docs", docs, path, expect=1))
        self.assertEqual(docs.read_text(), "no place\n")

    def test_documentation_has_places(self):
        """Each suite has its place in docs/benchmarks.md."""
        text = (lib.ROOT / "docs/benchmarks.md").read_text()
        sys.path.insert(0, str(lib.ROOT / "contrib/bench"))
        import suites
        for name in suites.NAMES:
            self.assertEqual(text.count(f"<!-- bench {name} -->\n"), 1, name)


if __name__ == "__main__":
    sys.exit(lib.run())
