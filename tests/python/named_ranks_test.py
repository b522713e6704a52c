"""A rank that sleeps, dies, or calls another operation at a random step is named.

Some of the trials of benchmarks/tracing/named_ranks.py; RW_TRIALS says how many.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "benchmarks/tracing/named_ranks.py"


def test_ranks_that_do_otherwise_are_named() -> None:
    trials = int(os.environ.get("RW_TRIALS", "20"))
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--trials", str(trials)],
        capture_output=True, text=True, timeout=600 + 5 * trials, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.findall(r"(\w+): (\d+) of (\d+) named rightly", done.stdout)
    assert {kind for kind, _, _ in counts} == {"sleeps", "dies", "differs"}
    assert all(right == tried and int(tried) > 0 for _, right, tried in counts)
    assert sum(int(tried) for _, _, tried in counts) == trials
