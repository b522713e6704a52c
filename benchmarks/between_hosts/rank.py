"""One rank of benchmarks/between_hosts/run: times the candidates of operations by their names.

Usage: rank.py JOB.json OUT.json
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import ropewalk
from ropewalk import measure, settings
from ropewalk.types import DATA_TYPES

UNASKED = "unasked"
MOST_ITERATIONS = 50
LEAST_ITERATIONS = 3


def count_of(operation: str, size: int, ranks: int) -> int:
    """Elements for `size` bytes of the larger buffer, as `ropewalk bench -b` counts."""
    per_rank = operation in ("all_gather", "reduce_scatter")
    return size // 4 // (ranks if per_rank else 1)


def chosen_of(comm: ropewalk.Communicator, operation: str, size: int) -> dict[str, Any]:
    found = comm.explain(operation, size)
    for each in found["candidates"]:
        if (each["algorithm"], each["nic_rule"]) == (found["chosen"], found["nic_rule"]):
            chosen: dict[str, Any] = each
            return {
                "chosen": found["chosen"],
                "predicted_us": chosen["predicted_us"],
                "channels": found["channels"],
                "nic_rule": found["nic_rule"],
                "chunk": chosen["chunk_bytes"],
                "us": [],
            }
    raise AssertionError(found)


def names_for(comm: ropewalk.Communicator, operation: str, size: int, most: float) -> list[str]:
    candidates = comm.explain(operation, size)["candidates"]
    least = candidates[0]["predicted_us"]
    near = [each["algorithm"] for each in candidates if each["predicted_us"] <= most * least]
    # The cheapest that is no plan, too.
    shape = next(each["algorithm"] for each in candidates if each["kind"] == "shape")
    return list(dict.fromkeys([*near, shape]))


def timed(
    comms: dict[str, ropewalk.Communicator], operation: str, size: int, job: dict[str, Any]
) -> dict[str, Any]:
    """Each of them by turns. All ranks decide alike: measured times are of all ranks."""
    ranks = comms[UNASKED].size
    made = {name: chosen_of(comm, operation, size) for name, comm in comms.items()}
    for turn in range(job["rounds"]):
        for name, comm in comms.items():
            us = made[name]["us"]
            before = (us[0] if us else made[name]["predicted_us"]) * 1e-6
            iterations = int(job["seconds"] / max(before, 1e-6))
            found = measure.measure(
                comm,
                operation,
                count_of(operation, size, ranks),
                DATA_TYPES["float32"],
                iterations=max(LEAST_ITERATIONS, min(MOST_ITERATIONS, iterations)),
                check_rounds=int(turn == 0),
            )
            if found.wrong != 0:
                raise AssertionError(f"{operation} of {size} bytes by {name} is wrong")
            us.append(found.seconds_max * 1e6)
    for each in made.values():
        each["us"] = statistics.median(each["us"])
    return made


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    rows: list[dict[str, Any]] = []
    with ropewalk.init() as all_ranks:
        nics = all_ranks.explain("all_reduce", 1 << 20)["nic_gbps"]

        def comm_for(algorithm: str) -> ropewalk.Communicator:
            settings.set("ALGORITHM", algorithm)
            comm = all_ranks.split(0, all_ranks.rank)
            settings.set("ALGORITHM", "auto")
            assert comm is not None
            return comm

        for operation in job["operations"]:
            comms = {UNASKED: comm_for("auto")}
            for size in job["sizes"]:
                names = job["names"] or names_for(comms[UNASKED], operation, size, job["most"])
                for name in names:
                    if name not in comms:
                        comms[name] = comm_for(f"{operation}={name}")
                wanted = {name: comms[name] for name in [UNASKED, *names]}
                rows.append(
                    {
                        "operation": operation,
                        "size": size,
                        "of": timed(wanted, operation, size, job),
                    }
                )
            for comm in comms.values():
                comm.finalize()
        if all_ranks.rank == 0:
            Path(sys.argv[2]).write_text(json.dumps({"nics": nics, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
