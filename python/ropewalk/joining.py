"""Joining: how a program becomes a rank."""

from __future__ import annotations

import ctypes
from typing import Optional

from ropewalk._library import UNIQUE_ID_BYTES, Comm, UniqueIdStruct, check, library
from ropewalk.communicator import Communicator
from ropewalk.errors import ArgumentError


def unique_id() -> bytes:
    """Address of the first rank and a secret, for `init`. Serves one communicator.

    One rank makes it and hands it to the others by a private way: who holds it can join.
    """
    made = UniqueIdStruct()
    check(library().rwGetUniqueId(ctypes.byref(made)))
    return bytes(made)


def init(
    *,
    unique_id: Optional[bytes] = None,
    rank: Optional[int] = None,
    size: Optional[int] = None,
) -> Communicator:
    """Joins the job and returns its communicator, when all ranks have joined.

    Without arguments, rank, size and address come from the launcher's environment: torchrun,
    mpirun (Open MPI, MPICH), srun, or ROPEWALK_RANK, ROPEWALK_WORLD_SIZE and ROPEWALK_RENDEZVOUS.
    Without a launcher, this process is a job of one rank.

    Args:
        unique_id: from `ropewalk.unique_id`, the same on all ranks.
        rank: this rank, from 0 to size - 1.
        size: number of ranks.

    Raises:
        ArgumentError: only some arguments were given, or they contradict each other or other ranks.
        TimeoutError: not all ranks came within the setting TIMEOUT.
        SystemCallError: the first rank cannot be reached.
    """
    comm = Comm()
    if unique_id is None and rank is None and size is None:
        check(library().rwCommInitEnv(ctypes.byref(comm)))
        return Communicator(comm)
    if unique_id is None or rank is None or size is None:
        raise ArgumentError("unique_id, rank and size go together: give all three or none")
    if len(unique_id) != UNIQUE_ID_BYTES:
        raise ArgumentError(
            f"unique_id has {len(unique_id)} bytes; ropewalk.unique_id() makes {UNIQUE_ID_BYTES}"
        )
    raw = UniqueIdStruct.from_buffer_copy(unique_id)
    check(library().rwCommInitRank(ctypes.byref(comm), size, raw, rank))
    return Communicator(comm)


def init_all(size: int) -> list[Communicator]:
    """`size` communicators of one new job, all in this process; number i is rank i.

    Each may be used by its own thread, or all by one thread within a `group`.
    """
    if size < 1:
        raise ArgumentError(f"size {size} is not positive")
    comms = (Comm * size)()
    check(library().rwCommInitAll(comms, size))
    return [Communicator(Comm(address)) for address in comms]
