"""`ropewalk bench` on GPUs: every operation is right, by stream and by graph."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_support import DEADLINE_SECONDS, need_gpus, num_gpus
from ropewalk.cli.bench_plan import OPERATIONS

need_gpus(2)


def ropewalk(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def bench(*arguments: str) -> str:
    return ropewalk("bench", *arguments)


@pytest.mark.parametrize("flags", [[], ["--graph"]], ids=["stream", "graph"])
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_bench(operation: str, flags: list[str]) -> None:
    said = bench(operation, "--device", "cuda", "-b", "64", "-e", "4M", "-f", "16", *flags)
    assert "# Out of bounds values : 0 OK" in said
    assert "host memory" not in said


@pytest.mark.parametrize("flags", [[], ["--graph"]], ids=["stream", "graph"])
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_registered_buffers(operation: str, flags: list[str]) -> None:
    said = bench(operation, "-R", "2", "-b", "64", "-e", "64M", "-f", "32", "-n", "3", *flags)
    assert "# Out of bounds values : 0 OK" in said
    assert "host memory" not in said


def test_all_types_and_operators() -> None:
    said = bench("all_reduce", "-b", "4K", "-e", "4K", "-n", "2", "-d", "all", "-o", "all")
    assert "# Out of bounds values : 0 OK" in said


def test_every_root() -> None:
    for operation in ("broadcast", "reduce", "gather", "scatter"):
        assert ": 0 OK" in bench(operation, "-b", "64K", "-e", "64K", "-r", "-1", "-n", "2")


def test_nothing_at_all() -> None:
    # 8 bytes for two ranks are no whole element for each.
    for operation in ("all_to_all", "all_reduce"):
        assert ": 0 OK" in bench(operation, "--device", "cuda", "-b", "1", "-e", "8", "-f", "8")


@pytest.mark.parametrize("algorithm", ["ring", "double_binary_tree"])
def test_a_given_schedule(algorithm: str, tmp_path: Path) -> None:
    ranks = str(num_gpus())
    file = tmp_path / "schedule.txt"
    text = ropewalk("schedule", "make", "all_reduce", "--ranks", ranks, "--algorithm", algorithm)
    file.write_text(text)
    said = bench("--schedule", str(file), "--device", "cuda", "-b", "8", "-e", "16M", "-f", "64")
    assert "# Out of bounds values : 0 OK" in said
    assert "NVIDIA" in said


def test_microbench() -> None:
    said = ropewalk("microbench", "chain", "--ranks", "2", "--device", "cuda", "--json")
    results = json.loads(said)
    assert {result["test"] for result in results} == {
        "forward",
        "reduce-forward",
        "reduce-broadcast",
    }
    assert all(result["wrong"] == 0 for result in results)
