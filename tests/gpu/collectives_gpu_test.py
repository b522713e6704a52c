"""Every operation, type and operator on CUDA tensors against NumPy: in place and not, unaligned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import run_ranks
from gpu_support import (
    TORCH_TYPES,
    need_ranks,
    num_ranks,
    on_gpus,
    own_stream,
    to_gpu,
    to_host,
    torch,
)
from reference import OPERATORS, TYPES, bits, close, combine, inputs
from ropewalk.communicator import Communicator

need_ranks()

# 0, 1, primes, around a pack of 16 bytes, a slot, several chunks.
COUNTS = [0, 1, 3, 13, 127, 1021, 4096, 8193, 70001, 1 << 20]
NAMES = sorted(name for name in TYPES if TORCH_TYPES.get(name) is not None)


@pytest.fixture(scope="module")
def comms() -> Iterator[list[Communicator]]:
    with on_gpus(num_ranks()) as made:
        yield made
        run_ranks(made, Communicator.finalize)


def check(
    comms: list[Communicator], operation: str, name: str, count: int, op: str, in_place: bool, *,
    shift: int = 0, seed: int = 3, root: int = 0,
) -> None:  # fmt: skip
    """One operation of all ranks at once, one thread for each."""
    n = len(comms)
    dtype = TYPES[name]
    cut = operation in ("reduce_scatter", "scatter", "all_to_all")
    given = inputs(n, count * n if cut else count, dtype, op, seed)
    moved = np.concatenate(given) if given else np.zeros(0, dtype)

    def body(comm: Communicator) -> None:
        with own_stream(comm) as stream:
            operate(comm, stream)

    def operate(comm: Communicator, stream: Any) -> None:
        rank = comm.rank
        assert comm.device is not None
        device = comm.device
        block = slice(rank * count, (rank + 1) * count)
        mine = to_gpu(given[rank], device, shift)

        def empty(elements: int) -> Any:
            return to_gpu(np.zeros(elements, dtype), device, shift)

        got: Any
        wanted: Any
        whole: Any
        if operation == "all_reduce":
            wanted = combine(given, op)
            got = comm.all_reduce(mine, op, out=None if in_place else empty(count))
        elif operation == "reduce":
            wanted = combine(given, op) if rank == root else given[rank]
            out = empty(count) if rank == root and not in_place else None
            got = comm.reduce(mine, op, root, out=out)
        elif operation == "reduce_scatter":
            wanted = combine(given, op)[block]
            got = comm.reduce_scatter(mine, op, out=None if in_place else empty(count))
            got = got[block] if in_place else got
        elif operation == "broadcast":
            wanted = given[root]
            got = comm.broadcast(mine, root, out=None if in_place else empty(count))
        elif operation == "all_gather":
            wanted = moved
            whole = empty(count * n)
            if in_place:
                whole[block].view(torch.uint8).copy_(mine.view(torch.uint8))
                got = comm.all_gather(whole)
            else:
                got = comm.all_gather(mine, out=whole)
        elif operation == "gather":
            whole = empty(count * n) if rank == root else None
            wanted = moved if rank == root else given[rank]
            if in_place and rank == root:
                whole[block].view(torch.uint8).copy_(mine.view(torch.uint8))
                got = comm.gather(whole, root)
            else:
                got = comm.gather(mine, root, out=whole)
        elif operation == "scatter":
            wanted = given[root][block]
            if in_place:
                got = comm.scatter(mine if rank == root else mine[:count], root)
                got = got[block] if rank == root else got
            else:
                got = comm.scatter(mine, root, out=empty(count))
        elif operation == "all_to_all":
            wanted = np.concatenate([one[block] for one in given])
            got = comm.all_to_all(mine, empty(count * n))
        else:
            wanted = given[(rank - 1) % n]
            got = comm.sendrecv(mine, empty(count))
        stream.synchronize()
        comm.check()
        found = to_host(got, given[0])
        if operation in ("all_reduce", "reduce", "reduce_scatter"):
            assert close(found, wanted, op, n), (operation, name, count, op, in_place, shift)
        else:
            assert bits(found) == bits(wanted), (operation, name, count, in_place, shift)

    run_ranks(comms, body)


REDUCING = ["all_reduce", "reduce", "reduce_scatter"]
MOVING = ["broadcast", "all_gather", "gather", "scatter"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("operation", REDUCING)
def test_reductions(comms: list[Communicator], operation: str, name: str) -> None:
    for op in OPERATORS:
        for count in (5, 1021, 70001):
            for in_place in (False, True):
                check(comms, operation, name, count, op, in_place)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("operation", [*MOVING, "all_to_all", "sendrecv"])
def test_moves(comms: list[Communicator], operation: str, name: str) -> None:
    for in_place in (False, True) if operation in MOVING else (False,):
        for root in (0, len(comms) - 1):
            check(comms, operation, name, 1021, "max", in_place, root=root)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("operation", [*REDUCING, *MOVING, "all_to_all", "sendrecv"])
def test_sizes(comms: list[Communicator], operation: str, count: int) -> None:
    check(comms, operation, "float32", count, "sum", False)
    check(comms, operation, "uint8", count, "sum", False)
    if operation in (*REDUCING, *MOVING):
        check(comms, operation, "bfloat16", count, "max", True)


@pytest.mark.parametrize("shift", [1, 3, 7])
def test_unaligned_views(comms: list[Communicator], shift: int) -> None:
    for operation in (*REDUCING, *MOVING, "all_to_all", "sendrecv"):
        for name in ("uint8", "float16", "float32"):
            for count in (13, 8193, 1 << 18):
                check(comms, operation, name, count, "max", False, shift=shift)


def test_random_operations(comms: list[Communicator]) -> None:
    generator = np.random.default_rng(11)
    for _ in range(200):
        operation = str(generator.choice([*REDUCING, *MOVING, "all_to_all", "sendrecv"]))
        check(
            comms,
            operation,
            str(generator.choice(NAMES)),
            int(2 ** generator.uniform(0, 17)),
            str(generator.choice(OPERATORS)),
            bool(generator.integers(2)) and operation in (*REDUCING, *MOVING),
            shift=int(generator.integers(3)),
            seed=int(generator.integers(1000)),
            root=int(generator.integers(len(comms))),
        )


def test_pre_multiplied_sum(comms: list[Communicator]) -> None:
    def body(comm: Communicator) -> None:
        with own_stream(comm):
            tensor = torch.ones(1000, device=f"cuda:{comm.device}")
            comm.all_reduce(tensor, comm.pre_mul_sum(comm.rank + 2, "float32"))
            assert (tensor == sum(rank + 2 for rank in range(comm.size))).all()

    run_ranks(comms, body)


def test_many_small_ones_in_a_row(comms: list[Communicator]) -> None:
    def body(comm: Communicator) -> None:
        with own_stream(comm):
            total = torch.zeros(64, dtype=torch.int64, device=f"cuda:{comm.device}")
            one = torch.empty_like(total)
            for i in range(2000):
                one.fill_(comm.rank + i)
                comm.all_reduce(one)
                total += one
            n = comm.size
            wanted = sum(n * i + n * (n - 1) // 2 for i in range(2000))
            assert (total == wanted).all()

    run_ranks(comms, body)
