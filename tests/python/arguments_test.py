"""Arguments of a wrong type or size are refused in words, before anything is done."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest
import ropewalk
from ropewalk.arguments import integer
from ropewalk.communicator import Communicator
from ropewalk.joining import init_ranks

ONES = np.ones(2)
ANY: Any = ropewalk  # for arguments of any type
RANKS: Any = init_ranks


@pytest.fixture
def alone() -> Any:
    with ropewalk.init_all(1)[0] as comm:
        yield comm


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda comm: comm.broadcast(ONES, "0"), "root is '0', a str; it must be an integer"),
        (lambda comm: comm.broadcast(ONES, 0.0), "root is 0.0, a float"),
        (lambda comm: comm.broadcast(ONES, True), "root is True, a bool"),
        (lambda comm: comm.broadcast(ONES, 2**32), "root 4294967296 is outside 0 to 0"),
        (lambda comm: comm.reduce(ONES, "sum", None), "root is None"),
        (lambda comm: comm.gather(ONES, -1), "root -1 is outside 0 to 0"),
        (lambda comm: comm.scatter(ONES, [0]), r"root is \[0\], a list"),
        (lambda comm: comm.send(ONES, "1"), "peer is '1'"),
        (lambda comm: comm.recv(ONES, 2**40), "peer 1099511627776 is outside"),
        (lambda comm: comm.split("red"), "color is 'red'"),
        (lambda comm: comm.split(2**31), "color 2147483648 is outside"),
        (lambda comm: comm.split(0, key="a"), "key is 'a'"),
        (lambda comm: comm.split(0, key=2**31), "key 2147483648 is outside"),
        (lambda comm: comm.attach("0"), "device is '0'"),
        (lambda comm: comm.attach(-1), "device -1 is negative"),
        (lambda comm: comm.use_schedule(3), "text is 3, a int; it must be a str"),
        (lambda comm: comm.use_schedule("a\0b"), "text has a zero byte at 1"),
        (lambda comm: comm.use_schedule("\ud800"), "text is no text"),
        (lambda comm: comm.pre_mul_sum("two", "float32"), "two is no float32"),
        (lambda comm: comm.pre_mul_sum(None, "int32"), "None is no int32"),
        (lambda comm: comm.pre_mul_sum(1, ["float32"]), "unknown type"),
        (lambda comm: comm.all_reduce(ONES, 3), 'unknown operator "3"'),
        (lambda comm: ANY.init_all("2"), "size is '2'"),
        (lambda comm: ANY.init_all(2**31), "size 2147483648 is outside"),
        (lambda comm: ANY.init(unique_id="x", rank=0, size=1), "unique_id is a str"),
        (lambda comm: ANY.init(unique_id=b"x" * 128, rank="0", size=1), "rank is '0'"),
        (lambda comm: ANY.init(unique_id=b"x" * 128, rank=0, size=1.0), "size is 1.0"),
        (lambda comm: ANY.init(unique_id=b"x" * 128, rank=1, size=1), "rank 1 is outside 0"),
        (lambda comm: RANKS(1.5), "count is 1.5"),
        (lambda comm: RANKS(1, unique_id=b"short"), "unique_id has 5 bytes"),
        (
            lambda comm: RANKS(1, unique_id=b"x" * 128, process=1),
            "process 1 is outside 0 to 0",
        ),
        (lambda comm: ANY.settings.set(3, 1), "name is 3"),
        (lambda comm: ANY.settings.tuning("2"), "ranks is '2'"),
        (lambda comm: ANY.schedule.make(None, "ring", 2), "collective is None"),
        (lambda comm: ANY.schedule.make("all_reduce", "ring", "2"), "ranks is '2'"),
        (lambda comm: ANY.schedule.make("broadcast", "chain", 2, root="0"), "root is '0'"),
        (lambda comm: ANY.schedule.check(b"text"), "text is b'text', a bytes"),
        (lambda comm: ANY.schedule.from_plan({}), "plan is {}"),
        (lambda comm: ANY.schedule.microbench("chain", "forward", width="1"), "width is '1'"),
        (lambda comm: ANY.plan("dgx1v", "all_reduce"), "topology is 'dgx1v', a str"),
        (lambda comm: ANY.planning.split([1], 8), "classes must be pairs"),
        (lambda comm: ANY.planning.split([("a", 1)], 8), "GB/s of classes"),
        (lambda comm: ANY.topology.synthetic(8), "description is 8"),
    ],
)
def test_refused_in_words(alone: Communicator, call: Callable[[Any], object], reason: str) -> None:
    with pytest.raises(ropewalk.ArgumentError, match=reason):
        call(alone)
    # The communicator still works.
    assert alone.all_reduce(np.ones(2)).tolist() == [1, 1]


def test_refused_by_topologies_and_plans() -> None:
    machine: Any = ropewalk.topology.synthetic("4gpu nvswitch")
    refusals: list[tuple[Callable[[], object], str]] = [
        (lambda: machine.replicate("2"), "hosts is '2'"),
        (lambda: machine.matrix(0.5), "host is 0.5"),
        (lambda: machine.place("4"), "local_size is '4'"),
        (lambda: machine.select(gpus=3), "gpus is 3, a int; it must be a list of integers"),
        (lambda: machine.select(gpus=[0, "1"]), r"gpus\[1\] is '1'"),
        (lambda: machine.select(plane=3), "plane is 3"),
        (lambda: ANY.plan(machine, "all_reduce", root="0"), "root is '0'"),
        (lambda: ANY.plan(machine, 3), "op is 3"),
        (lambda: ANY.plan(machine, "all_reduce", trees_per_root=1.5), "trees_per_root is"),
        (lambda: ANY.plan(machine, "all_reduce").times_us(["a"]), "sizes: "),
    ]
    for call, reason in refusals:
        with pytest.raises(ropewalk.ArgumentError, match=reason):
            call()


class Index:
    """An integer of some library's."""

    def __index__(self) -> int:
        return 0


@pytest.mark.parametrize("zero", [0, np.int64(0), np.uint8(0), Index(), np.array(0)])
def test_every_integer_will_do(alone: Communicator, zero: Any) -> None:
    assert alone.broadcast(np.ones(2), zero).tolist() == [1, 1]
    part = alone.split(zero, key=zero)
    assert part is not None
    part.finalize()
    machine = ropewalk.topology.synthetic("4gpu nvswitch")
    assert ANY.plan(machine, "broadcast", gpus=np.arange(4), root=zero).rate_gbps > 0


def test_colors_may_be_bools(alone: Communicator) -> None:
    part = alone.split(alone.rank == 0)
    assert part is not None
    part.finalize()


def test_ends_of_ranges() -> None:
    assert integer(5, "n", 0, 5) == 5
    assert integer(-(2**31), "n") == -(2**31)
    with pytest.raises(ropewalk.ArgumentError, match="n 6 is outside 0 to 5"):
        integer(6, "n", 0, 5)
    with pytest.raises(ropewalk.ArgumentError, match="n 0 is not positive"):
        integer(0, "n", 1)
