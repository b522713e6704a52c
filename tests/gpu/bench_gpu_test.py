"""`ropewalk bench` on GPUs: every operation is right, by stream and by graph."""

from __future__ import annotations

import subprocess
import sys

import pytest
from gpu_support import DEADLINE_SECONDS, need_gpus
from ropewalk.cli.bench_plan import OPERATIONS

need_gpus(2)


def bench(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk", "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("flags", [[], ["--graph"]], ids=["stream", "graph"])
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_bench(operation: str, flags: list[str]) -> None:
    said = bench(operation, "--device", "cuda", "-b", "64", "-e", "4M", "-f", "16", *flags)
    assert "# Out of bounds values : 0 OK" in said
    assert "host memory" not in said


def test_all_types_and_operators() -> None:
    said = bench("all_reduce", "-b", "4K", "-e", "4K", "-n", "2", "-d", "all", "-o", "all")
    assert "# Out of bounds values : 0 OK" in said


def test_every_root() -> None:
    for operation in ("broadcast", "reduce", "gather", "scatter"):
        assert ": 0 OK" in bench(operation, "-b", "64K", "-e", "64K", "-r", "-1", "-n", "2")
