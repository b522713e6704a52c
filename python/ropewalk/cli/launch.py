"""Local ranks: N processes of this one, for `ropewalk bench --ranks N`, with one rank or more each.

They are forked before the library is loaded, so that they start in milliseconds and need no
second copy of the command line. The first makes the unique id and hands it to the others through a
pipe: it is never in an environment or a command line that others can read.

No process stays behind: the kernel kills them when this process dies (PR_SET_PDEATHSIG), this
process kills them when it is told to end, or when one of them fails. One that ends before it has
connected to any other is missed by none of them before the joining deadline; so each tells this
process when it has joined, and this process ends those that wait for one that never will.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
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
from ropewalk.cli import console, process_ranks
from ropewalk.communicator import Communicator

_PR_SET_PDEATHSIG: Final = 1
# A rank whose peer died learns so within the setting PEER_LOSS_TIME, one second; the rest is for
# its message and a loaded machine. Then it is killed.
_GRACE_SECONDS: Final = 10.0
# The same after a rank that had not joined: the others may have nothing to learn it by.
_JOINING_GRACE_SECONDS: Final = 2.0
# What a process writes into the pipe when its ranks have joined: its number.
_JOINED: Final = struct.Struct("=i")

# The variables by which launchers say which process this is of how many (bootstrap/launch.h).
_LAUNCHERS: Final = (
    ("ROPEWALK_RANK", "ROPEWALK_WORLD_SIZE"),
    ("RANK", "WORLD_SIZE"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH
    ("SLURM_PROCID", "SLURM_NTASKS"),  # srun
)


# The same of processes on this host: torchrun, Open MPI, MPICH.
_LOCAL_SIZES: Final = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def launched_processes() -> int:
    """How many processes a launcher started, this one among them; 0 without a launcher."""
    for rank, size in _LAUNCHERS:
        if rank in os.environ and size in os.environ:
            # What is not a number is the library's to refuse, in joining.init.
            return int(os.environ[size]) if os.environ[size].isdigit() else 1
    return 0


def processes_here() -> int:
    """How many of the launcher's are on this host; all of them where it does not tell."""
    for name in _LOCAL_SIZES:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return launched_processes()


def run_local(
    processes: int,
    body: Callable[[list[Communicator]], int],
    *,
    prepare: Callable[[], None],
    pinned: bool,
    ranks_each: int = 1,
    threads_each: int = 1,
) -> int:
    """Runs `body` in new processes and returns the worst exit status.

    Args:
        processes: how many.
        body: what each does with the communicators of its ranks; returns its exit status.
        prepare: what each does before it joins.
        pinned: whether each is bound to as many cores as it has threads, in turns.
        ranks_each: ranks in each process.
        threads_each: threads that drive them.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    id_pipe, joined_pipe = os.pipe(), os.pipe()
    os.set_blocking(joined_pipe[0], False)
    pids: dict[int, int] = {}
    parent = os.getpid()

    def join_and_run(process: int) -> int:
        if pinned:
            process_ranks.pin(process * threads_each, threads_each)
        with console.reported():
            prepare()
            comms = joining.init_ranks(
                ranks_each,
                unique_id=_share_id(process, processes, *id_pipe),
                process=process,
                processes=processes,
            )
            os.write(joined_pipe[1], _JOINED.pack(process))
            os.close(joined_pipe[1])
            with process_ranks.leaving(comms):
                return body(comms)

    with _signals_raise() as signalled:
        try:
            for process in range(processes):
                pid = os.fork()
                if pid == 0:
                    os.close(joined_pipe[0])
                    _child(functools.partial(join_and_run, process), parent)
                pids[pid] = process
            for end in (*id_pipe, joined_pipe[1]):
                os.close(end)
            return _wait(pids, joined_pipe[0], signalled, ranks_each)
        finally:
            _kill(pids)
            _reap(pids)
            os.close(joined_pipe[0])


def _child(work: Callable[[], int], parent: int) -> NoReturn:
    """A process, from fork to exit."""
    status = console.FAILURE
    try:
        # Default actions: a library call that waits would hold Python's own handlers back.
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before prctl
            os._exit(console.FAILURE)
        status = work()
    except typer.Exit as ended:
        status = ended.exit_code
    except (BrokenPipeError, SystemExit):
        pass  # who reads the output has ended: Rich exits then
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)  # not sys.exit: the parent's clean-up is not this process's


def _share_id(process: int, processes: int, reader: int, writer: int) -> bytes:
    """The first process makes the unique id and writes it once for each of the others."""
    if process == 0:
        made = joining.unique_id()
        # Its own reading end stays open meanwhile: one that was killed reads nothing, and when
        # the others have read theirs, a write without any reader would be an error.
        for _ in range(processes - 1):
            os.write(writer, made)
        os.close(reader)
        os.close(writer)
        return made
    # Reads of a pipe are atomic among readers, and all writes are this long: each reader gets
    # one whole id. Without the own writing end, the end of file tells that the first is gone.
    os.close(writer)
    got = os.read(reader, UNIQUE_ID_BYTES)
    os.close(reader)
    if len(got) != UNIQUE_ID_BYTES:
        console.fail(f"process {process}: the first ended before it made the unique id")
    return got


def _processes_joined(reader: int) -> set[int]:
    """Those that have written that they joined since the last call."""
    joined: set[int] = set()
    with contextlib.suppress(BlockingIOError):
        while raw := os.read(reader, 1024 * _JOINED.size):
            joined.update(process for (process,) in _JOINED.iter_unpack(raw))
    return joined


def _ranks_of(processes: list[int], ranks_each: int) -> str:
    """Names them: "rank 0, 1", or "ranks 0 to 3, 8 to 11" of processes with several."""
    if ranks_each == 1:
        return "rank " + ", ".join(str(process) for process in sorted(processes))
    spans = [
        (process * ranks_each, (process + 1) * ranks_each - 1) for process in sorted(processes)
    ]
    return "ranks " + ", ".join(f"{first} to {last}" for first, last in spans)


def _wait(pids: dict[int, int], joined_reader: int, signalled: int, ranks_each: int) -> int:
    """Waits for all. When one dies by a signal or fails, the others get a while to end.

    The caller ends those that are left in `pids`. `signalled` can be read after every signal.
    """
    worst, deadline = console.OK, float("inf")
    joined: set[int] = set()
    missing: Optional[int] = None
    one = ranks_each == 1
    while pids:
        pid, raw = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            left = deadline - time.monotonic()
            if left < 0:
                why = "it did not end itself" if one else "they did not end themselves"
                if missing is not None:
                    who = _ranks_of([missing], ranks_each)
                    why = f"{who} ended before {'it' if one else 'they'} had joined"
                names = _ranks_of(list(pids.values()), ranks_each)
                print(f"ropewalk: ending {names}: {why}", file=sys.stderr)
                return worst
            # Not waitpid(): a signal that comes just before it would not end it.
            if select.select([signalled], [], [], None if left == float("inf") else left)[0]:
                os.read(signalled, 4096)
            continue
        if pid not in pids:
            continue
        process = pids.pop(pid)
        if os.WIFSIGNALED(raw):
            number = os.WTERMSIG(raw)
            print(
                f"ropewalk: {_ranks_of([process], ranks_each)} (process {pid}) "
                f"{'was' if one else 'were'} killed by {signal.Signals(number).name}",
                file=sys.stderr,
            )
            status = 128 + number
        else:
            status = os.WEXITSTATUS(raw)
        worst = max(worst, status)
        if status not in (console.OK, console.WRONG):
            joined |= _processes_joined(joined_reader)
            if process not in joined and missing is None:
                missing = process
            grace = _GRACE_SECONDS if process in joined else _JOINING_GRACE_SECONDS
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
