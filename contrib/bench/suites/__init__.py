# SPDX-License-Identifier: LGPL-2.1-or-later
"""The suites of contrib/bench.sh, one module each.

A module has
  NAME, SUMMARY    what `bench.sh NAME` is, in a line
  CASES            names, in the order in which they're run
  IN_VM            whether it needs an RDMA device, and so the VM of tests/vm on a host that has none
  add_arguments(parser)   options of its own, all with defaults
  subjects(options)       [Subject]: what is measured
  warm_up(options)        what makes the first subject's first run like all others; not measured
  describe(options)       one line for the head of its table: the guest and all else that the figures depend on
"""
import collections
import importlib

# `measure(case)` runs it once and returns {metric: number}; metrics that it can't tell are left out. `cases` is a part
# of the suite's CASES.
Subject = collections.namedtuple("Subject", "name cases measure")

NAMES = ["peers-rdma", "peers-tcp"]


def load(name):
    return importlib.import_module(f"suites.{name.replace('-', '_')}")
