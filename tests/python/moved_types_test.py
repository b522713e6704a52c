"""Elements that have no operators are moved; complex ones are summed too."""

from __future__ import annotations

import array
import ctypes
import re
from typing import Any

import numpy as np
import pytest
import ropewalk
from conftest import Worlds, run_ranks
from ropewalk.arrays import buffer_of
from ropewalk.communicator import Communicator
from running import run_script

TYPES: list[Any] = [
    "bool",
    "int16",
    "uint16",
    "complex64",
    "complex128",
    "longdouble",
    "clongdouble",
    "datetime64[ns]",
    "timedelta64[s]",
    "S5",
    "U3",
    "V12",
    [("x", "i4"), ("y", "f8")],
]
IDS = [str(name) for name in TYPES]


def drawn(count: int, dtype: Any, seed: int) -> Any:
    """Any bits will do, but for bools."""
    made = np.zeros(count, dtype)
    generator = np.random.default_rng(seed)
    if made.dtype == bool:
        return generator.integers(0, 2, count).astype(bool)
    made.view(np.uint8)[:] = generator.integers(0, 64, made.nbytes)
    return made


@pytest.mark.parametrize("count", [0, 1, 7, 5000, 300_001])
@pytest.mark.parametrize("dtype", TYPES, ids=IDS)
def test_every_operation_that_moves(worlds: Worlds, dtype: Any, count: int) -> None:
    ranks = 3
    blocks = [drawn(count, dtype, rank) for rank in range(ranks)]
    wholes = [drawn(count * ranks, dtype, 10 + rank) for rank in range(ranks)]

    def same(got: Any, wanted: Any) -> bool:
        return bool(got.dtype == wanted.dtype) and bool(got.tobytes() == wanted.tobytes())

    def body(comm: Communicator) -> None:
        rank = comm.rank
        mine = blocks[rank]
        block = slice(rank * count, (rank + 1) * count)
        everything = np.concatenate(blocks)
        before, after = (rank - 1) % ranks, (rank + 1) % ranks

        def empty(of: int) -> Any:
            return np.zeros(of, dtype)

        assert same(comm.broadcast(mine, 1, out=empty(count)), blocks[1])
        assert same(comm.broadcast(mine.copy(), 2), blocks[2])
        assert same(comm.all_gather(mine, out=empty(count * ranks)), everything)
        gathered = comm.gather(mine, 0, out=empty(count * ranks) if rank == 0 else None)
        assert rank != 0 or same(gathered, everything)
        assert same(comm.scatter(wholes[rank], 1, out=empty(count)), wholes[1][block])
        assert same(
            comm.all_to_all(wholes[rank], empty(count * ranks)),
            np.concatenate([whole[block] for whole in wholes]),
        )
        assert same(comm.sendrecv(mine, empty(count)), blocks[before])
        got = empty(count)
        with comm.group():
            comm.send(mine, peer=after)
            comm.recv(got, peer=before)
        assert same(got, blocks[before])
        handle = comm.broadcast(mine, 0, out=empty(count), blocking=False)
        assert same(handle.wait(60), blocks[0])

    run_ranks(worlds(ranks), body)


@pytest.mark.parametrize("name", ["complex64", "complex128"])
@pytest.mark.parametrize("count", [1, 7, 5000, 300_001])
def test_complex_sums(worlds: Worlds, name: str, count: int) -> None:
    def body(comm: Communicator) -> None:
        given = (np.arange(count) % 64 + 1j * (comm.rank + 1)).astype(name)
        total = (3 * (np.arange(count) % 64) + 6j).astype(name)
        assert np.array_equal(comm.all_reduce(given.copy()), total)
        assert np.allclose(comm.all_reduce(given.copy(), "avg"), total / 3)
        reduced = comm.reduce(given.copy(), "sum", 1)
        assert comm.rank != 1 or np.array_equal(reduced, total)
        whole = np.tile(given, 3)
        assert np.array_equal(comm.reduce_scatter(whole, out=np.zeros_like(given)), total)

    run_ranks(worlds(3), body)


@pytest.mark.parametrize(
    ("dtype", "op", "reason"),
    [
        ("complex64", "max", 'complex64 has the operators sum and avg, not "max"'),
        ("complex128", "prod", 'complex128 has the operators sum and avg, not "prod"'),
        ("bool", "sum", r"bool can be moved, but not reduced; array.view\(\"uint8\"\) can"),
        ("int16", "sum", r"int16 can be moved, but not reduced; array.astype\(\"int32\"\) can"),
        ("datetime64[ns]", "max", r"datetime64\[ns\] can be moved, but not reduced"),
        ("V12", "sum", "void96 can be moved, but not reduced"),
    ],
)
def test_other_reductions_are_refused_by_name(dtype: str, op: str, reason: str) -> None:
    with ropewalk.init_all(1)[0] as comm:
        for call in (comm.all_reduce, comm.reduce, comm.reduce_scatter):
            with pytest.raises(ropewalk.ArgumentError, match=reason):
                call(np.zeros(4, dtype), op)
        with pytest.raises(ropewalk.ArgumentError, match=r"unknown type|operator is for"):
            comm.all_reduce(np.zeros(4, dtype), comm.pre_mul_sum(2, "float32"))
        with pytest.raises(ropewalk.ArgumentError, match=f'unknown type "{re.escape(dtype)}"'):
            comm.pre_mul_sum(2, dtype)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("int16", "float16", ["(type)", "of 4 int16", "of 4 float16"]),
        ("int16", "uint16", ["(type)", "of 4 int16", "of 4 uint16"]),
        ("bool", "int8", ["(type)", "of 4 bool", "of 4 int8"]),
        ("complex64", "float64", ["(type)", "of 4 complex64", "of 4 float64"]),
        ("complex64", "complex128", ["(type)", "of 4 complex64", "of 4 complex128"]),
        ("S3", "S4", ["(count)", "of 12 byte", "of 16 byte"]),
        ("datetime64[ns]", "int64", ["count, type", "of 32 byte", "of 4 int64"]),
    ],
)
@pytest.mark.parametrize("sends", [False, True])
def test_ranks_that_give_different_types(
    first: str, second: str, words: list[str], sends: bool
) -> None:
    texts: list[str] = []

    def body(comm: Communicator) -> None:
        given = np.zeros(4, [first, second][comm.rank])
        with comm, pytest.raises(ropewalk.Error) as caught:
            if not sends:
                comm.broadcast(given)
            elif comm.rank == 0:
                comm.send(given, peer=1)
            else:
                comm.recv(given, peer=0)
            comm.barrier()
        texts.append(str(caught.value))

    run_ranks(ropewalk.init_all(2), body)
    assert any(all(word in text for word in words) for text in texts), texts


def test_counts_that_differ_are_those_of_the_caller() -> None:
    texts: list[str] = []

    def body(comm: Communicator) -> None:
        with comm, pytest.raises(ropewalk.Error) as caught:
            comm.all_reduce(np.zeros(3 + comm.rank, complex))
        texts.append(str(caught.value))

    run_ranks(ropewalk.init_all(2), body)
    assert any("of 3 complex128 sum" in text and "of 4 complex128" in text for text in texts), texts


def test_a_timeout_names_the_callers_elements() -> None:
    run_script("""
        import numpy as np, ropewalk
        ropewalk.settings.set("TIMEOUT", "0.2s")
        comms = ropewalk.init_all(2)
        for call, words in (
            (lambda comm: comm.broadcast(np.zeros(5, complex), 1), "broadcast of 5 complex128: "),
            (lambda comm: comm.barrier(), "barrier: "),
        ):
            comms = ropewalk.init_all(2)
            try:
                call(comms[0])
            except ropewalk.TimeoutError as error:
                assert str(error).startswith(words), error
            else:
                raise SystemExit("no timeout")
    """)


@pytest.mark.parametrize(
    ("given", "name", "count"),
    [
        (np.zeros(3, bool), "bool", 3),
        (memoryview(np.zeros(3, bool).data), "bool", 3),
        (array.array("h", [1, 2]), "int16", 2),
        (array.array("H", [1, 2]), "uint16", 2),
        (memoryview(np.zeros((2, 2), complex).data), "complex128", 4),
        ((ctypes.c_bool * 4)(), "bool", 4),
        ((ctypes.c_short * 4)(), "int16", 4),
        (np.zeros(3, "M8[us]"), "datetime64[us]", 3),
    ],
)
def test_their_protocols(given: Any, name: str, count: int) -> None:
    found = buffer_of(given, "array", writable=True)
    assert (found.type.name, found.count) == (name, count)


def test_records_lie_where_they_lie() -> None:
    packed = np.zeros(5, np.dtype([("x", "u1"), ("y", "f8")]))
    found = buffer_of(packed[1:], "array", writable=True)
    assert (found.address, found.nbytes) == (packed.ctypes.data + 9, 36)


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    for name in ("bool", "int16", "uint16", "complex64", "complex128"):
        found = buffer_of(torch.zeros(3, dtype=getattr(torch, name)), "array", writable=True)
        assert (found.type.name, found.count) == (name, 3)
    found = buffer_of(torch.zeros(3, dtype=torch.complex32), "array", writable=True)
    assert (found.type.name, found.nbytes) == ("complex32", 12)
