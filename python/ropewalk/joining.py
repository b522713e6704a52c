"""Joining: how a program becomes a rank."""

from __future__ import annotations

import ctypes
import os
import re
from typing import Optional, Union

from ropewalk import interrupts
from ropewalk._library import UNIQUE_ID_BYTES, Comm, UniqueIdStruct, check, library
from ropewalk.arguments import MOST, integer
from ropewalk.communicator import Communicator
from ropewalk.errors import SUCCESS, ArgumentError, UsageError
from ropewalk.groups import group

Device = Union[str, int, None]
"""A GPU: its number, "cuda:1", or "cuda" for one by the rank; None: host memory only."""

# The launchers' names of a rank's number on its host: torchrun, Open MPI, MPICH, Slurm.
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")


def _may_wait() -> None:
    """Lets Ctrl-C end joining and later calls, also if another thread loaded the library."""
    interrupts.enable(library())


def device_count() -> int:
    """GPUs that this process sees; 0 where none can be used."""
    count = ctypes.c_int()
    check(library().rwDeviceCount(ctypes.byref(count)))
    return count.value


def why_no_device() -> str:
    """Why GPUs cannot be used here; "" when they can."""
    return (library().rwWhyNoDevice() or b"").decode("utf-8", "replace")


def local_number(fallback: int) -> int:
    """This process's number among the launcher's on this host; `fallback` if it does not say."""
    told = next((os.environ[name] for name in _LOCAL_RANKS if name in os.environ), "")
    return int(told) if told.isdigit() else fallback


def device_number(device: Union[str, int], rank: int) -> int:
    """CUDA's number of `device`.

    Args:
        device: see `Device`.
        rank: decides "cuda" where no launcher tells this rank's number on its host.

    Raises:
        UsageError: there is no GPU to use.
        ArgumentError: it names no GPU.
    """
    if not isinstance(device, str) and hasattr(device, "__index__"):
        return integer(device, "device", 0)
    match = re.fullmatch(r"cuda(?::(\d+))?", str(device))  # a torch.device too
    if match is None:
        raise ArgumentError(f'device "{device}" is neither "cuda" nor "cuda:" and a number')
    if match.group(1) is not None:
        return integer(int(match.group(1)), "device", 0)
    count = device_count()
    if count == 0:
        raise UsageError(f'device "cuda": {why_no_device()}')
    return local_number(rank) % count


def _with_device(comm: Communicator, device: Device) -> Communicator:
    if device is None:
        return comm
    try:
        comm.attach(device_number(device, comm.rank))
    except BaseException:
        comm.abort()  # the others must not wait for this rank
        raise
    return comm


def _struct_of(unique_id: bytes) -> UniqueIdStruct:
    if not isinstance(unique_id, (bytes, bytearray, memoryview)):
        raise ArgumentError(
            f"unique_id is a {type(unique_id).__name__}; pass the bytes of ropewalk.unique_id()"
        )
    raw = bytes(unique_id)
    if len(raw) != UNIQUE_ID_BYTES:
        raise ArgumentError(
            f"unique_id has {len(raw)} bytes; ropewalk.unique_id() makes {UNIQUE_ID_BYTES}"
        )
    return UniqueIdStruct.from_buffer_copy(raw)


def unique_id() -> bytes:
    """Address of the first rank and a secret, for `init`. Serves one communicator.

    One rank makes it and sends it to the others over a private channel: anyone who has it can join.
    """
    made = UniqueIdStruct()
    check(library().rwGetUniqueId(ctypes.byref(made)))
    return bytes(made)


def init(
    *,
    unique_id: Optional[bytes] = None,
    rank: Optional[int] = None,
    size: Optional[int] = None,
    device: Device = None,
) -> Communicator:
    """Joins the job and returns its communicator, when all ranks have joined.

    Without arguments, rank, size and address come from the launcher's environment: torchrun,
    mpirun (Open MPI, MPICH), srun, or ROPEWALK_RANK, ROPEWALK_WORLD_SIZE and ROPEWALK_RENDEZVOUS.
    Without a launcher, this process is a job of one rank.

    Args:
        unique_id: from `ropewalk.unique_id`, the same on all ranks.
        rank: this rank, from 0 to size - 1.
        size: number of ranks.
        device: the GPU that this rank works on besides host memory: "cuda:1", or 1. "cuda" takes
            the one of this rank's number on its host, in turns. All ranks must give one, or none.

    Raises:
        UsageError: there is no GPU to use; the text says why.
        ArgumentError: only some arguments were given, or they contradict each other or other ranks.
        TimeoutError: not all ranks came within the setting TIMEOUT.
        SystemCallError: the first rank cannot be reached.
    """
    comm = Comm()
    _may_wait()
    if unique_id is None and rank is None and size is None:
        check(library().rwCommInitEnv(ctypes.byref(comm)))
        return _with_device(Communicator(comm), device)
    if unique_id is None or rank is None or size is None:
        raise ArgumentError("unique_id, rank and size go together: give all three or none")
    raw = _struct_of(unique_id)
    ranks = integer(size, "size", 1)
    own = integer(rank, "rank", 0, ranks - 1)
    check(library().rwCommInitRank(ctypes.byref(comm), ranks, raw, own))
    return _with_device(Communicator(comm), device)


def init_all(size: int, *, device: Device = None) -> list[Communicator]:
    """`size` communicators of one new job, all in this process; number i is rank i.

    Each may be used by its own thread, or all by one thread within a `group`.

    Args:
        size: number of ranks.
        device: "cuda" gives each rank a GPU, in turns; see `init`.
    """
    ranks = integer(size, "size", 1)
    comms = (Comm * ranks)()
    _may_wait()
    check(library().rwCommInitAll(comms, ranks))
    made = [Communicator(Comm(address)) for address in comms]
    if device is not None:
        with group():
            for comm in made:
                comm.attach(device_number(device, comm.rank))
    return made


def init_ranks(
    count: int, *, unique_id: Optional[bytes] = None, process: int = 0, processes: int = 1
) -> list[Communicator]:
    """Joins a job whose processes have `count` ranks each; those of this one, in rank order.

    Each may be used by its own thread, or several by one thread within a `group`.

    Args:
        count: ranks in each process, the same in all.
        unique_id: from `ropewalk.unique_id`, the same in all processes; None: the launcher's
            environment tells of the processes, as in `init`.
        process: with `unique_id`: this process's number. It has rank `process * count` and those
            that follow.
        processes: with `unique_id`: how many there are.
    """
    count = integer(count, "count", 1)
    processes = integer(processes, "processes", 1, MOST // count)
    process = integer(process, "process", 0, processes - 1)
    _may_wait()
    if unique_id is None:
        joined = (Comm * count)()
        check(library().rwCommInitEnvRanks(joined, count))
        return [Communicator(Comm(address)) for address in joined]
    comms = [Comm() for _ in range(count)]
    raw = _struct_of(unique_id)
    size, first = processes * count, process * count
    check(library().rwGroupStart())
    for i, comm in enumerate(comms):
        check(library().rwCommInitRank(ctypes.byref(comm), size, raw, first + i))
    result = library().rwGroupEnd()
    if result != SUCCESS:
        for comm in filter(None, comms):  # those that joined before another one failed
            library().rwCommAbort(comm)
    check(result)
    return [Communicator(comm) for comm in comms]
