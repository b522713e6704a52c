"""Simulated against analytic rate for every described machine, and balanced against default NICs.

Usage: python benchmarks/simulation/ratios.py [OUTPUT]. Needs the installed package and, for
SimGrid's column, ropewalk-simgrid on the path.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ropewalk import nics, planning, simulation, topology

MACHINES = Path(__file__).resolve().parent.parent.parent / "tests" / "topologies"
OPERATIONS = ("broadcast", "all_gather", "all_reduce")
MANY_GPUS = 16
MOST_MESSAGES = 3e4


def ratio(plan: str, machine: str, seconds_worth: float, engine: str) -> float:
    """Simulated rate of a message that takes so long, as a share of the analytic one."""
    rate = json.loads(plan)["rate_gbps"]
    report = simulation.simulate(
        plan,
        machine,
        message_bytes=rate * 1e9 * seconds_worth,
        most_messages=MOST_MESSAGES,
        engine=engine,
    )
    return float(report["ratio"])


def main() -> None:
    engines = ["builtin"] + (["simgrid"] if simulation.simgrid_program() else [])
    lines = [
        f"{'machine':<24}{'plane':<14}{'operation':<12}{'GB/s':>9}"
        + "".join(f"{engine:>10}" for engine in engines)
    ]
    worst = 1.0
    for file in sorted(MACHINES.glob("*.json")):
        if file.stem == "expected-bounds":
            continue
        machine = topology.read(file)
        for plane in machine.planes or [None]:
            for operation in OPERATIONS:
                many = len(machine.gpus) > MANY_GPUS and operation != "broadcast"
                plan = planning.plan(
                    machine, operation, plane=plane, trees_per_root=1 if many else 0
                )
                text = plan.to_json()
                found = [ratio(text, machine.to_json(), 1.0, engine) for engine in engines]
                worst = min([worst, *found])
                lines.append(
                    f"{file.stem:<24}{plane or '-':<14}{operation:<12}{plan.rate_gbps:9.3f}"
                    + "".join(f"{each:10.4f}" for each in found)
                )
    lines += ["", f"least ratio: {worst:.4f}", "", "NICs of rccl-4gpu-4nic-x2, algbw in GB/s:"]
    pair = topology.read(MACHINES / "rccl-4gpu-4nic-x2.json")
    for rule in nics.nic_report(pair)["rules"]:
        text = json.dumps(rule["plan"])
        simulated = [
            simulation.simulate(
                text, pair.to_json(), message_bytes=1e10, most_messages=MOST_MESSAGES, engine=engine
            )["algbw_gbps"]
            for engine in engines
        ]
        lines.append(
            f"{rule['name']:<24}{rule['algbw_gbps']:9.3f}"
            + "".join(f"{each:10.3f}" for each in simulated)
        )
    text = "\n".join(lines) + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
