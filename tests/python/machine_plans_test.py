"""If TOPOLOGY names the machine, its plans run by default, and compute the right results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ropewalk
from conftest import Program, run_ranks
from ropewalk import settings
from ropewalk.communicator import Communicator
from thorough import thorough_but

MACHINES = Path(__file__).resolve().parent.parent / "topologies"
PLANNED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
PLANS = ("plan-optimal", "plan-packed", "plan-ring", "plan-optimal-hybrid", "plan-ring-hybrid")
COUNT = 100_003  # prime, so that shares are uneven


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[None]:
    settings.set("TUNING_FILE", str(tmp_path / "tuning.json"))
    settings.set("TOPOLOGY", str(MACHINES / "dgx1v.json"))
    yield
    for name, value in (("TUNING_FILE", ""), ("TOPOLOGY", ""), ("ALGORITHM", "auto")):
        settings.set(name, value)


@pytest.mark.parametrize("operation", thorough_but(PLANNED, "all_reduce"))
@pytest.mark.parametrize("datatype", ["int32", "float"])
def test_the_benchmark_finds_no_wrong_value(
    program: Program, tmp_path: Path, operation: str, datatype: str
) -> None:
    flags = ["-b", "4K", "-e", "16M", "-f", "4096", "-n", "1", "-w", "0", "-d", datatype]
    chosen = ["--set", "TOPOLOGY=dgx1v", "--set", "DEBUG=INFO", "--set", "DEBUG_SUBSYS=TUNING"]
    kept = {"ROPEWALK_TUNING_FILE": str(tmp_path / "tuning.json")}
    done = program("bench", operation, "--ranks", "8", *flags, *chosen, env=kept)
    assert done.returncode == 0, done.stderr
    assert "Out of bounds values : 0 OK" in done.stdout
    assert f"{operation} of" in done.stderr + done.stdout
    assert "8 ranks: plan-" in done.stderr + done.stdout
    assert list((tmp_path / "plans").glob(f"*-{operation}-0-*.json"))


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.usefixtures("machine")
def test_every_plan_that_a_setting_names_computes_its_operation(plan: str) -> None:
    settings.set("ALGORITHM", plan)
    comms = ropewalk.init_all(8)
    root = 5
    inputs = [np.arange(COUNT, dtype=np.int64) * (rank + 1) + rank for rank in range(8)]
    total = np.sum(inputs, axis=0)
    share = COUNT // 8

    def body(comm: Communicator) -> None:
        mine = inputs[comm.rank]
        assert comm.explain("all_reduce", 8)["chosen"] == plan
        found = mine.copy()
        comm.all_reduce(found)
        assert np.array_equal(found, total)
        out = np.zeros_like(mine)
        comm.all_reduce(mine, out=out)
        assert np.array_equal(out, total)
        found = inputs[root].copy() if comm.rank == root else np.zeros_like(mine)
        comm.broadcast(found, root=root)
        assert np.array_equal(found, inputs[root])
        found = mine.copy()
        comm.reduce(found, root=root)
        assert comm.rank != root or np.array_equal(found, total)
        gathered = np.zeros(COUNT * 8, dtype=np.int64)
        comm.all_gather(mine, out=gathered)
        assert np.array_equal(gathered, np.concatenate(inputs))
        out = np.zeros(share, dtype=np.int64)
        comm.reduce_scatter(mine[: share * 8].copy(), out=out)
        assert np.array_equal(out, total[comm.rank * share : (comm.rank + 1) * share])

    try:
        run_ranks(comms, body)
    finally:
        for comm in comms:
            comm.abort()


@pytest.mark.usefixtures("machine")
def test_a_plan_that_there_is_not_leaves_the_communicator_whole() -> None:
    settings.set("ALGORITHM", "all_reduce=plan-three-phase")
    comms = ropewalk.init_all(8)

    def body(comm: Communicator) -> None:
        values = np.ones(4, dtype=np.int64)
        with pytest.raises(ropewalk.ArgumentError, match="three-phase: all GPUs are on one host"):
            comm.all_reduce(values)
        comm.broadcast(values)

    try:
        run_ranks(comms, body)
    finally:
        for comm in comms:
            comm.abort()


def test_without_a_machine_a_plan_is_refused_with_what_is_missing(program: Program) -> None:
    done = program("explain", "all_reduce", "--set", "ALGORITHM=all_reduce=plan-packed")
    assert done.returncode != 0
    assert '"plan-packed" is a plan for a machine, and none is known' in done.stderr


def test_explain_names_bound_and_limits(program: Program) -> None:
    options = ("-b", "64M", "--ranks", "8", "--set", "TOPOLOGY=dgx1v")
    found = json.loads(program("explain", "all_reduce", *options, "--json").stdout)
    assert found["bound"]["algbw_gbps"] == pytest.approx(92.571, abs=1e-3)
    assert "limit this" in found["bound"]["words"]
    kinds = {each["algorithm"]: each["kind"] for each in found["candidates"]}
    assert kinds["ring"] == "shape" and kinds["plan-ring"] == "plan"
    best = found["candidates"][0]
    assert found["chosen"] == best["algorithm"] and best["kind"] == "plan"
    assert best["algbw_gbps"] >= 85 and best["algbw_gbps"] <= found["bound"]["algbw_gbps"] + 1e-6
    assert found["limiting_links"]
    for link in found["limiting_links"]:
        assert "->" in link["link"] and link["type"] in ("nvlink", "pcie")
        assert link["load"] == pytest.approx(link["capacity"], rel=1e-5)
    text = program("explain", "all_reduce", *options).stdout
    assert "bound: 92.57 GB/s; " in text and f"limits {found['chosen']}: " in text
    assert text.splitlines()[-1] == f"runs: {found['chosen']}, by cost model"


def test_explain_has_no_bound_where_nothing_is_planned(program: Program) -> None:
    options = ("--ranks", "8", "--set", "TOPOLOGY=dgx1v", "--json")
    found = json.loads(program("explain", "all_to_all", *options).stdout)
    assert found["bound"] is None and found["machine"] is not None
    assert all(each["kind"] == "shape" for each in found["candidates"])
    assert found["limiting_links"]


def test_without_a_machine_explain_says_nothing_of_links(program: Program) -> None:
    found = json.loads(program("explain", "all_reduce", "--ranks", "2", "--json").stdout)
    assert found["bound"] is None and found["limiting_links"] == []
    assert all(each["algbw_gbps"] is None for each in found["candidates"])
    assert {each["algbw_gbps"] for each in found["candidates"]} == {None}
