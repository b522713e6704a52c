"""Simulated against analytic rate for every described machine, and balanced against default NICs.

Usage: python benchmarks/simulation/ratios.py [OUTPUT]. Needs the installed package and, for
SimGrid's column, ropewalk-simgrid on the path. Takes half an hour with SimGrid.

A message of a finite number of chunks takes as many of them longer as its trees are deep, so the
number of chunks is doubled until the built-in engine is within 5% of the analytic rate; SimGrid
then plays the same chunks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ropewalk import nics, planning, simulation, topology

MACHINES = Path(__file__).resolve().parent.parent.parent / "tests" / "topologies"
OPERATIONS = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")
ROOTED = ("broadcast", "reduce")
MANY_GPUS = 16
MESSAGES = (3e4, 6e4, 1.2e5, 2.4e5, 4.8e5, 9.6e5, 1.92e6)
NEAR = 0.955
NIC_MESSAGES = 1.2e5


def ratio(plan: str, machine: str, most_messages: float, engine: str) -> float:
    """Simulated rate of a message that takes a second, as a share of the analytic one."""
    rate = json.loads(plan)["rate_gbps"]
    report = simulation.simulate(
        plan, machine, message_bytes=rate * 1e9, most_messages=most_messages, engine=engine
    )
    return float(report["ratio"])


def row(machine: topology.Topology, plane: str | None, operation: str, simgrid: bool) -> str:
    # Trees by edge splitting for all of many GPUs take long, and say no more here.
    many = len(machine.gpus) > MANY_GPUS and operation not in ROOTED
    plan = planning.plan(machine, operation, plane=plane, trees_per_root=1 if many else 0)
    text = plan.to_json()
    for messages in MESSAGES:
        builtin = ratio(text, machine.to_json(), messages, "builtin")
        if builtin >= NEAR:
            break
    cells = f"{plan.rate_gbps:9.3f}{messages:>10.0f}{builtin:>10.4f}"
    if simgrid:
        cells += f"{ratio(text, machine.to_json(), messages, 'simgrid'):>10.4f}"
    return cells


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
        if file.stem == "expected-bounds":
            continue
        machine = topology.read(file)
        for plane in machine.planes or [None]:
            for operation in OPERATIONS:
                cells = row(machine, plane, operation, with_simgrid)
                write(f"{file.stem:<22}{plane or '-':<12}{operation:<16}{cells}")
    write("")
    write("NICs of rccl-4gpu-4nic-x2, all-reduce of 10 GB, GB/s: planned, then simulated")
    pair = topology.read(MACHINES / "rccl-4gpu-4nic-x2.json")
    for rule in nics.nic_report(pair)["rules"]:
        text = json.dumps(rule["plan"])
        simulated = [
            simulation.simulate(
                text, pair.to_json(), message_bytes=1e10, most_messages=NIC_MESSAGES, engine=engine
            )["algbw_gbps"]
            for engine in engines
        ]
        write(
            f"{rule['name']:<24}{rule['algbw_gbps']:9.3f}"
            + "".join(f"{each:10.3f}" for each in simulated)
        )
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text("\n".join(written) + "\n")


if __name__ == "__main__":
    main()
