"""Counts, sizes and bandwidths are computed as nccl-tests' programs do."""

from __future__ import annotations

import pytest
from ropewalk.cli.bench_plan import OPERATIONS, OPERATORS, TYPES, Cases, Options, find_type


@pytest.mark.parametrize(
    ("name", "size", "element", "ranks", "count", "shown"),
    [
        ("all_reduce", 1000, 4, 3, 250, 1000),
        ("all_reduce", 10, 4, 2, 2, 8),
        ("broadcast", 7, 8, 2, 0, 0),
        ("sendrecv", 64, 2, 5, 32, 64),
        # 256 elements over 3 ranks: 85, rounded down to a multiple of 16 bytes, 84
        ("all_gather", 1024, 4, 3, 84, 84 * 4 * 3),
        ("reduce_scatter", 1024, 8, 4, 32, 1024),
        ("all_to_all", 1024, 1, 5, 192, 960),
        ("gather", 8, 4, 4, 0, 0),
        ("scatter", 1 << 20, 2, 8, 65536, 1 << 20),
    ],
)
def test_counts(name: str, size: int, element: int, ranks: int, count: int, shown: int) -> None:
    operation = OPERATIONS[name]
    assert operation.elements(size, element, ranks) == count
    assert operation.bytes(count, element, ranks) == shown


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("all_to_all", 0.75),
        ("gather", 0.75),
        ("scatter", 0.75),
        ("sendrecv", 1.0),
    ],
)
def test_bandwidths(name: str, factor: float) -> None:
    operation = OPERATIONS[name]
    count = operation.elements(1 << 20, 4, 4)
    algbw, busbw = operation.bandwidths(count, 4, 1e-3, 4)
    assert algbw == pytest.approx((1 << 20) / 1e9 / 1e-3)
    assert busbw == pytest.approx(algbw * factor)


def test_sizes_by_factor_and_by_step() -> None:
    assert list(Options(minbytes=8, maxbytes=100, stepfactor=2).sizes()) == [8, 16, 32, 64]
    assert list(Options(minbytes=8, maxbytes=40, stepbytes=16).sizes()) == [8, 24, 40]
    assert list(Options(minbytes=0, maxbytes=8, stepfactor=2).sizes()) == [0]
    assert list(Options(minbytes=8, maxbytes=16, stepbytes=0).sizes()) == [8]


def test_all_types_operators_and_roots_in_order() -> None:
    options = Options(minbytes=4, maxbytes=4, datatype="all", op="all", root=-1)
    lines = Cases(OPERATIONS["reduce"], options, 3)
    planned = list(lines)
    assert len(lines) == len(planned) == len(TYPES) * len(OPERATORS) * 3
    assert [case.root for case in planned[:4]] == [0, 1, 2, 0]
    assert planned[0].type_name == "int8"
    assert planned[3].op_name == "prod"
    gathered = Cases(OPERATIONS["all_gather"], options, 3)
    assert {(case.op_name, case.root) for case in gathered} == {("none", -1)}


def test_both_spellings_of_types() -> None:
    assert find_type("half") == "half"
    assert find_type("float16") == "half"
    assert find_type("float8e5m2") == "f8e5m2"
    assert find_type("complex") is None
