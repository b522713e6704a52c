"""PyTorch's own tests of torch.distributed (they are in its wheel), over a backend: BACKEND RANKS.

Reads names of tests, one a line, and answers each with a line of JSON: its outcome, the seconds it
took, and what its ranks wrote. Without input it ends. PyTorch is imported once; a test's ranks are
forked from here, where no thread has been started.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
import unittest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "python"))

import forked_ranks

DEADLINE_SECONDS = 120
BARRIER_NAP_SECONDS = 0.01  # the tests' own barrier, by files, naps ten times as long

# These go through a list of backends by name, and know no other.
NAMES_GLOO = "test_accumulate_gradients_no_sync"

FAILURE = 10  # the exit status of a rank whose test fails
PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"


def load(backend: str, ranks: int) -> Any:
    """The class of the tests. The same tests are skipped as for Gloo."""
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

    bases: tuple[Any, ...] = (
        distributed_test.TestDistBackend,
        distributed_test.DistributedTest._DistTestBase,
    )

    class Tests(*bases):  # type: ignore[misc]
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


def run(tests: Any, name: str, ranks: int) -> dict[str, Any]:
    """Runs one test and returns its outcome."""
    begin = time.monotonic()
    statuses, said = forked_ranks.run(
        ranks,
        lambda rank, folder: _rank(tests, name, rank, folder),
        DEADLINE_SECONDS,
        lambda status: status == FAILURE,
    )
    outcome = _outcome(statuses)
    lines = [f"--- rank {rank}: {status}\n{said[rank]}" for rank, status in enumerate(statuses)]
    return {
        "name": name,
        "outcome": outcome,
        "seconds": round(time.monotonic() - begin, 2),
        "said": "\n".join(lines) if outcome == FAILED else "",
    }


def _rank(tests: Any, name: str, rank: int, folder: Path) -> None:
    import torch.multiprocessing

    for each in ("barrier", "test_dir", "init_dir"):
        (folder / each).mkdir(exist_ok=True)
    os.environ["TEMP_DIR"] = str(folder)
    distributed_test = sys.modules[tests.__bases__[0].__module__]
    vars(distributed_test)["INIT_METHOD"] = f"file://{folder}/init_dir/shared_init_file"
    _, pipe = torch.multiprocessing.Pipe()
    tests._run(rank, name, str(folder / "store"), pipe)


def _outcome(statuses: list[int]) -> str:
    from torch.testing._internal.common_distributed import TEST_SKIPS

    if FAILURE in statuses:
        return FAILED
    if statuses[0] in {skip.exit_code for skip in TEST_SKIPS.values()}:
        return SKIPPED
    return PASSED if all(status == 0 for status in statuses) else FAILED


class Server:
    """This program, as a process that has imported PyTorch."""

    def __init__(self, backend: str, ranks: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, backend, str(ranks)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, name: str) -> dict[str, Any]:
        """The answer for one test."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


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
