#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs cases.py over rdma (inside.py says where).

    tests/vm/test-rdma-migrate.py [NAME-OR-PART-OF-IT]...
"""
import os
import sys

import inside

if __name__ == "__main__":
    sys.exit(inside.run("cases.py", 2340 if "RDMAMIG_TEST_FULL" in os.environ else 1140))
