"""Simulated against analytic rate for every described machine, and balanced against default NICs.

Usage: python benchmarks/simulation/ratios.py [OUTPUT [MACHINE...]]. Needs the installed package, in
which SimGrid's column needs ropewalk-simgrid. Takes half an hour with SimGrid.

Filling a tree takes the time of as many chunks as the tree is deep, so the number of chunks is
doubled until the built-in engine is within 5% of the analytic rate; SimGrid then plays the same
chunks.
"""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

from ropewalk import nics, planning, simulation, topology

MACHINES = Path(__file__).resolve().parent.parent.parent / "tests" / "topologies"
OPERATIONS = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")
MESSAGES = (3e4, 6e4, 1.2e5, 2.4e5, 4.8e5, 9.6e5, 1.92e6, 3.84e6)
NEAR = 0.955
NIC_MESSAGES = 1.2e5


def ratio(plan: planning.Plan, most_messages: float, engine: str) -> float:
    """Simulated rate of a message that takes a second, as a share of the analytic one."""
    report = simulation.simulate(
        plan, message_bytes=plan.rate_gbps * 1e9, most_messages=most_messages, engine=engine
    )
    return float(report["ratio"])


def row(machine: topology.Topology, plane: str | None, operation: str, simgrid: bool) -> str:
    plan = planning.plan(machine, operation, plane=plane)
    for messages in MESSAGES:
        builtin = ratio(plan, messages, "builtin")
        if builtin >= NEAR:
            break
    cells = f"{plan.rate_gbps:9.3f}{messages:>10.0f}{builtin:>10.4f}"
    if simgrid:
        cells += f"{ratio(plan, messages, 'simgrid'):>10.4f}"
    return cells


def all_reduce_of(gather: dict[str, Any]) -> dict[str, Any]:
    """The all-reduce over an all-gather's rings: sums go around once, then the results.

    Every link carries each byte twice as often, so that algbw is half; busbw is the same.
    """
    made = json.loads(json.dumps(gather))
    ranks = len(made["gpus"])
    made["collective"] = "all_reduce"
    for start in range(0, len(made["trees"]), ranks):
        ring = made["trees"][start : start + ranks]
        by_source = {edge["source"]: edge for tree in ring for edge in tree["edges"]}
        for tree in ring:
            up = []
            at = by_source[tree["root"]]["destination"]
            while at != tree["root"]:
                up.append({**by_source[at], "phase": "reduce"})
                at = by_source[at]["destination"]
            tree["edges"] = [*up, *tree["edges"]]
            weight = Fraction(tree["weight"]) / 2
            tree["weight"], tree["weight_gbps"] = str(weight), float(weight)
    made["rate_gbps"] /= 2
    return made


def main() -> None:
    with_simgrid = simulation.simgrid_program() is not None
    engines = ["builtin", *(["simgrid"] if with_simgrid else [])]
    written: list[str] = []

    def write(line: str) -> None:
        written.append(line)
        print(line, flush=True)

    write("Simulated rate of one second's worth of data as a share of the planned rate.")
    write("")
    write(
        f"{'machine':<22}{'plane':<12}{'operation':<16}{'GB/s':>9}{'chunks':>10}"
        + "".join(f"{engine:>10}" for engine in engines)
    )
    for file in sorted(MACHINES.glob("*.json")):
        if file.stem == "expected-bounds" or (sys.argv[2:] and file.stem not in sys.argv[2:]):
            continue
        machine = topology.read(file)
        for plane in machine.planes or [None]:
            for operation in OPERATIONS:
                cells = row(machine, plane, operation, with_simgrid)
                write(f"{file.stem:<22}{plane or '-':<12}{operation:<16}{cells}")
    write("")
    write(
        "NICs of rccl-4gpu-4nic-x2, 10 GB over the rings of each rule, algbw in GB/s: planned, then"
    )
    write(
        "simulated. An all-reduce goes round twice: half the algbw, the same busbw (7/8 and 7/4)."
    )
    pair = topology.read(MACHINES / "rccl-4gpu-4nic-x2.json")
    for rule in nics.nic_report(pair)["rules"]:
        for plan in (rule["plan"], all_reduce_of(rule["plan"])):
            simulated = [
                simulation.simulate(
                    json.dumps(plan),
                    pair,
                    message_bytes=1e10,
                    most_messages=NIC_MESSAGES,
                    engine=engine,
                )["algbw_gbps"]
                for engine in engines
            ]
            write(
                f"{rule['name']:<22}{plan['collective']:<16}{plan['rate_gbps']:9.3f}"
                + "".join(f"{each:10.3f}" for each in simulated)
            )
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text("\n".join(written) + "\n")


if __name__ == "__main__":
    main()
