"""`ropewalk simulate`, on both engines, and its picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest
import ropewalk
from conftest import Program
from ropewalk import nics, schedule, simulation, topology

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


def test_the_command_tells_and_draws(program: Program, tmp_path: Path) -> None:
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
        (("RING", "--bytes", "many"), "is no size"),
        (("RING", "--bytes", "0"), "is no size"),
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


def test_a_refused_schedule_is_not_played() -> None:
    text = schedule.make("broadcast", "chain", 2).replace("out", "0", 1)
    with pytest.raises(ropewalk.UsageError):
        simulation.simulate(text, machine("dgx1v"), engine="builtin")
