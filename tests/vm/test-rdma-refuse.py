#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs refusals.py over rdma (inside.py says where).

    tests/vm/test-rdma-refuse.py [NAME-OR-PART-OF-IT]...
"""
import sys

import inside

if __name__ == "__main__":
    sys.exit(inside.run("refusals.py", 1140))
