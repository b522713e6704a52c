"""Plans against independent solvers: NetworkX for flows, HiGHS (in SciPy) for linear programmes."""

from __future__ import annotations

import itertools
import json
import resource
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import networkx
import numpy
import pytest
import ropewalk
from conftest import Program
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ropewalk import planning
from ropewalk.topology import Topology

MACHINES = Path(__file__).resolve().parents[1] / "topologies"
QUICK = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def load(name: str) -> Topology:
    return ropewalk.topology.read(MACHINES / f"{name}.json")


def topology_of(gpus: int, switches: int, links: dict[tuple[int, int], float]) -> Topology:
    """Nodes 0 to gpus - 1 are GPUs; capacities by (source, destination)."""
    names = [f"gpu{i}" for i in range(gpus)] + [f"nvs{i}" for i in range(switches)]
    nodes: list[dict[str, Any]] = [
        {"id": names[i], "kind": "gpu", "host": 0, "rank": i} for i in range(gpus)
    ]
    nodes += [{"id": names[gpus + i], "kind": "nvswitch", "host": 0} for i in range(switches)]
    made = [
        {"src": names[a], "dst": names[b], "capacity": capacity, "type": "nvlink"}
        for (a, b), capacity in links.items()
    ]
    symmetric = all(links.get((b, a)) == capacity for (a, b), capacity in links.items())
    text = json.dumps(
        {
            "schema": "gpu-topology/1",
            "name": "random",
            "title": "random",
            "units": "GB/s per direction, 1 GB = 1e9 bytes",
            "hosts": 1,
            "symmetric": symmetric,
            "planes": {},
            "sources": [],
            "assumptions": [],
            "nodes": nodes,
            "links": made,
        }
    )
    return Topology.from_json(text)


@st.composite
def graphs(
    draw: st.DrawFn, most_gpus: int, most_switches: int, symmetric: bool
) -> tuple[int, int, dict[tuple[int, int], float]]:
    """Connected graphs: a random tree, then more links; capacities with one decimal."""
    gpus = draw(st.integers(2, most_gpus))
    switches = draw(st.integers(0, most_switches))
    size = gpus + switches
    # Drawn from one seed: a graph of 40 nodes would be too many choices to shrink.
    generator = numpy.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    order = generator.permutation(size)
    links: dict[tuple[int, int], float] = {}

    def join(a: int, b: int) -> None:
        links[a, b] = int(generator.integers(1, 60)) / 2
        links[b, a] = links[a, b] if symmetric else int(generator.integers(1, 60)) / 2

    for place in range(1, size):
        join(int(order[place]), int(order[generator.integers(0, place)]))
    for _ in range(int(generator.integers(0, 2 * size))):
        a, b = (int(x) for x in generator.integers(0, size, 2))
        if a != b:
            join(a, b)
    return gpus, switches, links


def flow_graph(links: dict[tuple[int, int], float]) -> Any:
    graph = networkx.DiGraph()
    for (a, b), capacity in links.items():
        graph.add_edge(a, b, capacity=round(capacity * 2))  # halves become whole
    return graph


def broadcast_rate(gpus: int, links: dict[tuple[int, int], float]) -> Fraction:
    graph = flow_graph(links)
    return Fraction(min(networkx.maximum_flow_value(graph, 0, v) for v in range(1, gpus)), 2)


def gather_rate_is(gpus: int, links: dict[tuple[int, int], float], rate: Fraction) -> bool:
    """Whether `rate` is feasible for all GPUs at once, and a little more is not."""
    graph = flow_graph(links)
    each = rate * 2 / gpus  # in halves, per root
    graph = networkx.DiGraph()
    for (a, b), capacity in links.items():
        graph.add_edge(a, b, capacity=round(capacity * 2) * each.denominator)
    for gpu in range(gpus):
        graph.add_edge("all", gpu, capacity=each.numerator)
    enough = gpus * each.numerator
    flows = [networkx.maximum_flow_value(graph, "all", v) for v in range(gpus)]
    if min(flows) < enough:
        return False
    # A million times finer, and one step more.
    for a, b in graph.edges:
        graph[a][b]["capacity"] *= 10**6
    for gpu in range(gpus):
        graph["all"][gpu]["capacity"] += 1
    more = gpus * (each.numerator * 10**6 + 1)
    return bool(min(networkx.maximum_flow_value(graph, "all", v) for v in range(gpus)) < more)


@QUICK
@given(graphs(most_gpus=12, most_switches=28, symmetric=True))
def test_bounds_are_those_of_max_flow(
    drawn: tuple[int, int, dict[tuple[int, int], float]],
) -> None:
    gpus, switches, links = drawn
    machine = topology_of(gpus, switches, links)
    bound = planning.bound(machine, "broadcast")
    assert Fraction(bound["bound"]) == broadcast_rate(gpus, links)
    assert gather_rate_is(gpus, links, Fraction(planning.bound(machine, "all_gather")["bound"]))


@QUICK
@given(graphs(most_gpus=7, most_switches=8, symmetric=True))
def test_optimal_plans_reach_the_bound(
    drawn: tuple[int, int, dict[tuple[int, int], float]],
) -> None:
    machine = topology_of(*drawn)
    for op in ("all_gather", "reduce_scatter", "broadcast", "reduce"):
        made = ropewalk.plan(machine, op, algorithm="optimal")
        found = made.check()
        assert made.rate == made.bound
        assert found.optimal and not found.defects


def all_reduce_by_flows(gpus: int, switches: int, links: dict[tuple[int, int], float]) -> float:
    """The programme of ForestColl over flows: no trees in it."""
    # Here, since every process of pytest reads this file.
    from scipy.optimize import linprog
    from scipy.sparse import lil_matrix

    arcs = list(links)
    size, count = gpus + switches, len(arcs)
    # Variables: x of each root; c_in and c_out of each arc; a flow per GPU and direction.
    flows = gpus + 2 * count
    total = flows + 2 * gpus * count
    equal: list[tuple[dict[int, float], float]] = []
    below: list[tuple[dict[int, float], float]] = []
    for i, arc in enumerate(arcs):
        below.append(({gpus + i: 1, gpus + count + i: 1}, links[arc]))
    for node in range(gpus, size):
        for part in (gpus, gpus + count):
            row: dict[int, float] = {}
            for i, (a, b) in enumerate(arcs):
                if a == node:
                    row[part + i] = row.get(part + i, 0) + 1
                if b == node:
                    row[part + i] = row.get(part + i, 0) - 1
            equal.append((row, 0))
    for target, out in itertools.product(range(gpus), (True, False)):
        first = flows + (2 * target + int(out)) * count
        for i in range(count):
            below.append(({first + i: 1, (gpus + count if out else gpus) + i: -1}, 0))
        for node in range(size):
            # What leaves is what enters, plus what starts here, less what ends here.
            row = {}
            for i, (a, b) in enumerate(arcs):
                if a == node:
                    row[first + i] = row.get(first + i, 0) + (1 if out else -1)
                if b == node:
                    row[first + i] = row.get(first + i, 0) - (1 if out else -1)
            if node < gpus:
                row[node] = row.get(node, 0) - 1
            if node == target:
                for root in range(gpus):
                    row[root] = row.get(root, 0) + 1
            equal.append((row, 0))

    def matrix(rows: list[tuple[dict[int, float], float]]) -> Any:
        out = lil_matrix((len(rows), total))
        for i, (row, _) in enumerate(rows):
            for j, value in row.items():
                out[i, j] = value
        return out.tocsr()

    cost = numpy.zeros(total)
    cost[:gpus] = -1
    found = linprog(
        cost,
        A_ub=matrix(below),
        b_ub=[limit for _, limit in below],
        A_eq=matrix(equal),
        b_eq=[limit for _, limit in equal],
        method="highs",
    )
    assert found.status == 0
    return float(-found.fun)


@settings(QUICK, max_examples=25)
@given(graphs(most_gpus=5, most_switches=4, symmetric=True))
def test_all_reduce_is_the_linear_programme(
    drawn: tuple[int, int, dict[tuple[int, int], float]],
) -> None:
    made = ropewalk.plan(topology_of(*drawn), "all_reduce", algorithm="optimal")
    assert made.rate_gbps == pytest.approx(all_reduce_by_flows(*drawn), rel=1e-6)
    assert made.check().optimal


@settings(QUICK, max_examples=25)
@given(graphs(most_gpus=6, most_switches=5, symmetric=False))
def test_unequal_directions_are_planned_with_proof(
    drawn: tuple[int, int, dict[tuple[int, int], float]],
) -> None:
    gpus, _, links = drawn
    machine = topology_of(*drawn)
    for op in ("all_gather", "broadcast", "all_reduce", "reduce"):
        made = ropewalk.plan(machine, op, algorithm="optimal")
        found = made.check()
        assert found.optimal and not found.defects
        if op == "broadcast":
            assert Fraction(made.rate) <= broadcast_rate(gpus, links)


@settings(QUICK, max_examples=20)
@given(graphs(most_gpus=8, most_switches=6, symmetric=True))
def test_every_algorithm_makes_valid_plans(
    drawn: tuple[int, int, dict[tuple[int, int], float]],
) -> None:
    machine = topology_of(*drawn)
    for entry, op in itertools.product(planning.algorithms(), ("all_reduce", "broadcast")):
        try:
            made = ropewalk.plan(machine, op, algorithm=entry["name"])
        except ropewalk.ArgumentError:
            names = ("ring", "one-hop", "binary-tree", "rail-chain", "three-phase")
            assert entry["name"] in names or entry["name"].startswith("nics-")
            continue
        found = made.check()
        assert found.valid and found.bound_holds and not found.defects
        if entry["name"] == "packed":
            assert made.ratio >= 0.8


def test_plan_has_the_fields_that_are_documented() -> None:
    made = ropewalk.plan(load("dgx1v"), "broadcast", plane="nvlink")
    assert made.rate_gbps == 150
    assert made.bound_gbps == 150
    assert made.optimal
    assert made.trees[0]["root"] == 0
    assert {"phase", "source", "destination", "path", "links"} == set(made.trees[0]["edges"][0])
    load_sum = sum(link["load"] for link in made.links)
    assert load_sum == pytest.approx(
        sum(
            tree["weight_gbps"] * len(edge["links"])
            for tree in made.trees
            for edge in tree["edges"]
        )
    )
    assert min(made.times_us([8, 1 << 30])) > 0
    short = ropewalk.plan(load("dgx1v"), "broadcast", plane="nvlink", trees=False)
    assert set(made.fields) - set(short.fields) == {"trees"}
    assert short.rate_gbps == made.rate_gbps


def test_split_ends_all_classes_together() -> None:
    expected = json.loads((MACHINES / "expected-bounds.json").read_text())
    for example in expected["split_examples"]["values"]:
        classes = [(each["bandwidth"], each["setup_ms"] * 1e3) for each in example["classes"]]
        time_us, parts = planning.split(classes, example["total_mb"] * 1e6)
        assert time_us == pytest.approx(example["finish_ms"] * 1e3, rel=1e-6)
        assert [part / 1e6 for part in parts] == pytest.approx(example["share_mb"], abs=1e-5)


def test_command_shows_rate_bound_and_limits(program: Program) -> None:
    machine = str(MACHINES / "dgx1v.json")
    shown = program("plan", machine, "broadcast", "--plane", "nvlink")
    assert shown.returncode == 0
    assert "150 GB/s" in shown.stdout
    assert "no schedule can exceed it" in shown.stdout
    assert "limit this" in shown.stdout
    assert "certificate holds" in shown.stdout
    drawn = program("plan", machine, "all_reduce", "--plane", "nvlink", "--svg")
    assert ElementTree.fromstring(drawn.stdout).tag.endswith("svg")
    parsed = json.loads(program("plan", machine, "all-gather", "--json").stdout)
    assert parsed["schema"] == "ropewalk-plan/1"
    assert parsed["optimal"]
    compared = program("plan", machine, "all_reduce", "--plane", "nvlink", "--compare")
    assert "ring" in compared.stdout and "one-hop" in compared.stdout
    only = program("plan", machine, "all_reduce", "--bound", "--json")
    assert json.loads(only.stdout)["bound_gbps"] == pytest.approx(92.571429)


def test_command_shows_sizes_idle_links_and_limits(program: Program) -> None:
    machine = str(MACHINES / "dgx1v.json")
    ring = program("plan", machine, "all_gather", "--plane", "pcie", "--algorithm", "ring").stdout
    assert "limit       the 2 socket links (10.3 GB/s each) limit this plan" in ring
    assert "half of that rate from" in ring
    made = ropewalk.plan(load("dgx1v"), "all_gather", plane="pcie", algorithm="ring")
    for size, share in ((made.bytes_for_half, 0.5), (made.bytes_for_90_percent, 0.9)):
        rate = size / made.times_us([size])[0] / 1e3
        assert rate == pytest.approx(share * made.rate_gbps, rel=1e-3)
    busiest = [made.links[place] for place in made.limit["links"]]
    assert {(link["type"], link["capacity"]) for link in busiest} == {("smp", 10.3)}
    best = program("plan", machine, "broadcast").stdout
    assert "limit       " not in best.replace("limits", "")
    assert "  idle nvlink   gpu1>gpu0, gpu2>gpu0, gpu3>gpu0, gpu4>gpu0\n" in best


def test_the_default_plan_keeps_to_hops_that_a_driver_takes(program: Program) -> None:
    machine = str(MACHINES / "dgx1v.json")
    shown = program("plan", machine, "broadcast", "--setup-us", "5000").stdout
    assert "by link-classes" in shown and "certificate holds" in shown
    assert "hops        150 GB/s in 6 trees as a driver takes them" in shown
    assert "over PCIe, with peer access off" in shown
    # Equation 8: 500 MB end together at 160.3 GB/s, but for what 5 ms of 10.3 GB/s are.
    assert "pays from 750 MB on; 500 MB at 150 GB/s, 0.00% of it over PCIe" in shown
    sooner = program("plan", machine, "broadcast", "--setup-us", "1000").stdout
    assert "pays from 150 MB on; 500 MB at 157.0" in sooner
    one_graph = program("plan", machine, "broadcast", "--gpus", "0,1,4,5", "--plane", "all").stdout
    assert "with hops that no driver takes" in one_graph
    alone = program("plan", machine, "broadcast", "--plane", "nvlink").stdout
    assert "driver" not in alone
    wrong = program("plan", machine, "broadcast", "--setup-us", "-1", check=False)
    assert wrong.returncode == 2 and "--setup-us -1: must be 0 or more" in wrong.stderr


def test_a_graph_file_comes_with_its_explanation(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "g.xml"
    pair = str(MACHINES / "dgx-h100-x2.json")
    done = program("plan", pair, "all_gather", "--nccl-graph", str(file))
    assert done.returncode == 0 and file.read_text().startswith("<graphs")
    for words in (
        "6 of 8 NICs are idle",
        "Computed, not measured: 384 GB/s",
        "RCCL 2.18's rule",
        "NCCL's own search",
    ):
        assert words in done.stderr
    alone = str(MACHINES / "dgx1v.json")
    done = program("plan", alone, "all_gather", "--plane", "nvlink", "--nccl-graph", str(file))
    assert done.returncode == 2
    assert "no NICs" in done.stderr


def test_files_are_named_with_the_error(program: Program, tmp_path: Path) -> None:
    machine = str(MACHINES / "dgx1v.json")
    garbage = tmp_path / "garbage.json"
    garbage.write_text("nonsense")
    bare = json.loads(Path(machine).read_text())
    bare["nodes"] = [node for node in bare["nodes"] if node["kind"] == "cpu"]
    bare["links"], bare["planes"] = [], {}
    no_gpu = tmp_path / "no_gpu.json"
    no_gpu.write_text(json.dumps(bare))
    plan = json.loads(program("plan", machine, "all_gather", "--json").stdout)
    plan["trees"][0]["weight_gbps"] = -1
    negative = tmp_path / "negative.json"
    negative.write_text(json.dumps(plan))
    for arguments, words in (
        (["plan", str(no_gpu), "all_reduce"], f"{no_gpu}: a collective needs at least 2 GPUs"),
        (["plan", machine, "all_reduce", "--plane", "nvlink", "--gpus", "0,5"], f"{machine}: "),
        (["schedule", "make", "--plan", str(garbage)], f"{garbage}: parse error at line 1"),
        (["simulate", str(garbage)], f"{garbage}: neither a plan"),
        (["simulate", str(negative)], f"{negative}: trees[0].weight_gbps: is -1"),
        (["schedule", "make", "--plan", str(negative)], f"{negative}: trees[0].weight_gbps: is -1"),
    ):
        done = program(*arguments)
        assert done.returncode == 2
        assert words in done.stderr
        assert "json.exception" not in done.stderr


def test_memory_that_runs_out_is_said(tmp_path: Path) -> None:
    gpus = 2800
    ring = topology_of(gpus, 0, {(i, (i + 1) % gpus): 10.0 for i in range(gpus)})
    file = tmp_path / "ring.json"
    file.write_text(ring.to_json())
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk", "plan", str(file), "all_reduce"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (10**9, 10**9)),
    )
    assert done.returncode == 3
    assert "memory ran out for a plan of all_reduce over 2800 GPUs" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", "0"], "at least 2 GPUs"),
        (["--gpus", "0,9"], "no GPU 9"),
        (["--gpus", "0,x"], "not a list of numbers"),
        (["--gpus", "0-1000000000"], "no GPU 1000000000: dgx1v has 8 GPUs, 0 to 7"),
        (["--gpus", "0-7,0-7"], "twice"),
        (["--gpus", "3-1"], "runs backwards"),
        (["--plane", "nvlink", "--gpus", "0,5,6"], "gpu5, gpu6"),
        (["--algorithm", "magic"], "unknown"),
        (["--plane", "warp"], "no plane"),
        (["--svg", "--json"], "one of them"),
    ],
)
def test_command_refuses_bad_requests(program: Program, arguments: list[str], words: str) -> None:
    refused = program("plan", str(MACHINES / "dgx1v.json"), "all_gather", *arguments)
    assert refused.returncode == 2
    assert words in refused.stderr
    assert "Traceback" not in refused.stderr
