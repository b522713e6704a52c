"""The ranks of one process: cores, threads that drive some of them each, and the end of all."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Callable

from ropewalk.cli import console
from ropewalk.communicator import Communicator

Body = Callable[[list[Communicator]], int]
"""What a thread does with its ranks; returns an exit status."""


def pin(first: int, count: int = 1) -> None:
    """Binds this thread, and those that it starts, to cores that it may use, in turns.

    Args:
        first: index of the first of these cores.
        count: how many.
    """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[(first + i) % len(cores)] for i in range(count)})


def in_threads(comms: list[Communicator], threads: int, body: Body, *, pinned: bool) -> int:
    """Runs `body` in so many threads, each with as many of the ranks. Returns the worst status.

    When one raises, its ranks are aborted, which ends what the others wait for; then the first
    exception is raised here.

    Args:
        comms: the ranks of this process, in order.
        threads: one does it in the calling thread.
        body: what each does.
        pinned: whether thread i is bound to the i-th core that this process may use.
    """
    if threads == 1:
        return body(comms)
    each = len(comms) // threads
    parts = [comms[thread * each : (thread + 1) * each] for thread in range(threads)]
    statuses = [console.OK] * threads

    def drive(thread: int) -> None:
        if pinned:
            pin(thread)
        statuses[thread] = body(parts[thread])

    _at_once(parts, drive)
    return max(statuses)


def together(comms: list[Communicator], call: Callable[[Communicator], None]) -> None:
    """Runs `call` for all at once, each in a thread of its own.

    One for which it raises is aborted, so that the others do not wait for it; then the first
    exception is raised here.
    """
    _at_once([[comm] for comm in comms], lambda index: call(comms[index]))


@contextlib.contextmanager
def leaving(comms: list[Communicator]) -> Iterator[None]:
    """Finalizes all at the end of the block; aborts them when it ends by an exception."""
    try:
        yield
        # At once: on GPUs, a rank that leaves waits until those of other processes do so too.
        together(comms, Communicator.finalize)
    except BaseException:
        _abort(comms)
        raise


def _abort(comms: list[Communicator]) -> None:
    """Those that are not closed."""
    for comm in comms:
        if not comm.closed:
            comm.abort()


def _at_once(parts: list[list[Communicator]], call: Callable[[int], None]) -> None:
    """Calls with the index of each part, each in a thread; a part whose call raises is aborted.

    For the main thread. Raises the first exception when all have ended.
    """
    raised: list[BaseException] = []

    def run(index: int) -> None:
        try:
            call(index)
        except BaseException as error:
            raised.append(error)  # before others hear of it, and raise what follows from it
            _abort(parts[index])

    if len(parts) == 1:
        run(0)
    else:
        threads = [threading.Thread(target=run, args=(index,)) for index in range(len(parts))]
        # Ctrl-C ends the process: this thread only waits, and cannot end the others' calls.
        before = signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            signal.signal(signal.SIGINT, before)
    if raised:
        raise raised[0]
