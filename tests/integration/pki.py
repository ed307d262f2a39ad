# SPDX-License-Identifier: LGPL-2.1-or-later
"""Certificates for tests and benchmarks, made by contrib/make-certs.sh."""
import subprocess

from lib import ROOT

TOOL = ROOT / "contrib/make-certs.sh"


def make_certs(*words):
    subprocess.run([TOOL, *map(str, words)], check=True, capture_output=True, text=True)
