"""Ranks as processes forked from one that has imported slow modules, such as PyTorch."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Callable

# What the other ranks get when one has failed.
GRACE_SECONDS = 5.0
LAST_LINES = 60


def run(
    ranks: int,
    rank_main: Callable[[int, Path], None],
    deadline_seconds: float,
    failure: Callable[[int], bool],
) -> tuple[list[int], list[str]]:
    """Runs `rank_main(rank, folder)` in processes; their exit statuses, and what they wrote.

    Args:
        ranks: number of processes.
        rank_main: its end ends the process; the folder is for all ranks of this run.
        deadline_seconds: a process that runs longer is killed.
        failure: whether a status means that the others need not be waited for.
    """
    folder = Path(tempfile.mkdtemp())  # a TemporaryDirectory would end with the first child
    children = []
    until = time.monotonic() + deadline_seconds
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            _be(rank, folder, rank_main)
        children.append(child)
    statuses = _await(children, until, failure)
    said = [_tail(folder / f"rank{rank}.log") for rank in range(ranks)]
    shutil.rmtree(folder, ignore_errors=True)
    return statuses, said


def _be(rank: int, folder: Path, rank_main: Callable[[int, Path], None]) -> None:
    log = os.open(folder / f"rank{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    status = 1
    try:
        rank_main(rank, folder)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    # As a process of multiprocessing ends: the interpreter's whole end costs a second of each.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _await(children: list[int], until: float, failure: Callable[[int], bool]) -> list[int]:
    statuses: dict[int, int] = {}
    while len(statuses) < len(children):
        for child in set(children) - set(statuses):
            done, status = os.waitpid(child, os.WNOHANG)
            if not done:
                continue
            statuses[child] = os.waitstatus_to_exitcode(status)
            if failure(statuses[child]):
                until = min(until, time.monotonic() + GRACE_SECONDS)
        if time.monotonic() > until:
            for child in set(children) - set(statuses):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                statuses[child] = -signal.SIGKILL
        time.sleep(0.005)
    return [statuses[child] for child in children]


def _tail(log: Path) -> str:
    if not log.exists():
        return ""
    return "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
