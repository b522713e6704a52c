"""Plans that take long to make: begun with by all ranks at once, waited for, or left behind."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from conftest import Program

# Packing and rings on it take more than a quarter of a second.
FILE = Path(__file__).resolve().parent.parent / "topologies" / "dgx-h100-x2.json"
MACHINE = ("--ranks", "16", "--set", f"TOPOLOGY={FILE}")


@pytest.fixture
def kept(tmp_path: Path) -> dict[str, str]:
    return {"ROPEWALK_TUNING_FILE": str(tmp_path / "tuning.json")}


def test_explain_waits_for_them_unless_a_setting_forbids_it(
    program: Program, kept: dict[str, str]
) -> None:
    ask = ("explain", "all_reduce", "-b", "64M", *MACHINE)
    meanwhile = program(*ask, "--json", "--set", "PLANNING=background", env=kept)
    assert meanwhile.returncode == 0, meanwhile.stderr
    found = json.loads(meanwhile.stdout)
    names = {each["algorithm"] for each in found["candidates"]}
    assert "plan-packed" not in names
    assert found["planning"]["state"] in ("under way", "made")
    assert {"plan-packed", "plan-ring"} <= set(found["planning"]["algorithms"])
    assert found["planning"]["from_call"] is None

    told = program(*ask, "--set", "PLANNING=background", env=kept)
    assert "planning plan-" in told.stdout

    waited = program(*ask, "--json", env=kept)
    assert waited.returncode == 0, waited.stderr
    found = json.loads(waited.stdout)
    assert "plan-packed" in {each["algorithm"] for each in found["candidates"]}
    assert found["planning"] is None
    brief = json.loads(program(*ask, "--json", "--set", "PLANNING=brief", env=kept).stdout)
    assert brief["planning"] is None
    assert names == {each["algorithm"] for each in brief["candidates"]}


@pytest.mark.thorough
def test_processes_begin_with_them_while_the_benchmark_runs(
    program: Program, kept: dict[str, str]
) -> None:
    log = ("--set", "DEBUG=INFO", "--set", "DEBUG_SUBSYS=TUNING")
    flags = ("-b", "256K", "-e", "256K", "-w", "0", "-n", "400", "-N", "4")
    bench = ("bench", "all_reduce", *MACHINE, *flags, *log, "--set", "PLANNING=background")
    done = program(*bench, env=kept)
    assert done.returncode == 0, done.stderr
    assert "Out of bounds values : 0 OK" in done.stdout
    lines = (done.stdout + done.stderr).splitlines()
    begun: dict[str, dict[str, str]] = {}  # calls, by operation and rank
    for line in lines:
        found = re.search(r"rank (\d+): plans for (\w+) from .* in use from call (\d+) on", line)
        if found is not None:
            begun.setdefault(found[2], {})[found[1]] = found[3]
    assert "all_reduce" in begun
    for operation, calls in begun.items():
        assert len(calls) == 16 and len(set(calls.values())) == 1, (operation, calls)


def test_a_program_ends_while_plans_are_made(program: Program, kept: dict[str, str]) -> None:
    flags = ("-b", "8", "-e", "8", "-w", "0", "-n", "1", "-c", "0")
    machine = ("--ranks", "4", "--set", "TOPOLOGY=4x(8gpu nvswitch 8nic)")
    start = time.monotonic()
    done = program(
        "bench", "all_reduce", *machine, *flags, "--set", "PLANNING=background", env=kept
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < 60
