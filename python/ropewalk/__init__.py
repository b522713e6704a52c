"""Ropewalk: collective communication between the ranks of a job.

Example:
    import numpy, ropewalk

    with ropewalk.init() as comm:  # under torchrun, mpirun or srun; alone: one rank
        array = numpy.full(4, comm.rank, dtype="float32")
        comm.all_reduce(array)  # in place

The library reports failures as exceptions, all of them `ropewalk.Error`.
"""

from ropewalk import planning, schedule, settings, topology
from ropewalk.communicator import Communicator
from ropewalk.errors import (
    ArgumentError,
    CudaError,
    Error,
    InterruptedError,
    NotCopiedError,
    PeerLostError,
    SystemCallError,
    TimeoutError,
    UsageError,
)
from ropewalk.groups import group
from ropewalk.joining import device_count, init, init_all, unique_id, why_no_device
from ropewalk.operators import PreMulSum
from ropewalk.planning import Plan, plan
from ropewalk.queues import Queues
from ropewalk.registration import Registration
from ropewalk.request import Handle
from ropewalk.window import Batch, Window

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "Batch",
    "Communicator",
    "CudaError",
    "Error",
    "Handle",
    "InterruptedError",
    "NotCopiedError",
    "PeerLostError",
    "Plan",
    "PreMulSum",
    "Queues",
    "Registration",
    "SystemCallError",
    "TimeoutError",
    "UsageError",
    "Window",
    "__version__",
    "device_count",
    "group",
    "init",
    "init_all",
    "plan",
    "planning",
    "schedule",
    "settings",
    "topology",
    "unique_id",
    "why_no_device",
]
