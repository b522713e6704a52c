"""`ropewalk plan`: which trees carry a collective over a machine, how near the bound that is."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.table import Table

from ropewalk import errors, nics, planning, topology
from ropewalk.cli import console
from ropewalk.cli.machine_source import gpu_list
from ropewalk.cli.quantities import decimal_bytes
from ropewalk.drawing import plan as plan_drawing
from ropewalk.topology import Topology

HELP = """
Plan a collective on a machine: trees over its links, their rate, and the bound.

TOPOLOGY is a file (JSON, NCCL's topology XML, hwloc's XML), a short description as
"2x(8gpu nvswitch) 8nic", or "here" for this host. OP is all_reduce, all_gather, reduce_scatter,
broadcast or reduce. Rates are the limit for large messages, from TOPOLOGY's capacities; no schedule
can exceed the bound. Every plan is checked by code that shares nothing with the planner.

A driver that is asked for a copy between two GPUs takes NVLink where it joins them. Without --plane
and --algorithm, a machine whose NVLink and PCIe both join all GPUs gets two sets of trees, one for
each class of links, with a share of the message each. --plane all plans all links as one graph.

Examples:

\b
  ropewalk plan dgx1v.json broadcast --plane nvlink
      the best trees, and what limits them
  ropewalk plan dgx1v.json broadcast --setup-us 5000
      over NVLink and PCIe, where switching peer access off takes 5 ms in each call
  ropewalk plan dgx1v.json all_reduce --gpus 0,1,4 --algorithm packed
      few trees for three of the GPUs
  ropewalk plan dgx-h100 all_gather --json -o plan.json
      for `ropewalk schedule make --plan plan.json`
  ropewalk plan dgx1v.json all_reduce --svg -o plan.svg
      trees in colours over the machine
  ropewalk plan dgx-h100.json all_reduce --compare
      all algorithms side by side, with the sizes for which each is best
  ropewalk plan dgx-h100.json all_reduce --bound
      the bound alone
  ropewalk plan cluster.json all_reduce --nccl-graph rings.xml
      also a file for NCCL_GRAPH_FILE; see `ropewalk nccl-env`

Exit status: 0, 1 when a plan fails its check, or 2 when the request cannot be served.
"""

_MOST_SHOWN = 64
_SPLIT_BYTES = 500e6  # of the message whose split is shown, as in Blink's figure 25
_SIZES = [1 << shift for shift in range(3, 35)]


def plan(
    source: Annotated[str, typer.Argument(metavar="TOPOLOGY", help="The machine.")],
    operation: Annotated[str, typer.Argument(metavar="OP", help="The operation, as all_reduce.")],
    plane: Annotated[
        Optional[str], typer.Option("--plane", help="Only the links of this plane.")
    ] = None,
    root: Annotated[int, typer.Option("--root", help="Root of broadcast and reduce.")] = 0,
    gpus: Annotated[
        Optional[str], typer.Option("--gpus", metavar="LIST", help="Only these GPUs, as 0,1,4-6.")
    ] = None,
    algorithm: Annotated[
        str,
        typer.Option(
            "--algorithm",
            help="optimal, packed, one-hop, three-phase, rail-chain, ring, binary-tree, "
            "nics-balanced, nics-least-used, nics-first-ring, or auto: the best.",
        ),
    ] = "auto",
    trees_per_root: Annotated[
        int,
        typer.Option(
            "--trees-per-root",
            help="So many trees for each root (packed: at most so many in all); 0: any.",
        ),
    ] = 0,
    setup_us: Annotated[
        float,
        typer.Option(
            "--setup-us",
            help="Microseconds that each call takes to switch peer access off, for trees over PCIe "
            "beside NVLink.",
        ),
    ] = 0.0,
    compare: Annotated[
        bool, typer.Option("--compare", help="Show all algorithms side by side.")
    ] = False,
    bound: Annotated[bool, typer.Option("--bound", help="Only the bound, without trees.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON of the schema ropewalk-plan/1.")
    ] = False,
    svg: Annotated[bool, typer.Option("--svg", help="Draw the plan.")] = False,
    nccl_graph: Annotated[
        Optional[Path],
        typer.Option(
            "--nccl-graph", help="Write a graph file for NCCL or RCCL that uses all NICs, too."
        ),
    ] = None,
    output: Annotated[
        Optional[Path], typer.Option("-o", "--output", help="Write to this file.")
    ] = None,
) -> None:
    """See HELP."""
    console.apply_settings(None)
    if sum((compare, bound, svg)) > 1 or (svg and as_json):
        console.fail("--compare, --bound, --svg, --json: one of them", console.USAGE)
    if not 0 <= setup_us < 1e12:
        console.fail(f"--setup-us {setup_us:g}: must be 0 or more", console.USAGE)
    operation = operation.replace("-", "_")
    with console.reported(), _file_named(source):
        machine = _machine(source)
        chosen = gpu_list(gpus, machine)
        if nccl_graph is not None:
            _write_graph(machine, plane, chosen, nccl_graph)
        if bound:
            found = planning.bound(machine, operation, plane=plane, gpus=chosen, root=root)
            words = f"bound {_rate(found['bound_gbps'])}\n{found['bottleneck']['words']}\n"
            console.write(json.dumps(found, indent=2) + "\n" if as_json else words, output)
            return
        if compare:
            _compare(machine, operation, plane, chosen, root, trees_per_root, as_json)
            return
        # As text, the trees of large machines are not shown, and not needed for the check.
        many = sum(node.kind == "gpu" for node in machine.nodes) > _MOST_SHOWN
        made = planning.plan(
            machine,
            operation,
            plane=plane,
            gpus=chosen,
            root=root,
            algorithm=algorithm,
            trees_per_root=trees_per_root,
            trees=as_json or svg or not many,
            check=True,
        )
        if as_json:
            console.write(made.to_json(), output)
            return
        if svg:
            console.write(plan_drawing.svg(made), output)
            return
        checked = made.check()
        console.write(_text(made, checked, setup_us), output)
    if not checked.valid or not checked.bound_holds:
        raise typer.Exit(console.WRONG)


@contextlib.contextmanager
def _file_named(source: str) -> Iterator[None]:
    """What is wrong with a machine is said of its name; a person knows the file."""
    try:
        yield
    except errors.ArgumentError as error:
        if not Path(source).is_file() or str(error).startswith(f"{source}:"):
            raise
        raise errors.ArgumentError(f"{source}: {error}") from None


def _machine(source: str) -> Topology:
    if source == "-":
        found = Topology.from_json(sys.stdin.read(), "standard input")
    else:
        found = topology.load(source)
    # Those of this host, and what a file's reader left out or took for granted.
    if source == topology.HERE or source.endswith(".xml"):
        console.tell(found.assumptions)
    return found


def _write_graph(
    machine: Topology, plane: Optional[str], gpus: Optional[list[int]], file: Path
) -> None:
    """The file of `nccl-graph`, and on standard error the words of `nccl-env`."""
    if plane is not None:
        types = {link.type for link in machine.select(plane=plane).links}
        if "net" not in types:
            console.fail(
                f"--nccl-graph: plane {plane} has no NICs and no network; leave --plane out, or "
                "name one that has",
                console.USAGE,
            )
    report = nics.nic_report(machine if gpus is None else machine.select(gpus=gpus))
    console.write(report["graph"], file)
    console.tell([f"{file}: {sentence}" for sentence in report["words"]])
    console.tell([f"{file}: see `ropewalk nccl-env` for what else to set"])


def _rate(gbps: float) -> str:
    return f"{gbps:.5g} GB/s"


_TAKEN = {
    "peer access": "as a driver takes them",
    "no peer access": "over PCIe, with peer access off",
    "none": "with hops that no driver takes",
}


def _share(share: dict[str, Any]) -> str:
    trees = f"{share['num_trees']} tree" + ("" if share["num_trees"] == 1 else "s")
    return f"{_rate(share['rate_gbps'])} in {trees} {_TAKEN[share['hops']]}"


def _hops(made: planning.Plan, setup_us: float) -> list[str]:
    """Which trees a program can have from a driver, and how a message is split over the classes."""
    classes = made.hop_classes
    if [each["hops"] for each in classes] == ["peer access"]:
        return []
    lines = [
        f"{'hops' if index == 0 else '':<12}{_share(each)}" for index, each in enumerate(classes)
    ]
    if [each["hops"] for each in classes] != ["peer access", "no peer access"]:
        return lines
    fast, slow = (each["rate_gbps"] for each in classes)
    pays = f"pays from {decimal_bytes(setup_us * fast * 1e3)} on; " if setup_us > 0 else ""
    us, parts = planning.split([(fast, 0.0), (slow, setup_us)], _SPLIT_BYTES)
    lines.append(
        f"split       {setup_us:g} us for switching peer access off: {pays}"
        f"{decimal_bytes(_SPLIT_BYTES)} at {_rate(_SPLIT_BYTES / us / 1e3)}, "
        f"{parts[1] / _SPLIT_BYTES:.2%} of it over PCIe"
    )
    return lines


def _text(made: planning.Plan, checked: planning.Certificate, setup_us: float) -> str:
    ranks = len(made.gpus)
    lines = [
        f"{made.collective} over {ranks} GPUs of {made.topology.name}, plane {made.plane}, "
        f"by {made.algorithm}",
        "",
        f"algbw       {_rate(made.rate_gbps)}",
        f"busbw       {_rate(made.busbw_gbps)}",
        f"bound       {_rate(made.bound_gbps)} ({made.ratio:.2%} reached"
        + (", no schedule can exceed it)" if made.optimal else ")"),
        f"why         {made.bottleneck['words']}",
        *([] if made.optimal else [f"limit       {made.limit['words']}"]),
        f"trees       {made.num_trees}, at most {made.hops} hops from rank to rank",
        *_hops(made, setup_us),
        f"latency     {made.latency_us:.3g} us (estimate)",
        f"sizes       half of that rate from {decimal_bytes(made.bytes_for_half)}, "
        f"90% from {decimal_bytes(made.bytes_for_90_percent)} "
        "(estimate; --compare: against other algorithms)",
    ]
    used = [link for link in made.links if link["load"] > 0]
    full = [link for link in used if link["load"] >= link["capacity"] * (1 - 1e-9)]
    kinds = {node.id: node.kind for node in made.topology.nodes}
    nics = sorted(
        {end for link in made.links for end in (link["source"], link["destination"])}
        & {id for id, kind in kinds.items() if kind == "nic"}
    )
    busy = {end for link in used for end in (link["source"], link["destination"])}
    lines.append(
        f"links       {len(used)} of {len(made.links)} used, {len(full)} of them full, "
        f"{len(made.links) - len(used)} idle"
    )
    lines += _idle(made)
    if nics:
        idle = [nic for nic in nics if nic not in busy]
        lines.append(
            f"NICs        {len(nics) - len(idle)} of {len(nics)} used"
            + (f"; idle: {', '.join(idle[:8])}" if idle else "")
            + (f" and {len(idle) - 8} more" if len(idle) > 8 else "")
        )
    verdict = "holds" if checked.valid and checked.bound_holds else "FAILS"
    lines.append(f"certificate {verdict}; largest load {checked.largest_load:.6g} of capacity")
    lines += [f"            {defect}" for defect in checked.defects]
    if "trees" not in made.fields:
        return "\n".join(lines) + "\n"
    lines += ["", "trees by weight:"]
    heaviest = sorted(made.trees, key=lambda tree: -float(tree["weight_gbps"]))
    for tree in heaviest[:16]:
        edges = [edge for edge in tree["edges"] if edge["phase"] == tree["edges"][-1]["phase"]]
        shown = " ".join(f"{edge['source']}>{edge['destination']}" for edge in edges[:15])
        more = " ..." if len(edges) > 15 else ""
        lines.append(f"  {_rate(tree['weight_gbps']):>14}  root {tree['root']:<3} {shown}{more}")
    if len(heaviest) > 16:
        lines.append(f"  and {len(heaviest) - 16} more (--json has all)")
    return "\n".join(lines) + "\n"


def _idle(made: planning.Plan) -> list[str]:
    """The idle links, the first few of each type."""
    by_type: dict[str, list[str]] = {}
    for link in made.links:
        if link["load"] <= 0:
            by_type.setdefault(link["type"], []).append(f"{link['source']}>{link['destination']}")
    lines = []
    for kind, names in by_type.items():
        more = f" and {len(names) - 6} more" if len(names) > 6 else ""
        lines.append(f"  idle {kind:<9}{', '.join(names[:6])}{more}")
    return lines


def _best_sizes(plans: list[planning.Plan]) -> dict[int, tuple[int, int]]:
    """For each plan that is the quickest somewhere, the least and largest such size."""
    times = [made.times_us(_SIZES) for made in plans]
    found: dict[int, tuple[int, int]] = {}
    for position, size in enumerate(_SIZES):
        best = min(range(len(plans)), key=lambda index: times[index][position])
        found[best] = (found.get(best, (size, size))[0], size)
    return found


def _bytes(size: int) -> str:
    for unit, shift in (("G", 30), ("M", 20), ("K", 10)):
        if size >= 1 << shift:
            return f"{size >> shift}{unit}"
    return str(size)


def _compare(
    machine: Topology,
    operation: str,
    plane: Optional[str],
    gpus: Optional[list[int]],
    root: int,
    trees_per_root: int,
    as_json: bool,
) -> None:
    plans: list[planning.Plan] = []
    refused: list[tuple[str, str]] = []
    for entry in planning.algorithms():
        try:
            plans.append(
                planning.plan(
                    machine,
                    operation,
                    plane=plane,
                    gpus=gpus,
                    root=root,
                    algorithm=entry["name"],
                    trees_per_root=trees_per_root,
                )
            )
        except errors.ArgumentError as error:
            refused.append((entry["name"], str(error)))
    if not plans:
        console.fail(refused[0][1], console.USAGE)
    best = _best_sizes(plans)
    rows = [
        {
            "algorithm": made.algorithm,
            "rate_gbps": made.rate_gbps,
            "ratio": made.ratio,
            "trees": made.num_trees,
            "latency_us": made.latency_us,
            "best_bytes": list(best[index]) if index in best else None,
        }
        for index, made in enumerate(plans)
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    out = console.output()
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("algorithm")
    for name in ("algbw", "of the bound", "trees", "latency us", "best for bytes"):
        table.add_column(name, justify="right")
    for row, (index, made) in zip(rows, enumerate(plans)):
        sizes = "-" if index not in best else f"{_bytes(best[index][0])}..{_bytes(best[index][1])}"
        table.add_row(
            made.algorithm,
            f"{made.rate_gbps:.5g}",
            f"{made.ratio:.2%}",
            str(made.num_trees),
            f"{row['latency_us']:.3g}",
            sizes,
        )
    out.print(f"bound {_rate(plans[0].bound_gbps)}: {plans[0].bottleneck['words']}")
    out.print(table)
    for name, why in refused:
        out.print(f"{name}: {why}")
