"""Plans of described machines, as schedules, on the host executor: right results on every rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import ropewalk
from conftest import run_ranks
from ropewalk import planning, schedule, settings, topology
from ropewalk.communicator import Communicator

MACHINES = Path(__file__).resolve().parent.parent / "topologies"
Array = npt.NDArray[np.int64]
OPERATIONS = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")
COUNT = 3001  # of elements of a rank: prime, so that shares are uneven

# One for each kind of fabric, of at most 16 GPUs: every rank is a thread here.
NAMES = ("dgx1v", "dgx2-detailed", "mi250-8gcd-x2", "rccl-4gpu-4nic-x2", "dolphin-k2200-x2")


@pytest.fixture
def channels_setting() -> Iterator[None]:
    yield
    settings.set("CHANNELS", "0")


def expected(operation: str, inputs: list[Array], rank: int, root: int) -> Array:
    total: Array = np.sum(inputs, axis=0)
    return {
        "broadcast": inputs[root],
        "reduce": total,
        "all_gather": np.concatenate(inputs),
        "reduce_scatter": np.array_split(total, len(inputs))[rank],
        "all_reduce": total,
    }[operation]


def run(comm: Communicator, operation: str, inputs: list[Array], root: int) -> Array:
    mine = inputs[comm.rank].copy()
    if operation in ("broadcast", "all_reduce"):
        getattr(comm, operation)(mine, **({"root": root} if operation == "broadcast" else {}))
        return mine
    if operation == "reduce":
        comm.reduce(mine, root=root)
        return mine
    elements = mine.size * comm.size if operation == "all_gather" else mine.size // comm.size
    out = np.zeros(elements, dtype=mine.dtype)
    getattr(comm, operation)(mine, out=out)
    return out


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("channels_setting")
def test_every_plan_computes_its_operation(name: str) -> None:
    run_plans(name, "auto", OPERATIONS)


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("-x2")])
@pytest.mark.usefixtures("channels_setting")
def test_three_phases_compute_their_operation(name: str) -> None:
    run_plans(name, "three-phase", ("broadcast", "reduce", "all_reduce"))


def run_plans(name: str, algorithm: str, operations: tuple[str, ...]) -> None:
    """Plans, compiles and runs the operations with a thread for each rank."""
    machine = topology.read(MACHINES / f"{name}.json")
    ranks = len(machine.gpus)
    root = ranks // 2
    texts = {
        operation: schedule.from_plan(
            planning.plan(
                machine,
                operation,
                root=root if operation in ("broadcast", "reduce") else 0,
                algorithm=algorithm,
            ).to_json()
        )
        for operation in operations
    }
    settings.set("CHANNELS", max(text.count("\nchannel ") for text in texts.values()))
    comms = ropewalk.init_all(ranks)
    try:
        for operation, text in texts.items():
            size = COUNT * ranks if operation == "reduce_scatter" else COUNT
            inputs = [np.arange(size, dtype=np.int64) * (rank + 1) + rank for rank in range(ranks)]

            def body(
                comm: Communicator,
                operation: str = operation,
                text: str = text,
                inputs: list[Array] = inputs,
            ) -> Array:
                comm.use_schedule(text)
                return run(comm, operation, inputs, root)

            for rank, found in enumerate(run_ranks(comms, body)):
                if operation == "reduce" and rank != root:
                    continue
                wanted = expected(operation, inputs, rank, root)
                assert np.array_equal(found, wanted), (operation, rank)
    finally:
        run_ranks(comms, Communicator.finalize)
