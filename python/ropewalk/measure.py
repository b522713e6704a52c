"""Timing an operation. The loop runs in the library, so that Python adds nothing to it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple, Union

from ropewalk._library import Comm, MeasureResult, MeasureSpec, check, library
from ropewalk.communicator import Communicator
from ropewalk.types import OPERATORS, DataType

# rwNumOps: a pre-multiplied sum by scalars that the measurement chooses and its check knows.
_NUMBERS = {**OPERATORS, "mulsum": len(OPERATORS)}


class Measured(NamedTuple):
    """Seconds of one operation, and what the check found."""

    seconds_avg: float
    seconds_min: float
    seconds_max: float
    seconds_rank0: float
    wrong: int
    algorithm: str
    iteration_seconds: list[float]
    """of each iteration of the ranks given; empty unless they were asked for"""


def measure(
    comm: Union[Communicator, Sequence[Communicator]],
    collective: str,
    count: int,
    data_type: DataType,
    *,
    op: str = "sum",
    root: int = 0,
    in_place: bool = False,
    warmup: int = 1,
    iterations: int = 20,
    operations: int = 1,
    check_rounds: int = 1,
    barrier: int = 0,
    unalign: int = 0,
    per_iteration: bool = False,
    device: bool = False,
    graphs: int = 0,
    registered: bool = False,
    region: int = 0,
    period: int = 0,
) -> Measured:
    """Runs a collective `iterations` times and verifies it. All ranks make the same call.

    Args:
        comm: this rank; or several ranks of one communicator, of which this thread makes each call
            in one group.
        collective: "all_reduce" and so on.
        count: elements, as in the collective's C call.
        data_type: of the elements.
        op: of reducing collectives; also "mulsum", a pre-multiplied sum.
        root: of rooted collectives.
        in_place: whether input and output share memory.
        warmup: iterations that are not timed.
        iterations: timed iterations.
        operations: operations in one iteration.
        check_rounds: verified rounds after the timed loop.
        barrier: 1: after every operation, timed; 3: after every iteration, not timed.
        unalign: elements by which the buffers are off the start of a page.
        per_iteration: whether the time of each iteration is kept.
        device: in the memory of the rank's GPU, not of the host.
        graphs: with `device`: the iterations are captured in a CUDA graph, which is launched so
            many times; 0 enqueues each.
        registered: with `device`: the buffers are registered first (`Communicator.register`).
        region: bytes of input and of output through which the operations move, so that data comes
            from memory; 0: all use the same bytes, which caches may hold.
        period: of all_reduce, broadcast and reduce on host memory, out of place: buffers of a
            multiple of so many bytes (itself one of 65536) show the same memory each period. The
            output of rank 0 (of a reduce, the root) is whole, and verified whole; of the others',
            what was written last in each period. 0: all buffers are whole.
    """
    each = (ctypes.c_double * iterations)() if per_iteration else None
    spec = MeasureSpec(
        size=ctypes.sizeof(MeasureSpec),
        collective=collective.encode(),
        count=count,
        type=data_type.number,
        op=_NUMBERS[op],
        root=root,
        in_place=int(in_place),
        warmup=warmup,
        iterations=iterations,
        operations=operations,
        check=check_rounds,
        barrier=barrier,
        unalign=unalign,
        iteration_seconds=each,
        device=int(device),
        graphs=graphs,
        registered=int(registered),
        region=region,
        period=period,
    )
    comms = [comm] if isinstance(comm, Communicator) else comm
    handles = (Comm * len(comms))(*(each.c_handle for each in comms))
    result = MeasureResult()
    check(library().rwMeasureGroup(handles, len(comms), ctypes.byref(spec), ctypes.byref(result)))
    return Measured(
        result.seconds_avg,
        result.seconds_min,
        result.seconds_max,
        result.seconds_rank0,
        result.wrong,
        result.algorithm.decode(),
        list(each) if each is not None else [],
    )
