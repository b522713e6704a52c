"""Local ranks: N processes of this one, for `ropewalk bench --ranks N`.

The ranks are forked before the library is loaded, so that they start in milliseconds and need no
second copy of the command line. Rank 0 makes the unique id and hands it to the others through a
pipe: it is never in an environment or a command line that others can read.

No process stays behind: the kernel kills the ranks when this process dies (PR_SET_PDEATHSIG), this
process kills them when it is told to end, or when one of them fails. A rank that ends before it has
connected to any other is missed by none of them before the joining deadline; so each rank tells
this process when it has joined, and this process ends those that wait for one that never will.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import struct
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Callable, Final, NoReturn, Optional

import typer

from ropewalk import joining
from ropewalk._library import UNIQUE_ID_BYTES
from ropewalk.cli import console
from ropewalk.communicator import Communicator

_PR_SET_PDEATHSIG: Final = 1
# A rank whose peer died learns so within the setting PEER_LOSS_TIME, one second; the rest is for
# its message and a loaded machine. Then it is killed.
_GRACE_SECONDS: Final = 10.0
# The same after a rank that had not joined: the others may have nothing to learn it by.
_JOINING_GRACE_SECONDS: Final = 2.0
# What a rank writes into the pipe when it has joined: its number.
_JOINED: Final = struct.Struct("=i")

# The variables by which launchers say that this process is a rank (comm/launch.h).
_LAUNCHERS: Final = (
    ("ROPEWALK_RANK", "ROPEWALK_WORLD_SIZE"),
    ("RANK", "WORLD_SIZE"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH
    ("SLURM_PROCID", "SLURM_NTASKS"),  # srun
)


# The same of ranks on this host: torchrun, Open MPI, MPICH.
_LOCAL_SIZES: Final = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def launched_ranks() -> int:
    """How many ranks a launcher started, this process among them; 0 without a launcher."""
    for rank, size in _LAUNCHERS:
        if rank in os.environ and size in os.environ:
            # What is no number is the library's to refuse, in joining.init.
            return int(os.environ[size]) if os.environ[size].isdigit() else 1
    return 0


def ranks_here() -> int:
    """How many of the launcher's ranks are on this host; all of them where it does not tell."""
    for name in _LOCAL_SIZES:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return launched_ranks()


def pin(index: int) -> None:
    """Binds this process to one core: the index-th of those it may use, in turns."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[index % len(cores)]})


def run_local(
    ranks: int,
    body: Callable[[Communicator], int],
    *,
    prepare: Callable[[], None],
    pinned: bool,
) -> int:
    """Runs `body` in `ranks` new processes and returns the worst exit status.

    Args:
        ranks: how many.
        body: what each rank does with its communicator; returns its exit status.
        prepare: what each rank does before it joins.
        pinned: whether rank i is bound to core i.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    id_pipe, joined_pipe = os.pipe(), os.pipe()
    os.set_blocking(joined_pipe[0], False)
    pids: dict[int, int] = {}
    parent = os.getpid()
    with _signals_raise() as signalled:
        try:
            for rank in range(ranks):
                pid = os.fork()
                if pid == 0:
                    os.close(joined_pipe[0])
                    _child(rank, ranks, prepare, body, id_pipe, joined_pipe[1], parent, pinned)
                pids[pid] = rank
            for end in (*id_pipe, joined_pipe[1]):
                os.close(end)
            return _wait(pids, joined_pipe[0], signalled)
        finally:
            _kill(pids)
            _reap(pids)
            os.close(joined_pipe[0])


def _child(
    rank: int,
    ranks: int,
    prepare: Callable[[], None],
    body: Callable[[Communicator], int],
    id_pipe: tuple[int, int],
    joined: int,
    parent: int,
    pinned: bool,
) -> NoReturn:
    """A rank, from fork to exit."""
    status = console.FAILURE
    try:
        # Default actions: a library call that waits would hold Python's own handlers back.
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before prctl
            os._exit(console.FAILURE)
        if pinned:
            pin(rank)
        with console.reported():
            prepare()
            comm = joining.init(unique_id=_share_id(rank, ranks, *id_pipe), rank=rank, size=ranks)
            os.write(joined, _JOINED.pack(rank))
            os.close(joined)
            with comm:
                status = body(comm)
    except typer.Exit as ended:
        status = ended.exit_code
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)  # not sys.exit: the parent's clean-up is not this process's


def _share_id(rank: int, ranks: int, reader: int, writer: int) -> bytes:
    """Rank 0 makes the unique id and writes it once for each of the others."""
    if rank == 0:
        made = joining.unique_id()
        # Its own reading end stays open meanwhile: a rank that was killed reads nothing, and when
        # the others have read theirs, a write without any reader would be an error.
        for _ in range(ranks - 1):
            os.write(writer, made)
        os.close(reader)
        os.close(writer)
        return made
    # Reads of a pipe are atomic among readers, and all writes are this long: each reader gets
    # one whole id. Without the own writing end, the end of file tells that rank 0 is gone.
    os.close(writer)
    got = os.read(reader, UNIQUE_ID_BYTES)
    os.close(reader)
    if len(got) != UNIQUE_ID_BYTES:
        console.fail(f"rank {rank}: rank 0 ended before it made the unique id")
    return got


def _ranks_joined(reader: int) -> set[int]:
    """The ranks that have written that they joined since the last call."""
    joined: set[int] = set()
    with contextlib.suppress(BlockingIOError):
        while raw := os.read(reader, 1024 * _JOINED.size):
            joined.update(rank for (rank,) in _JOINED.iter_unpack(raw))
    return joined


def _wait(pids: dict[int, int], joined_reader: int, signalled: int) -> int:
    """Waits for all ranks. When one dies by a signal or fails, the others get a while to end.

    The caller ends those that are left in `pids`. `signalled` can be read after every signal.
    """
    worst, deadline = console.OK, float("inf")
    joined: set[int] = set()
    missing: Optional[int] = None
    while pids:
        pid, raw = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            left = deadline - time.monotonic()
            if left < 0:
                names = ", ".join(str(rank) for rank in sorted(pids.values()))
                why = (
                    "it did not end itself"
                    if missing is None
                    else f"rank {missing} ended before it had joined"
                )
                print(f"ropewalk: ending rank {names}: {why}", file=sys.stderr)
                return worst
            # Not waitpid(): a signal that comes just before it would not end it.
            if select.select([signalled], [], [], None if left == float("inf") else left)[0]:
                os.read(signalled, 4096)
            continue
        if pid not in pids:
            continue
        rank = pids.pop(pid)
        if os.WIFSIGNALED(raw):
            number = os.WTERMSIG(raw)
            name = signal.Signals(number).name
            print(f"ropewalk: rank {rank} (process {pid}) was killed by {name}", file=sys.stderr)
            status = 128 + number
        else:
            status = os.WEXITSTATUS(raw)
        worst = max(worst, status)
        if status not in (console.OK, console.WRONG):
            joined |= _ranks_joined(joined_reader)
            if rank not in joined and missing is None:
                missing = rank
            grace = _GRACE_SECONDS if rank in joined else _JOINING_GRACE_SECONDS
            deadline = min(deadline, time.monotonic() + grace)
    return worst


def _kill(pids: dict[int, int]) -> None:
    # All are stopped first: none must see another's end, and report that instead of the cause.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _reap(pids: dict[int, int]) -> None:
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


@contextlib.contextmanager
def _signals_raise() -> Iterator[int]:
    """Lets SIGTERM and SIGHUP unwind as Ctrl-C does, so that the ranks are ended.

    Yields a descriptor that can be read when these, or the end of a child, were signalled.
    """

    def end(number: int, _frame: object) -> None:
        raise typer.Exit(128 + number)

    def note(_number: int, _frame: object) -> None:
        pass

    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    actions = {signal.SIGTERM: end, signal.SIGHUP: end, signal.SIGCHLD: note}
    before = {number: signal.signal(number, action) for number, action in actions.items()}
    try:
        yield reader
    except KeyboardInterrupt:
        raise typer.Exit(128 + signal.SIGINT) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(reader)
        os.close(writer)
