# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs a suite, or puts the figures of some into the documentation; see contrib/bench.sh, which starts it."""
import argparse
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/vm"))

import report  # noqa: E402
import suites  # noqa: E402
from rows import Rows  # noqa: E402

SAMPLE = "sample: "  # begins a line of output from inside the VM: JSON behind it


def wanted(options, suite):
    return [case for case in suite.CASES if not options.case or case in options.case]


def measure(suite, options, add):
    """All subjects in turn, as often as wished, so that whatever else the machine does hits all of them alike."""
    subjects = suite.subjects(options)
    suite.warm_up(options)
    for number in range(options.repeat):
        for case in wanted(options, suite):
            for subject in subjects:
                if case not in subject.cases or options.subject and subject.name not in options.subject:
                    continue
                print(f"bench: {number + 1}/{options.repeat} {case}: {subject.name}", file=sys.stderr, flush=True)
                add(case, subject.name, subject.measure(case))


def measure_in_vm(suite, options, add):
    """The same, in the VM of tests/vm: this program runs there again, and says what it measures line by line."""
    import vm as harness
    with harness.Vm(memory=options.vm_memory, virtual_time=options.virtual_time) as vm:
        print(f"bench: VM up after {vm.boot_seconds:.1f} s, Linux {vm.kernel.version}", file=sys.stderr, flush=True)
        rest = b""

        def sink(data):
            nonlocal rest
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                text = line.decode(errors="replace")
                if text.startswith(SAMPLE):
                    add(*json.loads(text.removeprefix(SAMPLE)))
                else:
                    print(text, file=sys.stderr, flush=True)
        environment = {"RDMAMIG_TEST_ADDRESS": vm.address, "RDMAMIG_TEST_DEVICE": "rxe0",
                       "RDMAMIG_TEST_PATIENCE": os.environ.get("RDMAMIG_TEST_PATIENCE", "3"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, *sys.argv, "--inside"]
        status = vm.run(command, env=environment, timeout=options.timeout, sink=sink)[0]
        if status != 0:
            raise SystemExit(f"bench: failed in the VM ({status}); see above")


def run(suite, options):
    if options.inside:
        def say(*sample):
            print(SAMPLE + json.dumps(sample), flush=True)
        return measure(suite, options, say)
    rows = Rows(suite.NAME)

    def add(case, subject, figures):
        rows.add(case, subject, figures)
        print("bench:   " + ", ".join(f"{metric} {value:.1f}" for metric, value in figures.items() if value is not None),
              file=sys.stderr, flush=True)
    print(f"bench: {suite.NAME}: {suite.describe(options)}", file=sys.stderr)
    try:
        native = not suite.IN_VM or "RDMAMIG_TEST_DEVICE" in os.environ
        (measure if native else measure_in_vm)(suite, options, add)
    finally:
        rows.write(options.json)
    report.print_tables(rows.all())


def parse():
    parser = argparse.ArgumentParser(prog="bench.sh", description=__doc__)
    commands = parser.add_subparsers(dest="suite", required=True, metavar="SUITE")
    for name in suites.NAMES:
        suite = suites.load(name)
        command = commands.add_parser(name, help=suite.SUMMARY, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        command.add_argument("--json", required=True, metavar="FILE", help="where the rows go; - is standard output")
        command.add_argument("--repeat", type=int, default=3, metavar="N")
        command.add_argument("--case", action="append", choices=suite.CASES, help="only this one; repeatable")
        command.add_argument("--subject", action="append", help="only this one; repeatable")
        command.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
        if suite.IN_VM:
            command.add_argument("--vm-memory", type=int, default=3072, metavar="MIB")
            command.add_argument("--virtual-time", action="store_true", help="count the VM's instructions instead of time: "
                                 "tells where work is done, on a busy host too, and nothing of what is done at the same time")
            command.add_argument("--timeout", type=int, default=7200, metavar="S", help="of all that runs in the VM")
        suite.add_arguments(command)
    command = commands.add_parser("report", help="put the rows of these files into docs/benchmarks.md")
    command.add_argument("--docs", type=Path, default=ROOT / "docs/benchmarks.md", metavar="FILE")
    command.add_argument("files", nargs="+", metavar="FILE")
    return parser.parse_args()


def main():
    options = parse()
    if options.suite == "report":
        return report.update(options.docs, options.files)
    return run(suites.load(options.suite), options)


if __name__ == "__main__":
    sys.exit(main())
