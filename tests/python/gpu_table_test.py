"""benchmarks/gpu_table and benchmarks/overlap without a GPU: by a stand-in for nccl_loop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "benchmarks" / "gpu_table" / "run"
OVERLAP = ROOT / "benchmarks" / "overlap" / "run"

# NCCL's all-reduces take 20 us, Ropewalk's 10, but for denied pairs 12; a broadcast is wrong.
LOOP = """#!/usr/bin/env python3
import os, sys
library = sys.argv[1]
print("0.5 22809", flush=True)
for line in sys.stdin:
    operation, size, launch, count = line.split()
    time = 20.0 if library.endswith("nccl") else 10.0
    if os.environ.get("ROPEWALK_PEER_ACCESS_DENY"):
        time = 12.0
    if operation == "reduce" and "nccl" not in library:
        print("error no such thing", flush=True)
        sys.exit(1)
    wrong = 3 if operation == "broadcast" and "nccl" not in library else 0
    print(f"{time} {wrong}", flush=True)
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder with stand-ins: four GPUs, two libraries, and what loads them."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nfor i in 1 2 3 4; do echo GPU, 580; done\n")
    (tmp_path / "nccl_loop").write_text(LOOP)
    for name in ("nvidia-smi", "nccl_loop"):
        (tmp_path / name).chmod(0o755)
    for name in ("lib_nccl", "lib_own"):
        (tmp_path / name).touch()
    return tmp_path


def table(folder: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(TABLE), "--nccl", str(folder / "lib_nccl"), "--ropewalk"]
        + [str(folder / "lib_own"), "--programs", str(folder), "--rounds", "1"]
        + ["--json", str(folder / "out.json"), *arguments],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads((folder / "out.json").read_text())


def test_rows_are_measured_and_judged(machine: Path) -> None:
    text, whole = table(machine, "--rows", "graph,denied,others")
    by_case = {(r["row"], r["operation"], r["size"]): r for r in whole["results"]}
    graph = by_case["by graph", "all_reduce", 8]
    assert (graph["nccl"]["time_us"], graph["ropewalk"]["time_us"]) == (20.0, 10.0)
    assert (graph["ratio"], graph["aim"], graph["met"]) == (2.0, "3 us", False)
    others = by_case["all others from 8 MiB on", "all_gather", 8 << 20]
    assert (others["met"], others["aim"]) == (True, "1.05 x")
    assert round(others["ropewalk"]["busbw_GBs"], 1) == round(8 * 1.048576e6 / 10e3 * 0.75, 1)
    wrong = by_case["all others from 8 MiB on", "broadcast", 8 << 20]
    assert wrong["ropewalk"] == {"error": "3 wrong elements"}
    assert wrong["met"] is None
    lost = by_case["all others from 8 MiB on", "reduce", 8 << 20]
    assert "no such thing" in lost["ropewalk"]["error"]
    denied = next(r for r in whole["results"] if r["row"].startswith("ring beside"))
    assert round(denied["ratio"], 3) == round(10 / 12, 3)
    assert denied["met"] is False
    assert "MISSED" in text


def test_a_machine_with_too_few_gpus_says_so(machine: Path) -> None:
    (machine / "nvidia-smi").write_text("#!/bin/sh\necho GPU, 580\n")
    text, whole = table(machine)
    assert "by graph: not measured: needs 4 GPUs, 1 are here" in text
    assert "matrix product: not measured: needs 2 GPUs, 1 are here" in text
    assert all("not_measured" in result for result in whole["results"])


def test_dry_runs_need_nothing() -> None:
    for program, named in ((TABLE, "PEER_ACCESS_DENY"), (OVERLAP, "at most 4 blocks")):
        done = subprocess.run(
            [sys.executable, str(program), "--dry-run"], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert named in done.stdout


def test_slow_downs_are_of_medians() -> None:
    sys.path.insert(0, str(OVERLAP.parent))
    try:
        import overlap  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    counts = overlap.counts_for({"product_s": 1e-3, "collective_s": 5e-4}, 0.1)
    assert counts == {"products": 100, "collectives": 200}
    rounds = [
        {
            "product_alone_s": 1e-3,
            "product_beside_s": beside,
            "collective_alone_s": 5e-4,
            "collective_beside_s": 1e-3,
            "together_s": 0.12,
            "wrong": 0,
        }
        for beside in (1.1e-3, 9e-3, 1.2e-3)
    ]
    found = overlap.figures(rounds, counts)
    assert round(found["product_slowdown"], 3) == 1.2
    assert round(found["collective_slowdown"], 3) == 2.0
    assert round(found["together_over_longer"], 3) == 1.2
    rows = [{"blocks": 0, "libraries": {"nccl": found, "ropewalk": {"error": "gone"}}}]
    assert "gone" in overlap.text(rows, ["heading"])
    assert "by copy engines: not measured" in overlap.text(rows, ["heading"])


@pytest.mark.parametrize(("beside", "verdict"), [(1.02e-3, "2.0%"), (1.05e-3, "MISSED")])
def test_what_copies_leave_to_a_product_is_judged(beside: float, verdict: str) -> None:
    sys.path.insert(0, str(OVERLAP.parent))
    try:
        import overlap
    finally:
        sys.path.pop(0)
    one = {
        "product_alone_s": 1e-3,
        "product_beside_s": beside,
        "collective_alone_s": 5e-4,
        "collective_beside_s": 5e-4,
        "together_s": 0.12,
        "wrong": 0,
    }
    found = overlap.figures([one], {"products": 100, "collectives": 200})
    work = vars(overlap.COPIED)
    rows = [
        {"carrier": carrier, "work": work, "libraries": {"ropewalk": found}}
        for carrier in overlap.CARRIERS
    ]
    text = overlap.text([], [], rows)
    assert "all_gather of 128 MiB" in text
    assert verdict in text
    assert text.count("the product loses") == 1
