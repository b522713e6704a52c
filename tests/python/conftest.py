"""Ranks as threads of one process, and the program as a child process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any, Callable, TypeVar

import pytest
import ropewalk
from ropewalk.communicator import Communicator

Result = TypeVar("Result")

# The files that take longest. One process takes all tests of a file, so one of these that began
# last would run beside idle processors; pytest-xdist's own order, by a file's number of tests, says
# little about that.
LONGEST = (
    "check_plugin_test.py",
    "shown_commands_test.py",
    "cli_test.py",
    "bench_threads_test.py",
    "pytorch_4_ranks_test.py",
    "pytorch_3_ranks_test.py",
    "pytorch_2_ranks_test.py",
    "training_test.py",
    "libmp_test.py",
    "background_plans_test.py",
    "machine_plans_test.py",
    "doctor_test.py",
    "launch_test.py",
    "torch_backend_test.py",
    "named_ranks_test.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, in this order; the others keep theirs (dev/run-tests)."""
    place = {name: index for index, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


# A test that hangs ends here, on a machine loaded by anything else.
DEADLINE_SECONDS = 120


def where_they_stand(threads: list[threading.Thread]) -> str:
    """The stacks of those that have not ended, by rank."""
    frames = sys._current_frames()
    return "".join(
        f"rank {rank}:\n" + "".join(traceback.format_stack(frames[thread.ident]))
        for rank, thread in enumerate(threads)
        if thread.ident in frames
    )


def run_ranks(comms: list[Communicator], body: Callable[[Communicator], Result]) -> list[Result]:
    """Runs `body` for every communicator in a thread of its own; results in rank order.

    When a rank raises, the others are aborted so that none waits, and the first error is raised.
    """
    results: dict[int, Result] = {}
    errors: list[BaseException] = []

    def work(comm: Communicator) -> None:
        try:
            results[comm.rank] = body(comm)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(comm,), daemon=True) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
        if thread.is_alive():
            pytest.fail(f"a rank hangs; so far: {errors}\n{where_they_stand(threads)}")
    if errors:
        raise errors[0]
    return [results[comm.rank] for comm in comms]


class Worlds:
    """Communicators by number of ranks, made once and used by all tests of a module."""

    def __init__(self) -> None:
        self._made: dict[int, list[Communicator]] = {}

    def __call__(self, size: int) -> list[Communicator]:
        if size not in self._made:
            self._made[size] = ropewalk.init_all(size)
        return self._made[size]

    def forget(self, size: int) -> None:
        """For tests that break their communicators."""
        self._made.pop(size, None)

    def close(self) -> None:
        for comms in self._made.values():
            run_ranks([comm for comm in comms if not comm.closed], Communicator.finalize)


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    made = Worlds()
    yield made
    made.close()


Program = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def program() -> Program:
    """Runs `ropewalk ARGUMENTS` with its output in pipes."""

    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        # Host memory, also where there are GPUs: tests/gpu is for those.
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **options.pop("env", {})}
        return subprocess.run(
            [sys.executable, "-m", "ropewalk", *arguments],
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            env=environment,
            **options,
        )

    return run
