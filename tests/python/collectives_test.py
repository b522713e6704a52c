"""Every operation, type and operator against NumPy, in place and not, 1 to 9 ranks."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import ropewalk
from conftest import Worlds, run_ranks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import OPERATORS, TYPES, Array, bits, close, combine, inputs
from ropewalk.communicator import Communicator

# 0, 1, primes, just under and over a slot of 32 KiB for 4- and 8-byte elements, a few slots.
COUNTS = [0, 1, 2, 3, 7, 13, 31, 61, 127, 509, 1021, 4093, 4096, 8191, 8192, 8193, 16411, 70001]
MAX_RANKS = 9

# Threads of one process share the interpreter lock; big groups on small machines are slow.
property_settings = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

cases = st.fixed_dictionaries(
    {
        "ranks": st.integers(1, MAX_RANKS),
        "count": st.sampled_from(COUNTS),
        "type_name": st.sampled_from(sorted(TYPES)),
        "op": st.sampled_from(OPERATORS),
        "in_place": st.booleans(),
        "blocking": st.booleans(),
        "seed": st.integers(0, 2**16),
        "root_place": st.floats(0, 0.999),
    }
)


class Case:
    """A generated case, and the means to run it."""

    def __init__(self, drawn: dict[str, Any]) -> None:
        self.ranks: int = drawn["ranks"]
        # Collectives whose buffers grow with the ranks stay within some MiB.
        self.count: int = drawn["count"]
        self.dtype = TYPES[drawn["type_name"]]
        self.op: str = drawn["op"]
        self.in_place: bool = drawn["in_place"]
        self.blocking: bool = drawn["blocking"]
        self.seed: int = drawn["seed"]
        self.root = int(drawn["root_place"] * self.ranks)

    def inputs(self, count: int) -> list[Array]:
        return inputs(self.ranks, count, self.dtype, self.op, self.seed)

    def distinct(self, count: int) -> list[Array]:
        """Arrays for operations that only move: any bits will do."""
        generator = np.random.default_rng(self.seed)
        return [
            generator.integers(0, 64, count).astype(np.uint8).astype(self.dtype)
            for _ in range(self.ranks)
        ]

    def empty(self, count: int) -> Array:
        return np.zeros(count, self.dtype)

    def run(self, call: Any) -> Any:
        """The result of a call that takes `blocking`."""
        made = call(blocking=self.blocking)
        return made if self.blocking else made.wait(60)


@property_settings
@given(drawn=cases)
def test_all_reduce(worlds: Worlds, drawn: dict[str, Any]) -> None:
    case = Case(drawn)
    given_ = case.inputs(case.count)
    wanted = combine(given_, case.op)

    def body(comm: Communicator) -> None:
        mine = given_[comm.rank].copy()
        out = None if case.in_place else case.empty(case.count)
        got = case.run(lambda blocking: comm.all_reduce(mine, case.op, out=out, blocking=blocking))
        assert got is (mine if out is None else out)
        assert close(got, wanted, case.op, case.ranks)
        if out is not None:
            assert bits(mine) == bits(given_[comm.rank])

    run_ranks(worlds(case.ranks), body)


@property_settings
@given(drawn=cases)
def test_reduce(worlds: Worlds, drawn: dict[str, Any]) -> None:
    case = Case(drawn)
    given_ = case.inputs(case.count)
    wanted = combine(given_, case.op)

    def body(comm: Communicator) -> None:
        mine = given_[comm.rank].copy()
        is_root = comm.rank == case.root
        out = case.empty(case.count) if is_root and not case.in_place else None
        got = case.run(
            lambda blocking: comm.reduce(mine, case.op, case.root, out=out, blocking=blocking)
        )
        if is_root:
            assert close(got, wanted, case.op, case.ranks)
        else:
            assert bits(mine) == bits(given_[comm.rank])

    run_ranks(worlds(case.ranks), body)


@property_settings
@given(drawn=cases)
def test_reduce_scatter(worlds: Worlds, drawn: dict[str, Any]) -> None:
    case = Case(drawn)
    given_ = case.inputs(case.count * case.ranks)
    wanted = combine(given_, case.op)

    def body(comm: Communicator) -> None:
        mine = given_[comm.rank].copy()
        block = slice(comm.rank * case.count, (comm.rank + 1) * case.count)
        out = None if case.in_place else case.empty(case.count)
        got = case.run(
            lambda blocking: comm.reduce_scatter(mine, case.op, out=out, blocking=blocking)
        )
        assert close(got[block] if out is None else got, wanted[block], case.op, case.ranks)

    run_ranks(worlds(case.ranks), body)


@property_settings
@given(drawn=cases)
def test_broadcast(worlds: Worlds, drawn: dict[str, Any]) -> None:
    case = Case(drawn)
    wanted = case.distinct(case.count)[case.root]

    def body(comm: Communicator) -> None:
        mine = wanted.copy() if comm.rank == case.root else case.empty(case.count)
        out = None if case.in_place else case.empty(case.count)
        got = case.run(lambda blocking: comm.broadcast(mine, case.root, out=out, blocking=blocking))
        assert bits(got) == bits(wanted)

    run_ranks(worlds(case.ranks), body)


@property_settings
@given(drawn=cases)
def test_all_gather(worlds: Worlds, drawn: dict[str, Any]) -> None:
    case = Case(drawn)
    given_ = case.distinct(case.count)
    wanted = np.concatenate(given_)

    def body(comm: Communicator) -> None:
        whole = case.empty(case.count * case.ranks)
        if case.in_place:
            whole[comm.rank * case.count : (comm.rank + 1) * case.count] = given_[comm.rank]
            got = case.run(lambda blocking: comm.all_gather(whole, blocking=blocking))
        else:
            mine = given_[comm.rank].copy()
            got = case.run(lambda blocking: comm.all_gather(mine, out=whole, blocking=blocking))
        assert bits(got) == bits(wanted)

    run_ranks(worlds(case.ranks), body)


@property_settings
@given(drawn=cases)
def test_gather(worlds: Worlds, drawn: dict[str, Any]) -> None:
    case = Case(drawn)
    given_ = case.distinct(case.count)

    def body(comm: Communicator) -> None:
        mine, out = given_[comm.rank].copy(), None
        if comm.rank == case.root:
            whole = case.empty(case.count * case.ranks)
            if case.in_place:
                whole[comm.rank * case.count : (comm.rank + 1) * case.count] = mine
                mine = whole
            else:
                out = whole
        got = case.run(lambda blocking: comm.gather(mine, case.root, out=out, blocking=blocking))
        if comm.rank == case.root:
            assert bits(got) == bits(np.concatenate(given_))

    run_ranks(worlds(case.ranks), body)


@property_settings
@given(drawn=cases)
def test_scatter(worlds: Worlds, drawn: dict[str, Any]) -> None:
    case = Case(drawn)
    whole = case.distinct(case.count * case.ranks)[0]

    def body(comm: Communicator) -> None:
        block = slice(comm.rank * case.count, (comm.rank + 1) * case.count)
        is_root = comm.rank == case.root
        mine = whole.copy() if is_root else case.empty(case.count)
        out = None if case.in_place else case.empty(case.count)
        got = case.run(lambda blocking: comm.scatter(mine, case.root, out=out, blocking=blocking))
        result = got[block] if is_root and out is None else got
        assert bits(result) == bits(whole[block])

    run_ranks(worlds(case.ranks), body)


@property_settings
@given(drawn=cases)
def test_all_to_all(worlds: Worlds, drawn: dict[str, Any]) -> None:
    case = Case(drawn)
    given_ = case.distinct(case.count * case.ranks)

    def body(comm: Communicator) -> None:
        mine, out = given_[comm.rank].copy(), case.empty(case.count * case.ranks)
        got = case.run(lambda blocking: comm.all_to_all(mine, out, blocking=blocking))
        block = slice(comm.rank * case.count, (comm.rank + 1) * case.count)
        assert bits(got) == bits(np.concatenate([array[block] for array in given_]))

    run_ranks(worlds(case.ranks), body)


@property_settings
@given(drawn=cases)
def test_sendrecv(worlds: Worlds, drawn: dict[str, Any]) -> None:
    case = Case(drawn)
    given_ = case.distinct(case.count)

    def body(comm: Communicator) -> None:
        mine, out = given_[comm.rank].copy(), case.empty(case.count)
        got = case.run(lambda blocking: comm.sendrecv(mine, out, blocking=blocking))
        assert bits(got) == bits(given_[(comm.rank - 1) % case.ranks])

    run_ranks(worlds(case.ranks), body)


@pytest.mark.parametrize("type_name", sorted(TYPES))
@pytest.mark.parametrize("op", OPERATORS)
def test_every_type_with_every_operator(worlds: Worlds, type_name: str, op: str) -> None:
    given_ = inputs(3, 101, TYPES[type_name], op, seed=7)
    wanted = combine(given_, op)

    def body(comm: Communicator) -> bool:
        return close(comm.all_reduce(given_[comm.rank].copy(), op), wanted, op, 3)

    assert all(run_ranks(worlds(3), body))


@pytest.mark.parametrize("type_name", sorted(TYPES))
def test_pre_mul_sum(worlds: Worlds, type_name: str) -> None:
    dtype = TYPES[type_name]
    factors = [2, 3, 1]

    def body(comm: Communicator) -> None:
        array = np.ones(37, dtype)
        operator = comm.pre_mul_sum(factors[comm.rank], type_name)
        comm.all_reduce(array, operator)
        assert (array.astype(np.float64) == sum(factors)).all()

    run_ranks(worlds(3), body)


def test_operations_in_a_row_without_waiting(worlds: Worlds) -> None:
    def body(comm: Communicator) -> None:
        arrays = [np.full(1000 + i, comm.rank + i, np.int64) for i in range(20)]
        handles = [comm.all_reduce(array, blocking=False) for array in arrays]
        for i, handle in reversed(list(enumerate(handles))):
            got = handle.wait(60)
            assert (got == sum(rank + i for rank in range(4))).all()
            assert handle.done()

    run_ranks(worlds(4), body)


def test_a_dropped_handle_lets_the_operation_end(worlds: Worlds) -> None:
    def body(comm: Communicator) -> None:
        for _ in range(10):
            comm.all_reduce(np.ones(5000), blocking=False)
        array = np.ones(3)
        comm.all_reduce(array)
        assert (array == 3).all()

    run_ranks(worlds(3), body)


def test_wait_times_out_and_may_be_repeated(worlds: Worlds) -> None:
    def body(comm: Communicator) -> None:
        array = np.ones(4)
        if comm.rank == 0:
            handle = comm.recv(array, peer=1, blocking=False)
            with pytest.raises(TimeoutError):
                handle.wait(0.01)
            assert not handle.done()
            comm_ready.set()
            assert (handle.wait(60) == 5).all()
        else:
            comm_ready.wait(60)
            comm.send(np.full(4, 5.0), peer=0)

    comm_ready = threading.Event()
    run_ranks(worlds(2), body)


def test_a_wait_ends_by_its_own_time_limit(worlds: Worlds) -> None:
    limit = 0.05  # seconds; were it taken for another unit, the peer would come first
    ended = threading.Event()

    def body(comm: Communicator) -> None:
        array = np.ones(4)
        if comm.rank == 0:
            handle = comm.recv(array, peer=1, blocking=False)
            begin = time.monotonic()
            with pytest.raises(TimeoutError):
                handle.wait(limit)
            assert time.monotonic() - begin >= limit
            ended.set()
            handle.wait(60)
        else:
            ended.wait(20)
            comm.send(np.full(4, 5.0), peer=0)

    run_ranks(worlds(2), body)


def test_exchange_in_a_group(worlds: Worlds) -> None:
    def body(comm: Communicator) -> None:
        got = np.zeros(70001, np.int32)
        mine = np.full(70001, comm.rank, np.int32)
        with comm.group():
            comm.send(mine, peer=(comm.rank + 1) % comm.size)
            comm.recv(got, peer=(comm.rank - 1) % comm.size)
        assert (got == (comm.rank - 1) % comm.size).all()

    run_ranks(worlds(5), body)


def test_one_thread_drives_all_ranks_in_a_group() -> None:
    comms = ropewalk.init_all(3)
    arrays = [np.full(9, comm.rank + 1) for comm in comms]
    with ropewalk.group():
        for comm, array in zip(comms, arrays):
            comm.all_reduce(array)
    assert all((array == 6).all() for array in arrays)
    with ropewalk.group():
        handles = [
            comm.all_reduce(array, "max", blocking=False) for comm, array in zip(comms, arrays)
        ]
        with pytest.raises(ropewalk.UsageError, match="group that has not ended"):
            handles[0].wait()
    assert all((handle.wait(60) == 6).all() for handle in handles)
    for comm in comms:
        comm.finalize()


def test_an_exception_in_a_group_starts_nothing(worlds: Worlds) -> None:
    def body(comm: Communicator) -> None:
        array = np.zeros(2)
        with pytest.raises(ZeroDivisionError), comm.group():
            comm.recv(array, peer=(comm.rank + 1) % 2)
            raise ZeroDivisionError
        assert (comm.all_reduce(np.ones(2)) == 2).all()

    run_ranks(worlds(2), body)


def test_split(worlds: Worlds) -> None:
    def body(comm: Communicator) -> None:
        part = comm.split(comm.rank % 2, key=-comm.rank)
        assert part is not None
        wanted = [rank for rank in range(5) if rank % 2 == comm.rank % 2][::-1]
        assert part.size == len(wanted)
        assert part.rank == wanted.index(comm.rank)
        got = part.all_gather(np.array([comm.rank]), out=np.zeros(part.size, np.int64))
        assert got.tolist() == wanted
        part.finalize()
        nobody = comm.split(None if comm.rank == 0 else 0)
        assert (nobody is None) == (comm.rank == 0)
        if nobody is not None:
            nobody.finalize()

    run_ranks(worlds(5), body)


def test_barrier(worlds: Worlds) -> None:
    arrived: list[int] = []

    def body(comm: Communicator) -> int:
        arrived.append(comm.rank)
        comm.barrier()
        return len(arrived)

    assert run_ranks(worlds(4), body) == [4] * 4


@pytest.mark.parametrize("algorithm", ["ring", "binary_tree"])
def test_a_given_schedule_is_used(algorithm: str) -> None:
    comms = ropewalk.init_all(4)
    text = ropewalk.schedule.make("all_reduce", algorithm, 4)

    def body(comm: Communicator) -> None:
        comm.use_schedule(text)
        assert (comm.all_reduce(np.full(999, comm.rank)) == 6).all()
        comm.use_schedule(None)
        comm.finalize()

    run_ranks(comms, body)
