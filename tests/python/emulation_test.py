"""Emulated machines: right data over slowed links, the messages about them, and refused input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DEADLINE_SECONDS, Program
from running import free_port, rows

MACHINES = Path(__file__).resolve().parent.parent / "topologies"


def bench(program: Program, *arguments: str) -> list[list[str]]:
    done = program("bench", *arguments)
    assert "# Out of bounds values : 0 OK" in done.stdout, done.stdout + done.stderr
    return rows(done.stdout)


@pytest.mark.parametrize(
    "operation",
    ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "sendrecv"],
)
def test_results_are_right(program: Program, operation: str) -> None:
    lines = bench(
        program, operation, "--emulate", "dgx1v", "--gpus", "0,1,4", "--slowdown", "20",
        "-b", "8", "-e", "1M", "-f", "512", "-n", "1", "-w", "0", "-d", "int32",
    )  # fmt: skip
    assert len(lines) >= 2


@pytest.mark.parametrize("gpus", ["0,1,2,6", "0,1,2,4,7"])
def test_all_reduces_with_lagging_broadcasts_are_right(program: Program, gpus: str) -> None:
    chosen = "all_reduce=plan-optimal-hybrid"
    lines = bench(
        program, "all_reduce", "--emulate", "dgx1v", "--gpus", gpus, "--slowdown", "20",
        "-b", "8", "-e", "8M", "-f", "1024", "-n", "1", "-w", "0", "-d", "int32",
        "--set", f"ALGORITHM={chosen}", "--set", "SLOT_BYTES=16384",
    )  # fmt: skip
    assert len(lines) >= 2


def test_ranks_may_be_threads_and_their_data_may_repeat(program: Program) -> None:
    lines = bench(
        program, "all_reduce", "--emulate", "dgx1v", "--gpus", "0,1,4", "-t", "3", "--slowdown",
        "20", "-b", "64K", "-e", "1M", "-f", "16", "-n", "1", "-w", "0", "--period", "64K",
    )  # fmt: skip
    assert len(lines) == 2
    assert "N/A" in lines[-1]  # nothing in place
    for arguments, message in (
        (("-t", "2"), "3 GPUs are no multiple of 2 ranks"),
        (("--period", "1000"), "--period 1000: must be a multiple of 64K"),
    ):
        done = program(
            "bench", "all_reduce", "--emulate", "dgx1v", "--gpus", "0,1,4", *arguments, check=False
        )
        assert done.returncode == 2
        assert message in done.stderr
    done = program("bench", "all_gather", "--period", "64K", "--ranks", "2", check=False)
    assert done.returncode == 2
    assert "--period 64K: is for all_reduce, broadcast, reduce" in done.stderr


def test_the_table_and_the_json_say_so(program: Program, tmp_path: Path) -> None:
    report = tmp_path / "run.json"
    done = program(
        "bench", "broadcast", "--emulate", str(MACHINES / "dgx1p.json"), "--gpus", "2,0",
        "--slowdown", "100", "-b", "1M", "-e", "1M", "-n", "1", "-J", str(report),
    )  # fmt: skip
    assert "# Emulated: dgx1p, links slowed 100 times." in done.stdout
    assert "gpu2 of dgx1p, emulated" in done.stdout
    found = json.loads(report.read_text())
    assert found["emulation"] == {"machine": "dgx1p", "gpus": ["gpu2", "gpu0"], "slowdown": 100.0}
    # One lane and a tenth more by PCIe at most: what this host does would be ten times as fast.
    assert 0 < found["results"][0]["out_of_place"]["alg_bw"] < 50


def ranks(count: int, script: str, **environment: str) -> list[str]:
    """What processes print that run a script as the ranks of one job; none may fail."""
    port = str(free_port())
    job = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, **job, "RANK": str(rank), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    said = []
    try:
        for process in started:
            output, errors = process.communicate(timeout=DEADLINE_SECONDS)
            assert process.returncode == 0, errors
            said.append(output.strip())
    finally:
        for process in started:
            process.kill()
    return said


def test_the_settings_serve_any_program() -> None:
    script = """
import numpy as np
import ropewalk
with ropewalk.init() as comm:
    print(comm.emulation["gpus"][comm.rank], comm.all_reduce(np.float64(comm.rank + 1)))
"""
    said = ranks(
        3,
        script,
        ROPEWALK_EMULATE="dgx1v",
        ROPEWALK_EMULATE_GPUS="5,1,0",
        ROPEWALK_EMULATE_SLOWDOWN="10",
    )
    assert said == ["gpu5 6.0", "gpu1 6.0", "gpu0 6.0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--emulate", "dgx9"), 'unknown word "dgx9"'),
        (("--emulate", "nowhere.json"), "nowhere.json: no such file"),
        (("--emulate", "dgx1v", "--gpus", "0,8"), "there is no GPU 8"),
        (("--emulate", "dgx1v", "--gpus", "0,1", "--ranks", "3"), "--gpus lists 2"),
        (("--emulate", "dgx1v", "--ranks", "9"), "--ranks 9: dgx1v has 8 GPUs"),
        (("--emulate", "dgx1v", "--slowdown", "0"), "--slowdown 0: must be"),
        (("--emulate", "2cpu"), "has no GPU"),
        (("--gpus", "0,1"), "--gpus 0,1: belongs to --emulate"),
        (("--emulate", "dgx1v", "--device", "cuda"), "--emulate runs on host memory"),
    ],
)
def test_what_is_refused(program: Program, arguments: tuple[str, ...], message: str) -> None:
    done = program("bench", "all_reduce", *arguments, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_ranks_of_different_machines_get_an_error() -> None:
    script = """
import os, ropewalk
ropewalk.settings.set("EMULATE", "dgx1v" if os.environ["RANK"] == "1" else "dgx1p")
try:
    ropewalk.init()
except ropewalk.Error as error:  # the other one's, where that was told first
    print(error)
"""
    said = ranks(2, script)
    assert all("EMULATE" in line and "differ" in line for line in said), said
