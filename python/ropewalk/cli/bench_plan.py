"""What `ropewalk bench` runs: sizes, counts and bandwidths, defined as in nccl-tests 2.19."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Optional

from ropewalk.types import DATA_TYPES, DataType

# nccl-tests' names of types and operators, in its order, which `-d all` and `-o all` keep.
TYPES: Final = {
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "bfloat16": "bfloat16",
    "f8e4m3": "float8e4m3",
    "f8e5m2": "float8e5m2",
}
OPERATORS: Final = ("sum", "prod", "max", "min", "avg", "mulsum")


def find_type(name: str) -> Optional[str]:
    """nccl-tests' name of a type, from that name or Ropewalk's; None when it is neither."""
    if name in TYPES:
        return name
    return next((ours for ours, theirs in TYPES.items() if theirs == name), None)


def data_type(name: str) -> DataType:
    """The type behind one of nccl-tests' names."""
    return DATA_TYPES[TYPES[name]]


@dataclass(frozen=True)
class Operation:
    """What nccl-tests' program for one operation does with sizes.

    `divides`: the size is that of the larger buffer, which is cut among the ranks, so that the
    count of the call is a rank's part, rounded down to a multiple of 16 bytes.
    """

    name: str
    program: str
    divides: bool = False
    reduces: bool = False
    rooted: bool = False
    in_place: bool = True
    bus_factor: str = "one"

    def elements(self, size: int, element_bytes: int, ranks: int) -> int:
        """The count of the call for a size in bytes."""
        count = size // element_bytes
        if not self.divides:
            return count
        return count // ranks & ~(16 // element_bytes - 1)

    def bytes(self, count: int, element_bytes: int, ranks: int) -> int:
        """The size that the table shows: that of the larger of both buffers."""
        return count * element_bytes * (ranks if self.divides else 1)

    def factor(self, ranks: int) -> float:
        """Busbw / algbw."""
        if self.bus_factor == "one":
            return 1.0
        return (2 if self.bus_factor == "twice" else 1) * (ranks - 1) / ranks

    def bandwidths(
        self, count: int, element_bytes: int, seconds: float, ranks: int
    ) -> tuple[float, float]:
        """Algbw and busbw in GB/s (10^9 bytes per second)."""
        algbw = self.bytes(count, element_bytes, ranks) / 1e9 / seconds if seconds > 0 else 0.0
        return algbw, algbw * self.factor(ranks)


_ALL = (
    Operation("all_reduce", "all_reduce_perf", reduces=True, bus_factor="twice"),
    Operation("all_gather", "all_gather_perf", divides=True, bus_factor="once"),
    Operation(
        "reduce_scatter", "reduce_scatter_perf", divides=True, reduces=True, bus_factor="once"
    ),
    Operation("broadcast", "broadcast_perf", rooted=True),
    Operation("reduce", "reduce_perf", reduces=True, rooted=True),
    Operation("all_to_all", "alltoall_perf", divides=True, in_place=False, bus_factor="once"),
    Operation("gather", "gather_perf", divides=True, rooted=True, bus_factor="once"),
    Operation("scatter", "scatter_perf", divides=True, rooted=True, bus_factor="once"),
    # nccl-tests gives sendrecv an operator too, in its table and in `-o all`.
    Operation("sendrecv", "sendrecv_perf", reduces=True, in_place=False),
)
OPERATIONS: Final = {operation.name: operation for operation in _ALL}


@dataclass(frozen=True)
class Options:
    """The flags, parsed. Names and defaults are nccl-tests'."""

    nthreads: int = 1
    ngpus: int = 1
    minbytes: int = 32 << 20
    maxbytes: int = 32 << 20
    stepbytes: int = 1 << 20
    stepfactor: int = 1
    iters: int = 20
    agg_iters: int = 1
    warmup_iters: int = 1
    run_cycles: int = 1
    check: int = 1
    op: str = "sum"
    datatype: str = "float"
    root: int = 0
    blocking: int = 0
    average: int = 1
    unalign: int = 0
    per_iter_timing: bool = False
    per_iter_skip: int = 0
    parallel_init: bool = False
    report_cputime: bool = False
    report_timestamps: bool = False
    graphs: int = 0
    registered: bool = False
    hot: bool = False
    region: int = 0
    """bytes of input, and of output, through which the operations move; 0: hot"""
    period: int = 0
    """bytes of memory that long buffers repeat; 0: buffers are whole"""
    slowdown: float = 1.0
    """of an emulated machine, whose times are shown; 1: of this one"""

    @property
    def ranks_each(self) -> int:
        """Ranks in each process."""
        return self.nthreads * self.ngpus

    def sizes(self) -> Iterator[int]:
        """Sizes in bytes, in order."""
        size = self.minbytes
        while size <= self.maxbytes:
            yield size
            grown = size * self.stepfactor if self.stepfactor > 1 else size + self.stepbytes
            if grown <= size:  # 0 times a factor, or a step of 0: nccl-tests would never end
                return
            size = grown


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    type_name: str
    op_name: str
    root: int
    size: int
    """bytes asked for; the table shows Operation.bytes"""


class Cases:
    """All lines, in nccl-tests' order: type, operator, root, cycle, size. Made one by one."""

    def __init__(self, operation: Operation, options: Options, ranks: int) -> None:
        self._types = list(TYPES) if options.datatype == "all" else [options.datatype]
        self._operators = ["none"]
        if operation.reduces:
            self._operators = list(OPERATORS) if options.op == "all" else [options.op]
        self._roots = [-1]
        if operation.rooted:
            self._roots = list(range(ranks)) if options.root == -1 else [options.root]
        self._cycles = options.run_cycles
        self._sizes = list(options.sizes())

    def __len__(self) -> int:
        kinds = len(self._types) * len(self._operators) * len(self._roots)
        return kinds * self._cycles * len(self._sizes)

    def __iter__(self) -> Iterator[Case]:
        for type_name in self._types:
            for op_name in self._operators:
                for root in self._roots:
                    for _ in range(self._cycles):
                        for size in self._sizes:
                            yield Case(type_name, op_name, root, size)
