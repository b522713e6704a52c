"""PyTorch's own tests of torch.distributed (they are in its wheel), over a backend: BACKEND RANKS.

Reads names of tests, one a line, and answers each with a line of JSON: its outcome, the seconds it
took, and what its ranks wrote. Without input it ends. PyTorch is imported once; a test's ranks are
forked from here, where no thread has been started.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import unittest
from pathlib import Path
from typing import Any

DEADLINE_SECONDS = 120
BARRIER_NAP_SECONDS = 0.01  # the tests' own barrier, by files, naps ten times as long

# These go through a list of backends by name, and know no other.
NAMES_GLOO = "test_accumulate_gradients_no_sync"

PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"


def load(backend: str, ranks: int) -> Any:
    """The class of the tests. Which of them are skipped is what it is for Gloo."""
    # Read while the module is loaded, by what skips tests.
    os.environ |= {
        "BACKEND": "gloo",
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "INIT_METHOD": "file://",
    }
    import torch
    from torch.testing._internal.distributed import distributed_test

    torch.set_num_threads(1)
    if backend == "ropewalk":
        importlib.import_module("ropewalk.torch_backend")
    distributed_test.BACKEND = backend
    distributed_test.time = _Time()

    class Tests(  # type: ignore[misc]
        distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase
    ):
        def run_test(self, name: str, pipe: Any) -> None:
            if name.startswith(NAMES_GLOO):  # the group is made
                distributed_test.BACKEND = "gloo"
            super().run_test(name, pipe)

    return Tests


class _Time:
    """The module `time`, with short naps in the barrier of the tests."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    @staticmethod
    def sleep(seconds: float) -> None:
        in_barrier = sys._getframe(1).f_code.co_name == "sync"
        time.sleep(BARRIER_NAP_SECONDS if in_barrier else seconds)


def names(tests: Any) -> list[str]:
    return list(unittest.TestLoader().getTestCaseNames(tests))


def _rank(tests: Any, name: str, rank: int, folder: Path) -> None:
    """One rank, in a process of its own. Ends it."""
    import torch.multiprocessing

    with (folder / f"rank{rank}").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ["TEMP_DIR"] = str(folder)
    distributed_test = sys.modules[tests.__bases__[0].__module__]
    vars(distributed_test)["INIT_METHOD"] = f"file://{folder}/init_dir/shared_init_file"
    _, pipe = torch.multiprocessing.Pipe()
    status = 1
    try:
        tests._run(rank, name, str(folder / "store"), pipe)
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


def run(tests: Any, name: str, ranks: int) -> dict[str, Any]:
    """Runs one test and tells how it went."""
    folder = Path(tempfile.mkdtemp())  # a TemporaryDirectory would end with the first child
    for each in ("barrier", "test_dir", "init_dir"):
        (folder / each).mkdir()
    begin = time.monotonic()
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            _rank(tests, name, rank, folder)
        children.append(child)
    statuses = _await(children, begin + DEADLINE_SECONDS)
    outcome = _outcome(name, statuses)
    said = "".join(
        f"--- rank {rank}: status {status}\n" + _tail(folder / f"rank{rank}")
        for rank, status in enumerate(statuses)
        if outcome == FAILED
    )
    shutil.rmtree(folder, ignore_errors=True)
    seconds = round(time.monotonic() - begin, 2)
    return {"name": name, "outcome": outcome, "seconds": seconds, "said": said}


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-60:]) + "\n"


def _await(children: list[int], until: float) -> list[int]:
    """Exit statuses, -9 for what did not end by itself, as all are when one has failed for 5 s."""
    statuses: dict[int, int] = {}
    nap = 0.005
    while len(statuses) < len(children):
        for child in children:
            if child in statuses:
                continue
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                statuses[child] = os.waitstatus_to_exitcode(status)
                if statuses[child] == 10:  # a failure, by PyTorch's word
                    until = min(until, time.monotonic() + 5)
        if time.monotonic() > until:
            for child in set(children) - set(statuses):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                statuses[child] = -signal.SIGKILL
        time.sleep(nap)
    return [statuses[child] for child in children]


def _outcome(name: str, statuses: list[int]) -> str:
    from torch.testing._internal.common_distributed import TEST_SKIPS

    if any(status == 10 for status in statuses):
        return FAILED
    if statuses[0] in {skip.exit_code for skip in TEST_SKIPS.values()}:
        return SKIPPED
    return PASSED if all(status == 0 for status in statuses) else FAILED


def main() -> None:
    backend, ranks = sys.argv[1], int(sys.argv[2])
    tests = load(backend, ranks)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what tests print is no answer
    if sys.argv[3:] == ["--list"]:
        answers.write("\n".join(names(tests)) + "\n")
        return
    for line in iter(sys.stdin.readline, ""):
        answer = run(tests, line.strip(), ranks)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
