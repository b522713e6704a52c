"""`ropewalk simulate`, on both engines, and its picture."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest
import ropewalk
from conftest import Program
from ropewalk import _library, nics, schedule, simulation, topology

MACHINES = Path(__file__).resolve().parent.parent / "topologies"

needs_simgrid = pytest.mark.skipif(
    simulation.simgrid_program() is None, reason="ropewalk-simgrid is not built: no SimGrid"
)


def machine(name: str) -> str:
    return (MACHINES / f"{name}.json").read_text()


def plan(name: str, rule: str = "balanced") -> str:
    """A plan over both hosts of a machine."""
    report = nics.nic_report(topology.read(MACHINES / f"{name}.json"))
    found: dict[str, Any] = next(each for each in report["rules"] if each["name"] == rule)
    return json.dumps(found["plan"])


@pytest.mark.parametrize(
    ("collective", "other", "gain"), [("reduce", "chain", 2.5), ("all_reduce", "ring", 3)]
)
def test_hierarchical_schedules_use_the_nics_of_all_ranks(
    collective: str, other: str, gain: float
) -> None:
    """A chain or ring leaves a host by one NIC for each channel, here the same ones' again."""

    def seconds(algorithm: str) -> float:
        text = schedule.make(
            collective,
            algorithm,
            16,
            channels=8,
            host_of_rank=[rank // 8 for rank in range(16)],
        )
        report = simulation.simulate(
            text,
            machine("dgx-h100-x2"),
            message_bytes=2.56e8,
            engine="builtin",
        )
        return float(report["seconds"])

    assert seconds(other) > gain * seconds("hierarchical")


def test_a_plan_reaches_its_rate() -> None:
    report = simulation.simulate(
        plan("rccl-4gpu-4nic-x2"), message_bytes=2e10, most_messages=1e5, engine="builtin"
    )
    assert report["ratio"] == pytest.approx(1, abs=0.05)
    assert report["subject"] == "plan"
    assert max(link["utilisation"] for link in report["links"]) > 0.9


@needs_simgrid
@pytest.mark.parametrize("paced", [True, False])
def test_both_engines_agree(paced: bool) -> None:
    found = [
        simulation.simulate(
            plan("rccl-4gpu-4nic-x2"),
            machine("rccl-4gpu-4nic-x2"),
            message_bytes=1e9,
            most_messages=3e3,
            paced=paced,
            engine=engine,
        )
        for engine in ("builtin", "simgrid")
    ]
    assert [each["engine"] for each in found] == ["builtin", "simgrid"]
    assert found[0]["messages"] == found[1]["messages"]
    assert found[0]["seconds"] == pytest.approx(found[1]["seconds"], rel=0.01)
    assert [link["bytes"] for link in found[0]["links"]] == pytest.approx(
        [link["bytes"] for link in found[1]["links"]]
    )


@needs_simgrid
def test_balanced_nics_gain_as_published_in_simgrid() -> None:
    rates = {
        rule: simulation.simulate(
            plan("rccl-4gpu-4nic-x2", rule),
            message_bytes=1e10,
            most_messages=2e4,
            engine="simgrid",
        )["algbw_gbps"]
        for rule in ("first-ring", "balanced")
    }
    assert rates["balanced"] / rates["first-ring"] >= 1.51


def test_the_command_reports_and_draws(program: Program, tmp_path: Path) -> None:
    text = tmp_path / "ring.txt"
    text.write_text(schedule.make("all_reduce", "ring", 8))
    picture = tmp_path / "links.svg"
    done = program(
        "simulate",
        str(text),
        "--topology",
        str(MACHINES / "dgx1v.json"),
        "--bytes",
        "10M",
        "--engine",
        "builtin",
        "--svg",
        str(picture),
    )
    assert done.returncode == 0, done.stderr
    for words in (
        "all_reduce by ring, 8 ranks",
        "dgx1v",
        "GB/s without latencies",
        "busiest links",
    ):
        assert words in done.stdout
    root = xml.etree.ElementTree.parse(picture).getroot()
    assert root.tag.endswith("svg")
    assert len([each for each in root.iter() if each.tag.endswith("rect")]) > 100
    done = program(
        "simulate", str(text), "--topology", "8gpu nvswitch", "--engine", "builtin", "--json"
    )
    assert json.loads(done.stdout)["collective"] == "all_reduce"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("absent.txt",), "absent.txt: No such file"),
        (("RING",), "needs a topology"),
        (("RING", "--topology", "2gpu nvswitch"), "has 2 GPUs, the schedule 3 ranks"),
        (("RING", "--topology", "absent.json"), "absent.json"),
        (("RING", "--bytes", "many"), "is not a size"),
        (("RING", "--bytes", "0"), "is not a size"),
        (("RING", "--engine", "steam"), "known are auto, simgrid, builtin"),
    ],
)
def test_a_wrong_command_line_is_named(
    program: Program, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    ring = tmp_path / "ring.txt"
    ring.write_text(schedule.make("all_reduce", "ring", 3))
    done = program("simulate", *(str(ring) if each == "RING" else each for each in arguments))
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program that replaces ropewalk-simgrid."""
    file = tmp_path / "ropewalk-simgrid"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    monkeypatch.setattr(simulation, "simgrid_program", lambda: file)


def test_without_simgrid_the_builtin_engine_plays_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = schedule.make("all_reduce", "ring", 8)
    monkeypatch.setattr(simulation, "simgrid_program", lambda: None)
    report = simulation.simulate(ring, machine("dgx1v"))
    assert report["engine"] == "builtin"
    assert "ropewalk-simgrid is not there" in report["notes"][0]
    lost = "libsimgrid.so.3.32: cannot open shared object file"
    stand_in(tmp_path, monkeypatch, f"echo {lost} >&2; exit 127")
    told: list[str] = []
    report = simulation.simulate(ring, machine("dgx1v"), tell=told.append)
    assert report["engine"] == "builtin"
    assert lost in report["notes"][0] and told == report["notes"]
    with pytest.raises(ropewalk.UsageError, match="cannot open shared object"):
        simulation.simulate(ring, machine("dgx1v"), engine="simgrid")


def test_slow_cases_go_to_the_builtin_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(
        tmp_path,
        monkeypatch,
        "if grep -q engine_seconds; then echo would take long >&2; exit 3; fi\n"
        'echo \'{"engine": "simgrid", "messages": 1, "wished_messages": 1, "chunk_bytes": 1}\'',
    )
    ring = schedule.make("all_reduce", "ring", 8)
    report = simulation.simulate(ring, machine("dgx1v"))
    assert (report["engine"], report["notes"]) == (
        "builtin",
        ["the built-in engine plays: would take long"],
    )
    report = simulation.simulate(ring, machine("dgx1v"), engine="simgrid")
    assert report["engine"] == "simgrid"
    assert "would take long; --engine builtin" in report["notes"][0]


@needs_simgrid
def test_simgrid_reports_slow_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "PATIENCE_SECONDS", 1e-6)
    report = simulation.simulate(schedule.make("all_reduce", "ring", 8), machine("dgx1v"))
    assert report["engine"] == "builtin"
    assert "over 8 paths would take simgrid some" in report["notes"][0]


def test_chunks_have_the_size_that_was_asked_for() -> None:
    text = plan("rccl-4gpu-4nic-x2")
    options: dict[str, Any] = {"message_bytes": 1e9, "engine": "builtin"}
    asked = simulation.simulate(text, chunk_bytes=1e4, **options)
    assert asked["messages"] > simulation.MOST_MESSAGES
    assert asked["chunk_bytes"] <= 1e4 and asked["notes"] == []
    fewer = simulation.simulate(text, chunk_bytes=1e4, most_messages=1e4, **options)
    assert fewer["messages"] <= 1e4
    assert "instead of 1e+04" in fewer["notes"][0]
    best = simulation.simulate(text, most_messages=1e3, **options)
    assert "larger than is best" in best["notes"][0]


@pytest.mark.skipif(
    not Path(os.environ.get("RW_BUILD_DIR", ""), "ropewalk-simgrid").is_file(),
    reason="RW_BUILD_DIR names no build folder with ropewalk-simgrid",
)
def test_built_files_are_in_the_package() -> None:
    # Not found by PATH: an installed package has it beside its library.
    assert (Path(_library.path()).parent / "ropewalk-simgrid").is_file()


def test_a_refused_schedule_is_not_played() -> None:
    text = schedule.make("broadcast", "chain", 2).replace("out", "0", 1)
    with pytest.raises(ropewalk.UsageError):
        simulation.simulate(text, machine("dgx1v"), engine="builtin")
