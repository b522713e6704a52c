"""`ropewalk schedule make --plan`: a plan's file becomes a schedule that runs."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import ropewalk
from conftest import Program
from ropewalk import schedule

HOPS = [("g0", "g1"), ("g1", "g2"), ("g2", "g0")]


def plan() -> dict[str, Any]:
    """An all-gather along one ring of three GPUs."""
    trees = []
    for root in range(3):
        ring = [(root + i) % 3 for i in range(2)]
        edges = [
            {
                "phase": "broadcast",
                "source": source,
                "destination": (source + 1) % 3,
                "path": [f"g{source}", f"g{(source + 1) % 3}"],
                "links": [source],
            }
            for source in ring
        ]
        trees.append({"root": root, "weight": "5", "edges": edges})
    links = [
        {"source": a, "destination": b, "type": "nvlink", "capacity": 10.0, "load": 10.0}
        for a, b in HOPS
    ]
    bottleneck = {
        "kind": "cut",
        "words": "",
        "inside": ["g0"],
        "ranks_inside": 1,
        "links": [{"source": "g0", "destination": "g1", "type": "nvlink"}],
    }
    return {
        "schema": "ropewalk-plan/1",
        "topology": "ring",
        "plane": "all",
        "collective": "all_gather",
        "algorithm": "ring",
        "root": None,
        "gpus": ["g0", "g1", "g2"],
        "bound": "15",
        "bottleneck": bottleneck,
        "links": links,
        "trees": trees,
    }


def test_a_plan_becomes_a_schedule_that_runs(program: Program, tmp_path: Path) -> None:
    file, out = tmp_path / "plan.json", tmp_path / "plan.txt"
    file.write_text(json.dumps(plan()))
    done = program("schedule", "make", "--plan", str(file), "-o", str(out))
    assert done.returncode == 0, done.stderr
    report = schedule.check(out.read_text())
    assert report["accepted"]
    assert (report["algorithm"], report["ranks"]) == ("plan-ring", 3)
    assert {(link["source"], link["destination"], link["units"]) for link in report["links"]} == {
        (0, 1, 2.0),
        (1, 2, 2.0),
        (2, 0, 2.0),
    }
    done = program("bench", "--schedule", str(out), "-b", "3K", "-e", "3K", "-n", "1")
    assert done.returncode == 0, done.stderr
    assert "all_gather_perf" in done.stdout
    assert done.stdout.count("#  Rank") == 3


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (("schema",), "ropewalk-plan/9", "schema: must be"),
        (("trees", 1, "weight"), "-5", "trees[1].weight: must be above zero"),
        (("trees", 1, "weight"), "4", "roots"),
        (("trees", 1, "edges", 0, "source"), 7, "trees[1].edges[0].source: is 7"),
        (("trees", 1, "edges"), [], "directions"),
        (("links", 0, "type"), "rope", "links[0].type: unknown"),
        (("gpus",), ["g0"], "gpus: must be at least two"),
        (("collective",), "broadcast", "root: must be"),
    ],
)
def test_what_is_wrong_is_named(where: tuple[Any, ...], value: Any, said: str) -> None:
    wrong = copy.deepcopy(plan())
    at: Any = wrong
    for step in where[:-1]:
        at = at[step]
    at[where[-1]] = value
    with pytest.raises(ropewalk.ArgumentError) as caught:
        schedule.from_plan(json.dumps(wrong))
    assert said in str(caught.value)


def test_the_command_line_is_checked(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "no.json"
    file.write_text("no plan")
    done = program("schedule", "make", "--plan", str(file))
    assert (done.returncode, f"{file}: parse error at line 1" in done.stderr) == (2, True)
    assert program("schedule", "make", "all_gather", "--plan", str(file)).returncode == 2
    assert program("schedule", "make", "--plan", str(tmp_path / "absent")).returncode == 2
